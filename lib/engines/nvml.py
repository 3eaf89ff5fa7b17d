"""What NVIDIA's management library says of this computer's GPUs: what they are, and how they are at a moment.

Through the maintained binding (`nvidia-ml-py`). Refused: nothing. Without a driver, a GPU or the binding, `opened` says
why; a value that a GPU does not tell is absent, never 0. Rule: only reads; no setting of a GPU is ever changed.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

try:
    import pynvml
except ImportError:  # an environment from before the binding was locked
    pynvml = None

KIB = 1024
ALL_LINKS = 0xFFFFFFFF  # scope of a field value: the sum over a GPU's links
MOST_LINKS = 18  # NVLink ports of an H100
CHOICE = "CUDA_VISIBLE_DEVICES"  # the GPUs that this process, and every engine it starts, may use
ORDER = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # for what we start: CUDA then numbers GPUs as this library does

# Reasons why clocks are below their maximum, as bits (nvml.h). An idle GPU is no trouble.
REASONS = {
    0x02: "application clocks are set",
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal limit (software)",
    0x40: "thermal limit (hardware)",
    0x80: "power brake",
}


class Gpus:
    """The GPUs of an opened library that this process may use, in the order in which it may."""

    def __init__(self) -> None:
        every = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        self.handles = _visible(every, os.environ.get(CHOICE))

    def first(self, count: int) -> "Gpus":
        """Keep only the first `count`: those of an engine that takes so many."""
        self.handles = self.handles[:count]
        return self

    def driver(self) -> dict[str, Any]:
        """Driver version, and the newest CUDA it runs as (major, minor)."""
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {"driver": pynvml.nvmlSystemGetDriverVersion(), "cuda": (cuda // 1000, cuda % 1000 // 10)}

    def about(self) -> list[dict[str, Any]]:
        """What each GPU is: name, memory, limits of clocks and power, ECC, links, processes; None for what it hides."""
        return [self._about(handle) for handle in self.handles]

    def _about(self, handle: Any) -> dict[str, Any]:
        links = [_said(pynvml.nvmlDeviceGetNvLinkState, handle, link) for link in range(MOST_LINKS)]
        memory = _said(pynvml.nvmlDeviceGetMemoryInfo, handle)
        ecc = _said(pynvml.nvmlDeviceGetEccMode, handle)
        wrong = _said(pynvml.nvmlDeviceGetTotalEccErrors, handle, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
                      pynvml.NVML_VOLATILE_ECC)  # fmt: skip
        mig = _said(pynvml.nvmlDeviceGetMigMode, handle)
        capability = _said(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        processes = _said(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
        return {
            "name": _said(pynvml.nvmlDeviceGetName, handle),
            "compute": "{}.{}".format(*capability) if capability else None,
            "memory_bytes": memory.total if memory else None,
            "memory_used_bytes": memory.used if memory else None,
            "power_limit_w": _scaled(_said(pynvml.nvmlDeviceGetPowerManagementLimit, handle), 1e-3),
            "power_default_w": _scaled(_said(pynvml.nvmlDeviceGetPowerManagementDefaultLimit, handle), 1e-3),
            "clock_mhz": _said(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "clock_max_mhz": _said(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
            "reasons": reasons(_said(_clock_reasons, handle)),
            "temperature_c": _said(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
            "ecc": bool(ecc[0]) if ecc else None,
            "ecc_uncorrected": wrong,
            "mig": bool(mig[0]) if mig else None,
            "links": sum(bool(link) for link in links if link is not None) if any(
                link is not None for link in links) else None,
            "processes": [p.pid for p in processes] if processes is not None else None,
        }  # fmt: skip

    def unlinked(self) -> list[tuple[int, int]]:
        """Pairs of GPUs that do not reach each other over NVLink."""
        count = range(len(self.handles))
        ask, over, good = pynvml.nvmlDeviceGetP2PStatus, pynvml.NVML_P2P_CAPS_INDEX_NVLINK, pynvml.NVML_P2P_STATUS_OK
        return [(a, b) for a in count for b in count[a + 1 :]
                if _said(ask, self.handles[a], self.handles[b], over) != good]  # fmt: skip

    def sample(self) -> dict[str, float]:
        """How each GPU is now, under names that start with its number: gpu0_power_w, gpu0_sm_clock_mhz, ...

        Energy and link counters only grow; their difference over a time is what counts.
        """
        values: dict[str, float] = {}
        for number, handle in enumerate(self.handles):
            memory = _said(pynvml.nvmlDeviceGetMemoryInfo, handle)
            use = _said(pynvml.nvmlDeviceGetUtilizationRates, handle)
            sent, received = _link_bytes(handle)
            told = {
                "power_w": _scaled(_said(pynvml.nvmlDeviceGetPowerUsage, handle), 1e-3),
                "energy_j": _scaled(_said(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
                "sm_clock_mhz": _said(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
                "memory_clock_mhz": _said(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
                "clock_reasons": _said(_clock_reasons, handle),
                "temperature_c": _said(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
                "memory_used_bytes": memory.used if memory else None,
                "utilization": _scaled(use.gpu if use else None, 1e-2),
                "nvlink_sent_bytes": sent,
                "nvlink_received_bytes": received,
            }
            values |= {f"gpu{number}_{name}": float(value) for name, value in told.items() if value is not None}
        return values


@contextmanager
def opened() -> Iterator[Gpus | str]:
    """Open the library; gives its GPUs, or a sentence that says why there are none."""
    if pynvml is None:
        yield "the binding nvidia-ml-py is not installed in this environment"
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield f"no NVIDIA driver answers on this computer ({error})"
        return
    try:
        found = Gpus()
        yield found if found.handles else f"the NVIDIA driver, or {CHOICE}, shows no GPU"
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def reasons(bits: int | None) -> list[str]:
    """Name why clocks are below their maximum.

    >>> reasons(0x41), reasons(None)
    (['thermal limit (hardware)'], [])
    """
    return [text for bit, text in REASONS.items() if (bits or 0) & bit]


def _visible(handles: list[Any], choice: str | None) -> list[Any]:
    """Handles that the variable leaves, as CUDA reads it: numbers or beginnings of UUIDs, none after the first bad one.

    Numbers count in the order of the bus, which is this library's and, by `CUDA_DEVICE_ORDER`, that of our engines.
    """
    if choice is None:
        return handles
    chosen: list[Any] = []
    for word in choice.split(","):
        name = word.strip()
        if name.isdigit():
            fits = handles[int(name) : int(name) + 1]
        else:
            fits = [h for h in handles if name and str(_said(pynvml.nvmlDeviceGetUUID, h)).startswith(name)]
        if len(fits) != 1 or fits[0] in chosen:
            break
        chosen += fits
    return chosen


def _clock_reasons(handle: Any) -> int:
    return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _link_bytes(handle: Any) -> tuple[float | None, float | None]:
    """Bytes sent and received over all of a GPU's links since the driver was loaded."""
    fields = (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
    values = _said(pynvml.nvmlDeviceGetFieldValues, handle, [(field, ALL_LINKS) for field in fields])
    if values is None:
        return None, None
    sent, received = ((v.value.ullVal * KIB) if v.nvmlReturn == pynvml.NVML_SUCCESS else None for v in values)
    return sent, received


def _said(ask: Callable[..., Any], *arguments: Any) -> Any:
    """Answer of one question; None where this GPU or this driver has none."""
    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
