"""Every verdict can come out each way from synthetic worlds, and the ledger of the real files holds together."""

import pytest

from lib.analyse import h100, h100_tables, published, world
from lib.analyse.claims import judge
from lib.analyse.evidence import (
    CONSISTENT,
    CONTRADICTED,
    DEPENDS,
    IMPLAUSIBLE,
    KINDS,
    REPRODUCED,
    UNTESTABLE,
    VERDICTS,
    World,
)
from lib.analyse.rules import RULES

DATA = published.claims()
ROWS = {row["id"]: row for row in DATA["rows"]}


def verdict(claim, here=None):
    return {v.claim: v for v in judge(DATA, here or World())}[claim].verdict


def reading(row, workload="a", reading="r", ttft=100.0, tpot=10.0, tok_s=1000.0, capacity=50.0):
    return {
        "row": row,
        "workload": workload,
        "reading": reading,
        "ttft_p95_ms": ttft,
        "tpot_p95_ms": tpot,
        "output_tok_s": tok_s,
        "capacity": capacity,
    }


def like(row, times=1.0, **more):
    """A reading that matches the article's row up to a factor."""
    stated = ROWS[row]
    return reading(row, ttft=stated["ttft_p95_ms"] * times, tok_s=stated["output_tok_s"] * times, **more)


def far(row, **more):
    return like(row, times=10.0, **more)


def measured(**rows):
    return World(measured={row.replace("_", "-"): values for row, values in rows.items()})


ROW = "trtllm-fp8"
EXACT = {"ttft_p95_ms": 112, "output_tok_s": 3850}


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (measured(trtllm_fp8=EXACT), REPRODUCED),
        (measured(trtllm_fp8={"ttft_p95_ms": 300, "output_tok_s": 3850}), CONTRADICTED),
        (
            World(bounds=[{"row": ROW, "workload": "a", "ttft_ms": 1, "output_tok_s": 3000, "sessions": 500}]),
            CONTRADICTED,
        ),
        (World(readings=[like(ROW, workload=w) for w in "abcd"]), CONSISTENT),
        (World(readings=[like(ROW), far(ROW), far(ROW)]), DEPENDS),
        (World(readings=[far(ROW)]), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_row(here, expected):
    assert verdict("row-trtllm-fp8", here) == expected


def test_interval_of_a_measurement_counts():
    wide = {"ttft_p95_ms": 112, "output_tok_s": 2000, "output_tok_s_low": 1500, "output_tok_s_high": 4000}
    assert verdict("row-trtllm-fp8", measured(trtllm_fp8=wide)) == REPRODUCED


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (
            World(
                measured={
                    row: {"ttft_p95_ms": r["ttft_p95_ms"], "output_tok_s": r["output_tok_s"]} for row, r in ROWS.items()
                }
            ),
            REPRODUCED,
        ),
        (World(measured={row: {"ttft_p95_ms": 10, "output_tok_s": 10} for row in ROWS}), CONTRADICTED),
        (World(readings=[like(row) for row in ROWS]), CONSISTENT),
        (World(readings=[like(row) for row in ROWS] + [far(row, workload=w) for row in ROWS for w in "bc"]), DEPENDS),
        (World(readings=[like("vllm-fp16"), like("vllm-awq", workload="b"), like(ROW, workload="c")]), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_one_workload(here, expected):
    assert verdict("one-workload", here) == expected


def two(awq, fp16):
    return World(
        readings=[
            r
            for i, (a, f) in enumerate(zip(awq, fp16, strict=True))
            for r in (reading("vllm-awq", workload=str(i), ttft=a), reading("vllm-fp16", workload=str(i), ttft=f))
        ]
    )


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (measured(vllm_awq={"ttft_p95_ms": 165}, vllm_fp16={"ttft_p95_ms": 240}), REPRODUCED),
        (measured(vllm_awq={"ttft_p95_ms": 240}, vllm_fp16={"ttft_p95_ms": 165}), CONTRADICTED),
        (
            measured(vllm_awq={"ttft_p95_ms": 165, "ttft_p95_ms_high": 250}, vllm_fp16={"ttft_p95_ms": 240}),
            CONTRADICTED,
        ),
        (two([1, 1], [2, 2]), CONSISTENT),
        (two([1, 3], [2, 2]), DEPENDS),
        (two([3, 3], [2, 2]), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_order(here, expected):
    assert verdict("awq-before-fp16", here) == expected


def speeds(*ratios, peers=()):
    return World(
        readings=[
            r
            for i, ratio in enumerate(ratios)
            for r in (
                reading(ROW, workload=str(i), tok_s=1000 * ratio),
                reading("vllm-fp16", workload=str(i), tok_s=1000),
            )
        ],
        ratios=[{"effect": "precision", "value": value, "source": "s"} for value in peers],
    )


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (measured(trtllm_fp8={"output_tok_s": 2700}, vllm_fp16={"output_tok_s": 1000}), REPRODUCED),
        (measured(trtllm_fp8={"output_tok_s": 1200}, vllm_fp16={"output_tok_s": 1000}), CONTRADICTED),
        (speeds(2.7, 2.6, 2.8), CONSISTENT),
        (speeds(2.7, 1.1, 1.2), DEPENDS),
        (speeds(1.1, 1.2, peers=[2.3]), DEPENDS),
        (speeds(1.1, 1.2, peers=[1.5]), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_ratio(here, expected):
    assert verdict("ratio", here) == expected


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (measured(trtllm_fp8={"ttft_p95_ms": 150, "ttft_p95_ms_high": 170}), REPRODUCED),
        (
            measured(trtllm_fp8={"ttft_p95_ms": 150, "ttft_p95_ms_high": 190}),
            CONTRADICTED,
        ),  # the upper limit must meet the SLA
        (World(readings=[reading(ROW, ttft=100)] * 4), CONSISTENT),
        (World(readings=[reading(ROW, ttft=100), reading(ROW, ttft=500)]), DEPENDS),
        (World(readings=[reading(ROW, ttft=500)]), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_sla_ttft(here, expected):
    assert verdict("sla-trtllm-fp8", here) == expected


def test_a_claim_to_miss_the_sla_is_judged_the_other_way():
    assert verdict("sla-vllm-fp16", measured(vllm_fp16={"ttft_p95_ms": 240})) == REPRODUCED
    assert verdict("sla-vllm-fp16", measured(vllm_fp16={"ttft_p95_ms": 100})) == CONTRADICTED


def test_itl_follows_from_the_rows_own_numbers():
    # 50 in flight at 1,420 tok/s are above 25 ms from 32 tokens up, but the row does not say that it was read at 50
    found = {v.claim: v for v in judge(DATA, World())}["itl-vllm-fp16"]
    assert found.verdict == DEPENDS and "only if 1,420 tok/s was read below 45 requests at once" in found.reason
    assert verdict("itl-vllm-awq") == DEPENDS  # below 25 ms at 50 in flight, above at 96
    assert verdict("itl-trtllm-fp8") == DEPENDS
    assert verdict("itl-vllm-fp16", measured(vllm_fp16={"tpot_p95_ms": 20})) == REPRODUCED
    assert verdict("itl-trtllm-fp8", measured(trtllm_fp8={"tpot_p95_ms": 20, "tpot_p95_ms_high": 26})) == CONTRADICTED
    assert verdict("itl-vllm-fp16", measured(vllm_fp16={"tpot_p95_ms": 30})) == CONTRADICTED
    faster = {**DATA, "rows": [{**row, "output_tok_s": 10 * row["output_tok_s"]} for row in DATA["rows"]]}
    assert {v.claim: v.verdict for v in judge(faster, World())}["itl-trtllm-fp8"] == CONSISTENT


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (measured(vllm_fp16={"capacity": 60}), REPRODUCED),
        (measured(vllm_fp16={"capacity": 20}), CONTRADICTED),
        (
            World(bounds=[{"row": "vllm-fp16", "workload": "a", "ttft_ms": 1, "output_tok_s": 1e9, "sessions": 30}]),
            CONTRADICTED,
        ),
        (World(readings=[reading("vllm-fp16", capacity=64)] * 4), CONSISTENT),
        (World(readings=[reading("vllm-fp16", capacity=64), reading("vllm-fp16", capacity=9)]), DEPENDS),
        (World(readings=[reading("vllm-fp16", capacity=0)]), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_concurrency(here, expected):
    assert verdict("concurrency-vllm-fp16", here) == expected


def test_a_lower_bound_is_met_by_anything_above_it():
    assert verdict("concurrency-trtllm-fp8", measured(trtllm_fp8={"capacity": 1000})) == REPRODUCED
    assert verdict("concurrency-vllm-fp16", measured(vllm_fp16={"capacity": 1000})) == CONTRADICTED


@pytest.mark.parametrize(
    ("sides", "expected"), [("for", CONSISTENT), ("against", CONTRADICTED), ("for against", DEPENDS), ("", UNTESTABLE)]
)
def test_documented(sides, expected):
    documents = [{"side": side, "what": "w", "source": "s"} for side in sides.split()]
    data = {**DATA, "claims": [{"id": "c", "rule": "documented", "text": "t", "where": "w", "documents": documents}]}
    assert judge(data, World())[0].verdict == expected
    signs = {(True,): REPRODUCED, (True, True): REPRODUCED, (True, False): CONTRADICTED, (True, None): expected}
    for seen, decided in signs.items():
        found = judge(data, showing(*seen))[0]
        assert found.verdict == decided
        assert [e.side for e in found.evidence if e.kind == "measured"] == [
            "for" if s else "against" for s in seen if s is not None
        ]


def showing(*seen, **more):
    signs = [{"what": f"sign {i}", "seen": one, "source": "r"} for i, one in enumerate(seen)]
    return World(measured={"documented": {"c": {"signs": signs} | more}})


def switches(own, other, **limits):
    return World(measured={"lora": {"vllm": {"value": own} | limits, "tensorrt_llm": {"value": other}}})


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (switches(10, 90), REPRODUCED),
        (switches(90, 10), CONTRADICTED),
        (switches(50, 60, low=30, high=80), DEPENDS),
        (World(measured={"lora": {"vllm": {"value": 10}}}), UNTESTABLE),  # only one engine was timed
        (World(), UNTESTABLE),
    ],
)
def test_lora(here, expected):
    assert verdict("lora", here) == expected


def starting(**seconds):
    return World(measured={"start": {"seconds": {k: {"vllm": v, "tensorrt_llm": t} for k, (v, t) in seconds.items()}}})


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (starting(fp8=(100, 900), fp16=(100, 300)), REPRODUCED),
        (starting(fp8=(900, 100)), CONTRADICTED),
        (starting(fp8=(100, 900), fp16=(100, 90)), DEPENDS),
        (starting(fp8=(100, 110)), DEPENDS),  # within the tolerance
        (World(measured={"start": {"seconds": {"fp8": {"vllm": 100}, "fp16": {"tensorrt_llm": 9}}}}), UNTESTABLE),
        (World(), UNTESTABLE),
    ],
)
def test_time_to_serve(here, expected):
    assert verdict("choice-vllm", here) == expected


def test_what_an_engine_of_another_version_shows_does_not_decide():
    data = {**DATA, "claims": [{"id": "c", "rule": "documented", "text": "t", "where": "w", "documents": []}]}
    found = judge(data, showing(True, engines=[("vllm", "9.9.1")]))[0]
    assert found.verdict == DEPENDS and "vllm 9.9.1 instead of 0.6.2" in found.reason
    assert judge(data, showing(True, engines=[("vllm", "vLLM 0.6.2+cu124")]))[0].verdict == REPRODUCED


REACHABLE = {
    "row": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "one_workload": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "order": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "ratio": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "sla_ttft": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "itl": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS},  # its own row always says something
    "concurrency": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "documented": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, UNTESTABLE},  # a document is no reading
    "lora": {REPRODUCED, CONTRADICTED, DEPENDS, UNTESTABLE},  # a record or nothing
    "engine_choice": {REPRODUCED, CONTRADICTED, CONSISTENT, DEPENDS, IMPLAUSIBLE, UNTESTABLE},
    "time_to_serve": {REPRODUCED, CONTRADICTED, DEPENDS, UNTESTABLE},  # a record or nothing
}


def test_every_rule_has_its_verdicts_tried_each_way():
    """What the test named after a rule tries is all that the rule can say; two rules need more than worlds for that."""
    assert set(REACHABLE) == set(RULES)
    for rule in set(RULES) - {"itl", "documented"}:
        (mark,) = globals()[f"test_{rule}"].pytestmark
        assert {expected for _, expected in mark.args[1]} == REACHABLE[rule], rule


@pytest.mark.parametrize(
    ("here", "expected"),
    [
        (World(measured={"engine_effect": {"fp8": {"low": 1.1, "high": 1.3}}}), REPRODUCED),
        (World(measured={"engine_effect": {"fp8": {"low": 0.7, "high": 0.9}}}), CONTRADICTED),
        (World(measured={"engine_effect": {"fp8": {"low": 0.9, "high": 1.1}}}), DEPENDS),
        (World(measured={"engine_effect": {"fp16": {"low": 0.7, "high": 0.9}}}), UNTESTABLE),
        (World(engine_effects={"fp8": [1.1, 1.2], "fp16": [0.8, 0.9]}), CONSISTENT),  # the claim is about FP8 alone
        (World(engine_effects={"fp8": [1.1, 0.8]}), DEPENDS),
        (World(engine_effects={"fp8": [0.9, 0.8], "fp16": [1.1, 1.2]}), IMPLAUSIBLE),
        (World(), UNTESTABLE),
    ],
)
def test_engine_choice(here, expected):
    assert verdict("choice-trtllm", here) == expected


def test_the_other_precision_is_told_beside_the_verdict():
    world = World(engine_effects={"fp8": [1.1, 1.2], "fp16": [0.8, 0.9]})
    reason = {v.claim: v for v in judge(DATA, world)}["choice-trtllm"].reason
    assert "At fp16, of which the claim does not speak, 0 of 2 do (0.80 to 0.90)." in reason


def test_a_record_counts_at_the_load_of_the_claim_only():
    slow = measured(trtllm_fp8={**EXACT, "tpot_p95_ms": 20, "load": 32, "capacity": 128})
    assert verdict("row-trtllm-fp8", slow) == UNTESTABLE  # the row states 128 requests
    assert verdict("itl-trtllm-fp8", slow) == DEPENDS  # the SLA asks for 50 and more
    assert verdict("concurrency-trtllm-fp8", slow) == REPRODUCED  # a capacity has no load of its own
    assert verdict("itl-trtllm-fp8", measured(trtllm_fp8={"tpot_p95_ms": 20, "load": 64})) == REPRODUCED
    assert verdict("row-trtllm-fp8", measured(trtllm_fp8={**EXACT, "load": 128})) == REPRODUCED


EFFECTS = {"engine": 1.1, "precision": 2.3}


def test_a_single_effect_is_on_no_side_of_a_ratio_that_mixes_two():
    peers = [{"effect": e, "precision": "fp8", "value": v, "what": e, "source": "s"} for e, v in EFFECTS.items()]
    found = {v.claim: v for v in judge(DATA, World(ratios=peers))}["ratio"]
    assert not found.evidence
    assert "multiply to 2.53 to 2.53" in found.reason and "Arithmetic of the table gives 2.71" in found.reason


def test_real_ledger_judges_every_claim_with_evidence_of_known_kinds():
    rows = h100_tables.ledger()
    assert [row["claim"] for row in rows] == [claim["id"] for claim in DATA["claims"]]
    assert {row["verdict"] for row in rows} <= set(VERDICTS)
    assert all(kind in KINDS for row in rows for kind in row["kinds"].split(", "))
    assert all(row["reason"].endswith(".") for row in rows)


def test_a_record_changes_the_verdicts_by_itself():
    record = {
        row: {"ttft_p95_ms": r["ttft_p95_ms"], "output_tok_s": r["output_tok_s"], "workload": "headline"}
        for row, r in ROWS.items()
    }
    before, after = ({row["claim"]: row["verdict"] for row in h100_tables.ledger(given)} for given in (None, record))
    changed = {claim for claim in before if before[claim] != after[claim]}
    assert {"row-vllm-fp16", "row-vllm-awq", "row-trtllm-fp8", "one-workload", "ratio", "awq-before-fp16"} <= changed


def test_a_measurement_beyond_the_bound_is_set_aside():
    bounds = world.bound_rows(DATA)
    record = {ROW: {"output_tok_s": 1e6, "ttft_p95_ms": 50}, "vllm-fp16": {"output_tok_s": 1000, "ttft_p95_ms": 200}}
    kept, findings = world.set_aside(record, bounds)
    assert set(kept) == {"vllm-fp16"}
    assert len(findings) == 1 and findings[0].startswith(ROW)
    kept, findings = world.set_aside(
        {ROW: {"output_tok_s": 1000, "ttft_p95_ms": 1, "workload": "document analysis"}}, bounds
    )
    assert not kept and "TTFT 1.0 ms" in findings[0]
    for odd in ({"tpot_p95_ms": 0.5}, {"capacity": 1e5}):
        kept, findings = world.set_aside({ROW: {"output_tok_s": 1000, **odd}}, bounds)
        assert not kept and len(findings) == 1
    assert world.set_aside({ROW: {"tpot_p95_ms": 20.0, "capacity": 128}}, bounds)[1] == []


def test_facts_carry_unit_mark_and_source_everywhere():
    def walk(node, path=""):
        if isinstance(node, dict) and "value" in node:
            assert node["mark"] in (*KINDS, "assumed"), path
            assert node["unit"] and node["source"], path
            assert node["value"] is not None or node["reason"], path
            yield path
        elif isinstance(node, dict):
            for name, child in node.items():
                assert name == h100.key(name), f"{path}.{name} is no attribute for a template"
                yield from walk(child, f"{path}.{name}")

    facts = h100.h100_facts()
    assert len(list(walk(facts))) > 300
    assert sum(facts["verdicts"][h100.key(name)]["value"] for name in VERDICTS) == len(DATA["claims"])


def test_published_ratios_hold_all_but_one_thing_equal():
    ratios = world.published_ratios(published.references())
    by_effect = {effect: [r for r in ratios if r["effect"] == effect] for effect in ("precision", "engine", "version")}
    fp8 = {(r["isl"], r["osl"]): r["value"] for r in by_effect["precision"] if "0.12.0" in r["what"]}
    assert fp8[128, 128] == pytest.approx(15397.47 / 10406.55)
    assert any(r["value"] == pytest.approx(24524.9 / 22819.6) for r in by_effect["engine"])
    assert any(r["value"] == pytest.approx(17.3 / 9.9) for r in by_effect["version"])
    assert all("0.5.3" not in r["what"] for r in by_effect["engine"])  # a newer vLLM stands beside it
    mixed = [r for r in ratios if r["effect"] == "engine and version"]
    assert [r["value"] for r in mixed] == pytest.approx([17.0 / 9.9])
    assert any("not equal: model Llama-2-70B / Llama-3.1-70B" in r["held"] for r in by_effect["engine"])
    assert all("format of the KV cache" in r["held"] for r in by_effect["precision"])
