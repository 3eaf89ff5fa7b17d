"""Figures say what their table says: titles are computed, unsupported values are not drawn, empty panels say why."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import synthetic

from lib import records
from lib.analyse import published
from lib.analyse.timeline import batch_over_time, timeline, ttft_samples
from lib.errors import NoValue
from lib.show import plots, plots_claims, plots_h100, plots_headline, plots_time, style

SLA = synthetic.study().sla  # 75 ms, 15 ms, 4 sessions


@pytest.fixture(autouse=True)
def _close():
    yield
    plt.close("all")


def level(
    launch="a", engine="vllm-cpu", precision="bf16", load=1, ttft=50.0, tpot=10.0, tok_s=100.0, meets="yes", p95=True
):
    row = {
        "launch": launch,
        "engine": engine,
        "precision": precision,
        "level": f"closed-{load}",
        "kind": "closed",
        "load": float(load),
        "workload": "news",
        "meets_sla": meets,
    }
    for name, value in (("ttft", ttft / 1e3), ("tpot", tpot / 1e3)):
        for statistic in ("p50", "p95"):
            known = p95 or statistic == "p50"
            row |= {
                f"{name}_{statistic}_s": value,
                f"{name}_{statistic}_s_low": value * 0.9 if known else np.nan,
                f"{name}_{statistic}_s_high": value * 1.1 if known else np.nan,
                f"{name}_{statistic}_s_reason": None if known else "p95 needs 72 requests, there are 9",
            }
    return row | {
        "output_tok_s": tok_s,
        "output_tok_s_low": tok_s * 0.98,
        "output_tok_s_high": tok_s * 1.02,
        "output_tok_s_reason": None,
    }


def title(drawn):
    return style.figure_of(drawn).get_suptitle().replace("\n", " ")


TWO = pd.DataFrame(
    [
        level(load=1),
        level(load=4, ttft=70, tok_s=300),
        level("b", "llama-cpp", "q4_0", 1, meets="no"),
        level("b", "llama-cpp", "q4_0", 4, ttft=90, tok_s=200, meets="no"),
    ]
)


def test_latency_names_who_meets_the_sla():
    assert title(plots.latency(TWO, SLA)) == "vLLM-CPU bf16 meets the SLA up to 4 at once; 1 of 2 contenders at none"


def test_latency_says_when_nobody_does():
    none = TWO.assign(meets_sla="no")
    assert title(plots.latency(none, SLA)) == "No contender is shown to meet the SLA at any load"
    none.loc[0, "meets_sla"] = "undecided"
    assert "undecided" in title(plots.latency(none, SLA))


def test_a_contender_measured_twice_is_one_contender():
    twice = pd.concat([TWO, TWO[TWO["launch"] == "a"].assign(launch="a-again")])
    assert title(plots.latency(twice, SLA)) == "vLLM-CPU bf16 meets the SLA up to 4 at once; 1 of 2 contenders at none"


def test_unsupported_percentiles_are_not_drawn_and_the_panel_says_why():
    axes = plots.latency(pd.DataFrame([level(p95=False), level(load=4, p95=False)]), SLA)
    assert len(axes[0, 0].get_lines()) > 0
    assert not [line for line in axes[0, 1].get_lines() if len(line.get_xdata()) > 1]
    assert "p95 needs 72 requests" in axes[0, 1].texts[0].get_text().replace("\n", " ")


def test_values_on_the_axis_are_milliseconds_of_the_table():
    axes = plots.latency(TWO, SLA)
    drawn = {tuple(line.get_ydata()) for line in axes[0, 0].get_lines()}
    assert (50.0, 70.0) in {tuple(np.round(y, 9)) for y in drawn}


def test_frontier_ranks_by_the_comparisons_of_the_facts():
    assert (
        title(plots.frontier(TWO))
        == "vLLM-CPU bf16 delivers the most, 300 tok/s at 4 at once; llama.cpp q4_0 follows with 200"
    )
    same = {"a": "a", "b": "b", "metric": "output_tok_s", "level": "closed-4", "verdict": "not distinguishable"}
    assert title(plots.frontier(TWO, [same])).endswith("not distinguishable from the 200 of llama.cpp q4_0")
    apart = same | {"verdict": "differs"}
    assert title(plots.frontier(TWO, [apart])).endswith("llama.cpp q4_0 follows with 200")
    assert title(plots.frontier(TWO, [same], spare="a")) == "llama.cpp q4_0 delivers the most, 200 tok/s at 4 at once"


def test_frontier_of_nothing_says_so():
    assert title(plots.frontier(TWO.assign(output_tok_s=np.nan))) == "No level gave a throughput"


def test_distribution_reports_medians_of_the_level_asked_for():
    samples = pd.DataFrame(
        {
            "launch": ["a"] * 3 + ["b"] * 3 + ["a"],
            "level": ["closed-4"] * 6 + ["closed-1"],
            "load": [4.0] * 6 + [1.0],
            "ttft_s": [0.01, 0.02, 0.03, 0.1, 0.2, 0.3, 9.0],
        }
    )
    ax = plots.first_token_distribution(
        samples, {"a": ("vllm-cpu", "bf16"), "b": ("llama-cpp", "q4_0")}, "closed-4", SLA
    )
    assert (
        title(ax)
        == "At 4 at once, half of vLLM-CPU bf16's first tokens come within 20 ms, of llama.cpp q4_0's within 200 ms"
    )
    empty = plots.first_token_distribution(samples, {}, "closed-9", SLA)
    assert "No request" in title(empty)


def headline(**changes):
    row = {
        "launch": "a",
        "engine": "vllm-cpu",
        "precision": "bf16",
        "level": "closed-4",
        "capacity": 4.0,
        "capacity_next": 8.0,
        "capacity_next_answer": "no",
        "meets_sla": "yes",
        "output_tok_s": 300.0,
        "output_tok_s_low": 290.0,
        "output_tok_s_high": 310.0,
    }
    for name in ("ttft_p50", "ttft_p95"):
        row |= {name: 60.0, f"{name}_low": 55.0, f"{name}_high": 65.0}
    return row | changes


def test_headline_says_who_carries_the_sessions_and_shows_the_hash():
    axes = plots_headline.headline(
        pd.DataFrame([headline(), headline(launch="b", engine="llama-cpp", precision="q4_0", capacity=np.nan)]),
        SLA,
        "records/x #abc123",
    )
    assert title(axes) == "vLLM-CPU bf16 carries 4 sessions with the first token within 75 ms, each next within 15 ms"
    assert "#abc123" in style.figure_of(axes)._supxlabel.get_text()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"capacity": 2.0}, "Nobody is shown to carry 4 sessions: vLLM-CPU bf16 comes nearest with 2"),
        (
            {"capacity": np.nan, "meets_sla": "undecided"},
            "Nobody is shown to carry 4 sessions at any level taken; the samples leave it undecided",
        ),
        ({"capacity": np.nan, "meets_sla": "no"}, "Nobody is shown to carry 4 sessions at any level taken"),
    ],
)
def test_headline_changes_with_its_rows(changes, said):
    assert plots_headline.headline_finding(pd.DataFrame([headline(**changes)]), SLA) == said


def test_headline_falls_back_to_medians_where_a_p95_is_unsupported():
    axes = plots_headline.headline(pd.DataFrame([headline(ttft_p95_low=np.nan, ttft_p95_high=np.nan)]), SLA, "x")
    assert axes[0].get_title(loc="left") == "First token, median (ms)"


def test_lanes_fill_one_per_client():
    requests = pd.DataFrame({"sent_s": [0.0, 0.1, 1.0, 1.1], "end_s": [1.0, 1.2, 2.0, 2.0]})
    assert plots_time.lanes(requests).tolist() == [0, 1, 0, 2]
    assert plots_time.lanes(pd.DataFrame({"sent_s": [0.0, 1.0], "end_s": [np.nan, 2.0]})).tolist() == [0, 1]


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    of = synthetic.study(levels=(4,), seconds=3.0, repeats=1)
    return records.read(
        synthetic.write_launch(tmp_path_factory.mktemp("records"), of, synthetic.Server(jitter=0.0, failed=1))
    )


def test_timeline_states_the_servers_own_numbers(record):
    ax = plots_time.timeline(
        timeline(record, 0, 0, "closed-4"), plots_time.tokens(record, 0, 0, "closed-4"), "vllm-cpu", "bf16"
    )
    assert (
        title(ax) == "vLLM-CPU bf16, 4 at once: 65 ms to the first token, then one every 11.5 ms (medians)"
    )  # 50 * 1.3, 10 * 1.15
    ticks = next(line for line in ax.get_lines() if line.get_marker() == "|")
    assert len(ticks.get_xdata()) > 100 and set(ticks.get_ydata()) == {0, 1, 2, 3}


def test_tokens_are_those_of_the_record(record):
    events = plots_time.tokens(record, 0, 0, "closed-4")
    assert len(events) == sum(len(e) for e in record.table["event_ns"].to_pylist())
    with pytest.raises(NoValue, match="no taking"):
        plots_time.tokens(record, 7, 0, "closed-4")


def test_batch_agrees_with_a_true_gauge_and_not_with_a_wrong_one(record, tmp_path):
    frame, agreed = batch_over_time(record, 0, 0, "closed-4")
    drawn = plots_time.load_over_time(frame, agreed, "vllm-cpu", "bf16")
    assert "is within one request of the stamps in 100 % of" in title(drawn)
    of = synthetic.study(levels=(4,), seconds=3.0, repeats=1)
    wrong = records.read(synthetic.write_launch(tmp_path, of, synthetic.Server(gauge_factor=3.0)))
    assert "in only 0 %" in title(
        plots_time.load_over_time(*batch_over_time(wrong, 0, 0, "closed-4"), "vllm-cpu", "bf16")
    )


def test_an_engine_without_gauges_is_said_to_have_none(record):
    frame, _ = batch_over_time(record, 0, 0, "closed-4")
    axes = plots_time.load_over_time(frame.assign(running=np.nan, kv_cache_usage=np.nan), None, "llama-cpp", "q4_0")
    assert "reports no count of its own" in title(axes)
    assert "does not say" in axes[1].texts[0].get_text()


def test_distribution_takes_the_records_samples(record):
    ax = plots.first_token_distribution(ttft_samples(record), {"vllm-bf16": ("vllm-cpu", "bf16")}, "closed-4", SLA)
    assert "within 65 ms" in title(ax)


CLAIMS = {
    "article": published.claims()["article"],
    "sla": {"inter_token_latency_ms": 25},
    "thresholds": {"min_output_tokens": 32},
    "rows": [
        {
            "id": "x",
            "engine": "vllm",
            "precision": "fp16",
            "ttft_p95_ms": 240,
            "output_tok_s": 1420,
            "max_concurrent": 64,
        }
    ],
}


def test_arithmetic_says_whether_the_rows_keep_their_own_limit():
    assert (
        title(plots_claims.implied_itl(CLAIMS))
        == "If its throughput was read at its stated concurrency, none of the published rows keeps 25 ms per token in "
        "answers of 32 tokens or more"
    )
    fast = CLAIMS | {"rows": [CLAIMS["rows"][0] | {"output_tok_s": 14200}]}
    assert "every published row can keep" in title(plots_claims.implied_itl(fast))


def test_the_claims_on_file_are_drawn_as_published():
    ax = plots_claims.implied_itl(published.claims())
    lines = [line for line in ax.get_lines() if line.get_marker() not in ("None", "", None)]
    assert len(lines) == len(published.claims()["rows"])
    # Beneath each row its bound: 64 and more tokens in less time than one sweep of 8 GPUs takes is impossible.
    bounds = [line for line in ax.get_lines() if line.get_marker() == "None" and len(line.get_ydata()) == 8]
    assert len(bounds) == len(lines)
    for row, bound in zip(lines, bounds, strict=True):
        assert min(bound.get_ydata()) > 1.4 and (np.array(bound.get_ydata()) < np.array(row.get_ydata())).all()
    assert {line.get_linestyle() for line in lines} == {":"} and {line.get_markerfacecolor() for line in lines} == {
        style.PANEL
    }


def expected(kind, workload, tok_s):
    return {
        "row": "x",
        "engine": "vllm",
        "precision": "fp16",
        "concurrency": 64,
        "workload": workload,
        "kind": kind,
        "ttft_p95_ms": 100.0,
        "output_tok_s": tok_s,
    }


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        ((1000.0, 2000.0), "One workload would explain all 1 published throughputs: news"),
        ((3000.0, 4000.0), "No single workload explains all 1 published throughputs"),
    ],
)
def test_published_rows_are_held_against_predictions(predicted, said):
    rows = pd.DataFrame(
        [expected("published", "unstated", 1420.0), expected("bound", "news", 9000.0)]
        + [expected("predicted", "news", v) for v in predicted]
    )
    peers = pd.DataFrame(
        [{"metric": "output_throughput", "gpus": 8, "engine": "TensorRT-LLM", "precision": "fp8", "value": 15000.0}]
    )
    assert said in title(plots_claims.published_against_expected(rows, peers))


def test_an_empty_panel_leaves_the_ticks_of_its_neighbours():
    axes = plots.latency(pd.DataFrame([level(p95=False), level(load=4, p95=False)]), SLA)
    assert list(axes[1, 0].get_xticks()) == [1.0, 4.0]


def test_the_promise_is_in_the_picture_even_where_all_keep_it():
    samples = pd.DataFrame({"launch": ["a"] * 2, "level": ["closed-4"] * 2, "load": [4.0] * 2, "ttft_s": [0.01, 0.02]})
    ax = plots.first_token_distribution(samples, {"a": ("vllm-cpu", "bf16")}, "closed-4", SLA)
    assert ax.get_xlim()[1] > SLA.ttft_p95_ms


def capacities(**changes):
    row = {
        "config": "vllm-bf16",
        "engine": "vllm",
        "precision": "bf16",
        "policy": "chunked",
        "workload": "news flash",
        "output_tok_s": 1.0,
        "at_least": False,
        "ttft_limit_s": 0.18,
        "bound_sessions": 70.0,
        "bound_usd_per_million": 1.0,
    }
    return row | changes


def test_capacity_names_the_best_layout():
    table = pd.DataFrame([capacities(layout="TP8", capacity=40.0), capacities(layout="TP4x2", capacity=60.0)])
    axes = plots_h100.capacity_by_configuration(table, 50.0)
    assert title(axes) == "1 of 1 predicted pairs of contender and work carry 50 sessions; TP8 is the best layout in 0"
    assert "60 TP4x2" in [t.get_text() for t in np.ravel(axes)[0].texts]
    ticks = [line for line in np.ravel(axes)[0].lines if line.get_marker() == "|"]
    assert [line.get_xdata()[0] for line in ticks] == [70.0]  # what memory holds; off the axis it is not drawn
    far = plots_h100.capacity_by_configuration(table.assign(bound_sessions=9e3), 50.0)
    assert not [line for line in np.ravel(far)[0].lines if line.get_marker() == "|"]


def test_cost_rises_with_strictness():
    rows = [
        capacities(layout="TP8", ttft_limit_s=limit, usd_per_million=usd) for limit, usd in ((0.18, 6.0), (1.0, 2.0))
    ]
    axes = plots_h100.cost_against_strictness(pd.DataFrame(rows), 180.0)
    assert "within 180 instead of 1,000 ms is predicted to multiply the cost by 3 for news flash" in title(axes)
    bound = [line for line in np.ravel(axes)[0].lines if line.get_color() == style.GREY]
    assert [list(line.get_ydata()) for line in bound] == [[1.0, 1.0]]  # one line for the one precision
    assert "Physics allows no less than 1." in style.figure_of(axes).get_label()
    none = pd.DataFrame([row | {"usd_per_million": np.nan} for row in rows])
    assert "No contender keeps the promise" in title(plots_h100.cost_against_strictness(none, 180.0))


def test_effects_are_held_against_the_articles_ratio():
    row = {"effect": "engine", "contrast": "a / b", "kind": "predicted", "n": 3, "low": 0.9, "median": 1.0, "high": 1.2}
    ax = plots_h100.effects(pd.DataFrame([row]), 2.7)
    assert title(ax).startswith("No single change explains the article's 2.70× by itself (predicted: engine alone 0.9")
    big = plots_h100.effects(pd.DataFrame([row | {"high": 3.0}, row | {"kind": "measured"}]), 2.7)
    assert title(big).startswith("1 of 1 ")


def test_a_record_of_the_articles_own_row_is_drawn_filled_beside_it():
    rows = pd.DataFrame(
        [
            expected("published", "unstated", 1420.0),
            expected("bound", "news flash", 9000.0),
            expected("predicted", "news flash", 2000.0),
            expected("measured", "news", 1500.0),
        ]
    )
    peers = pd.DataFrame(
        [{"metric": "output_throughput", "gpus": 8, "engine": "TensorRT-LLM", "precision": "fp8", "value": 15000.0}]
    )
    axes = plots_claims.published_against_expected(rows, peers)
    own = [line for line in axes[0].get_lines() if line.get_label() == "measured by this study"]
    assert [list(line.get_xdata()) for line in own] == [[1500.0]]
    assert own[0].get_markerfacecolor() == own[0].get_color()
    assert [tick.get_text() for tick in axes[0].get_yticklabels()] == ["news flash", "peers, offline maximum"]
