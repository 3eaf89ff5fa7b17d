"""GPUs as the real binding tells them, out of a stand-in library that is loaded under the true library's name."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lib import config, paths
from lib.analyse import energy
from lib.engines import doctor, nvml

SOURCE = Path(__file__).with_name("nvml_stand_in.c")
NS = 1_000_000_000


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("cc")
    if not compiler or importlib.util.find_spec("pynvml") is None:
        why = "no C compiler" if not compiler else "nvidia-ml-py is not installed"
        pytest.skip(f"NVML IS NOT TESTED HERE: {why}")
    folder = tmp_path_factory.mktemp("nvml")
    out = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-O1", "-o", str(out), str(SOURCE)]
    subprocess.run(command, check=True)
    return folder


def asked(library, expression, mood="", **more):
    """Value of an expression over `found` (what `nvml.opened` gives) in a process that loads the stand-in."""
    code = (
        "import json, sys\nfrom lib import config\nfrom lib.engines import doctor, nvml\n"
        f"with nvml.opened() as found: print(json.dumps({expression}))"
    )
    environment = os.environ | {
        "LD_LIBRARY_PATH": str(library), "STAND_IN_NVML": mood, "PYTHONPATH": os.pathsep.join(sys.path),
        "CUDA_VISIBLE_DEVICES": "0,1",
    } | more  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def findings(library, mood="", gpus=2):
    expression = (
        "[[f.what, f.state, f.found, f.way_out] for f in doctor.gpus(config.load_study('cpu').model_copy("
        f"update={{'hardware': config.Hardware(name='8 x H100 SXM', gpus={gpus})}}), [])]"
    )
    return {what: (state, found, way) for what, state, found, way in asked(library, expression, mood)}


def test_what_the_gpus_are(library):
    one, two = asked(library, "found.about()")
    assert one["name"] == "NVIDIA H100 80GB HBM3" and one["memory_bytes"] == 80 << 30
    assert (one["power_limit_w"], one["power_default_w"], one["clock_max_mhz"]) == (700, 700, 1980)
    assert one["compute"] == "9.0"
    assert one["ecc"] is True and one["mig"] is False and one["links"] == 18 and one["processes"] == []
    assert asked(library, "found.driver()") == {"driver": "555.42.06", "cuda": [12, 5]}
    assert asked(library, "found.unlinked()") == [] and two["reasons"] == []


def test_how_they_are_at_a_moment_and_that_counters_grow(library):
    first, then = asked(library, "[found.sample(), found.sample()]")
    assert first["gpu0_power_w"] == 350 and first["gpu1_power_w"] == 351
    assert first["gpu0_sm_clock_mhz"] == 1980 and first["gpu0_memory_clock_mhz"] == 2619
    assert first["gpu0_utilization"] == 0.9 and first["gpu0_clock_reasons"] == 1
    assert then["gpu0_energy_j"] - first["gpu0_energy_j"] == 350
    assert then["gpu0_nvlink_sent_bytes"] - first["gpu0_nvlink_sent_bytes"] == 2 * 1024 * 1024


def test_what_a_gpu_does_not_tell_is_absent_and_never_zero(library):
    assert set(asked(library, "found.sample()", "shy")) == {"gpu0_memory_used_bytes", "gpu1_memory_used_bytes"}
    about = asked(library, "found.about()", "shy")[0]
    assert about["power_limit_w"] is None and about["links"] is None and about["ecc"] is None


@pytest.mark.parametrize(("choice", "powers"), [
    ("0", [350]), ("1", [351]), ("1,0", [351, 350]), ("GPU-bb", [351]), ("GPU-aa11,GPU-bb22", [350, 351]),
    (" 1 ", [351]),
    ("1,7,0", [351]), ("0,0", [350])])      # what follows a bad one is not seen
def test_only_the_gpus_that_are_lent_are_looked_at(library, choice, powers):
    found = asked(library, "found.sample()", CUDA_VISIBLE_DEVICES=choice)
    assert [found[f"gpu{i}_power_w"] for i in range(len(powers))] == powers
    assert f"gpu{len(powers)}_power_w" not in found


@pytest.mark.parametrize("choice", ["", "-1", "7", "GPU-", "GPU-cc"])
def test_a_choice_that_shows_no_gpu_is_said(library, choice):
    said = "CUDA_VISIBLE_DEVICES, shows no GPU"
    assert said in asked(library, "found", CUDA_VISIBLE_DEVICES=choice)


def test_an_engine_on_one_gpu_is_watched_on_one(library):
    assert {name[:4] for name in asked(library, "found.first(1).sample()")} == {"gpu0"}
    assert asked(library, "found.first(0).sample()") == {}


def test_a_hot_gpu_that_the_profile_does_not_use_is_no_trouble(library):
    assert findings(library, "hot", gpus=1)["clocks"][0] == "ok"


def test_no_driver_is_said(library):
    assert "no NVIDIA driver answers" in asked(library, "found", "none")


def test_here_without_gpus_telemetry_and_doctor_say_so():
    with nvml.opened() as found:
        if not isinstance(found, str):
            pytest.skip("this computer has GPUs")
    study = config.load_study("cpu")
    seen = {f.what: f for f in doctor.look(study, [])}
    assert seen["GPUs"].state == doctor.OK and seen["GPUs"].found.startswith("none: ")
    wants = study.model_copy(update={"hardware": config.Hardware(name="8 x H100 SXM", gpus=8)})
    seen = {f.what: f for f in doctor.look(wants, [])}
    assert seen["GPUs"].state == doctor.WRONG and "make rehearse" in seen["GPUs"].way_out
    assert all(f.way_out for f in seen.values() if f.state != doctor.OK)


def test_a_sound_node_has_no_finding(library):
    found = findings(library)
    assert {state for state, _, _ in found.values()} == {"ok"}
    assert found["GPUs"][1] == "2 x NVIDIA H100 80GB HBM3" and "18, 18" in found["NVLink"][1]


@pytest.mark.parametrize(
    ("mood", "what", "state", "says"),
    [
        ("hot", "clocks", "doubt", "held down on GPU 1"),
        ("hot", "power limit", "doubt", "below its default on GPU 1"),
        ("busy", "other work on the GPUs", "wrong", "end what is yours"),
        ("unlinked", "NVLink", "wrong", "fabric manager"),
        ("lying", "ECC errors", "wrong", "take another node"),
        ("fast", "ECC", "doubt", "nvidia-smi -e 1"),
        ("split", "MIG", "wrong", "a node without MIG"),
        ("none", "GPUs", "wrong", "a node with 2 GPUs"),
    ],
)
def test_each_trouble_is_named_with_its_way_out(library, mood, what, state, says):
    found = findings(library, mood)[what]
    assert found[0] == state and says in found[2]


def test_too_few_gpus(library):
    state, found, way = findings(library, gpus=8)["GPUs"]
    assert (state, found) == ("wrong", "2 x NVIDIA H100 80GB HBM3") and "the profile needs 8" in way


def test_a_driver_too_old_for_an_engine():
    class Wants:
        engine, version = "tensorrt_llm", "1.2.1"

    (old,) = doctor._driver({"driver": "555.42.06", "cuda": (12, 5)}, [Wants])
    assert old.state == doctor.WRONG and "CUDA 13.1" in old.way_out
    Wants.version = "0.12.0"
    (close,) = doctor._driver({"driver": "525.60.13", "cuda": (12, 0)}, [Wants])
    assert close.state == doctor.DOUBT
    (good,) = doctor._driver({"driver": "555.42.06", "cuda": (12, 5)}, [Wants])
    assert good.state == doctor.OK


def test_models_that_are_missing_are_named_with_the_room_they_need(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path)
    study = config.load_study("h100")
    seen = {f.what: f for f in doctor.look(study, [config.load_launch("h100", "vllm-0.6.2-fp16")])}
    assert seen["model files"].state == doctor.DOUBT and "llama-3-70b-instruct" in seen["model files"].found
    (tmp_path / "llama-3-70b-instruct").mkdir()
    seen = {f.what: f for f in doctor.look(study, [config.load_launch("h100", "vllm-0.6.2-fp16")])}
    assert seen["model files"].state == doctor.OK and "licence gate" not in seen


# -- what is made of it ----------------------------------------------------------------------------
def telemetry(seconds=11, **changes):
    t = np.arange(seconds) * float(NS)
    series = {}
    for gpu in (0, 1):
        series |= {
            f"gpu{gpu}_energy_j": (t, 100.0 + 300.0 * np.arange(seconds)),
            f"gpu{gpu}_power_w": (t, np.full(seconds, 300.0)),
            f"gpu{gpu}_sm_clock_mhz": (t, np.full(seconds, 1980.0)),
            f"gpu{gpu}_clock_reasons": (t, np.full(seconds, 1.0)),
            f"gpu{gpu}_nvlink_sent_bytes": (t, 1e9 * np.arange(seconds)),
        }
    return series | changes


def test_energy_per_token_is_joules_of_all_gpus_over_tokens():
    found = energy.summary(telemetry(), (2.0 * NS, 8.0 * NS), tokens=1800.0)
    assert found["gpu_energy_j_per_token"] == pytest.approx(2 * 300 * 6 / 1800)
    assert found["gpu_power_w"] == 600 and found["nvlink_sent_bytes_s"] == pytest.approx(2e9)
    assert found["gpu_clock_spread_share"] == 0 and found["gpu_throttled_share"] == 0


def test_one_throttled_gpu_shows():
    t = np.arange(11) * float(NS)
    hot = telemetry(
        gpu1_sm_clock_mhz=(t, np.full(11, 990.0)),
        gpu1_clock_reasons=(t, np.where(np.arange(11) % 2, 0x41, 0x04).astype(float)),
    )
    window = (1.0 * NS, 4.0 * NS)
    found = energy.summary(hot, window, tokens=1.0)
    assert found["gpu_clock_spread_share"] == 0.5
    assert found["gpu_throttled_share"] == 0.25 and found["gpu_power_capped_share"] == 0.25
    assert energy.throttled(hot, window) == {1: 0.5}


def test_without_gpus_nothing_is_known_and_nothing_is_zero():
    found = energy.summary({}, (0.0, 1.0 * NS), tokens=5.0)
    assert set(found) == set(energy.COLUMNS) and all(np.isnan(v) for v in found.values())
    nowhere = energy.summary(telemetry(), (float("nan"), float("nan")), tokens=float("nan"))
    assert all(np.isnan(v) for v in nowhere.values())
