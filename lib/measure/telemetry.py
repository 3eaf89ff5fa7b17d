"""What is sampled beside a level, once a second: the engine's own metrics, CPU and memory of engine, client and host,
and what the GPUs say of themselves where there are any.

Runs in a thread of the measuring process, never in the client. A source that fails is left out of that sample; a
metric that an engine does not have is absent, never 0.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from lib.engines.nvml import Gpus

EVERY_S = 1.0
LEAST_S = 0.5  # between two looks at the CPU: over less, the kernel's ticks of 10 ms say too little

Sample = tuple[int, str, float]     # t_ns (monotonic), common name, value


class Sampler:
    """Samples from `start` to `stop`.

    Parameters
    ----------
    gauges : returns the engine's metrics under their common names; may raise OSError or ValueError.
    engine_pid : process whose whole family is the engine.
    gpus : those of an opened NVML; None where there are none.
    """

    def __init__(self, gauges: Callable[[], dict[str, float]], engine_pid: int, gpus: Gpus | None = None):
        self._gauges = gauges
        self._gpus = gpus
        self._engine = psutil.Process(engine_pid)
        self._clients: list[psutil.Process] = []
        self._family: dict[int, psutil.Process] = {}
        self._stop = threading.Event()
        self._samples: list[Sample] = []
        self._me = psutil.Process()
        self._me.cpu_percent()
        self._engine_use()                  # psutil's first answer is always 0
        self._looked = 0.0
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    def start(self) -> None:
        """Begin sampling."""
        self._thread.start()

    def watch_client(self, pid: int) -> None:
        """Name a process of the load client, from now on sampled too."""
        with suppress(psutil.Error):
            client = psutil.Process(pid)
            client.cpu_percent()            # psutil's first answer is always 0
            self._clients.append(client)

    def stop(self) -> list[Sample]:
        """End sampling and return what was seen."""
        self._stop.set()
        self._thread.join()
        return self._samples

    def _run(self) -> None:
        psutil.cpu_percent()
        self._looked = due = time.monotonic()
        while not self._stop.wait(max(0.0, due - time.monotonic())):
            due += EVERY_S
            self._take()

    def _take(self) -> None:
        with suppress(OSError, ValueError):     # no answer, or one that holds no numbers: this second has none
            for name, value in self._gauges().items():
                self._add(name, value)
        cpu, rss = self._engine_use()
        if rss:                             # nothing is left of an engine that died
            self._add("engine_cpu_percent", cpu)
            self._add("engine_rss_bytes", rss)
        ours = cpu + self._me.cpu_percent()
        if self._clients:
            with suppress(psutil.Error):
                used = sum(client.cpu_percent() for client in self._clients)
                ours += used
                self._add("client_cpu_percent", used)
                self._add("client_rss_bytes", sum(client.memory_info().rss for client in self._clients))
        busy, now = psutil.cpu_percent(), time.monotonic()
        self._add("host_cpu_percent", busy)
        if now - self._looked > LEAST_S:    # of one core: what neither engine nor client nor this process used
            self._add("other_cpu_percent", max(0.0, busy * (psutil.cpu_count() or 1) - ours))
        self._looked = now
        for name, value in self._gpus.sample().items() if self._gpus else ():
            self._add(name, value)

    def _add(self, name: str, value: float) -> None:
        self._samples.append((time.monotonic_ns(), name, float(value)))

    def _engine_use(self) -> tuple[float, float]:
        """CPU percent of one core and resident bytes, summed over the engine's processes."""
        cpu = rss = 0.0
        with suppress(psutil.Error):
            for process in [self._engine, *self._engine.children(recursive=True)]:
                known = self._family.setdefault(process.pid, process)   # cpu_percent needs the same object each time
                with suppress(psutil.Error):
                    cpu += known.cpu_percent()
                    rss += known.memory_info().rss
        return cpu, rss
