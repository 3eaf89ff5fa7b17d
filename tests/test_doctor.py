"""What a look at a computer finds without a GPU's help: images, disk, licence, limits, the port."""

import os
import resource
import shutil
import socket
from types import SimpleNamespace

import pytest

from lib import config, paths
from lib.engines import build, doctor
from lib.launches import Container

STUDY = config.load_study("h100")
FP16 = config.load_launch("h100", "vllm-0.6.2-fp16")


def found(launches=(FP16,), study=STUDY):
    return {finding.what: finding for finding in doctor.look(study, list(launches))}


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Return a function that puts programs on the PATH, each ending with a status."""
    def put(**statuses):
        for name, status in statuses.items():
            (tmp_path / name).write_text(f"#!/bin/sh\necho \"$@\" >> {tmp_path}/told\nexit {status}\n")
            (tmp_path / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/bin")
        return tmp_path / "told"
    return put


def image(container):
    launch = FP16.model_copy(update={"container": container})
    return next(f for f in doctor.look(STUDY, [launch]) if f.what.startswith("image "))


@pytest.mark.parametrize(("status", "state"), [(0, doctor.OK), (1, doctor.DOUBT)])
def test_docker_is_asked_for_the_very_digest_that_will_run(programs, status, state):
    told = programs(docker=status)
    digest = "sha256:" + "5" * 64
    seen = image(Container(runtime="docker", image="an/image:1", digest=digest))
    assert seen.state == state and told.read_text() == f"image inspect an/image:1@{digest}\n"
    assert state == doctor.OK or seen.way_out == f"docker pull an/image:1@{digest}, before the node is paid for"


@pytest.mark.parametrize(("runtime", "program"), [("apptainer", "apptainer"), ("enroot", "enroot"), ("pyxis", "srun")])
def test_an_image_file_is_there_or_not(programs, tmp_path, runtime, program):
    programs(**{program: 0})
    file = tmp_path / "image.sqsh"
    assert (seen := image(Container(runtime=runtime, image=str(file)))).state == doctor.WRONG
    assert seen.found == "no such file" and seen.way_out
    file.touch()
    assert image(Container(runtime=runtime, image=str(file))).state == doctor.OK


@pytest.mark.parametrize(("runtime", "program"), [("apptainer", "apptainer"), ("pyxis", "srun")])
def test_an_image_that_is_fetched_at_the_start_costs_paid_minutes(programs, runtime, program):
    told = programs(**{program: 0})
    seen = image(Container(runtime=runtime, image="an/image:1"))
    assert (seen.state, seen.found) == (doctor.DOUBT, "is fetched at the start")
    assert seen.way_out.startswith(program) and not told.exists()      # nothing is changed by looking


def test_a_runtime_that_is_not_installed_is_named(programs):
    programs()
    seen = image(Container(runtime="apptainer", image="an/image:1"))
    assert seen.state == doctor.WRONG and "apptainer is not on the PATH" in seen.found and "module load" in seen.way_out


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """No model, no token, a small disk."""
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path)
    monkeypatch.setattr(doctor.Path, "home", lambda: tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=1 << 40, used=0, free=50_000_000_000))
    for name in ("HF_TOKEN", build.MODELS_ENV):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_disk_too_small_and_a_licence_not_taken(bare, monkeypatch):
    seen = found()
    assert seen["disk"].state == doctor.WRONG and "need about 141 GB" in seen["disk"].way_out
    assert seen["licence gate"].state == doctor.WRONG and "HF_TOKEN" in seen["licence gate"].way_out
    monkeypatch.setenv("HF_TOKEN", "hf_not_a_real_one")
    assert found()["licence gate"].state == doctor.OK and "hf_not" not in str(found())
    (bare / "llama-3-70b-instruct").mkdir()
    assert found()["disk"].state == doctor.OK


def test_models_in_a_folder_of_the_users_need_neither_room_nor_licence(bare, monkeypatch):
    monkeypatch.setenv(build.MODELS_ENV, str(bare))
    seen = found()
    assert seen["disk"].state == doctor.OK and "licence gate" not in seen


@pytest.mark.parametrize(("which", "what", "limit"), [
    (resource.RLIMIT_NOFILE, "ulimit -n (open files)", 1024),
    (resource.RLIMIT_MEMLOCK, "ulimit -l (locked memory)", 65536)])
def test_low_limits_are_found(monkeypatch, which, what, limit):
    real = resource.getrlimit
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (limit, limit) if asked == which else real(asked))
    assert (found()[what].state, found()[what].found) == (doctor.DOUBT, str(limit))
    none = resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda asked: (none, none))
    assert (found()[what].state, found()[what].found) == (doctor.OK, "unlimited")


@pytest.mark.parametrize(("size", "state"), [(64 << 20, doctor.DOUBT), (64 << 30, doctor.OK)])
def test_little_shared_memory_is_found(monkeypatch, size, state):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=size, used=0, free=1 << 40))
    assert found()["/dev/shm"].state == state


def test_a_sandbox_without_loopback_is_found(monkeypatch):
    class Forbidding(socket.socket):
        def bind(self, address):
            raise PermissionError(1, "Operation not permitted")

    assert found()["ports"].state == doctor.OK
    monkeypatch.setattr(doctor.socket, "socket", Forbidding)
    assert found()["ports"].state == doctor.WRONG and "Operation not permitted" in found()["ports"].found
