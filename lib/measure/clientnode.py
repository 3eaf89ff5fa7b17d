"""The load client on another node than the server's: an agent there, told what to do line by line, and its handle here.

    python -m lib.measure.clientnode        the agent: a step of the same job, on the node that is the client's

A launch with `client: other-node` has a job of two nodes (lib.measure.slurm). The agent starts the client's processes,
so that all stamps of a level are of one clock, that of its node; its offset from the clock here is found by asking for
the time, so that what is sampled here can be set beside them. Plans and journals lie in the folder that both nodes see.
In a rehearsal the agent runs on this computer. A canary tries the server alone: its client runs beside it.

Refused: such a launch without a job of two nodes. Rule: an agent ends with its standard input, and its clients with it.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from lib import depths, paths
from lib.config import Launch, Study
from lib.errors import MeasureError, tell
from lib.measure import jobs, network, provenance, workers
from lib.measure.clientplan import KEY_ENV, Plan

ELSEWHERE = "another node"  # instead of its name, which is nobody's business
AGENT = (sys.executable, "-m", "lib.measure.clientnode")
LOOK_S = 0.25
ANSWER_S = 60.0  # for all but a level: a step of a job may take a while to start
END_S = 10.0
ASKED = 30  # times that its clock is asked; the fastest answer is the best one


class ClientNode:
    """A running agent, and the address under which its node reaches servers of this one."""

    def __init__(self, process: "subprocess.Popen[str]", host: str) -> None:
        self.host = host
        self._process = process
        self._lines: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=self._hear, daemon=True).start()
        self.machine: dict[str, Any] = self.ask("who")

    def ask(self, do: str, watch: Callable[[], None] | None = None, **told: Any) -> Any:
        """Have something done there and return what came of it; `watch` is called while it lasts, and may raise.

        Raises
        ------
        MeasureError : it was refused there, the agent is gone, or (without `watch`) did not answer in a minute.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps({"do": do, **told}) + "\n")
            self._process.stdin.flush()
        limit = time.monotonic() + ANSWER_S
        while True:
            try:
                line = self._lines.get(timeout=LOOK_S)
                break
            except Empty:
                if watch:
                    watch()
                elif time.monotonic() > limit:
                    raise MeasureError(f"The client's node did not answer ({do}) within {ANSWER_S:.0f} s.") from None
        if line is None:
            raise MeasureError(f"The client's node is gone (asked for: {do}); the job's log has its last words.")
        answer = json.loads(line)
        if "refused" in answer:
            raise MeasureError(answer["refused"])
        return answer["is"]

    def clock(self) -> tuple[int, int]:
        """Return what to add to a time of this computer's monotonic clock to have that of the agent's, and the most
        that this can be wrong by; both in ns.
        """
        found = []
        for _ in range(ASKED):
            before = time.monotonic_ns()
            there = self.ask("clock")
            after = time.monotonic_ns()
            found.append((after - before, there - (before + after) // 2))
        fastest, offset = min(found)
        return offset, fastest // 2

    def way(self, port: int, path: str) -> dict[str, Any]:
        """Measure the way from there to a server of this computer, as `network.measured` does."""
        offset_ns, error_ns = self.clock()
        found: dict[str, Any] = self.ask("way", port=port, path=path, host=self.host)
        return found | {"host": ELSEWHERE, "clock_offset_ns": offset_ns, "clock_error_ns": error_ns}

    def run(self, plans: list[Plan], watch: Callable[[], None]) -> None:
        """Run a level's plans there to their end, as `workers.run_workers` does."""
        for plan in plans:
            plan.write(workers.plan_path(plan))
        self.ask("run", watch, plans=[str(workers.plan_path(plan)) for plan in plans])

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put(None)


def step(study: Study, launch: Launch) -> tuple[list[str], str] | None:
    """Return the argument list that starts a launch's agent and the address of this node as the agent's knows it; None
    where the client runs here.

    Raises
    ------
    MeasureError : there is no other node.
    """
    if launch.client is None or study.depth == depths.CANARY:  # the canary's job is of one node
        return None
    job, node = os.environ.get("STUDY_JOB"), os.environ.get("STUDY_NODE")
    if job and node:
        start = [
            "srun", f"--jobid={job}", "--het-group=1", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none",
            "--unbuffered", f"--chdir={paths.ROOT}", *AGENT,
        ]  # fmt: skip
        return start, jobs.address(node)
    if study.kind == "rehearsal":
        return list(AGENT), network.HERE
    raise MeasureError(
        f"Launch {launch.name} wants its client on another node, and there is none: run it with CLUSTER=slurm, which "
        "takes a second node for it, or leave `client` out of its config."
    )


@contextmanager
def started(found: tuple[list[str], str] | None) -> Iterator[ClientNode | None]:
    """Start what `step` found, hand it over, and end it whatever happens.

    Raises
    ------
    MeasureError : it does not start.
    """
    if found is None:
        yield None
        return
    argv, host = found
    try:
        process = subprocess.Popen(
            argv, cwd=paths.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise MeasureError(f"The client's node could not be given a step: {argv[0]}: {error.strerror}.") from error
    try:
        yield ClientNode(process, host)
    finally:
        assert process.stdin is not None and process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()  # which ends the agent, and a step with it
        for end in (process.terminate, process.kill, lambda: None):
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
                break
            end()


def agent() -> None:
    """Do what is asked on standard input, line by line, until it ends."""
    print(f"The load client runs on {os.environ.get('SLURMD_NODENAME', 'this computer')}.", file=sys.stderr, flush=True)
    asked: SimpleQueue[str | None] = SimpleQueue()
    gone = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            asked.put(line)
        gone.set()
        asked.put(None)

    def watch(_progress: Any) -> None:
        if gone.is_set():
            raise MeasureError("The study is gone; its level ends.")

    def keep(key: str) -> None:
        os.environ[KEY_ENV] = key

    def run(plans: list[str]) -> None:
        workers.run_workers([Plan.read(Path(plan)) for plan in plans], watch=watch)

    does: dict[str, Callable[..., Any]] = {
        "who": provenance.machine, "clock": time.monotonic_ns, "key": keep, "way": network.measured, "run": run,
    }  # fmt: skip
    threading.Thread(target=listen, daemon=True).start()
    while (line := asked.get()) is not None:
        told = json.loads(line)
        try:
            answer = {"is": does[told.pop("do")](**told)}
        except MeasureError as refusal:
            answer = {"refused": str(refusal)}
        with suppress(BrokenPipeError):  # nobody waits for it any more
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    tell(agent)
