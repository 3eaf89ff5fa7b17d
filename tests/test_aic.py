"""The optional adapter: refused politely where the library is missing, its traps asserted where it is installed."""

import pytest

from lib.analyse import aic
from lib.errors import ConfigError

installed = pytest.mark.skipif(aic.library is None, reason="needs the environment `predict`")


def test_without_the_library_the_committed_file_is_named(monkeypatch):
    monkeypatch.setattr(aic, "library", None)
    with pytest.raises(ConfigError, match=r"step_times.csv serves every reader.*make predict"):
        aic.require()


def test_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(aic, "library", object())
    monkeypatch.setattr(aic.importlib.metadata, "version", lambda name: "0.13.0")
    with pytest.raises(ConfigError, match=r"0.13.0 is installed.*0.12.0"):
        aic.require()


@installed
def test_precisions_differ():
    bf16, fp8 = (aic.oracle(name, 8)(0, 0, 0, 64, 1024) for name in ("vllm-bf16", "vllm-fp8"))
    assert fp8 < bf16


@installed
def test_a_key_the_library_would_ignore_is_noticed(monkeypatch):
    monkeypatch.setattr(aic, "KEYS", aic.KEYS | {"gemm_dtype"})
    with pytest.raises(ConfigError, match="gemm_dtype"):
        aic.oracle("vllm-bf16", 8)


@installed
def test_int4_ratio_falls_below_one_for_few_tokens_only():
    tokens, ratio = aic.int4_ratio()
    assert ratio[tokens <= 16].max() < 0.9 < ratio[tokens >= 1024].min()
