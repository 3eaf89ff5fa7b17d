"""The optional adapter: refused politely where the library is missing, its traps asserted where it is installed."""

import json
import os
import subprocess

import pytest

from lib import environments, paths
from lib.analyse import aic
from lib.errors import ConfigError


def test_without_the_library_the_committed_file_is_named(monkeypatch):
    monkeypatch.setattr(aic, "library", None)
    with pytest.raises(ConfigError, match=r"step_times.csv serves every reader.*make predict"):
        aic.require()


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(aic, "library", object())
    monkeypatch.setattr(aic.importlib.metadata, "version", lambda name: "0.13.0")
    with pytest.raises(ConfigError, match=r"0.13.0 is installed.*0.12.0"):
        aic.require()


def test_sixteen_bit_is_spelt_as_the_library_knows_it():
    assert not {word for who in aic.CONTENDERS.values() for word in (who.gemm, who.kv, who.attention)} & {
        "float16",
        "fp16",
        "bf16",
    }


ASK = """
import json
from lib.analyse import aic
from lib.errors import ConfigError

aic.require()
steps = {name: aic.oracle(name, 8)(0, 0, 0, 64, 1024) for name in ("vllm-bf16", "vllm-fp8")}
speeds = [aic.own_estimate(name, 128, 128, 16) for name in ("vllm-bf16", "vllm-fp8", "vllm-bf16")]
tokens, ratio = aic.int4_ratio()
known, aic.KEYS = aic.KEYS, aic.KEYS | {"gemm_dtype"}
try:
    aic.oracle("vllm-bf16", 8)
    noticed = ""
except ConfigError as refusal:
    noticed = str(refusal)
print(json.dumps({
    "steps": steps, "speeds": speeds, "noticed": noticed,
    "kv": [aic.capacity("vllm-bf16", tp) for tp in (1, 2, 8)],
    "int4": [float(ratio[tokens <= 16].max()), float(ratio[tokens >= 1024].min())],
}))
"""


def test_the_librarys_traps():
    """In the environment that holds the library, since no other does."""
    python = environments.python("predict")
    if not python.exists():
        pytest.skip("the environment `predict` has not been made; `make predict` makes it")
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    done = subprocess.run([python, "-c", ASK], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["steps"]["vllm-fp8"] < said["steps"]["vllm-bf16"]  # a wrong key would give both 16 bit
    assert "gemm_dtype" in said["noticed"]
    bf16, fp8, again = said["speeds"]
    assert fp8 > bf16 == again  # a backend that is used twice would answer for its first model
    assert said["kv"][0] == 0 < said["kv"][1] < said["kv"][2]  # 141 GB of weights fit on no single card
    few, many = said["int4"]
    assert few < 0.9 < many  # INT4 saves where weights are read for few tokens only
