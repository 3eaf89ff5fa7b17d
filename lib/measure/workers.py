"""Run a level over one or more client processes with one common start, and end them on every path.

Rule: each worker is a process group of its own, connected before any starts; they share the monotonic clock, so a
common start is one number. A worker that fails before the start ends the level by its own words; one that dies later
leaves its journal, and the level says so. Refused: a level whose workers are not connected in time.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from lib.errors import MeasureError
from lib.measure.clientplan import Plan
from lib.measure.journal import Progress, progress
from lib.paths import ROOT

# Events/s that one worker takes with room to spare: less than half of what a core held (LOG.md); `make calibrate` finds
# what one of this computer's holds.
EVENTS_PER_CORE = 40_000
READY_S = 30.0
LOOK_S = 0.25
LEAD_NS = 20_000_000  # between the last worker being ready and the start


def workers_needed(events_per_s: float, cores: int) -> int:
    """How many client processes a level of this many events/s wants, at most one per core given to the client."""
    return max(1, min(cores, -int(-events_per_s // EVENTS_PER_CORE)))


def plan_path(plan: Plan) -> Path:
    """Where a plan lies while it runs: beside its journal, so that what an interrupted level finished can be read."""
    journal = Path(plan.journal)
    return journal.with_name(f"{journal.name}.plan.json")


def run_workers(
    plans: Sequence[Plan],
    *,
    started: Callable[[int], None] | None = None,
    watch: Callable[[Progress], None] | None = None,
    environment: dict[str, str] | None = None,
    alive: Callable[[], bool] | None = None,
) -> int:
    """Run the plans, one process each, until all have ended; returns the common start (monotonic ns).

    Parameters
    ----------
    started : told each worker's process id.
    watch : called about four times a second with the level's progress; what it raises ends the level.
    environment : added to the workers' environment (the key's variable).
    alive : asked as often; once it says False (the server is dead) the workers are stopped, journals kept.

    Raises
    ------
    MeasureError : a worker refused before the start; its paragraph is passed on.
    """
    for plan in plans:
        plan.write(plan_path(plan))
    workers: list[subprocess.Popen[str]] = []
    try:
        for plan in plans:
            workers.append(_start(plan_path(plan), environment))
            if started is not None:
                started(workers[-1].pid)
        for worker in workers:
            _await_ready(worker)
        start_ns = time.monotonic_ns() + LEAD_NS
        for worker in workers:
            _tell(worker, f"{start_ns}\n")
        _until_done(workers, plans, watch, alive)
        return start_ns
    finally:
        _end(workers)


def _start(file: Path, environment: dict[str, str] | None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "lib.measure.client", str(file), "--wait"],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _await_ready(worker: subprocess.Popen[str]) -> None:
    assert worker.stdout is not None
    # A worker that hangs would hold readline for ever: it is ended from a timer instead.
    timer = threading.Timer(READY_S, worker.kill)
    timer.start()
    try:
        line = worker.stdout.readline()
    finally:
        timer.cancel()
    if line.strip() != "ready":
        worker.wait()
        words = ""
        if worker.stderr is not None:
            words = worker.stderr.read().strip()
            worker.stderr.close()
        words = words.removeprefix("first-token-sla: ")
        raise MeasureError(words or f"A client was not connected in {READY_S:.0f} s: look at the server's log.")


def _tell(worker: subprocess.Popen[str], line: str) -> None:
    assert worker.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        worker.stdin.write(line)
        worker.stdin.flush()


def _until_done(
    workers: Sequence[subprocess.Popen[str]],
    plans: Sequence[Plan],
    watch: Callable[[Progress], None] | None,
    alive: Callable[[], bool] | None,
) -> None:
    while running := [worker for worker in workers if worker.poll() is None]:
        with contextlib.suppress(subprocess.TimeoutExpired):
            running[0].wait(LOOK_S)
        if watch is not None:
            parts = [progress(Path(plan.journal)) for plan in plans]
            watch(Progress(sum(part.issued for part in parts), sum(part.finished for part in parts)))
        if alive is not None and not alive():
            for worker in workers:
                if worker.poll() is None:
                    worker.send_signal(signal.SIGTERM)
            alive = None


def _end(workers: Sequence[subprocess.Popen[str]]) -> None:
    """End every worker that still runs: politely, then not. Pass on what they said."""
    for worker in workers:
        if worker.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.close()  # one that waits for its start ends by this
    for number in (signal.SIGTERM, signal.SIGKILL):
        for worker in workers:
            if worker.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(worker.pid, number)
        for worker in workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=3)
    for worker in workers:
        if worker.stdout is not None and worker.stderr is not None:
            if not worker.stderr.closed:
                sys.stderr.write(worker.stderr.read())
            worker.stdout.close()
            worker.stderr.close()
