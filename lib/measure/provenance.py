"""Where and with what a record was taken. Never raises: what cannot be learnt is None, and secrets are never asked for.

Two moments: `machine()`, `versions()` and `git()` hold for the whole launch; `load()` varies and is taken per run.
"""

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from typing import Any

import psutil

from lib import paths

# CPU features that decide which kernels an engine can use.
FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_bf16", "amx_int8", "f16c", "fma")
PACKAGES = ("pyarrow", "numpy", "scipy", "tokenizers", "msgspec", "httptools", "psutil", "pydantic")


def machine() -> dict[str, Any]:
    """CPU, memory, kernel and GPUs of this computer; no host name, no user name."""
    info = _cpuinfo()
    flags = set((info.get("flags") or info.get("Features") or "").split())
    return {
        "cpu": info.get("model name") or platform.processor() or platform.machine(),
        "family": "/".join(info.get(k, "?") for k in ("cpu family", "model", "stepping")),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in FLAGS if flag in flags],
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "os": _os_name(),
        "virtual": "hypervisor" in flags,
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "gpus": gpus(),
    }


def gpus() -> list[dict[str, str]]:
    """NVIDIA GPUs as the driver lists them: name, memory, driver version, power limit; empty without a driver."""
    fields = ("name", "memory.total", "driver_version", "power.limit")
    try:
        asked = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    lines = done.stdout.strip().splitlines() if done.returncode == 0 else []
    return [dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False)) for line in lines]


def versions() -> dict[str, Any]:
    """Python and the packages that the instrument is made of."""
    return {"python": sys.version.split()[0], "packages": {name: _version(name) for name in PACKAGES}}


def git() -> dict[str, Any]:
    """The commit measured with, and whether the tree had changes. Both None outside a checkout."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    return {"commit": commit or None, "dirty": None if status is None else bool(status)}


def load() -> dict[str, Any]:
    """How busy the machine was just before a run: load average and share of CPU used over 0.2 s."""
    return {
        "load_average": [round(x, 2) for x in os.getloadavg()],
        "cpu_percent": psutil.cpu_percent(interval=0.2),
        "memory_available_bytes": psutil.virtual_memory().available,
    }


def clock() -> dict[str, Any]:
    """The clock of all durations."""
    info = time.get_clock_info("monotonic")
    return {"name": "monotonic", "implementation": info.implementation, "resolution_ns": round(info.resolution * 1e9)}


def utc() -> str:
    """Now, for people: UTC to the second. Durations never use it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=paths.ROOT, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpuinfo() -> dict[str, str]:
    try:
        with open("/proc/cpuinfo") as file:
            first = file.read().split("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _os_name() -> str | None:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME")
    except OSError:
        return None


def _first_line(path: str) -> str | None:
    try:
        with open(path) as file:
            return file.readline().strip()
    except OSError:
        return None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
