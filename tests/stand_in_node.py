"""A node with GPUs, pretended from below: NVIDIA's library, nvidia-smi, and a `vllm` that takes the real command line.

    python tests/stand_in_node.py ROOT canary|take

All that stands above them is real: the engine's driver, its proof, the study's client, telemetry and records. For
tests; the process needs LD_LIBRARY_PATH and PATH as `environment` gives them.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from lib import config, paths
from lib.engines import base, build, computer
from lib.engines.rehearse.told import Told
from lib.errors import tell
from lib.measure import canary, hostprobe, session
from tests import mini_study

PROFILE, LAUNCH, MODEL = "node", "vllm-fp16", "smollm2-135m-bf16"
LIBRARY = Path(__file__).with_name("nvml_stand_in.c")
SMI = """#!/bin/sh
for word; do case "$word" in --query-gpu=*) fields="${word#*=}" ;; esac; done
for gpu in 0 1; do
  line=""
  for field in $(echo "$fields" | tr , ' '); do
    case "$field" in
      name) value="NVIDIA H100 80GB HBM3" ;;
      memory.total) value=81920 ;;
      compute_cap) value=9.0 ;;
      *) value="[N/A]" ;;
    esac
    line="$line${line:+, }$value"
  done
  echo "$line"
done
"""
VLLM = """#!{python}
import sys
sys.path.insert(0, {root!r})
from lib.engines.rehearse import stand_in
sys.argv = ["stand_in", {told!r}, "vllm", *sys.argv[1:]]
sys.exit(stand_in.main())
"""
LEVEL = "{kind: closed, concurrency: 2, workload: news, seconds: SECONDS}"


def prepare(root: Path) -> None:
    """Write a profile for two GPUs whose only launch runs the stand-in, its model's tokenizer, and the node's tools."""
    mini_study.prepare(root)
    source, model = root / "artifacts" / mini_study.ARTIFACT, root / "artifacts" / MODEL
    model.mkdir()
    shutil.copy(source / "tokenizer.json", model)
    found = build._described(MODEL, model, 1.0)
    (model / "manifest.json").write_text(json.dumps(found))
    tools = root / "bin"
    tools.mkdir()
    told = Told(engine="vllm", version="0.24.0", precision="fp16", contender="vllm-bf16", layout="TP1",
                tokenizer=str(model / "tokenizer.json"), speed=2.0)  # fmt: skip
    (tools / "vllm").write_text(VLLM.format(python=sys.executable, root=str(paths.ROOT), told=told.text))
    (tools / "nvidia-smi").write_text(SMI)
    for name in ("vllm", "nvidia-smi"):
        (tools / name).chmod(0o755)
    flags = ["-shared", "-fPIC", "-O1", "-o", str(tools / "libnvidia-ml.so.1")]
    subprocess.run(["cc", *flags, str(LIBRARY)], check=True)
    folder = root / "config" / PROFILE
    folder.mkdir(parents=True)
    study = mini_study.STUDY.replace("gpus: 0", "gpus: 2").replace(mini_study.ARTIFACT, MODEL)
    before, levels, after = study.partition("levels:")
    _, statistics, after = after.partition("statistics:")
    study = f"{before}{levels}\n  - {LEVEL.replace('SECONDS', '3.2')}\n{statistics}{after}"
    study = study.replace("repeats: 2", "repeats: 1")
    (folder / "study.yaml").write_text(
        f"{study}depth:\n  canary:\n    levels:\n      - {LEVEL.replace('SECONDS', '0.8')}\n"
    )
    launch = (paths.ROOT / "config" / "one-gpu" / f"{LAUNCH}.yaml").read_text()
    launch = launch.replace("tensor_parallel: 1", "tensor_parallel: 2").replace("2048 ", "512 ")
    (folder / f"{LAUNCH}.yaml").write_text(f"{launch}python: {tools / 'python'}\n")


def environment(root: Path, mood: str = "") -> dict[str, str]:
    """Environment of a process on this node; `mood` as in nvml_stand_in.c."""
    return os.environ | {
        "LD_LIBRARY_PATH": str(root / "bin"), "PATH": f"{root / 'bin'}:{os.environ['PATH']}", "STAND_IN_NVML": mood,
        "STAND_IN_CUDA": "13000", "CUDA_VISIBLE_DEVICES": "0,1",
        "PYTHONPATH": os.pathsep.join([str(paths.ROOT), *sys.path]), "STUDY_TERMINAL": "none",
    }  # fmt: skip


def main() -> None:
    root, what = Path(sys.argv[1]), sys.argv[2]
    paths.CONFIG, paths.ARTIFACTS, paths.RECORDS = root / "config", root / "artifacts", root / "records"
    hostprobe.probe = lambda: {"bandwidth_bytes_s": 1e12, "flop_s": {"float32": 1e11}, "cores": 2, "seconds": 0.0}
    computer.free_memory_bytes = lambda: 1 << 40
    base.LOOK_S = 0.05
    if what == "canary":
        print(canary.send(PROFILE))
    else:
        print(session.take(PROFILE, "default", LAUNCH)["status"])
    assert config.load_launch(PROFILE, LAUNCH).container is None


if __name__ == "__main__":
    tell(main)
