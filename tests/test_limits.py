"""Full and read-only disks, limits of the account, a computer that sleeps: a clear end, and what was measured stays."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest

from lib import records
from lib.measure.journal import progress
from tests import mini_study
from tests.torture import checks, studies, trial


@pytest.fixture
def root(tmp_path):
    mini_study.prepare(tmp_path, studies.TINY, good={})
    return tmp_path


def take(root, limit=None, inside=(), **environment):
    command, inherited = studies.command("stand-in", root)
    return subprocess.run(
        [*inside, *command], env=inherited | environment, cwd="/", capture_output=True, text=True, check=False,
        preexec_fn=(lambda: resource.setrlimit(*limit)) if limit else None, timeout=120,
    )  # fmt: skip


def told(done, *words):
    """One paragraph with these words, and no stack trace."""
    said = done.stderr.strip()
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr[-2000:]
    assert all(word in said for word in words), said


@pytest.mark.parametrize(("limit", "words"), [
    ((resource.RLIMIT_FSIZE, (200_000, 200_000)), ("The journal", "cannot be made", "ulimit -f")),
    ((resource.RLIMIT_NOFILE, (60, 60)), ("open files", "this account may have 60", "ulimit -n")),
])  # fmt: skip
def test_a_limit_of_the_account_is_named(root, limit, words):
    told(take(root, limit), *words)
    outcome = json.loads((root / "records" / "mini" / "good.outcome.json").read_text())
    assert outcome["status"] == "failed" and words[-1] in outcome["reason"] and not list(checks.files(root))


def test_a_computer_that_sleeps_in_mid_level_loses_nothing(root):
    """All of the study stands still for a second, as in a suspend: no request is lost, and the record shows it."""
    command, environment = studies.command("stand-in", root)
    run = subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert trial.wait(lambda: any(progress(p).finished for p in journals(root) if "warm" not in p.name), 60)
    asleep = trial.living()
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in asleep:
            with suppress(Exception):
                process.send_signal(number)
        time.sleep(1.0)
    assert run.wait(60) == 0
    rows = [r for r in records.read(root / "records" / "mini" / "good.parquet").table.to_pylist()
            if r["phase"] == "measured"]  # fmt: skip
    assert rows and {r["status"] for r in rows} == {"complete"}
    late = max(max(r["event_lag_ns_max"] or 0, r["sent_ns"] - r["due_ns"], longest(r["event_ns"])) for r in rows)
    assert late > 0.5e9


def journals(root):
    return (root / "records").rglob("*.journal")


def longest(stamps):
    return max((b - a for a, b in pairwise(stamps)), default=0)


@pytest.fixture
def disk(root):
    """A small disk under the study's records, in a mount namespace of its own; commands enter it by `inside`."""
    (root / "records").mkdir()
    words = f"mount -t tmpfs -o size=6m tmpfs {root / 'records'} && echo mounted && exec sleep 300"
    if os.geteuid() or not (shutil.which("unshare") and shutil.which("nsenter")):
        pytest.skip("only root may mount a disk to fill")
    holder = subprocess.Popen(["unshare", "-m", "sh", "-c", words], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("this computer lets nobody mount a disk to fill")
        yield ["nsenter", "-t", str(holder.pid), "-m"], Path(f"/proc/{holder.pid}/root{root}")
    finally:
        holder.kill()
        holder.communicate()


def test_a_disk_that_fills_is_named_and_keeps_what_was_measured(root, disk):
    inside, seen = disk
    told(take(root, inside=inside), "free some space")  # 6 MB are less than a launch may need
    command, environment = studies.command("stand-in", root)
    run = subprocess.Popen([*inside, *command], env=environment | {"ROOM": "0"}, cwd="/", text=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)  # fmt: skip
    assert trial.wait(lambda: bool(checks.finished(seen)), 60)
    with suppress(OSError), (seen / "records" / "filler").open("wb", buffering=0) as filler:
        while True:
            filler.write(b"x" * 4096)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 2 and "Traceback" not in said, said[-2000:]
    done = checks.finished(seen)
    assert done and not list(checks.files(seen))
    (seen / "records" / "filler").unlink()
    again = take(root, inside=inside, ROOM="0")
    assert again.returncode == 0, again.stderr
    assert list(checks.kept(seen, done)) == [] and checks.summary(seen)["incomplete"] is None


def test_a_read_only_disk_is_named(root, disk):
    inside, _ = disk
    subprocess.run([*inside, "mount", "-o", "remount,ro", str(root / "records")], check=True)
    told(take(root, inside=inside), "cannot be written", "Read-only file system")
