"""What this computer allows: memory bandwidth and matrix rate, measured in a few seconds before a launch.

These are the two sides of the roofline that stands beside the launch's numbers. Each is the best of several
tries, since a bound must not be too low; both use every core that the launch may use. Caches can serve a model that
fits into them faster than memory does: a measurement above the bandwidth bound is a finding, not an error here.
"""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil

BYTES = 256 * 2**20         # per core: far above any last-level cache share
SIDE = 2048                 # matrix side: 2 * SIDE**3 = 17 GFLOP a product
TRIES = 5


def probe() -> dict[str, Any]:
    """Measure this computer.

    Returns
    -------
    bandwidth_bytes_s : bytes read from memory per second, all cores together.
    flop_s : floating-point operations per second of a float32 matrix product (numpy's BLAS), by type.
    seconds : what the probe took.
    """
    start = time.monotonic()
    cores = len(os.sched_getaffinity(0))
    each = min(BYTES, psutil.virtual_memory().available // (4 * cores))
    blocks = [np.ones(each // 4, dtype=np.float32) for _ in range(cores)]
    with ThreadPoolExecutor(cores) as pool:
        read_s = _best(lambda: list(pool.map(np.max, blocks)))
    a = np.random.default_rng(0).random((SIDE, SIDE), dtype=np.float32)
    product_s = _best(lambda: a @ a)
    return {
        "bandwidth_bytes_s": cores * each / read_s,
        "flop_s": {"float32": 2 * SIDE**3 / product_s},
        "cores": cores,
        "seconds": round(time.monotonic() - start, 2),
    }


def _best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of `TRIES` tries."""
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
