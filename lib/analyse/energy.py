"""What the GPUs were doing during a taking: energy per token, clocks and how steady they were, what held them down.

From telemetry named gpu<N>_<what>. Rules: only samples within the steady window count; a counter counts by its growth;
without GPUs, or with fewer than two samples, every value is NaN.
"""

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

NS = 1_000_000_000
Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # t_ns, value; both (samples,)

COLUMNS = (
    "gpu_energy_j_per_token",  # all GPUs of the node, over the tokens put out in the window
    "gpu_power_w",  # all GPUs together, mean
    "gpu_clock_mhz",  # SM clock, mean over GPUs and samples
    "gpu_clock_spread_share",  # largest minus smallest SM clock, over the largest
    "gpu_throttled_share",  # of GPU samples: too hot, or slowed down by the board
    "gpu_power_capped_share",  # of GPU samples: held by the power limit
    "gpu_utilization",  # mean
    "nvlink_sent_bytes_s",  # all GPUs together
)
THROTTLED = 0x08 | 0x20 | 0x40 | 0x80  # hardware slowdown, thermal limits, power brake (nvml.h)
POWER_CAPPED = 0x04
OF_GPU = re.compile(r"gpu(\d+)_(\w+)")


def summary(telemetry: Mapping[str, Series], window: tuple[float, float], tokens: float) -> dict[str, float]:
    """Columns of one taking.

    Parameters
    ----------
    telemetry : name -> (t_ns, value).
    window : the steady window, ns; NaN where there is none.
    tokens : tokens put out in the window.
    """
    seconds = (window[1] - window[0]) / NS
    energy, sent = (_rates(telemetry, window, what) for what in ("energy_j", "nvlink_sent_bytes"))
    power, clock, use = (_values(telemetry, window, what) for what in ("power_w", "sm_clock_mhz", "utilization"))
    bits = np.concatenate([np.zeros(0), *_values(telemetry, window, "clock_reasons").values()]).astype(np.int64)
    clocks = np.concatenate([np.zeros(0), *clock.values()])
    used = np.concatenate([np.zeros(0), *use.values()])
    found = dict.fromkeys(COLUMNS, float("nan"))
    if energy and tokens > 0:
        found["gpu_energy_j_per_token"] = sum(energy.values()) * seconds / tokens
    if sent:
        found["nvlink_sent_bytes_s"] = sum(sent.values())
    if power:
        found["gpu_power_w"] = float(sum(values.mean() for values in power.values()))
    if len(clocks):
        found["gpu_clock_mhz"] = float(clocks.mean())
        found["gpu_clock_spread_share"] = float((clocks.max() - clocks.min()) / clocks.max()) if clocks.max() else 0.0
    if len(bits):
        found["gpu_throttled_share"] = float(((bits & THROTTLED) != 0).mean())
        found["gpu_power_capped_share"] = float(((bits & POWER_CAPPED) != 0).mean())
    if len(used):
        found["gpu_utilization"] = float(used.mean())
    return found


def throttled(telemetry: Mapping[str, Series], window: tuple[float, float]) -> dict[int, float]:
    """Share of each GPU's samples in which it was too hot or slowed down; those of which none was are left out."""
    shares = {number: float(((values.astype(np.int64) & THROTTLED) != 0).mean())
              for number, values in _values(telemetry, window, "clock_reasons").items()}  # fmt: skip
    return {number: share for number, share in shares.items() if share > 0}


def _values(telemetry: Mapping[str, Series], window: tuple[float, float], what: str) -> dict[int, NDArray[np.float64]]:
    """Values within the window by GPU number; a GPU without any is left out."""
    found = {}
    for number, (t, values) in _gpus(telemetry, what).items():
        inside = values[(t >= window[0]) & (t <= window[1])]
        if len(inside):
            found[number] = inside
    return found


def _rates(telemetry: Mapping[str, Series], window: tuple[float, float], what: str) -> dict[int, float]:
    """Growth of a counter per second within the window, by GPU number."""
    found = {}
    for number, (t, values) in _gpus(telemetry, what).items():
        inside = np.flatnonzero((t >= window[0]) & (t <= window[1]))
        if len(inside) > 1:
            first, last = inside[0], inside[-1]
            found[number] = float((values[last] - values[first]) / (t[last] - t[first]) * NS)
    return found


def _gpus(telemetry: Mapping[str, Series], what: str) -> dict[int, Series]:
    names = {name: OF_GPU.fullmatch(name) for name in telemetry}
    return {int(found[1]): telemetry[name] for name, found in names.items() if found and found[2] == what}
