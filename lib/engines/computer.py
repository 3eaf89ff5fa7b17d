"""What this computer has: CPU flags and free memory, read from /proc. Refuses nothing; engines draw the conclusions."""

import re
from collections.abc import Sequence
from pathlib import Path


def flags() -> set[str]:
    """CPU features as the kernel names them."""
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return set(found[1].split()) if found else set()


def model() -> str:
    """Return the CPU's name."""
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else "unknown CPU"


def lacks(needed: Sequence[str]) -> str | None:
    """Which needed CPU features are missing, as half a sentence; None if all are there."""
    missing = [flag for flag in needed if flag not in flags()]
    return f"its CPU ({model()}) lacks {', '.join(missing)}" if missing else None


def free_memory_bytes() -> int:
    """Memory that programs can still get without swapping."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0
