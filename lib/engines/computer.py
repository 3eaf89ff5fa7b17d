"""What this computer has: CPU flags, free memory, listening ports, read from /proc. Refuses nothing; engines draw the
conclusions.
"""

import re
import socket
from collections.abc import Sequence
from pathlib import Path

LISTENING = "0A"        # TCP_LISTEN in net/tcp_states.h


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


def listens_at(port: int) -> str | None:
    """Return the IPv4 address that a TCP port of this computer listens at; None if none does.

    An address of all interfaces, 0.0.0.0 or ::, is returned as 0.0.0.0.
    """
    for table, family in (("/proc/net/tcp", 4), ("/proc/net/tcp6", 6)):
        for line in Path(table).read_text().splitlines()[1:] if Path(table).exists() else ():
            local, state = line.split()[1], line.split()[3]
            address, _, number = local.partition(":")
            if state == LISTENING and int(number, 16) == port:
                everywhere = not int(address, 16)
                return "0.0.0.0" if everywhere or family == 6 else socket.inet_ntoa(bytes.fromhex(address)[::-1])
    return None
