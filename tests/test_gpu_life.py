"""Engines for GPUs from start to end, with stand-ins for their programs: the real command lines, proof, refusals."""

import json
import socket
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from lib import config, paths
from lib.config import Launch
from lib.engines import base, build, computer, gpu, made, process, registry
from lib.errors import EngineError

STAND_IN = Path(__file__).with_name("gpu_stand_in_server.py")
VLLM, SERVE = "vllm-0.6.2-fp16-steps8", "tensorrt-llm-bf16-tp8"


@pytest.fixture
def node(tmp_path, monkeypatch):
    """A computer that seems to have the GPUs, the weights, and programs that behave like the engines'."""
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(base, "LOOK_S", 0.05)
    monkeypatch.setattr(made, "LOOK_S", 0.02)
    monkeypatch.setattr(computer, "free_memory_bytes", lambda: 2 << 40)
    monkeypatch.setattr(gpu, "found", lambda: [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": "81559"}] * 8)
    weights = tmp_path / "artifacts" / "llama-3-70b-instruct"
    weights.mkdir(parents=True)
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(weights / "tokenizer.json"))
    files = [build.described(weights, weights / "tokenizer.json")]
    (weights / "manifest.json").write_text(json.dumps({"files": files, "bytes": files[0]["bytes"], "tools": {}}))
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("vllm", "trtllm-serve", "mpirun"):
        (programs / name).write_text(f"#!{sys.executable}\n" + STAND_IN.read_text())
        (programs / name).chmod(0o755)
    return programs / "python"


def launch(profile: str, name: str, python: Path) -> Launch:
    return config.load_launch(profile, name).model_copy(
        update={"python": str(python), "container": None, "start_seconds": 15}
    )


def start(one: Launch, log: Path):
    engine = registry.of(one)
    engine.check(one)
    assert engine.unavailable(one) is None
    engine.prepare(one, lambda stage: None)
    return engine.start(one, log, lambda stage: None)


@pytest.mark.parametrize("profile, name, version, told", [
    ("h100", VLLM, "0.6.2", "vLLM 0.6.2"), ("h100-current", SERVE, "1.2.1", "TensorRT-LLM 1.2.1"),
])
def test_a_server_is_started_proven_and_ended(node, tmp_path, monkeypatch, profile, name, version, told):
    monkeypatch.setenv("STAND_IN_VERSION", version)
    one = launch(profile, name, node)
    with start(one, tmp_path / "log") as server:
        assert server.version == told and server.added_tokens == 1
        proof = {row["what"]: row["found"] for row in server.proof()}
        if version == "0.6.2":
            assert proof["scheduler steps"] == "8" and proof["status without the key"] == "401"
        else:
            assert proof["listens at"] == "127.0.0.1"
            assert any(what.endswith("options.yaml") for what in proof)
        pid = server.pid
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("said, wrong", [
    ({"dtype=torch.float16": "dtype=torch.bfloat16"}, "dtype should be float16 and is bfloat16"),
    ({"enable_prefix_caching=False": "enable_prefix_caching=True"}, "prefix cache should be False and is True"),
    ({"Initializing an LLM engine": "Starting"}, "GPUs of a replica should be 8 and is unknown"),
])
def test_a_server_that_is_not_what_the_config_says_is_refused(node, tmp_path, monkeypatch, said, wrong):
    monkeypatch.setenv("STAND_IN_VERSION", "0.6.2")
    monkeypatch.setenv("STAND_IN_LOG", json.dumps(said))
    with pytest.raises(EngineError, match=wrong), start(launch("h100", VLLM, node), tmp_path / "log"):
        pass


def test_another_version_is_refused(node, tmp_path, monkeypatch):
    monkeypatch.setenv("STAND_IN_VERSION", "0.6.3.post1")
    says = "version should be 0.6.2 and is 0.6.3.post1"
    with pytest.raises(EngineError, match=says), start(launch("h100", VLLM, node), tmp_path / "log"):
        pass


def test_a_server_that_dies_while_loading_is_told_with_its_last_words(node, tmp_path, monkeypatch):
    program = node.with_name("vllm")
    program.write_text(f"#!{sys.executable}\nraise SystemExit('torch.OutOfMemoryError: CUDA out of memory.')\n")
    says = "ended by itself .status 1.*CUDA out of memory"
    with pytest.raises(EngineError, match=says), start(launch("h100", VLLM, node), tmp_path / "log"):
        pass


def test_the_options_of_a_launch_lie_in_its_file(node, tmp_path, monkeypatch):
    one = launch("h100-current", SERVE, node)
    engine = registry.of(one)
    engine.prepare(one, lambda stage: None)
    text = (engine.made(one)[0] / "options.yaml").read_text()
    assert "stream_interval: 1\n" in text and "enable_block_reuse: false" in text and "dtype: auto" in text
    assert Path(engine.command(one, 1)[-1]).parent == engine.made(one)[0]


def triton(one: Launch, monkeypatch, **said):
    """Lay out what quantizing, building and filling would have made, and what Triton tells of it."""
    engine = registry.of(one)
    _, _, built, repository = engine.made(one)
    config_json = {
        "version": "0.12.0",
        "pretrained_config": {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
                              "mapping": {"tp_size": 8}},
        "build_config": {"max_batch_size": 256, "max_num_tokens": 8192,
                         "plugin_config": {"use_fp8_context_fmha": True}},
    }
    for folder in (built, repository):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config_json))
        files = [build.described(folder, folder / "config.json")]
        (folder / "manifest.json").write_text(json.dumps({"files": files, "commands": [], "seconds": 1.0, "bytes": 1}))
    told = {"gpt_model_path": str(built), "batch_scheduler_policy": "guaranteed_no_evict",
            "enable_chunked_context": "True", "enable_kv_cache_reuse": "False"} | said
    answer = {"parameters": {name: {"string_value": value} for name, value in told.items()},
              "model_transaction_policy": {"decoupled": True}}
    monkeypatch.setenv("STAND_IN_TRITON", json.dumps(answer))
    monkeypatch.setenv("STAND_IN_VERSION", "")
    return engine


def test_triton_is_started_proven_and_ended(node, tmp_path, monkeypatch):
    one = launch("h100", "tensorrt-llm-0.12.0-fp8", node)
    engine = triton(one, monkeypatch)
    with engine.start(one, tmp_path / "log", lambda stage: None) as server:
        assert server.version == "TensorRT-LLM 0.12.0 (Triton 2.49.0)" and server.wire == "triton-generate-stream"
        proof = {row["what"]: row["found"] for row in server.proof()}
        assert proof["quantization"] == proof["KV cache"] == "FP8" and proof["listens at"] == "127.0.0.1"


def test_triton_told_something_else_is_refused(node, tmp_path, monkeypatch):
    one = launch("h100", "tensorrt-llm-0.12.0-fp8", node)
    engine = triton(one, monkeypatch, enable_kv_cache_reuse="True")
    says = "prefix cache should be False and is True"
    with pytest.raises(EngineError, match=says), engine.start(one, tmp_path / "log", lambda stage: None):
        pass


def test_an_engine_that_was_not_built_is_refused(node, tmp_path):
    one = launch("h100", "tensorrt-llm-0.12.0-fp8", node)
    started = registry.of(one).start(one, tmp_path / "log", lambda stage: None)
    with pytest.raises(EngineError, match="tensorrt-llm-0.12.0-engine-.* is not whole"), started:
        pass


def test_a_port_is_free_only_with_those_behind_it(monkeypatch):
    port = process.free_port(1)
    asked = iter([port])  # what the kernel would give first

    class Socket(socket.socket):
        def bind(self, where):
            super().bind((where[0], where[1] or next(asked, 0)))

    with socket.socket() as other:
        other.bind(("127.0.0.1", port + 1))
        monkeypatch.setattr(process.socket, "socket", Socket)
        assert process.free_port() == port
        asked = iter([port])
        assert process.free_port(1) not in (port, port + 1)
