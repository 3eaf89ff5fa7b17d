"""Rows of data/ are checked at the door: wrong unit, missing source and bad value are refused with file and line."""

import pytest

from lib.analyse import predict, published, world
from lib.errors import ConfigError
from lib.paths import DATA

HEADER = (DATA / "references.csv").read_text().splitlines()[0]
GOOD = (
    "r1,NVIDIA,2024,Llama-3-70B,TensorRT-LLM,0.12.0,fp8,H100-SXM-80GB,8,TP8,128,128,offline max,"
    "output_throughput,100,tok/s,documented,doc"
)


def references(tmp_path, *rows):
    path = tmp_path / "references.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return published.references(path)


def test_good_row_passes(tmp_path):
    assert references(tmp_path, GOOD)[0]["value"] == 100.0


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("tok/s", "tok/min", "unit 'tok/min' is wrong"),
        ("documented,doc", "documented,", "no source"),
        (",100,", ",many,", "not a positive number"),
        (",100,", ",-3,", "not a positive number"),
        (",100,", ",nan,", "not a positive number"),
        ("output_throughput", "speed", "metric 'speed' is unknown"),
        (",doc", "", "fields"),
        ("TP8,128,128", "TP8,,128", "isl '' is no whole number"),
        ("TP8,128,128", "TP8,128,many", "osl 'many' is no whole number"),
        (",TP8,", ",8,", "layout '8' is none"),
        ("TensorRT-LLM", "SGLang", "engine 'SGLang' is unknown"),
    ],
)
def test_bad_row_is_refused_with_its_line(tmp_path, old, new, why):
    with pytest.raises(ConfigError, match=rf"references.csv:3: .*{why}"):
        references(tmp_path, GOOD, GOOD.replace(old, new))


def test_price_in_another_unit_is_refused(tmp_path):
    path = tmp_path / "prices.csv"
    path.write_text((DATA / "prices.csv").read_text().replace("USD/GPU-hour", "EUR/GPU-hour", 1))
    with pytest.raises(ConfigError, match=r"prices.csv:2: unit 'EUR/GPU-hour'"):
        published.prices(path)


def test_unknown_price_says_what_exists():
    with pytest.raises(ConfigError, match="lambda-2026"):
        published.price("cheapest")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("rule: order", "rule: taste", "rule 'taste'"),
        ("row: vllm-awq, other", "row: vllm-gptq, other", "'vllm-gptq', which is not in the table"),
        ("unit: ratio", "unit: tok/s", "only unit"),
        ("ttft_p95_ms: 240", "ttft_p95_ms: fast", "ttft_p95_ms as a positive number"),
        (', where: recommendation,\n     text: "TensorRT', ',\n     text: "TensorRT', "does not say where"),
        ("source: vLLM 0.6.2 scheduler", "source: ''", "needs a source"),
        ("ttft_p95_ms: 240", "ttft_p95_ms: .nan", "ttft_p95_ms as a positive number"),
        ("false, where: table}", "false}", "row 'vllm-fp16' does not say where"),
        ("engine: vllm, precision: fp16", "engine: sglang, precision: fp16", "engine 'sglang'"),
        ("precision: int4", "precision: int3", "precision 'int3'"),
        ("ttft_ms: 180", "ttft_s: 0.18", "sla needs ttft_ms"),
        ("margin: 1.5", "margin: .inf", "thresholds needs margin"),
        ("sla: {", "sla: [", "this is no YAML"),
        ("sign: pages", "sign: smells", "a sign of claim 'paged' has sign 'smells'"),
        ("rule: time_to_serve\n    engine: vllm", "rule: time_to_serve", "claim 'choice-vllm' has engine None"),
        ("joined: 0.1", "joined: half", "thresholds needs joined"),
        ('where: "SLA; no', 'why: "SLA; no', "sla does not say where"),
    ],
)
def test_bad_claim_is_refused_with_its_line(tmp_path, old, new, why):
    text = (DATA / "claims.yaml").read_text()
    assert old in text
    path = tmp_path / "claims.yaml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=rf"claims.yaml:\d+: .*{why}"):
        published.claims(path)


def test_line_is_the_rows_own(tmp_path):
    lines = (DATA / "claims.yaml").read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if "rule: order" in line)
    path = tmp_path / "claims.yaml"
    path.write_text("\n".join(lines).replace("rule: order", "rule: taste"))
    with pytest.raises(ConfigError, match=f"claims.yaml:{at + 1}:"):
        published.claims(path)


def test_claims_hold_no_verdict_and_no_line_numbers():
    data = published.claims()
    assert not any("verdict" in claim or "_line" in claim for claim in data["claims"])


def test_every_model_gpu_and_precision_has_a_source():
    for name in ("meta-llama/Meta-Llama-3-70B-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"):
        assert published.model_entry(name)["source"]
    assert published.gpu_entry("H200-SXM-141GB")["memory_bytes_s"] == 4.8e12
    assert published.precision_entry("q8_0")["weight_bytes"] == 34 / 32


def test_row_with_a_new_name_is_judged_like_any_other(tmp_path):
    path = tmp_path / "claims.yaml"
    path.write_text((DATA / "claims.yaml").read_text().replace("vllm-fp16", "vllm-sixteen"))
    data = published.claims(path)
    assert {r["row"] for r in world.readings(data, predict.load())} == {"vllm-sixteen", "vllm-awq", "trtllm-fp8"}


def test_model_without_a_field_is_refused(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text("m: {layers: 1, hidden: 2, source: s}")
    with pytest.raises(ConfigError, match=r"models.yaml: model 'm' has no intermediate"):
        published.model_entry("m", path)
