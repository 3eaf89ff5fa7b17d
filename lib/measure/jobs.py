"""Slurm's side of a job: submit it, ask how it is, cancel it. Knows commands and states, nothing of the study.

Rule: an answer that cannot be had is not an answer. While the controller is out of reach a job counts as alive.
"""

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from lib.errors import MeasureError
from lib.progress import Progress

ALIVE = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "RESIZING", "SIGNALING",
         "STAGE_OUT", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")  # fmt: skip
MEANS = {
    "COMPLETED": "ended without an error of its own",
    "FAILED": "failed",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost its node",
    "PREEMPTED": "was preempted by another job",
    "OUT_OF_MEMORY": "ran out of memory",
    "BOOT_FAIL": "got a node that did not boot",
    "DEADLINE": "passed its deadline",
    "GONE": "ended, and Slurm no longer knows how,",
}
COMMAND_S = 60.0  # for one answer of Slurm's commands
SILENT_S = 1800.0  # a controller that is away for longer than this needs a person


@dataclass(frozen=True)
class Job:
    """A submitted job: its number, and when it was submitted (seconds of the file system's clock)."""

    id: str
    submitted_s: float


@dataclass(frozen=True)
class State:
    """How a job is: Slurm's word, the reason it gives, the job's name."""

    name: str
    reason: str = ""
    named: str = ""
    exit_code: str = ""

    @property
    def alive(self) -> bool:
        """Whether it waits or runs."""
        return self.name in ALIVE

    @property
    def means(self) -> str:
        """How it ended, in words: `was cancelled (CANCELLED)`."""
        said = f"{self.name}, exit code {self.exit_code}" if self.exit_code not in ("", "0:0") else self.name
        return f"{MEANS.get(self.name, 'ended')} ({said})"


def submit(options: list[str], script: str) -> str:
    """Submit a job and return its number.

    Raises
    ------
    MeasureError : Slurm refuses it, in its own words.
    """
    done = _ask(["sbatch", "--parsable", *options], script)
    number = done.stdout.strip().partition(";")[0]
    if done.returncode or not number.isdigit():
        raise MeasureError(
            f"Slurm did not take the job: {(done.stderr or done.stdout).strip()} Partition, account and more options "
            "stand in config/cluster.yaml; `sinfo` lists what there is."
        )
    return number


def find(name: str, folder: Path) -> str | None:
    """Find the number of this user's waiting or running job of a name that was submitted for a folder; None if none."""
    done = _ask(["squeue", "--me", "--noheader", f"--name={name}", "--format=%i|%j|%Z"])
    told = (line.strip().split("|", 2) for line in done.stdout.splitlines())
    return next((cells[0].partition("+")[0] for cells in told if cells[1:] == [name, str(folder)]), None)


def state(job: str) -> State:
    """Ask how a job is; one that Slurm has forgotten is GONE.

    Raises
    ------
    OSError : the controller does not answer.
    """
    done = _ask(["scontrol", "show", "job", "--oneliner", job])
    if done.returncode:
        if "Invalid job id" in done.stderr:
            return State("GONE")
        raise OSError(done.stderr.strip())
    told = {key: (found[1] if (found := re.search(rf"\b{key}=(\S+)", done.stdout)) else "")
            for key in ("JobState", "Reason", "JobName", "ExitCode")}  # fmt: skip
    return State(told["JobState"], told["Reason"], told["JobName"], told["ExitCode"])


def address(node: str) -> str:
    """Return the address under which the cluster's nodes reach one of them.

    Raises
    ------
    MeasureError : Slurm does not tell it.
    """
    told = re.search(r"\bNodeAddr=(\S+)", _ask(["scontrol", "show", "node", "--oneliner", node]).stdout)
    if not told:
        raise MeasureError(f"Slurm does not tell the address of node {node}: see `scontrol show node {node}`.")
    return told[1]


def wait(job: str, progress: Progress, look_s: float) -> State:
    """Wait until a job has ended.

    Raises
    ------
    MeasureError : the controller has not answered for half an hour; the job may go on.
    """
    heard = time.monotonic()
    while True:
        try:
            found = state(job)
            heard = time.monotonic()
        except OSError as error:
            if time.monotonic() - heard > SILENT_S:
                raise MeasureError(
                    f"Slurm has not answered for {SILENT_S / 60:.0f} min ({error}); job {job} may go on. "
                    "Run the same command again when it answers: it finds the job."
                ) from error
            progress.at(0.0, f"Slurm does not answer ({error})")
            time.sleep(look_s)
            continue
        if not found.alive:
            return found
        waiting = found.name == "PENDING"
        progress.at(0.0, f"waits in the queue ({found.reason})" if waiting else found.name.lower())
        time.sleep(look_s)


def cancel(job: str) -> None:
    """Cancel a job; one that has ended is left alone."""
    _ask(["scancel", job])


def _ask(command: list[str], told: str = "") -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, input=told, capture_output=True, text=True, check=False, timeout=COMMAND_S)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"{command[0]} did not answer within {COMMAND_S:.0f} s")
