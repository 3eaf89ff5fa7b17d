"""The load client: sends a plan's requests and journals every byte with its stamp. `python -m lib.measure.client PLAN`.

Rule: everything is prepared before the clock (messages built, connections open, garbage collector stopped), everything
is parsed after it. Proxy variables of the environment are ignored, and said so. SIGTERM and SIGINT end the level
cleanly, with what was finished.

Refused before the clock: a server that cannot be reached, a key variable that is not set, a plan that is none.
"""

import gc
import json
import os
import resource
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from lib.errors import MeasureError, tell
from lib.measure import journal as jn
from lib.measure.clientplan import CLOSED, Plan, Request, split
from lib.measure.connection import CLOSED as DOWN
from lib.measure.connection import CONNECTING, IDLE, allow_files
from lib.measure.level import Level

__all__ = ["Plan", "Request", "run", "split"]

CONNECT_NS = 10_000_000_000
PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


def connect(level: Level) -> None:
    """Open all planned connections before the clock.

    A server that takes some and is slow with the rest (a short listen backlog) is waited for; what is still not open
    then is opened by its first request, which records the time it took. Raises MeasureError when the server cannot be
    reached or this account may not open so many files.
    """
    plan = level.plan
    slots = min(plan.concurrency, len(plan.requests)) if plan.load == CLOSED else 1
    wanted = max(plan.connections, slots)
    allow_files(wanted + 64)
    deadline = time.monotonic_ns() + CONNECT_NS
    for _ in range(wanted):
        level.new_connection()
        level.poll(0)  # at once, or the connect time would hold the opening of all the others
        # A few at a time: a burst of connects overflows a short listen backlog and costs a second each.
        while sum(c.state == CONNECTING for c in level.connections[-16:]) > 8 and time.monotonic_ns() < deadline:
            level.poll(10_000_000)
    while any(c.state != IDLE for c in level.connections):
        states = {c.state for c in level.connections}
        late = time.monotonic_ns() > deadline
        if IDLE in states and late:
            return
        if late or states == {DOWN}:
            host, port = level.address
            raise MeasureError(
                f"No connection to {host}:{port}: it was refused, not answered in 10 s, or failed its "
                "TLS handshake. Start the server, or correct host, port and TLS."
            )
        level.poll(10_000_000)
        for connection in level.connections:
            if connection.state == DOWN and IDLE in states:  # the server is there
                connection.open()


def run(plan: Plan, wait: bool = False) -> None:
    """Run a plan to its end in this process, leaving its journal. With `wait`, says `ready` on stdout once connected
    and takes the common start (monotonic ns) from one line of stdin.

    Raises MeasureError before the clock starts; afterwards the journal's last entry says how the level ended.
    """
    for name in PROXIES:
        if os.environ.get(name):
            print(f"{name} is set and ignored: the client speaks to {plan.host}:{plan.port} itself.", file=sys.stderr)
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    writer = jn.Writer(Path(plan.journal), plan.size(), {"requests": len(plan.requests), "pid": os.getpid()})
    level = Level(plan, writer)

    def halt(_signal: int, _frame: FrameType | None) -> None:
        level.stop("stopped by signal")

    before = {number: signal.signal(number, halt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        connect(level)
        gc.collect()
        gc.freeze()
        gc.disable()
        start = time.monotonic_ns() + 5_000_000
        if wait:
            print("ready", flush=True)
            line = sys.stdin.readline()
            if not line.strip():
                return
            start = int(line)
        spent = time.process_time()
        reason = level.run(start)
        ended = {"reason": reason, "cpu_s": time.process_time() - spent, "peak_mb": peak_mb()}
        writer.append(jn.DONE, jn.NO_REQUEST, time.monotonic_ns(), json.dumps(ended).encode())
    finally:
        gc.enable()
        gc.unfreeze()
        for number, handler in before.items():
            signal.signal(number, handler)
        level.epoll.close()
        writer.close()


def peak_mb() -> float:
    """Read this process's peak of resident memory in MB (2**20 bytes)."""
    status = Path("/proc/self/status")
    if status.exists():  # getrusage would count the parent's pages at the fork as well
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> int:
    """Command line: one plan file, and --wait for a common start."""
    args = [argument for argument in sys.argv[1:] if argument != "--wait"]
    if len(args) != 1:
        raise MeasureError("Usage: python -m lib.measure.client PLAN.json [--wait]")
    run(Plan.read(Path(args[0])), wait="--wait" in sys.argv)
    return 0


if __name__ == "__main__":
    tell(main)
