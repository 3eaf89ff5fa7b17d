"""Records of the article's own node reach verdicts, factorial and facts; records of anything else do not."""

import json

import pytest

from lib.analyse import h100, h100_features, h100_records, h100_tables, published, shards, tables, world
from tests import synthetic

DATA = published.claims()
MODEL, H100S = DATA["article"]["model"], ["NVIDIA H100 80GB HBM3"] * 8


def number(value, low=None, high=None, reason=None, mark="measured"):
    return {"value": value, "low": low, "high": high, "reason": reason, "mark": mark, "source": "r"}


def level(load, tok_s, ttft=100.0, reason=None, mark="measured", workload="headline"):
    return {
        "kind": "closed",
        "workload": workload,
        "load": number(load, mark="assumed"),
        "ttft_p95": number(ttft, None if reason else 0.9 * ttft, None if reason else 1.1 * ttft, reason),
        "tpot_p95": number(20.0, 19.0, 21.0),
        "ttft_p50": number(0.8 * ttft, 0.7 * ttft, 0.9 * ttft),
        "tpot_p50": number(18.0, 17.0, 19.0),
        "output_tok_s": number(tok_s, 0.9 * tok_s, 1.1 * tok_s, mark=mark),
        "requests_s": number(tok_s / 128),
        "failures": number(0),
        "decoding": number(0.9 * load),
        "joined": number(0.95),
    }


def launch(engine, precision, *levels, capacity=None, build=0.0, ready=100.0, mark="measured", **more):
    return {
        "engine": engine,
        "precision": precision,
        "source": f"records/{engine}-{precision}.parquet",
        "versions": {engine: "1"},
        "ready": number(ready, mark=mark),
        "artifact": {"build": number(build)},
        "proof": [],
        "kv_cache": None,
        "switch": number(None, reason="the record times no switch of adapters"),
        "levels": {f"closed-{one['load']['value']}": one for one in levels},
        "capacity": number(capacity, reason=None if capacity else "none shown"),
    } | more


LAUNCHES = {
    "a": launch("vllm", "bf16", level(64, 2000), level(128, 2500), capacity=64),
    "b": launch("vllm", "fp8", level(64, 2200)),
    "c": launch("tensorrt_llm", "fp8", level(64, 2420), level(128, 3850, ttft=112)),
}


def measured(launches=None, gpus=None, model=MODEL, workload="headline"):
    given = LAUNCHES if launches is None else launches
    return world.measured_from(given, DATA, gpus=H100S if gpus is None else gpus, model=model, workload=workload)


def test_only_the_articles_own_node_counts():
    assert measured()
    assert not measured(gpus=[])
    assert not measured(gpus=H100S[:4])
    assert not measured(gpus=["NVIDIA H100 PCIe"] * 8)
    assert not measured(model="other/model")
    assert measured(gpus=[{"name": name} for name in H100S]) == measured()
    hyphened = {name: one | {"engine": one["engine"].replace("_", "-")} for name, one in LAUNCHES.items()}
    assert measured(hyphened) == measured()


def test_a_row_is_read_at_its_stated_load_or_the_next_below():
    found = measured()
    assert (found["vllm-fp16"]["load"], found["vllm-fp16"]["output_tok_s"]) == (64, 2000)
    assert (found["trtllm-fp8"]["load"], found["trtllm-fp8"]["ttft_p95_ms"]) == (128, 112)
    assert "vllm-awq" not in found
    assert found["vllm-fp16"]["capacity"] == 64 and found["vllm-fp16"]["output_tok_s_at_capacity"] == 2000


def test_what_rests_on_too_little_is_left_out():
    thin = measured({"a": launch("vllm", "fp16", level(64, 2000, reason="p95 needs 72 requests, there are 11"))})
    assert "ttft_p95_ms" not in thin["vllm-fp16"] and thin["vllm-fp16"]["output_tok_s"] == 2000
    assert not measured({"a": launch("vllm", "fp16", level(64, 2000, mark="rehearsed"), mark="rehearsed")})
    assert set(measured(workload="other")) == {"documented", "start"}  # what engines show is of no workload


def test_contrasts_differ_in_one_thing_only():
    rows = {row["contrast"]: row for row in measured()["contrasts"]["rows"]}
    assert set(rows) == {"TensorRT-LLM / vLLM, fp8", "FP8 / 16 bit, vllm"}
    engine = rows["TensorRT-LLM / vLLM, fp8"]
    assert engine["value"] == pytest.approx(1.1)  # both have 64 requests at once, only one has 128
    assert engine["low"] == pytest.approx(1.1 * 0.9 / 1.1) and engine["high"] == pytest.approx(1.1 * 1.1 / 0.9)
    effect = measured()["engine_effect"]
    assert effect["fp8"] == {"low": engine["low"], "high": engine["high"]} and "fp16" not in effect
    table = h100_tables.factorial_table(measured())
    assert set(table.loc[table["kind"] == "measured", "contrast"]) == set(rows)


def test_engines_at_each_precision_have_an_effect_of_their_own():
    more = LAUNCHES | {"d": launch("tensorrt_llm", "bf16", level(64, 1000))}
    effect = measured(more)["engine_effect"]
    assert effect["fp16"]["high"] < 1 < effect["fp8"]["high"]


def test_another_version_of_an_engine_decides_nothing_alone():
    stated = {"vllm": "0.6.2", "tensorrt_llm": "0.12.0"}
    own = {name: one | {"versions": {"engine": stated[one["engine"]]}} for name, one in LAUNCHES.items()}
    new = {name: one | {"versions": {"engine": "9.9"}} for name, one in LAUNCHES.items()}
    of_own, of_new = ({one["claim"]: one for one in h100_tables.ledger(measured(of))} for of in (own, new))
    assert of_own["row-trtllm-fp8"]["verdict"] == "reproduced"
    assert of_new["row-trtllm-fp8"]["verdict"] not in ("reproduced", "contradicted")
    assert "tensorrt_llm 9.9 instead of 0.12.0" in of_new["row-trtllm-fp8"]["reason"]
    assert "measured" in of_new["row-trtllm-fp8"]["kinds"]
    assert "not distinguishable" in of_own["choice-trtllm"]["reason"]
    assert "do not decide alone" in of_new["choice-trtllm"]["reason"]
    assert "do not decide" not in of_new["row-vllm-awq"]["reason"]  # no record of it takes part


STATED = {"vllm": "vLLM 0.6.2", "tensorrt_llm": "TensorRT-LLM 0.12.0"}
FP8 = [
    {"what": what, "expected": found, "found": found, "source": "config.json", "ok": True}
    for what, found in (("fused attention", "true"), ("quantization", "FP8"), ("KV cache", "fp8"))
]


def verdicts(**changes):
    """Verdicts where records of the article's versions show what `changes` puts into them, by engine."""
    given = {
        engine: launch(engine, "fp8", level(64, 2000), level(128, 2500), versions={"engine": STATED[engine]})
        | changes.get(engine, {})
        for engine in STATED
    }
    return {row["claim"]: row for row in h100_tables.ledger(measured(given))}


def test_records_move_the_paging_claim():
    assert verdicts()["paged"]["verdict"] == "consistent"  # no record says how much its KV cache holds
    held = {"tokens": 100 * 8192, "context": 8192}  # 100 whole contexts, while 128 requests ask
    assert verdicts(vllm={"kv_cache": held})["paged"]["verdict"] == "reproduced"  # 115 decode at once
    reserved = level(128, 2500) | {"decoding": number(100)}
    few = {"kv_cache": held, "levels": {"closed-128": reserved}}
    assert verdicts(vllm=few)["paged"]["verdict"] == "contradicted"
    roomy = {"tokens": 400 * 8192, "context": 8192}  # no load asked for more than whole contexts
    assert verdicts(vllm={"kv_cache": roomy})["paged"]["verdict"] == "consistent"


def test_records_move_the_batching_claim():
    alone = verdicts()["ifb"]
    assert alone["verdict"] == "consistent" and "1 of 4 signs" in alone["reason"]  # stamps show batching, nothing more
    assert verdicts(tensorrt_llm={"proof": FP8})["ifb"]["verdict"] == "reproduced"
    wide = [row if row["what"] != "KV cache" else row | {"found": "auto"} for row in FP8]
    found = verdicts(tensorrt_llm={"proof": wide})["ifb"]
    assert found["verdict"] == "contradicted" and "KV cache in FP8" in found["reason"]
    static = {"closed-64": level(64, 2000) | {"joined": number(0.0)}}
    assert verdicts(tensorrt_llm={"proof": FP8, "levels": static})["ifb"]["verdict"] == "contradicted"


def test_records_move_the_adapter_claim():
    slow, quick = (number(value, 0.9 * value, 1.1 * value) for value in (200.0, 20.0))
    assert verdicts()["lora"]["verdict"] == "not testable here"
    assert verdicts(vllm={"switch": quick}, tensorrt_llm={"switch": slow})["lora"]["verdict"] == "reproduced"
    assert verdicts(vllm={"switch": slow}, tensorrt_llm={"switch": quick})["lora"]["verdict"] == "contradicted"
    near = verdicts(vllm={"switch": quick}, tensorrt_llm={"switch": number(21.0, 19.0, 23.0)})["lora"]
    assert near["verdict"] == "depends on unstated settings" and "not distinguishable" in near["reason"]


def test_records_move_the_claim_of_velocity():
    built = {"artifact": {"build": number(1800.0)}}
    assert verdicts(tensorrt_llm=built)["choice-vllm"]["verdict"] == "reproduced"  # 100 s against 1,900 s
    assert verdicts(vllm=built)["choice-vllm"]["verdict"] == "contradicted"
    assert verdicts()["choice-vllm"]["verdict"] == "depends on unstated settings"  # both take 100 s
    unknown = {"artifact": {"build": number(None, reason="its build time is unknown")}}
    assert verdicts(tensorrt_llm=unknown)["choice-vllm"]["verdict"] == "not testable here"


def test_a_rehearsal_shows_nothing_of_the_engines():
    played = {"ready": number(100.0, mark="rehearsed"), "kv_cache": {"tokens": 819200, "context": 8192}}
    assert verdicts(vllm=played)["paged"]["verdict"] == "consistent"
    assert verdicts(vllm=played)["choice-vllm"]["verdict"] == "not testable here"


def test_what_a_record_holds_of_the_engine_reaches_its_facts(tmp_path):
    held = {"tokens": 8192, "context": 2048}
    extra = {"kv_cache": held, "lora": {"switch_s": [[0.010, 0.030], [0.020, 0.020]]}}
    of = synthetic.study(levels=(1, 4), repeats=1)
    synthetic.write_study(tmp_path, of, (synthetic.Server(extra=extra), synthetic.Server(name="vllm-fp32")))
    facts = tables.build(of, tmp_path, tmp_path / "out", about_h100={})
    own, other = facts["launches"]["vllm-bf16"], facts["launches"]["vllm-fp32"]
    assert own["kv_cache"] == held and other["kv_cache"] is None
    assert own["switch"]["value"] == pytest.approx(20) and own["switch"]["unit"] == "ms"
    assert other["switch"]["value"] is None and "no switch" in other["switch"]["reason"]
    assert 0 < own["levels"]["closed-4"]["joined"]["value"] <= 1
    assert 0 < own["levels"]["closed-4"]["decoding"]["value"] < own["levels"]["closed-4"]["in_flight"]["value"]
    found = h100_features.of_launches(facts["launches"].values(), DATA, {"fp16": ("bf16",)})
    assert found["lora"]["vllm-cpu"]["value"] == own["switch"]["value"]


def test_another_sla_is_read_from_the_levels_of_a_record():
    own = measured()["trtllm-fp8"]  # 64 at 110 ms and 128 at 123 ms by their upper limits, TPOT 21 ms
    assert h100_records.capacity_within(own, 180, 25, 95)["capacity"] == 128
    assert h100_records.capacity_within(own, 115, 25, 95)["capacity"] == 64
    assert h100_records.capacity_within(own, 105, 25, 95) == {}
    assert h100_records.capacity_within(own, 125, 25, 95)["capacity"] == 128
    assert h100_records.capacity_within(own, 180, 20, 95) == {}
    assert h100_records.capacity_within(own, 180, 20, 50)["capacity"] == 128  # medians stay below 19 ms
    assert h100_records.capacity_within(own, 180, 25, 99) == {}


def test_a_launch_beyond_its_bound_takes_its_contrasts_with_it():
    odd = LAUNCHES | {"c": launch("tensorrt_llm", "fp8", level(64, 1e6), level(128, 1e6))}
    kept, findings = world.set_aside(measured(odd), world.bound_rows(DATA))
    assert len(findings) == 1 and "trtllm-fp8" not in kept and "engine_effect" not in kept
    assert "ifb" not in kept.get("documented", {}) and "start" not in kept  # they rest on the same launch
    assert [row["contrast"] for row in kept["contrasts"]["rows"]] == ["FP8 / 16 bit, vllm"]
    wide = {"trtllm-fp8": {"output_tok_s": 1e6, "output_tok_s_low": 1000.0, "workload": "unknown"}}
    assert world.set_aside(wide, world.bound_rows(DATA)) == (wide, [])  # the interval reaches below the bound


def test_a_record_reaches_every_fact():
    without, facts = h100.h100_facts(), h100.h100_facts(measured())
    assert (without["measured_rows"], facts["measured_rows"]) == (0, 2)
    assert not without["measured"] and facts["measured"]["trtllm_fp8"]["output_tok_s"]["mark"] == "measured"
    verdicts = {one["claim"]: one["verdict"] for one in facts["ledger"]}
    assert verdicts["row-trtllm-fp8"] == "reproduced" and verdicts["row-vllm-fp16"] == "contradicted"
    assert verdicts["choice-trtllm"] == "depends on unstated settings"  # the interval holds 1
    assert facts["counts"]["reproduced"] == facts["verdicts"]["reproduced"]["value"] > 0
    assert "vllm_fp16_record" in facts["fleet"]
    assert [one["claim"] for one in facts["ledger"]] == [claim["id"] for claim in DATA["claims"]]
    json.dumps(facts, allow_nan=False)


def test_a_refused_shard_record_is_a_row_with_its_reason(monkeypatch):
    monkeypatch.setattr(shards, "every", lambda: ({}, {"x.json": "the shard record is of 'RTX 4090'."}))
    (row,) = h100.h100_facts()["shard"]
    assert row["record"] == "x.json"
    for name in ("measured", "predicted", "together"):
        assert row[name]["value"] is None and "RTX 4090" in row[name]["reason"]


def test_evidence_keeps_its_kind_and_side():
    ledger = {one["claim"]: one for one in h100.h100_facts(measured())["ledger"]}
    assert [e["number"]["mark"] for e in ledger["row-trtllm-fp8"]["evidence"]["measured"]["for"]] == ["measured"]
    assert not ledger["row-trtllm-fp8"]["evidence"]["measured"]["against"]
    assert ledger["paged"]["evidence"]["published"]["for"][0]["number"] is None


def test_numbers_at_assumed_lengths_and_prices_are_assumed():
    facts = h100.h100_facts()
    row = facts["rows"]["vllm_fp16"]
    assert row["implied_itl_at_256"]["mark"] == "assumed" and row["output_tok_s"]["mark"] == "published"
    assert facts["capacity"]["vllm_bf16"]["tp8"]["headline"]["usd_per_million"]["mark"] == "assumed"


def test_published_ratio_is_said_to_lie_in_the_range_of_the_same_work():
    facts = h100.h100_facts()
    ledger = {one["claim"]: one["reason"] for one in facts["ledger"]}
    span = f"span {facts['ratio']['low']['value']:.2f} to {facts['ratio']['high']['value']:.2f}"
    assert span in ledger["ratio"]
