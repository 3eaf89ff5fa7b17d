"""A launch in a container from first command to end, over a stand-in for docker that notes what it is told."""

import os
import sys
from dataclasses import replace

import pytest

from lib import config
from lib.engines import build, gpu, made, registry
from lib.errors import EngineError
from lib.launches import Container

DOCKER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["TOLD"], "a") as told:
    print(json.dumps(sys.argv[1:]), file=told)
if sys.argv[1] == "run":
    sys.exit("CUDA error: out of memory")
if "--format" in sys.argv:
    print("sha256:1d an/image@sha256:2e")
"""
TRITON = config.load_launch("h100", "tensorrt-llm-0.12.0-fp8")
BOXED = config.load_launch("h100", "vllm-0.6.2-fp16").model_copy(
    update={"container": Container(runtime="docker", image="an/image:1")})      # fmt: skip


@pytest.fixture
def docker(tmp_path, monkeypatch):
    """File that holds what docker was told, one list a line."""
    program, told = tmp_path / "bin" / "docker", tmp_path / "told"
    program.parent.mkdir()
    program.write_text(DOCKER)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("TOLD", str(told))
    monkeypatch.setattr(build, "verify", lambda artifact: {"artifact": artifact, "files": []})
    return told


def test_a_container_left_by_a_killed_try_is_removed_before_and_its_own_after(docker, tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    engine = registry.of(BOXED)
    with pytest.raises(EngineError, match="out of memory"), engine.start(BOXED, tmp_path / "log", lambda stage: None):
        pass
    told = [line for line in docker.read_text().splitlines() if "inspect" not in line]
    removal = f'["rm", "--force", "{gpu.container_name(BOXED)}"]'
    assert told[0] == told[-1] == removal and len(told) == 3
    assert '"run"' in told[1] and '"--env", "CUDA_VISIBLE_DEVICES"' in told[1] and "4,5" not in told[1]


def test_steps_too_begin_without_an_earlier_trys_container(docker, tmp_path, monkeypatch):
    monkeypatch.setattr(made.paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    engine = registry.of(TRITON)
    monkeypatch.setattr(engine, "steps", lambda launch: [made.Step("thing", (("make", "it"),))])
    with pytest.raises(EngineError, match="thing failed"):
        engine.prepare(TRITON, lambda stage: None)
    told = [line.split('"')[1] for line in docker.read_text().splitlines()]
    assert told == ["image", "rm", "run"]
    last = docker.read_text().splitlines()[-1]      # the very GPUs that the server will have
    assert '"--env", "CUDA_DEVICE_ORDER"' in last and '"--env", "CUDA_VISIBLE_DEVICES"' in last


def test_the_record_names_the_image_that_ran(docker, tmp_path):
    assert registry.of(BOXED).verify(BOXED)["image"] == {
        "image": "an/image:1", "id": "sha256:1d", "digests": ["an/image@sha256:2e"]}    # fmt: skip
    file = tmp_path / "image.sqsh"
    file.write_bytes(b"12345")
    filed = BOXED.model_copy(update={"container": Container(runtime="enroot", image=str(file))})
    told = registry.of(filed).verify(filed)["image"]
    assert told == {"image": str(file), "bytes": 5, "mtime_ns": file.stat().st_mtime_ns}
    bare = BOXED.model_copy(update={"container": None})
    assert "image" not in registry.of(bare).verify(bare)


def test_an_engine_that_docker_cannot_name_is_recorded_as_unknown(docker, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert registry.of(BOXED).verify(BOXED)["image"] == {"image": "an/image:1", "id": None, "digests": []}


def test_a_built_engine_is_of_its_kind_of_gpu_and_a_checkpoint_of_none(monkeypatch):
    engine, kinds = registry.of(TRITON), ("NVIDIA H100 80GB HBM3", "NVIDIA H200")
    folders = []
    for kind in kinds:
        monkeypatch.setattr(gpu, "found", lambda kind=kind: [{"name": kind}])
        folders.append(engine.made(TRITON))
    (*before, built, filled), (*same, other, refilled) = folders
    assert before == same and built != other and filled != refilled     # the repository names the engine's folder


def test_a_step_for_any_gpu_has_the_key_it_had():
    step = made.Step("thing", (("make",),))
    here = made.places(TRITON, "v", [step], "NVIDIA H100")
    assert here == made.places(TRITON, "v", [step], "NVIDIA H200")
    assert here != made.places(TRITON, "v", [replace(step, for_gpu=True)], "NVIDIA H100")
