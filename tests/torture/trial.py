"""One trial: take a small study, kill one of its processes at a random moment, look at what is left, take it anew.

    python -m tests.torture.trial KIND SEED TEMPLATE ROOT       the last line printed is the result, as JSON

A process of its own that inherits every orphan (a subreaper, as systemd and Slurm are), so that none can hide.
"""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from lib.engines import computer
from tests.torture import checks, studies

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
PAUSE = "pause"
SIGNALS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGSEGV", PAUSE)
GONE_S = 20.0  # for what a death leaves: the guard's patience is 8 s, a client without a server gives up after 2 s
TWICE = 0.25  # of trials: the run after it is killed, too


def living() -> list[psutil.Process]:
    """Every process below this one that is not a zombie; zombies that were adopted are buried."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def bury(process: "subprocess.Popen[bytes]") -> None:
    """Reap adopted zombies, never the run itself."""
    for child in psutil.Process().children():
        with suppress(psutil.Error, ChildProcessError):
            if child.pid != process.pid and child.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(child.pid, os.WNOHANG)


def role(process: psutil.Process) -> str:
    """What a process is to the study; '' where it is none of those that are killed."""
    words = process.cmdline()
    said = " ".join(words)
    named = (("lib.measure.client", "client"), ("engines/guard.py", "guard"), ("ipykernel_launcher", "kernel"),
             ("lib.execute", "papermill"), ("mini_study.py", "study"), ("real_study.py", "study"))
    for mark, name in named:
        if mark in said:
            return name
    if words and Path(words[0]).name == "make":
        return "make"
    parent = process.parent()
    above = role(parent) if parent is not None and parent.pid != os.getpid() else ""
    return {"guard": "engine", "engine": "worker", "worker": "worker"}.get(above, "")


def victims(name: str) -> list[psutil.Process]:
    """Living processes of a role."""
    found = []
    for process in living():
        with suppress(psutil.Error):
            if role(process) == name:
                found.append(process)
    return found


def ports() -> set[int]:
    """TCP ports that the study's processes listen on."""
    found = set()
    for process in living():
        with suppress(psutil.Error):
            found |= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return found


def attack(
    run: "subprocess.Popen[bytes]", name: str, number: str, after_s: float, rng: random.Random
) -> dict[str, Any]:
    """Kill one process of a role as soon as there is one after so many seconds; what was done."""
    began, held = time.monotonic(), set()
    while run.poll() is None:
        if time.monotonic() - began >= after_s and (found := victims(name)):
            victim = rng.choice(found)
            held = ports()
            with suppress(psutil.Error):
                if number == PAUSE:
                    victim.suspend()
                    time.sleep(rng.uniform(0.1, 1.5))
                    victim.resume()
                else:
                    victim.send_signal(getattr(signal, number))
                at_s = round(time.monotonic() - began, 3)
                return {"role": name, "signal": number, "at_s": at_s, "ports": sorted(held)}
        bury(run)
        time.sleep(0.05)
    return {"role": "none", "signal": number, "at_s": None, "ports": []}


def wait(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def start(kind: str, root: Path, log: Path) -> "subprocess.Popen[bytes]":
    command, environment = studies.command(kind, root)
    with log.open("ab") as out:
        return subprocess.Popen(command, env=environment, cwd=root, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                start_new_session=True)


def disturbed(kind: str, root: Path, rng: random.Random, typical_s: float) -> tuple[dict[str, Any], list[str]]:
    """Start a run, kill one of its processes, and wait until all of it is gone; what was done and what is wrong."""
    patience = studies.KINDS[kind].patience_s
    run = start(kind, root, root / "run.log")
    said = attack(run, rng.choice(studies.KINDS[kind].roles), rng.choice(SIGNALS), rng.uniform(0, 0.9 * typical_s), rng)
    wrong = []
    if not wait(lambda: run.poll() is not None, patience):
        wrong.append(f"the run had not ended {patience:.0f} s later")

    def gone() -> bool:
        bury(run)
        return not living()

    if not wait(gone, GONE_S):
        wrong += [f"left running: {role(p) or 'other'}: {' '.join(p.cmdline())[:200]}" for p in living()]
        end_all()
    wrong += [f"port {port} is still held" for port in said.pop("ports") if computer.listens_at(port) is not None]
    wrong += [*checks.files(root), *checks.journals(root, kind)]
    return said, wrong


def end_all() -> None:
    """End whatever is left of the study."""
    for process in living():
        with suppress(psutil.Error):
            process.kill()


def trial(kind: str, seed: int, template: Path, root: Path) -> dict[str, Any]:
    """Run one trial in a copy of a prepared study; `template` holds the undisturbed run's summary as reference.json."""
    rng, begun = random.Random(f"{kind}|{seed}"), time.monotonic()
    shutil.copytree(template / "study", root, symlinks=True)
    reference = json.loads((template / "reference.json").read_text())
    attacks, wrong = [], []
    done: checks.Done = {}
    for _ in range(2 if rng.random() < TWICE else 1):
        said, bad = disturbed(kind, root, rng, reference["seconds"])
        attacks.append(said)
        wrong += bad
        done |= checks.finished(root)
    run = start(kind, root, root / "run.log")
    if not wait(lambda: run.poll() is not None, 2 * studies.KINDS[kind].patience_s):
        wrong.append("the run after it did not end")
        end_all()
    elif run.returncode:
        wrong.append(f"the run after it ended with {run.returncode}: {(root / 'run.log').read_text()[-500:]}")
    else:
        found = checks.summary(root)
        wrong += [*checks.differences(found, reference["summary"]), *checks.kept(root, done), *checks.files(root)]
        left = [p.name for p in (root / "records").rglob("*") if p.name.endswith((".tmp", ".partial", ".journal"))]
        wrong += [f"left lying: {name}" for name in left]
    took_s = round(time.monotonic() - begun, 1)
    return {"kind": kind, "seed": seed, "attacks": attacks, "wrong": wrong, "kept": len(done), "took_s": took_s}


def main() -> None:
    kind, seed, template, root = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4])
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for number in (signal.SIGINT, signal.SIGHUP):  # under nohup they would be ignored, by every victim too
        signal.signal(number, signal.SIG_DFL)
    try:
        print(json.dumps(trial(kind, seed, template, root)))
    finally:
        end_all()


if __name__ == "__main__":
    main()
