"""Adapters, sessions and the KV cache on engines for GPUs: what is passed and asked, and rehearsals that prove it."""

import asyncio
import json
import struct

import pytest

from lib import config, depths, loads, paths, records
from lib.analyse import tables
from lib.config import Level
from lib.engines import base, build, inside, registry
from lib.engines.recipes import make_adapters_70b as recipe
from lib.engines.recipes import shape_llama_3_70b
from lib.engines.rehearse import adapters, batch, pace
from lib.engines.rehearse import engine as rehearse
from lib.errors import ConfigError
from lib.measure import costs, hostprobe, nodeplan, serve, session

LORA = {name: config.load_launch("h100-lora", name) for name in config.launch_names("h100-lora")}
VLLM, SERVE = LORA["vllm-bf16-r16"], LORA["tensorrt-llm-bf16-r16"]
SMALL = config.load_launch("h100-inside", "vllm-fp8-small-cache")
OLD = config.load_launch("h100", "vllm-0.6.2-fp16")
PLAIN = config.load_launch("h100-current", "vllm-fp8-tp8")


def changed(launch, **settings):
    return launch.model_copy(update={"settings": dict(launch.settings) | settings})


def after(argv, name):
    return argv[argv.index(name) + 1]


# -- what is passed and asked ----------------------------------------------------------------------
def test_vllm_is_told_to_serve_adapters_and_nothing_changes_without_them():
    engine = registry.of(VLLM)
    argv = engine.command(VLLM, 1)
    assert "--enable-lora" in argv and after(argv, "--max-loras") == "4" and after(argv, "--max-lora-rank") == "16"
    assert after(argv, "--max-cpu-loras") == str(inside.COUNT + 1 + inside.SWAPS)
    assert engine.variables(VLLM, "k")["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert not any("lora" in word for word in engine.command(PLAIN, 1))
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in engine.variables(PLAIN, "k")
    assert engine.adapted(VLLM, {"model": "x"}, "adapter-3") == {"model": "adapter-3"}
    assert after(registry.of(SMALL).command(SMALL, 1), "--num-gpu-blocks-override") == "1024"


def test_a_request_brings_its_adapter_along_to_tensorrt_llm():
    engine = registry.of(SERVE)
    assert engine.options(SERVE)["lora_config"] == {
        "lora_target_modules": ["attn_q", "attn_k", "attn_v", "attn_dense"], "max_lora_rank": 16, "max_loras": 4,
        "max_cpu_loras": 9,
    }  # fmt: skip
    asked = {name: engine.adapted(SERVE, {"model": "m"}, name)["lora_request"] for name in
             [*engine.adapters(SERVE), inside.OVER_LIMIT, inside.OTHER_BASE]}  # fmt: skip
    assert len({one["lora_int_id"] for one in asked.values()}) == len(asked) == inside.COUNT + 2
    where = paths.ARTIFACTS / "llama-3-70b-lora-r16" / "adapter-3"
    assert asked["adapter-3"] == {"lora_name": "adapter-3", "lora_int_id": 3, "lora_path": str(where)}


@pytest.mark.parametrize(("launch", "settings", "says"), [
    (VLLM, {"max_lora_rank": 8}, "rank 16 and max_lora_rank is 8"),
    (VLLM, {"api_servers": 2}, "loads an adapter into one server process alone"),
    (VLLM, {"adapters": "llama-3-70b-instruct"}, "holds bf16 weights and no adapters"),
    (SMALL, {"kv_blocks": 511}, "511 blocks of 16 tokens cannot hold one request of max_model_len 8192"),
    (SERVE, {"max_lora_rank": 8}, "rank 16 and max_lora_rank is 8"),
    (OLD, {"adapters": "llama-3-70b-lora-r8"}, "with 0.24.0 alone"),
    (OLD, {"kv_blocks": 1024}, "with 0.24.0 alone"),
])  # fmt: skip
def test_what_the_engine_would_refuse_after_loading_is_refused_before(launch, settings, says):
    with pytest.raises(ConfigError, match=says):
        registry.of(launch).check(changed(launch, **settings))


def test_adapters_beside_tensorrt_llms_fp8_are_refused_by_name():
    fp8 = config.load_launch("h100-current", "tensorrt-llm-fp8-tp8")
    with pytest.raises(ConfigError, match="pull request 9808.*Serve adapters at bf16"):
        registry.of(fp8).check(changed(fp8, adapters="llama-3-70b-lora-r8"))


def test_launches_of_one_profile_differ_in_what_they_are_about_alone():
    for profile, one, other, keys in (
        ("h100-lora", "vllm-bf16-r8", "vllm-bf16-r16", {"adapters"}),
        ("h100-sessions", "vllm-fp8-cache-on", "vllm-fp8-cache-off", {"prefix_cache"}),
        ("h100-sessions", "tensorrt-llm-fp8-cache-on", "tensorrt-llm-fp8-cache-off", {"prefix_cache"}),
        ("h100-inside", "vllm-fp8-chunks", "vllm-fp8-small-cache", {"kv_blocks"}),
        ("h100-inside", "vllm-fp8-chunks", "vllm-fp8-kv-16-bit", {"kv_cache_dtype"}),
        ("h100-inside", "vllm-fp8-chunks", "vllm-fp8-whole", {"chunked_prefill", "max_num_batched_tokens"}),
    ):
        a, b = (config.load_launch(profile, name).settings for name in (one, other))
        assert {key for key in {*a, *b} if a.get(key) != b.get(key)} == keys


# -- adapters for Llama-3-70B ----------------------------------------------------------------------
def test_their_shapes_are_the_models():
    of = shape_llama_3_70b.SHAPES
    assert (of["num_hidden_layers"], of["hidden_size"]) == (recipe.LAYERS, recipe.HIDDEN)
    assert of["num_key_value_heads"] * of["head_dim"] == recipe.KEY_VALUE
    assert (recipe.COUNT, f"rank-{recipe.OVER_LIMIT}") == (inside.COUNT, inside.OVER_LIMIT)
    for rank in (8, 16):
        each = [2 * sum(a * b for a, b in recipe.shapes(hidden, r).values())
                for hidden, r in ((recipe.HIDDEN, rank), (recipe.HIDDEN, 128), (recipe.NARROW, rank))]  # fmt: skip
        stated = build.recipe(f"llama-3-70b-lora-r{rank}").bytes
        assert 8 * each[0] + each[1] + each[2] < stated < 1.05 * (8 * each[0] + each[1] + each[2])


def test_an_adapter_is_a_safetensors_file_and_comes_from_its_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(recipe, "LAYERS", 1)
    monkeypatch.setattr(recipe, "KEY_VALUE", 16)
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        recipe.write(tmp_path / name, 64, 4, seed)
    a, b, c = ((tmp_path / name / "adapter_model.safetensors").read_bytes() for name in "abc")
    assert a == b != c
    (size,) = struct.unpack("<Q", a[:8])
    head = json.loads(a[8 : 8 + size])
    assert size % 8 == 0 and head.pop("__metadata__") == {"format": "pt"}
    assert len(head) == 8 and max(one["data_offsets"][1] for one in head.values()) == len(a) - 8 - size
    query = head["base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight"]
    assert query["shape"] == [64, 4] and query["dtype"] == "F16"
    assert json.loads((tmp_path / "a" / "adapter_config.json").read_text())["r"] == 4


def test_the_plan_makes_them_once():
    study = config.load_study("h100-lora")
    launches = [config.load_launch("h100-lora", name) for name in config.run_order(study)]
    fetching = [cost.fetching_s for _, cost in costs.in_order(study, launches)]
    r16, r8, fp8 = (build.recipe(name).seconds for name in
                    ("llama-3-70b-lora-r16", "llama-3-70b-lora-r8", "llama-3-70b-instruct-fp8"))  # fmt: skip
    assert fetching == [build.recipe("llama-3-70b-instruct").seconds + r16, 0, fp8, r8]
    text = "\n".join(nodeplan.lines(study))
    assert text.count("make llama-3-70b-lora-r16: python lib/engines/recipes/make_adapters_70b.py --scheme r16") == 1


# -- stand-ins -------------------------------------------------------------------------------------
def test_a_stand_in_refuses_what_an_engine_refuses():
    known = adapters.Adapters(16)
    at = "/x/llama-3-70b-lora-r16/"
    assert known.load("a", at + "adapter-8") is None and known.loaded == {"a"}
    assert "rank 128 is greater than max_lora_rank 16" in known.load("b", at + inside.OVER_LIMIT)
    assert "another base model" in known.load("c", at + inside.OTHER_BASE)
    assert "No adapter found" in known.load("d", at + "adapter-99") and known.loaded == {"a"}
    assert "greater than max_lora_rank 8" in adapters.Adapters(8).load("a", at + "adapter-1")


def test_a_prefix_cache_knows_whole_blocks_of_what_it_has_read():
    cache = adapters.Prefixes(on=True)
    assert cache.cached("a" * 320, 160) == 0
    assert cache.cached("a" * 320 + "b" * 320, 320) == 160
    assert cache.cached("a" * 320, 160) == 144  # its last token is computed
    assert adapters.Prefixes(on=False).cached("a" * 320, 160) == 0


def played(limits, requests, steps):
    """Play requests (prompt and answer tokens) on a batch for so many steps; the tokens that each got by step."""

    async def run():
        got, now = [[] for _ in requests], []
        of = batch.Batch(pace.Pace((1.0,), (0.01,), (1.0,), (0.01,), 1000), limits)
        for mine, (prompt, wanted) in zip(got, requests, strict=True):
            of.add(batch.Sequence(prompt, wanted, lambda tokens, ended, mine=mine: mine.append(now[-1])))
        for step in range(steps):
            now.append(step)
            of._read()
            of._step()
        return got, of

    return asyncio.run(run())


def test_a_long_prompt_is_read_in_chunks_or_holds_its_step():
    got, _ = played(batch.Limits(prompt_tokens=100, chunked=True), [(10, 6), (250, 2)], 6)
    assert got == [[0, 1, 2, 3, 4, 5], [2, 3]]  # 90 + 100 + 60 tokens of it
    got, _ = played(batch.Limits(prompt_tokens=100), [(10, 4), (250, 2)], 4)
    assert got == [[0, 1, 2, 3], [1, 2]]


def test_a_full_cache_preempts_the_youngest_and_it_comes_back():
    got, of = played(batch.Limits(kv_tokens=24), [(10, 4), (10, 4)], 12)
    assert of.preemptions == 1 and [len(one) for one in got] == [4, 4]
    assert of.prompt_tokens_total == 20  # a prompt that is read again is no second prompt
    assert played(batch.Limits(kv_tokens=40), [(10, 4), (10, 4)], 12)[1].preemptions == 0


# -- rehearsed launches ----------------------------------------------------------------------------
@pytest.fixture
def rehearsed(tmp_path, monkeypatch):
    """Take a launch as a rehearsal with these levels and read its facts; also the record's metadata."""
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(base, "LOOK_S", 0.05)
    monkeypatch.setattr(hostprobe, "probe", lambda: {"bandwidth_bytes_s": 1e12, "flop_s": {"float32": 1e11}})
    monkeypatch.setenv("STUDY_TERMINAL", "none")
    monkeypatch.setenv(rehearse.SPEED, "10")
    monkeypatch.setattr(serve, "FEWEST", 2)

    def take(profile, name, *levels, **settings):
        real = config.load_study(profile, depths.REHEARSAL)
        launch = changed(config.load_launch(profile, name), **settings)
        wanted = tuple(loads.pinned(Level(**one), paths.CONFIG / profile, real.model.context) for one in levels)
        statistics = real.statistics.model_copy(update={"warmup_seconds": 0.1, "drain_seconds": 10.0})
        study = real.model_copy(update={"levels": wanted, "statistics": statistics})
        monkeypatch.setattr(config, "load_study", lambda *_: study)
        monkeypatch.setattr(config, "load_launch", lambda *_: launch)
        assert session.take(profile, depths.REHEARSAL, name)["status"] == "measured"
        meta = records.read(paths.record(study.name, name)).meta
        assert meta["kind"] == "rehearsal" and meta["incomplete"] is None
        found = tables.build(study, paths.RECORDS / study.name, tmp_path / "tables", about_h100={})
        assert "rehearsed" in json.dumps(found["inside"]) and '"measured"' not in json.dumps(found["inside"])
        return found["inside"], meta

    return take


NEWS = {"kind": "closed", "concurrency": 4, "workload": "news flash", "seconds": 0.5}


SPREAD = NEWS | {"adapters": 8, "popularity": "zipf"}


@pytest.mark.parametrize(("name", "levels"), [
    ("vllm-bf16-r16", (NEWS, SPREAD)), ("tensorrt-llm-bf16-r16", (SPREAD,)),
])  # fmt: skip
def test_adapters_are_proven_and_told(rehearsed, name, levels):
    found, _ = rehearsed("h100-lora", name, *levels)
    (row,) = found["lora"]
    assert row["rank"] == 16 and row["turned"] == row["instead"] == []
    assert row["mixed"]["requests"]["value"] == row["mixed"]["equal"]["value"] == 9
    assert [one["taken"] for one in row["refused"]] == [False, False, False]
    assert "rank 128 is greater than max_lora_rank 16" in row["refused"][1]["said"]
    assert (row["load"]["value"] is None) == (row["swaps"]["load"]["value"] is None) == name.startswith("tensorrt")
    if name.startswith("vllm"):  # taken out, loaded again and asked while others were served
        assert [row["swaps"][key]["value"] for key in ("loaded", "failed", "asked", "equal")] == [4, 0, 4, 4]
    assert row["first"]["value"] > 0 and row["levels"][0]["skewed"] and row["levels"][0]["adapters"]["value"] >= 4


def test_sessions_find_their_document(rehearsed):
    talks = {"kind": "sessions", "concurrency": 2, "workload": "analyst", "seconds": 1.5, "think_seconds": 0.05}
    found, _ = rehearsed("h100-sessions", "vllm-fp8-cache-on", talks)
    (row,) = found["sessions"]
    assert row["cache"] and len(row["by_turn"]) == 4 and row["by_turn"][1]["value"] > 0
    assert row["hits"]["value"] > 50


def test_a_small_cache_fills_and_a_long_prompt_is_seen(rehearsed):
    notes = {"kind": "closed", "concurrency": 16, "workload": "notes", "seconds": 1.5}
    trace = {"kind": "trace", "trace": "long-among-short.csv", "workload": "notes", "seconds": 1.4}
    found, meta = rehearsed("h100-inside", "vllm-fp8-small-cache", notes, trace, kv_blocks=512)
    assert meta["kv_cache"]["tokens"] == 8192 and meta["kv_cache"]["value_bytes"] == 1.0
    (full,) = found["crowded"]
    assert full["wanted"]["value"] == pytest.approx(100 * 16 * (512 + 256) / 8192)
    assert full["preemptions"]["value"] > 0 and full["usage"]["value"] > 80
    (long,) = found["intrusion"]
    assert long["chunked"] and long["step_tokens"] == 512 and long["long_ttft"]["value"] > 0
