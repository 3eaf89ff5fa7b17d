"""The question under any promise: judged as the tables judge it, counted in nodes, priced, and nothing read between."""

from dataclasses import replace

import pytest

from lib.analyse import asked, whatif
from lib.errors import NoValue


def level(load, ttft, tpot, out, **more):
    """A level whose limits lie one tenth around its values."""

    def estimate(value):
        return [value, 0.9 * value, 1.1 * value, None]

    limits = {
        "ttft": {"p50": estimate(ttft / 2), "p95": estimate(ttft)},
        "tpot": {"p50": estimate(tpot / 2), "p95": estimate(tpot)},
    }
    rest = {"n": 100, "failed": 0, "reached": True, "doubts": f"doubt at {load}", "out": estimate(out)[:3]}
    return {"load": float(load)} | rest | limits | more


def contender(engine, precision, *levels, layouts=(), quality=(None, None, None, "it was not scored")):
    variants = [{"name": "", "source": "r", "levels": list(levels)}] if levels else list(layouts)
    return {
        "key": f"{engine} {precision}",
        "engine": engine,
        "precision": precision,
        "recipe": "",
        "quality": list(quality),
        "variants": variants,
    }


def block(*contenders, units=1, usd=None, mark="measured"):
    stated = {"ttft_ms": 100.0, "tpot_ms": 20.0, "sessions": 8, "usd_per_hour": usd}
    work = {"key": "news", "mark": mark, "units": units, "price_mark": "published", "stated": stated}
    return {"budget": 0.0, "works": [work | {"contenders": list(contenders)}]}


FAST = contender("vllm", "bf16", level(1, 40, 8, 100), level(4, 60, 10, 300), level(8, 80, 16, 400))
SLOW = contender("llama-cpp", "q4_0", level(1, 60, 10, 50), level(4, 90, 15, 120), level(8, 300, 60, 130))
ASKED = whatif.Question("news", 100.0, 20.0, 8)


def answered(question=ASKED, of=None):
    found = whatif.answer(of or block(FAST, SLOW), question)
    return {row.contender["key"]: row for row in found.rows}, found.frontier


def test_one_node_or_several():
    rows, _ = answered()
    assert (rows["vllm bf16"].carries, rows["vllm bf16"].answer, rows["vllm bf16"].nodes) == (8, "yes", 1)
    slow = rows["llama-cpp q4_0"]
    assert (slow.carries, slow.answer, slow.nodes) == (4, "no", 2)
    assert slow.why == "8 at once: TTFT is above 100 ms even at its lower limit"
    assert answered(replace(ASKED, sessions=9))[0]["vllm bf16"].nodes == 2


def test_nothing_is_read_between_levels_or_above_them():
    rows, _ = answered(replace(ASKED, sessions=6))
    assert rows["llama-cpp q4_0"].answer == "undecided"
    assert rows["llama-cpp q4_0"].why == "between 4 at once, which keeps it, and 8, which does not"
    assert answered(replace(ASKED, sessions=50))[0]["vllm bf16"].why == "8 at once is the highest level taken"


def test_a_limit_inside_an_interval_is_undecided():
    rows, _ = answered(replace(ASKED, ttft_ms=80.0))  # the interval of the level at 8 is 72 to 88
    assert rows["vllm bf16"].carries == 4 and rows["vllm bf16"].answer == "undecided"
    assert rows["vllm bf16"].why == "8 at once: TTFT: 80 ms lies within its interval"


@pytest.mark.parametrize(
    ("spoilt", "answer", "why"),
    [
        ({"n": 0}, "undecided", "no request was measured"),
        ({"failed": 1}, "no", "1 of 100 requests failed"),
        ({"reached": False}, "undecided", "the load was not reached"),
        ({"tpot": {"p50": [5, 4, 6, None], "p95": [9, None, None, "p95 needs 72"]}}, "undecided", "TPOT: p95 needs 72"),
        ({"tpot": {"p50": [30, 25, 35, None], "p95": [40, None, None, "few"]}}, "no", "TPOT is above 20 ms even at"),
    ],
)
def test_what_spoils_a_level(spoilt, answer, why):
    said = whatif.judge(level(8, 50, 10, 100) | spoilt, ASKED, 0.0)
    assert said[0] == answer and said[1].startswith(why)


def test_medians_are_another_question():
    assert whatif.judge(level(8, 180, 30, 100), ASKED, 0.0)[0] == "no"
    assert whatif.judge(level(8, 180, 30, 100), replace(ASKED, by="p50"), 0.0)[0] == "yes"


def test_cost_is_the_whole_nodes_price_over_its_tokens():
    rows, _ = answered(replace(ASKED, usd_per_hour=1.8), block(FAST, SLOW, units=8, usd=1.8))
    value, low, high = rows["vllm bf16"].cost
    assert value == pytest.approx(8 * 1.8 / (400 * 3600) * 1e6) == pytest.approx(10.0)
    assert low == pytest.approx(value / 1.1) and high == pytest.approx(value / 0.9)
    assert rows["vllm bf16"].cost_mark == "published"
    moved, _ = answered(replace(ASKED, usd_per_hour=2.0), block(FAST, units=8, usd=1.8))
    assert moved["vllm bf16"].cost_mark == "assumed"
    assert answered()[0]["vllm bf16"].cost is None


def test_the_frontier_holds_passing_levels_that_nothing_beats():
    _, frontier = answered()
    assert frontier == (("vllm bf16", "", 8.0), ("vllm bf16", "", 4.0), ("vllm bf16", "", 1.0))
    _, frontier = answered(replace(ASKED, engines=frozenset({"llama-cpp"})))
    assert frontier == (("llama-cpp q4_0", "", 4.0), ("llama-cpp q4_0", "", 1.0))


def test_a_contender_stands_in_its_best_layout():
    layouts = [
        {"name": "TP8", "source": "p", "levels": [level(8, 80, 10, 100)]},
        {"name": "TP4x2", "source": "p", "levels": [level(8, 80, 10, 300), level(16, 90, 12, 400)]},
    ]
    rows, _ = answered(of=block(contender("vllm", "fp8", layouts=layouts)))
    assert rows["vllm fp8"].layout == "TP4x2" and rows["vllm fp8"].carries == 16


QUALITIES = {"vllm": (94.0, 92.0, 96.0, None), "llama-cpp": (60.0, 55.0, 65.0, None)}


@pytest.mark.parametrize(
    ("floor", "fast", "slow"),
    [
        (None, ("yes", ""), ("no", "8 at once: TTFT is above 100 ms even at its lower limit")),
        (50.0, ("yes", ""), ("no", "8 at once: TTFT is above 100 ms even at its lower limit")),
        (55.0, ("yes", ""), ("no", "8 at once: TTFT is above 100 ms even at its lower limit")),
        (60.0, ("yes", ""), ("no", "8 at once: TTFT is above 100 ms even at its lower limit")),
        (65.5, ("yes", ""), ("no", "same next token is below 65.5 % even at its upper limit")),
        (95.0, ("undecided", "same next token: 95 % lies within its interval"), ("no", "same next token is below")),
        (97.0, ("no", "same next token is below 97 % even at its upper limit"), ("no", "same next token is below")),
    ],
)
def test_a_floor_of_quality_is_passed_by_the_lower_limit_alone(floor, fast, slow):
    of = block(*(c | {"quality": list(QUALITIES[c["engine"]])} for c in (FAST, SLOW)))
    rows, frontier = answered(replace(ASKED, floor=floor), of)
    for name, (answer, why) in (("vllm bf16", fast), ("llama-cpp q4_0", slow)):
        assert rows[name].answer == answer and rows[name].why.startswith(why)
    passes = floor is None or floor <= 92
    assert rows["vllm bf16"].carries == (8 if passes else None) and rows["vllm bf16"].nodes == (1 if passes else None)
    assert rows["llama-cpp q4_0"].carries == (4 if floor is None or floor <= 55 else None)
    assert bool(frontier) == passes


def test_who_was_not_scored_is_undecided_under_a_floor():
    rows, frontier = answered(replace(ASKED, floor=1.0))
    assert (rows["vllm bf16"].answer, rows["vllm bf16"].why) == ("undecided", "same next token: it was not scored")
    assert rows["llama-cpp q4_0"].answer == "no" and frontier == ()  # too slow, whatever its quality
    assert rows["vllm bf16"].carries is rows["vllm bf16"].out is rows["vllm bf16"].nodes is None


def test_numbers_carry_the_warnings_of_their_level():
    rows, _ = answered()
    assert rows["vllm bf16"].doubts == "doubt at 8" and rows["llama-cpp q4_0"].doubts == "doubt at 4"


def test_quality_and_warnings_come_from_the_facts(made):
    of = asked.block(made[0])["works"][0]
    assert not of["scored"] and "the profile states no texts" in of["about_floor"]
    by = {c["key"]: c for c in of["contenders"]}
    failing = by["llama-cpp q4_0"]["variants"][0]["levels"]
    assert all("did not complete" in level["doubts"] for level in failing)
    assert all(c["quality"][0] is None and c["quality"][3] for c in of["contenders"])


def test_selection():
    assert answered(replace(ASKED, engines=frozenset()))[0] == {}
    assert set(answered(replace(ASKED, precisions=frozenset({"bf16"})))[0]) == {"vllm bf16"}


def test_unknown_work_is_refused():
    with pytest.raises(NoValue, match="no work 'olds'"):
        answered(replace(ASKED, work="olds"))


def test_the_stated_promise_is_judged_as_the_tables_judge_it(made):
    """Every closed level and every capacity of facts.json comes out of the block again."""
    facts, _ = made
    of = asked.block(facts)
    question = whatif.stated(of["works"][0])
    rows = {row.contender["key"]: row for row in whatif.answer(of, question).rows}
    assert len(rows) == 2  # the second launch of the A/A pair is no contender
    for launch, said in facts["launches"].items():
        if launch.endswith("-again"):
            continue
        row = rows[f"{said['engine']} {said['precision']}"]
        assert row.carries == said["capacity"]["value"]
        for one in row.contender["variants"][0]["levels"]:
            told = said["levels"][f"closed-{one['load']:g}"]["meets_sla"]["answer"]
            assert whatif.judge(one, question, of["budget"])[0] == told


def test_predictions_are_works_of_their_own(made):
    of = asked.block(made[0])
    assert [w["mark"] for w in of["works"]] == ["measured"] + ["predicted"] * 6
    for work in of["works"][1:]:
        assert work["units"] == 8 and {v["name"] for c in work["contenders"] for v in c["variants"]} == {
            "TP8", "TP4x2", "TP2x4",
        }  # fmt: skip
    best = made[0]["h100"]["best_layout"]["vllm_fp8"]["filing_excerpt"]
    work = next(w for w in of["works"] if w["key"] == "h100 filing excerpt")
    row = next(r for r in whatif.answer(of, whatif.stated(work)).rows if r.contender["key"] == "vllm fp8")
    # The article reads between levels, the explorer does not: it says the level below.
    assert row.carries <= best["capacity"]["value"] and row.carries in {1, 4, 8, 16, 32, 50, 64, 96, 128, 256}
