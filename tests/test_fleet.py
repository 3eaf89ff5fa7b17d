"""Capacity, factorial and fleet: sums that fit in the head."""

from dataclasses import fields

import numpy as np
import pandas as pd
import pytest

from lib.analyse import (
    capacity,
    cases,
    factorial,
    fleet,
    h100_fleet,
    h100_tables,
    predict,
    published,
)
from lib.errors import ConfigError, NoValue


def test_crossing_is_linear_between_levels():
    assert capacity.crossing([10, 20, 30], [1.0, 2.0, 3.0], 2.5) == 25
    assert capacity.crossing([10, 20], [5.0, 6.0], 2.5) == 0
    assert capacity.crossing([10, 20], [1.0, 2.0], 2.5) == float("inf")
    assert capacity.crossing([10, 20], [1.0, np.nan], 2.5) == 10
    assert np.isnan(capacity.crossing([10, 20], [np.nan, np.nan], 2.5))


def test_capacity_ends_at_the_first_metric_to_fail():
    key = dict.fromkeys(capacity.GROUP, "x")
    table = pd.DataFrame(
        [
            {
                **key,
                "concurrency": n,
                "ttft_p95_s_high": n / 100,
                "tpot_p95_s_high": n / 1000,
                "output_tok_s": 10.0 * n,
                "reason": "",
            }
            for n in (10, 20, 30)
        ]
    )
    strict = capacity.under_sla(table, ttft_s=0.157, tpot_s=1.0).iloc[0]
    assert (strict["capacity"], strict["limited_by"], strict["output_tok_s"]) == (
        pytest.approx(15),
        "TTFT",
        pytest.approx(150),
    )
    loose = capacity.under_sla(table, ttft_s=9, tpot_s=9).iloc[0]
    assert loose["capacity"] == 30 and loose["at_least"]
    none = capacity.under_sla(table, ttft_s=0.01, tpot_s=9).iloc[0]
    assert none["capacity"] == 0 and np.isnan(none["output_tok_s"])
    empty = table.assign(reason="the weights do not fit", **{"ttft_p95_s_high": np.nan, "output_tok_s": np.nan})
    missing = capacity.under_sla(empty, ttft_s=9, tpot_s=9).iloc[0]
    assert np.isnan(missing["capacity"]) and missing["reason"] == "the weights do not fit" and not missing["at_least"]


def test_stricter_sla_never_costs_less():
    table = h100_tables.cost_curves()
    assert set(table["ttft_limit_s"]) == {0.1, 0.14, 0.18, 0.25, 0.35, 0.5, 1.0}
    for _, part in table.groupby(["config", "layout", "policy", "workload"]):
        values = part.sort_values("ttft_limit_s")["capacity"].to_numpy()
        assert (np.diff(values) >= 0).all()


def test_the_sla_is_the_articles_unless_another_is_asked_for():
    assert h100_tables.target() == capacity.Target(180, 25, 95, 50)
    assert h100_tables.target("300", sessions="80") == capacity.Target(300, 25, 95, 80)  # as a command line gives them
    table, chosen = h100_tables.capacities(), ["config", "layout", "policy", "workload"]
    loose = h100_tables.capacities(sla=h100_tables.target(1000, 100))
    both = table.merge(loose, on=chosen, suffixes=("", "_loose"))
    assert (both["capacity_loose"] >= both["capacity"]).all() and (both["capacity_loose"] > both["capacity"]).any()
    median, strict = (h100_tables.capacities(sla=h100_tables.target(percentile=p)) for p in (50, 99))
    assert (median["capacity"] >= table["capacity"]).all() and (strict["capacity"] <= table["capacity"]).all()
    assert (median["capacity"] > strict["capacity"]).any()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"ttft_ms": 0}, "ttft_ms as a positive number"),
        ({"itl_ms": "fast"}, "itl_ms as a positive number, got 'fast'"),
        ({"sessions": float("inf")}, "sessions as a positive number"),
        ({"percentile": 90}, "no prediction holds the percentile 90.*50, 95, 99"),
    ],
)
def test_an_sla_that_nothing_can_answer_is_refused(asked, why):
    with pytest.raises(ConfigError, match=why):
        h100_tables.target(**asked)


def test_fleets_follow_the_sla():
    loose = h100_tables.target(1000, 100, sessions=70)
    own, other = ({r["config"]: r for r in h100_fleet.fleet_table(sla=s) if r["sessions"] > 9e5} for s in (None, loose))
    assert all(other[config]["nodes"] < own[config]["nodes"] for config in own)
    assert {row["sessions"] for row in h100_fleet.fleet_table(sla=loose)} == {70, 500, 5_000, 50_000, 1_000_000}
    record = {"capacity": 40.0, "output_tok_s_at_capacity": 1600.0, "requests_s_at_capacity": 12.5}
    step = {"ttft_p95_high": 500.0, "tpot_p95_high": 50.0, "capacity": 128.0, "output_tok_s": 2560, "requests_s": 20}
    rows = h100_fleet.fleet_table(sla=loose, measured={"trtllm-fp8": record | {"ladder": [step]}})
    assert {row["capacity"] for row in rows if row["kind"] == "measured"} == {128.0}  # its level at 128 keeps this SLA


def test_no_predicted_cost_beats_the_bound():
    for sla in (None, h100_tables.target(1000, 100, 50), h100_tables.target(100, 12, 99)):
        table = h100_tables.cost_curves(sla=sla).dropna(subset="usd_per_million")
        assert len(table) > 20
        assert (table["bound_usd_per_million"] <= table["usd_per_million"]).all()
    table = h100_tables.capacities().dropna(subset="usd_per_million")
    assert (table["bound_usd_per_million"] <= table["usd_per_million"]).all()
    fleets = pd.DataFrame(h100_fleet.fleet_table())
    assert (fleets["bound_usd_per_million_tokens"] <= fleets["usd_per_million_tokens"]).all()


def test_fleet_by_hand():
    demand = fleet.Demand(sessions=100, growth_per_year=0.0, years=1, peak_to_mean=2.0, failures=1, headroom=0.0)
    result = fleet.fleet(demand, fleet.Node(capacity=50, output_tok_s=1000, usd_per_hour=10))
    assert result["nodes"] == 5  # 200 at the peak over 50 each, and one to lose
    assert result["usd_per_month"] == pytest.approx(5 * 10 * 730.5)
    # at the mean load 2 nodes' worth of tokens: 2 x 3.6 million an hour for 50 USD an hour
    assert result["usd_per_million_tokens"] == pytest.approx(50 / 7.2)
    assert result["utilisation"] == pytest.approx(100 / 250)


def test_fleet_scales_to_a_million_sessions():
    rows = fleet.scales(fleet.Node(50, 1000, 10), fleet.Demand())
    assert rows[-1]["sessions"] == 1_000_000
    assert [row["nodes"] for row in rows] == sorted(row["nodes"] for row in rows)
    assert rows[-1]["usd_per_million_tokens"] < rows[0]["usd_per_million_tokens"]  # spare nodes weigh less


def test_sensitivity_names_the_widest_swing_first():
    rows = fleet.sensitivity(
        fleet.Demand(sessions=10_000), fleet.Node(50, 1000, 10), {"failures": (0, 1), "peak_to_mean": (1.0, 4.0)}
    )
    assert [row["assumption"] for row in rows] == ["peak_to_mean", "failures"]
    assert rows[1]["swing"] == pytest.approx(10 * 730.5)


def test_monthly_cost_reacts_to_its_assumptions():
    rows = h100_fleet.fleet_sensitivity("tensorrt_llm-fp8")
    assumed = {f.name for f in fields(fleet.Demand)} - {"requests_per_s"} | {"capacity", "usd_per_hour"}
    assert {row["assumption"] for row in rows} == assumed | {"SLA ttft_ms", "SLA itl_ms"}
    by_rate = fleet.sensitivity(fleet.Demand(requests_per_s=9.0), fleet.Node(50, 1000, 10, output_tokens=100))
    assert "requests_per_s" in {row["assumption"] for row in by_rate}
    by = {row["assumption"]: row for row in rows}
    for name, low in (("SLA ttft_ms", 135), ("SLA itl_ms", 18.75)):  # stricter never costs less
        assert by[name]["low"] == low and by[name]["usd_per_month_low"] >= by[name]["usd_per_month_high"]
    assert by["SLA itl_ms"]["swing"] > 0
    price = next(row for row in rows if row["assumption"] == "usd_per_hour")
    assert price["usd_per_month_high"] == pytest.approx(4 * price["usd_per_month_low"])  # from half to double the rent


def test_requests_per_second_become_requests_in_flight():
    # 1,000 tok/s in answers of 100 tokens: a full node answers 10 a second with 50 in flight, so 40 a second are 200
    node = fleet.Node(50, 1000, 10, output_tokens=100)
    by_rate = fleet.fleet(fleet.Demand(requests_per_s=40), node)
    assert by_rate == fleet.fleet(fleet.Demand(sessions=200), node)
    assert by_rate["requests_per_s"] == pytest.approx(40 * 1.5)  # after a year's growth
    with pytest.raises(NoValue, match="output_tokens"):
        fleet.fleet(fleet.Demand(requests_per_s=40), fleet.Node(50, 1000, 10))


def test_fleet_by_rate_covers_every_contender_that_serves():
    rows = h100_fleet.fleet_by_rate(rates_s=(1, 1000))
    assert {row["config"] for row in rows} == set(predict.meta()["contenders"])
    assert all(row["nodes"] >= 2 for row in rows)  # one serves, one may fail


def test_a_record_joins_the_fleet():
    own = {"capacity": 40.0, "output_tok_s_at_capacity": 1600.0, "requests_s_at_capacity": 12.5, "source": "r.parquet"}
    rows = [row for row in h100_fleet.fleet_table(measured={"trtllm-fp8": own}) if row["kind"] == "measured"]
    assert len(rows) == 5 and {row["from"] for row in rows} == {"r.parquet"}
    assert rows[0]["requests_per_s"] == pytest.approx(75 / 40 * 12.5)  # 50 sessions grow to 75


def test_contender_that_serves_nobody_has_no_sensitivity():
    with pytest.raises(NoValue, match="'sglang-fp8' serves no"):
        h100_fleet.fleet_sensitivity("sglang-fp8")


def test_node_that_serves_nobody_is_refused():
    with pytest.raises(NoValue, match="serves nobody"):
        fleet.fleet(fleet.Demand(), fleet.Node(0, 1000, 10))


def test_factorial_separates_what_the_ratio_mixes():
    table = factorial.factorial(predict.load(), published.references())
    assert {"engine", "precision", "load", "layout", "version", "engine and version"} == set(table["effect"])
    assert (table["low"] <= table["median"]).all() and (table["median"] <= table["high"]).all()
    assert (table["n"] > 0).all() and table["source"].str.len().gt(0).all()
    engine = table[(table["effect"] == "engine") & (table["kind"] == "predicted")]
    assert engine["high"].max() < 1.3  # no engine is far ahead of the other at equal precision


def test_the_claimed_ratio_is_held_against_the_same_work_only():
    # 2 x in workload a, 3 x in b; the slow a against the fast b would be 10 x, and is no reading of anything
    speeds = {("one", "a"): 20, ("one", "b"): 300, ("two", "a"): 10, ("two", "b"): 100}
    readings = [{"row": r, "workload": w, "reading": "r", "x": v} for (r, w), v in speeds.items()]
    ratios = cases.same_work_ratios(readings, "one", "two", "x")
    assert sorted(ratios) == [2, 3]
    mixed = factorial.mixed_ratio(ratios, 6.0)
    assert mixed == {"low": 2, "median": 2.5, "high": 3, "claimed": 6.0, "unexplained": 2.0}


def test_measured_contrast_gets_its_own_line():
    row = {"effect": "engine", "contrast": "TensorRT-LLM / vLLM, fp8", "value": 1.2, "held": "all", "source": "record"}
    table = factorial.factorial(predict.load(), published.references(), [row])
    assert table.iloc[-1]["kind"] == "measured" and table.iloc[-1]["median"] == 1.2


def test_replicas_share_the_clients_evenly():
    assert predict.replica_loads(50, 4) == [13, 13, 12, 12]
    assert predict.replica_loads(1, 4) == [1]


def test_unknown_contender_says_what_exists():
    with pytest.raises(ConfigError, match="tensorrt_llm-fp8"):
        predict.step_times("sglang-fp8", 8)


def test_missing_prediction_file_says_how_to_make_it(tmp_path):
    with pytest.raises(ConfigError, match="make predict"):
        predict.load(tmp_path / "predictions.csv")


def test_layout_that_cannot_hold_a_request_is_a_row_with_its_reason(monkeypatch):
    meta = {**predict.meta(), "kv_capacity_tokens": {**predict.meta()["kv_capacity_tokens"], "vllm-bf16-tp2": 500}}
    monkeypatch.setattr(predict, "meta", lambda: meta)
    row = predict.run_point(predict.Point("vllm-bf16", "TP2x4", "chunked", predict.WORKLOADS[2], 4))
    assert "does not fit" in row["reason"] and "output_tok_s" not in row


def test_one_point_of_the_file_is_what_the_generator_makes():
    row = predict.run_point(predict.Point("tensorrt_llm-fp8", "TP4x2", "chunked", predict.WORKLOADS[1], 16))
    table = predict.load()
    stored = table[
        (table["config"] == row["config"])
        & (table["layout"] == "TP4x2")
        & (table["workload"] == row["workload"])
        & (table["concurrency"] == 16)
        & (table["policy"] == "chunked")
    ].iloc[0]
    for name in ("ttft_p95_s", "tpot_p95_s", "output_tok_s"):
        assert stored[name] == pytest.approx(row[name], rel=1e-4)
