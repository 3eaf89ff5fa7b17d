"""Run one notebook as a Slurm job on a whole node of its own, and tell truly how it ended.

    python -m lib.measure.slurm PROFILE DEPTH LAUNCH TARGET -- COMMAND...        (LAUNCH is - for 01_build)

A job is submitted by sbatch, so that it outlives the login shell; the same command then finds it again and waits on.
Ctrl-C cancels it. What the user's cluster wants stands in config/cluster.yaml, which no record depends on.

Rule: exit codes of Slurm are not believed, since a job can end with 0 and unfinished work. A launch is done when its
notebook stands under its name and its outcome says so; else what was finished is closed into its record with the
reason.
"""

import fcntl
import json
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from lib import config, paths, records
from lib.config import Launch, Strict, Study
from lib.errors import ConfigError, MeasureError, tell
from lib.measure import costs, jobs, quality, session
from lib.progress import Progress

FILE = "cluster.yaml"
SPARE = 1.5  # a job's time limit over what the plan expects
LEAST_MIN = 10  # of a job that measures no launch: one that finds all made still hashes 250 GB
NICE = 100  # between two launches: Slurm starts first what teaches most per dollar
SETTLE_S = 15.0  # for files written on a node to be seen here
LOOK_S = 5.0
BUILD = "-"
OWN_END = ("COMPLETED", "FAILED", "GONE")  # else Slurm ended it, and what the measurement then said is no cause


class Cluster(Strict):
    """config/cluster.yaml: what the user's cluster wants to be told."""

    partition: str | None = None
    account: str | None = None
    minutes: int | None = Field(default=None, gt=0)  # limit of one job; None: half as much again as the plan expects
    build_minutes: int | None = Field(default=None, gt=0)  # likewise, of a job that builds or scores
    gres: str | None = None  # None: gpu:N with the N of the launch or the profile
    options: tuple[str, ...] = ()  # more of sbatch's options, as they are
    client_options: tuple[str, ...] = ()  # of the second node, where a launch's client has one of its own


@dataclass(frozen=True)
class Work:
    """What one job is to do: its name, the file it must leave, and where the number of its job is kept."""

    study: Study
    launch: Launch | None  # None: 01_build
    target: Path
    command: tuple[str, ...]

    @property
    def name(self) -> str:
        """Name of the job."""
        return f"{self.study.name}/{self.launch.name if self.launch else 'build'}"

    @property
    def note(self) -> Path:
        """File with the number of the job under way."""
        return paths.RECORDS / self.study.name / f"{self.launch.name if self.launch else 'build'}.job.json"


def cluster() -> Cluster:
    """Read config/cluster.yaml; without it Slurm's own defaults hold.

    Raises
    ------
    ConfigError : a file that cannot be read, an unknown key.
    """
    path = paths.CONFIG / FILE
    if not path.exists():
        return Cluster()
    try:
        data = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}".replace("\n", " ")) from error
    return config.validated(Cluster, data, str(path))


def options(work: Work, asked: Cluster) -> list[str]:
    """Options of sbatch for one job: a whole node with its GPUs, started once, with a time limit; and, where the
    launch's client is to have one, a second node without.
    """
    limit = f"--time={minutes(work, asked)}"
    whole = ["--nodes=1", "--ntasks=1", "--exclusive", "--mem=0"]
    account = [f"--account={asked.account}"] if asked.account else []
    second = [":", *whole, limit, *account, *asked.client_options] if work.launch and work.launch.client else []
    gpus = (getattr(work.launch, "gpus", None) if work.launch else None) or work.study.hardware.gpus
    gres = asked.gres or (f"gpu:{gpus}" if gpus else None)
    place = config.run_order(work.study).index(work.launch.name) if work.launch else 0
    return [
        f"--job-name={work.name}", *whole, "--no-requeue",
        "--export=ALL", f"--chdir={paths.ROOT}", f"--output={log(work)}", "--open-mode=append", limit,
        *([f"--nice={NICE * place}"] if place else []),
        *([f"--gres={gres}"] if gres else []),
        *([f"--partition={asked.partition}"] if asked.partition else []),
        *account, *asked.options, *second,
    ]  # fmt: skip


def minutes(work: Work, asked: Cluster) -> int:
    """Time limit of a job, whole minutes as Slurm counts them."""
    study, launch = work.study, work.launch
    stated = asked.minutes if launch else asked.build_minutes
    if stated:
        return stated
    if launch:
        expected = costs.measuring_s(study) + study.statistics.runs * launch.start_seconds
    else:
        every = [config.load_launch(study.profile, name) for name in config.run_order(study)]
        making = sum(cost.fetching_s + cost.making_s for _, cost in costs.in_order(study, every))
        scoring = quality.expected_s(study) * len(every)
        expected = max(making, scoring)
    return max(1 if launch else LEAST_MIN, round(SPARE * expected / 60 + 0.5))


def log(work: Work) -> Path:
    """File that receives what the job prints."""
    return work.target.with_suffix(".slurm.log")


def script(command: tuple[str, ...], keeps_slurm: bool) -> str:
    """Write the job's script. Where the engine is not itself started by Slurm, MPI must not think that it is."""
    strip = "" if keeps_slurm else (
        "for name in $(env | sed -n '/^SLURM_CONF=/d; s/^\\(SLURM_[A-Za-z0-9_]*\\)=.*/\\1/p'); "
        'do unset "$name"; done\n'
    )
    return (
        "#!/bin/sh\n"
        'export STUDY_JOB="$SLURM_JOB_ID" STUDY_NODE="$SLURMD_NODENAME" STUDY_TERMINAL=none\n'
        f"{strip}exec {shlex.join(command)}\n"
    )


def run(work: Work) -> None:
    """Have a job do the work, or wait for the one that does; return when it is done.

    Raises
    ------
    MeasureError : it ended without having finished; says how, and the next command.
    """
    if not shutil.which("sbatch"):
        raise ConfigError("CLUSTER=slurm needs Slurm's commands, and sbatch is not on the PATH of this computer: run "
                          "this on a login node, or without CLUSTER on the node itself.")  # fmt: skip
    with _alone(work):
        noted = _noted(work)
        if noted and not _alive(work, noted):
            if _left(work, noted, patient=False):  # it ended well while nobody waited
                work.note.unlink(missing_ok=True)
                return
            noted = None  # of an earlier try; the number of a later one may never have been noted
        alive = noted or _found(work)
        job = alive or _submit(work)
        with _cancel_on_interrupt(job), Progress(f"{work.name} (Slurm job {job.id})") as progress:
            progress.at(0.0, "was under way already" if alive else "submitted")
            state = jobs.wait(job.id, progress, LOOK_S)
        _judge(work, job, state)
        work.note.unlink(missing_ok=True)


def _submit(work: Work) -> jobs.Job:
    work.target.parent.mkdir(parents=True, exist_ok=True)
    work.note.touch()
    now = work.note.stat().st_mtime  # by the clock of the file system, which also dates what the node writes
    container = getattr(work.launch, "container", None)
    text = script(work.command, getattr(container, "runtime", None) == "pyxis")
    try:
        return _note(work, jobs.Job(jobs.submit(options(work, cluster()), text), now))
    except MeasureError:
        taken = _found(work)  # a controller whose answer came too late may have heard
        if taken is None:
            raise
        return taken


def _note(work: Work, job: jobs.Job) -> jobs.Job:
    records.write_whole(work.note, json.dumps({"id": job.id, "submitted_s": job.submitted_s}).encode())
    return job


def _found(work: Work) -> jobs.Job | None:
    """Find a job that was submitted, but whose number was never noted: a second one would cost as much again."""
    number = jobs.find(work.name, paths.ROOT)
    if number is None:
        return None
    if not work.note.exists():
        work.note.touch()
    return _note(work, jobs.Job(number, work.note.stat().st_mtime))


def _noted(work: Work) -> jobs.Job | None:
    """Find the job that an earlier call submitted."""
    try:
        noted: dict[str, Any] = json.loads(work.note.read_text())
    except (OSError, ValueError):
        return None
    return jobs.Job(str(noted["id"]), float(noted["submitted_s"]))


def _alive(work: Work, job: jobs.Job) -> bool:
    """Whether a noted job waits or runs, and is this one's: numbers of jobs come round again."""
    try:
        state = jobs.state(job.id)
    except OSError:
        return True  # Slurm does not answer; to submit a second job would be worse than to wait
    return state.alive and state.named in ("", work.name)


def _judge(work: Work, job: jobs.Job, state: jobs.State) -> None:
    """Tell by the files alone whether the work is done.

    Raises
    ------
    MeasureError : it is not.
    """
    if _left(work, job, patient=state.name == "COMPLETED"):
        return
    said = _outcome(work, job)
    if said and state.name in OWN_END:  # the measurement itself told why before it ended
        raise MeasureError(f"{work.name}: {said} The job's log is {log(work)}.")
    reason = f"Slurm job {job.id} of {work.name} {state.means} before it had finished."
    reason += f" Its last words: {said}" if said else ""
    if work.launch:
        kept = session.close_early(work.study, work.launch, reason)
        reason += f" {kept} finished taking(s) are kept; the same command takes what is missing."
    raise MeasureError(f"{reason} Its log is {log(work)}.")


def _left(work: Work, job: jobs.Job, patient: bool) -> bool:
    """Whether the job left what it was to leave; another node's files may be seen some seconds late."""
    limit = time.monotonic() + (SETTLE_S if patient else 0.0)
    while True:
        if work.target.exists() and work.target.stat().st_mtime >= job.submitted_s - 1.0:
            return work.launch is None or session.settled(work.study, work.launch)
        if time.monotonic() >= limit:
            return False
        time.sleep(0.5)


def _outcome(work: Work, job: jobs.Job) -> str | None:
    """Reason that the measurement itself gave for failing under this job."""
    if work.launch is None:
        return None
    path = paths.record(work.study.name, work.launch.name).with_suffix(".outcome.json")
    if not path.exists() or path.stat().st_mtime < job.submitted_s - 1.0:
        return None
    outcome = json.loads(path.read_text())
    return str(outcome["reason"]) if outcome["status"] == "failed" else None


@contextmanager
def _alone(work: Work) -> Iterator[None]:
    """Let one command at a time look after a launch's job."""
    work.note.parent.mkdir(parents=True, exist_ok=True)
    with work.note.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _cancel_on_interrupt(job: jobs.Job) -> Iterator[None]:
    """End the job when the user presses Ctrl-C; a shell that merely goes away leaves it running."""
    try:
        yield
    except KeyboardInterrupt:
        jobs.cancel(job.id)
        print(f"Slurm job {job.id} was cancelled; finished takings are kept.", file=sys.stderr, flush=True)
        raise


def main() -> None:
    """Command line: profile, depth, launch or -, target, --, command."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where make was started in the background
    profile, depth, name, target, dashes, *command = sys.argv[1:]
    if dashes != "--" or not command:
        raise ConfigError("Usage: python -m lib.measure.slurm PROFILE DEPTH LAUNCH TARGET -- COMMAND...")
    launch = None if name == BUILD else config.load_launch(profile, name)
    run(Work(config.load_study(profile, depth), launch, Path(target).absolute(), tuple(command)))


if __name__ == "__main__":
    tell(main)
