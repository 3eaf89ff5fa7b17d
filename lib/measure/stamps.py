"""Kernel receive stamps and readings of the two clocks, for the hot path: no numpy, no parsing.

Linux stamps every received segment when SO_TIMESTAMPNS is set; the stamp of the last segment of a read comes back
with recvmsg. It is wall-clock time, so (monotonic, realtime) pairs are taken throughout a level and `clock` maps the
stamps afterwards. Refused: nothing; a platform without kernel stamps says False and user-space stamps are used.
"""

import socket
import struct
import sys
import time

SO_TIMESTAMPNS = 35  # asm-generic/socket.h; the socket module names it only in newer Pythons
ANCILLARY = socket.CMSG_SPACE(16) if hasattr(socket, "CMSG_SPACE") else 0  # room for one timespec


def enable(sock: socket.socket) -> bool:
    """Ask the kernel to stamp what `sock` receives; False where it cannot (not Linux, or 32-bit time)."""
    if sys.platform != "linux" or struct.calcsize("P") != 8:
        return False
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
    except OSError:
        return False
    return True


def sample() -> tuple[int, int]:
    """Take one (monotonic ns, realtime ns) pair: the tightest of five readings."""
    best = (1 << 62, 0, 0)
    for _ in range(5):
        before = time.monotonic_ns()
        wall = time.time_ns()
        width = time.monotonic_ns() - before
        best = min(best, (width, before + width // 2, wall))
    return best[1], best[2]
