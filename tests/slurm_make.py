"""A copy of the project with one small GPU profile, in which `make report CLUSTER=slurm` is what a person types.

Everything up to the records is the project's own. The reading half, which no cluster touches, is left out, and the
login node looks at its jobs more often than a person's would.
"""

import os
import shutil
import subprocess
from pathlib import Path

import yaml

from lib import paths

PROFILE, LAUNCHES = "tiny", ("vllm-fp8-tp8", "vllm-int4-tp8")
COPIED = ("lib", "data", "envs", "notebooks", "Makefile")
PYTHON = """#!/bin/sh
case "$*" in
  *lib.show.article*) mkdir -p report/tiny-rehearsal; : > report/tiny-rehearsal/index.html; exit ;;
  *notebooks/0[356]_*) mkdir -p build/tiny-rehearsal; : > "$4"; exit ;;
esac
exec {python} "$@"
"""


def prepare(root: Path) -> None:
    """Copy the project and write the profile: two launches of h100-current, one level of a second."""
    for name in COPIED:
        source = paths.ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        copy(source, root / name)
    for name in ("report", "artifacts"):
        (root / name).mkdir()
    (root / "report" / "article.md").touch()
    (root / ".venvs").symlink_to(paths.VENVS.resolve())
    folder = root / "config" / PROFILE
    folder.mkdir(parents=True)
    source = paths.ROOT / "config" / "h100-current"
    study = yaml.safe_load((source / "study.yaml").read_text())
    study["levels"] = [{"kind": "closed", "concurrency": 8, "workload": study["headline_workload"], "seconds": 1}]
    study["statistics"] |= {"drain_seconds": 10}
    kept = {key: value for key, value in study.items() if key not in ("order", "noise_floor_pair")}
    (folder / "study.yaml").write_text(yaml.safe_dump(kept))
    for name in LAUNCHES:
        shutil.copy(source / f"{name}.yaml", folder)
    waits = root / "lib" / "measure" / "slurm.py"
    text = waits.read_text()
    assert "\nLOOK_S = 5.0\n" in text
    waits.write_text(text.replace("\nLOOK_S = 5.0\n", "\nLOOK_S = 0.3\n"))
    python = root / "python"
    python.write_text(PYTHON.format(python=root / ".venvs" / "study" / "bin" / "python"))
    python.chmod(0o755)


def report(root: Path, environment: dict[str, str], **said: str) -> "subprocess.CompletedProcess[str]":
    """`make report` as typed on the login node; `said` are further variables."""
    clean = {k: v for k, v in environment.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHONPATH", "STUDY_"))}
    command = ["make", "--no-print-directory", "rehearse", f"PROFILE={PROFILE}", "CLUSTER=slurm",
               f"STUDY_PYTHON={root / 'python'}", *(f"{key}={value}" for key, value in said.items())]  # fmt: skip
    return subprocess.run(
        command, cwd=root, env=clean | {"HOME": os.environ.get("HOME", "/root")}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
