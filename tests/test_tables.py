"""A whole study from records on disk to tables and facts: what is kept, what is refused, and what is said about it."""

import json
import math
import shutil

import pandas as pd
import pytest

from lib import paths, records
from lib.analyse import frames, tables, takings
from lib.analyse.facts import number, weakest
from lib.errors import RecordError
from tests import synthetic

NO_H100 = {"rows": []}       # the facts of the article's hardware have their own tests and take seconds
STUDY = synthetic.study(levels=(1, 2, 4), rates=(4.0,), seconds=9.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A sound study: four launches, one of them absent."""
    folder, out = tmp_path_factory.mktemp("records"), tmp_path_factory.mktemp("tables")
    synthetic.write_study(folder, STUDY, absent={"vllm-int4": "This computer has no AVX-512."})
    return folder, out, build(STUDY, folder, out)


@pytest.fixture
def small(tmp_path):
    """A study to break: two launches of one short level."""
    study = synthetic.study(levels=(2,), seconds=3.0, repeats=2)
    folder = tmp_path / "records"
    synthetic.write_study(folder, study, (synthetic.Server(), synthetic.Server(name="vllm-int8", precision="int8")))
    return study, folder, tmp_path / "tables"


def build(study, folder, out):
    return tables.build(study, folder, out, about_h100=NO_H100)


def numbers(facts, at="facts"):
    """Every number in facts, with its place."""
    if isinstance(facts, dict) and "value" in facts and "mark" in facts:
        yield at, facts
    elif isinstance(facts, dict):
        for key, value in facts.items():
            yield from numbers(value, f"{at}.{key}")
    elif isinstance(facts, list):
        for i, value in enumerate(facts):
            yield from numbers(value, f"{at}[{i}]")


def test_every_number_has_its_mark_unit_source_and_reason(made):
    found = dict(numbers(made[2]))
    assert len(found) > 300
    for place, fact in found.items():
        assert fact["mark"] in ("measured", "published", "predicted", "assumed", "bound"), place
        assert fact["unit"] and fact["source"], place
        assert fact["value"] is not None or fact["reason"], place
        assert all(v is None or math.isfinite(v) for v in (fact["value"], fact["low"], fact["high"])), place


def test_no_bare_number_hides_among_the_results_of_a_level(made):
    for launch in made[2]["launches"].values():
        for level in launch["levels"].values():
            assert not [k for k, v in level.items() if isinstance(v, int | float)]


def test_the_same_records_give_the_same_bytes(made, tmp_path):
    folder, out, _ = made
    build(STUDY, folder, tmp_path)
    names = sorted(p.name for p in out.iterdir())
    assert names == ["comparisons.csv", "facts.json", "headline.csv", "levels.csv", "quality.csv", "takings.csv",
                     "tradeoff.csv"]
    assert all((out / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def test_facts_on_disk_are_those_returned(made):
    assert json.loads((made[1] / "facts.json").read_text()) == made[2]


def test_the_keys_prose_relies_on(made):
    assert set(made[2]) == {"study", "sla", "machine", "host", "launches", "set_aside", "headline", "noise_floor",
                            "comparisons", "warnings", "missing", "h100", "calibration", "crosscheck", "method",
                            "quality", "tradeoff", "inside", "network", "beside"}
    level = made[2]["launches"]["vllm-bf16"]["levels"]["closed-4"]
    assert level["ttft_p95"]["unit"] == "ms" and level["ttft_p95"]["value"] == pytest.approx(66.5, rel=0.02)
    assert level["output_tok_s"]["unit"] == "tok/s" and level["bound_tpot"]["mark"] == "bound"
    assert level["ttft_p95"]["source"].startswith("records/synthetic/vllm-bf16.parquet#")
    launch = made[2]["launches"]["vllm-bf16"]
    assert launch["artifact"]["size"]["value"] == 270 and launch["ready"]["value"] == 30


def test_takings_has_a_row_per_taking_and_the_columns_of_the_contract(made):
    frame = pd.read_csv(made[1] / "takings.csv")
    assert len(frame) == 4 * 3 * 4      # launches, repeats, levels
    assert frame.columns[:12].tolist() == ["launch", "engine", "precision", "run", "repeat", "level", "kind", "load",
                                           "workload", "steady_s", "in_flight_mean", "requests"]
    assert not frame.duplicated(["launch", "run", "repeat", "level"]).any()


def test_levels_has_value_limits_and_reason(made):
    frame = pd.read_csv(made[1] / "levels.csv").set_index(["launch", "level"])
    row = frame.loc[("vllm-bf16", "closed-4")]
    assert row["ttft_p50_s_low"] < row["ttft_p50_s"] < row["ttft_p50_s_high"] and pd.isna(row["ttft_p50_s_reason"])
    assert (row["meets_sla"], row["takings"], row["failures"]) == ("yes", 3, 0)
    failing = frame.loc[("llamacpp-q4_0", "closed-4")]
    assert failing["meets_sla"] == "no" and failing["failures"] == 6
    assert "3 answers are of another length than asked (check how" in failing["warnings"]


def test_the_headline_has_capacity_and_cost(made):
    frame = pd.read_csv(made[1] / "headline.csv").set_index("launch")
    row = frame.loc["vllm-bf16"]
    assert row["level"] == "closed-4" and row["capacity"] == 4 and "may be higher" in row["capacity_reason"]
    assert row["cost"] == pytest.approx(0.10 / (row["output_tok_s"] * 3600) * 1e6)
    assert row["cost_low"] < row["cost"] < row["cost_high"]
    assert frame.loc["vllm-bf16-again", "repeat_of"] == "vllm-bf16" and pd.isna(row["repeat_of"])
    assert made[2]["headline"][0]["cost"]["mark"] == "published"


def test_a_notebook_shows_the_main_columns(small, monkeypatch):
    study, folder, out = small
    build(study, folder, out)
    monkeypatch.setattr(paths, "tables", lambda name: out if name == "synthetic" else out / name)
    for name in ("takings", "levels", "headline", "comparisons"):
        assert len(tables.show(name, "synthetic")) > 0
    with pytest.raises(RecordError, match=r"There is no table levels\.csv"):
        tables.show("levels", "synthetic", "full")


def test_no_price_no_cost(small):
    study, folder, out = small
    free = study.model_copy(update={"price": None})
    assert build(free, folder, out)["headline"][0]["cost"]["reason"] == "the profile states no price"


def test_the_noise_floor_and_what_lies_above_it(made):
    facts = made[2]
    assert facts["noise_floor"]["pair"] == ["vllm-bf16", "vllm-bf16-again"]
    assert 0 < facts["noise_floor"]["tpot_p50_s"]["value"] < 3      # per cent: takings differ by 1 %
    frame = pd.read_csv(made[1] / "comparisons.csv").set_index(["a", "b", "metric", "level"])
    faster = frame.loc[("vllm-bf16", "vllm-int8", "tpot_p50_s", "closed-4")]
    assert faster["ratio"] == pytest.approx(10 / 8, rel=0.02) and faster["verdict"] == "differs"
    assert faster["low"] < 10 / 8 < faster["high"]
    assert "vllm-bf16-again" not in frame.index.get_level_values("a")
    assert facts["method"]["compared"] == len(frame) == 3 * (3 * 3 + 2)     # an open level's throughput is no result


def test_the_same_thing_is_not_distinguishable(tmp_path):
    study = synthetic.study(levels=(2,), seconds=3.0, noise_floor_pair=None)
    servers = (synthetic.Server(), synthetic.Server(name="vllm-twin", seed=9, taking_spread=(0.99, 1.0, 1.01)))
    synthetic.write_study(tmp_path, study, servers)
    facts = build(study, tmp_path, tmp_path / "out")
    assert {c["verdict"] for c in facts["comparisons"]} == {"not distinguishable"}
    assert facts["noise_floor"]["tpot_p50_s"]["value"] is None and "names no pair" in facts["noise_floor"]["reason"]


def test_a_clear_difference_below_the_floor_is_not_distinguishable(tmp_path):
    study = synthetic.study(levels=(2,), seconds=3.0)
    steady = {"jitter": 0.001, "taking_spread": (1.0, 1.0001, 0.9999)}
    servers = (synthetic.Server(**steady), synthetic.Server(name="vllm-bf16-again", tpot_ms=10.5, **steady),
               synthetic.Server(name="vllm-int8", tpot_ms=10.3, **steady))
    synthetic.write_study(tmp_path, study, servers)
    found = {c["metric"]: c for c in build(study, tmp_path, tmp_path / "out")["comparisons"]}
    same = found["tpot_p50_s"]
    assert same["p_holm"]["value"] < 0.01 and (same["verdict"], same["why"]) == ("not distinguishable", "floor")


def test_an_absent_launch_is_named_with_its_reason(made):
    (missing,) = made[2]["missing"]
    assert missing == {"launch": "vllm-int4", "status": "absent", "reason": "This computer has no AVX-512."}


def test_where_every_launch_is_set_aside_the_tables_have_columns_and_no_row(small):
    study, folder, out = small
    probe = {"bandwidth_bytes_s": 1e8, "flop_s": {"float32": 1e8, "int8": 1e8}, "seconds": 2.0}
    for name in ("vllm-bf16", "vllm-int8"):
        synthetic.write_launch(folder, study, synthetic.Server(name=name, extra={"host_probe": probe}))
    facts = build(study, folder, out)
    assert not facts["launches"] and set(facts["set_aside"]) == {"vllm-bf16", "vllm-int8"}
    for name, columns in (("takings", frames.TAKINGS), ("levels", frames.LEVELS), ("headline", frames.HEADLINE)):
        assert pd.read_csv(out / f"{name}.csv").columns.tolist() == list(columns)


def test_a_frame_has_the_columns_it_names_and_no_other(made):
    _, out, facts = made
    row = facts["headline"][0]
    named = {name.removesuffix("_reason") for name in frames.HEADLINE}
    assert set(row) <= named and len(pd.read_csv(out / "headline.csv")["launch"].dropna()) == 4
    summary = takings.summary(takings.of_record(records.read(made[0] / "vllm-bf16.parquet"))[0], STUDY.sla)
    assert set(summary) <= set(frames.TAKINGS) and set(frames.TAKINGS) - set(summary) == {"engine", "precision"}


def test_an_unsupported_percentile_is_called_so_in_a_notebook(small, monkeypatch):
    study, folder, out = small
    build(study, folder, out)
    monkeypatch.setattr(paths, "tables", lambda name: out)
    row = tables.show("levels", "synthetic").iloc[0]
    assert row["ttft_p95_s"] == "unsupported" and float(row["ttft_p50_s"]) > 0


def test_one_damaged_record_does_not_sink_the_others(small):
    study, folder, out = small
    path = folder / "vllm-int8.parquet"
    path.write_bytes(path.read_bytes()[:-9])
    facts = build(study, folder, out)
    assert list(facts["launches"]) == ["vllm-bf16"]
    (missing,) = facts["missing"]
    assert missing["status"] == "damaged" and "differs from its checksum" in missing["reason"]


def test_an_empty_checksum_counts_as_damage(small):
    study, folder, out = small
    (folder / "vllm-int8.parquet.sha256").write_text("")
    assert build(study, folder, out)["missing"][0]["status"] == "damaged"


def test_damaged_telemetry_costs_the_gauges_alone(small):
    study, folder, out = small
    (folder / "vllm-int8.telemetry.parquet").write_bytes(b"not parquet")
    facts = build(study, folder, out)
    assert facts["launches"]["vllm-int8"]["levels"]["closed-2"]["kv_cache_usage"]["reason"]
    assert any(w["where"] == "vllm-int8" and w["text"].startswith("no engine metrics") for w in facts["warnings"])


@pytest.mark.parametrize(("changes", "said"), [
    ({"kind": "rehearsal"}, "a rehearsal never joins measurements"),
    ({"extra": {"study": "other"}}, "belongs to study 'other'"),
])
def test_what_does_not_belong_is_refused_and_named(small, changes, said):
    study, folder, out = small
    synthetic.write_launch(folder, study, synthetic.Server(name="stranger", **changes))
    facts = build(study, folder, out)
    assert "stranger" not in facts["launches"] and said in facts["missing"][0]["reason"]


def test_a_whole_rehearsal_is_marked_so(small):
    study, folder, out = small
    shutil.rmtree(folder)
    rehearsal = study.model_copy(update={"kind": "rehearsal"})
    synthetic.write_study(folder, rehearsal, (synthetic.Server(kind="rehearsal"),))
    facts = build(rehearsal, folder, out)
    assert facts["launches"]["vllm-bf16"]["levels"]["closed-2"]["ttft_p50"]["mark"] == "rehearsed"


def test_a_launch_that_died_keeps_what_it_finished(small):
    study, folder, out = small
    synthetic.write_launch(folder, study, synthetic.Server(name="dying", incomplete="The server died: out of memory."))
    facts = build(study, folder, out)
    assert "dying" in facts["launches"]
    assert facts["missing"][0]["reason"] == ("The server died: out of memory. 1 of 1 levels are whole; "
                                             "what was finished is shown, marked so.")


def test_a_record_that_beats_its_bound_is_set_aside(small):
    study, folder, out = small
    # int8 weights of 135 million parameters from a memory of 8 GB/s: 20 ms a token at best, where 10 ms were measured
    synthetic.write_study(folder, study, (
        synthetic.Server(bandwidth_bytes_s=8e9),
        synthetic.Server(name="vllm-int8", precision="int8", bandwidth_bytes_s=8e9),
        synthetic.Server(name="llamacpp-q4_0", precision="q4_0", bandwidth_bytes_s=8e9, tpot_ms=25.0),
    ))
    facts = build(study, folder, out)
    assert list(facts["launches"]) == ["llamacpp-q4_0"] and set(facts["set_aside"]) == {"vllm-bf16", "vllm-int8"}
    assert all(m["status"] == "set aside" and "it beats a bound" in m["reason"] for m in facts["missing"])
    assert set(pd.read_csv(out / "levels.csv")["launch"]) == {"llamacpp-q4_0"}


def test_a_value_somewhat_beyond_a_probed_bound_is_flagged_only(small):
    study, folder, out = small
    # bf16: 269 MB a token. At 18 GB/s that is 14.9 ms and 138 tok/s for two; 10.5 ms and 168 tok/s were measured,
    # beyond both but within what a probe may miss.
    servers = tuple(synthetic.Server(name=n, bandwidth_bytes_s=18e9) for n in ("vllm-bf16", "vllm-int8"))
    synthetic.write_study(folder, study, servers)
    facts = build(study, folder, out)
    assert len(facts["launches"]) == 2
    said = [w for w in facts["warnings"] if "beats its bound" in w["text"]]
    assert [w["next"] for w in said] == ["probe again on a quiet machine"] * 2
    assert all("median TPOT" in w["text"] and "throughput" in w["text"] for w in said)


def test_a_search_decides_the_capacity_and_adds_its_levels(tmp_path):
    said = {
        "kind": "closed", "workload": "news", "capacity": 2.0, "likely": 3.0, "next": 8.0, "next_answer": "no",
        "seconds": 70.0, "reason": "its ends are neighbours", "path": [{"level": "closed-8"}, {"level": "closed-2"}],
    }  # fmt: skip
    taken, planned = (synthetic.study(levels=of, seconds=3.0, repeats=1) for of in ((1, 2, 4, 8), (1, 4)))
    synthetic.write_study(tmp_path / "records", taken, (synthetic.Server(extra={"search": said}),))
    facts = build(planned, tmp_path / "records", tmp_path / "out")
    launch, row = facts["launches"]["vllm-bf16"], facts["headline"][0]
    assert list(launch["levels"]) == ["closed-1", "closed-4", "closed-2", "closed-8"]
    found = launch["capacity"]
    assert (found["value"], found["next_level"], found["next_answer"], found["by"]) == (2, 8, "no", "search")
    assert "by search, 2 probes" in found["reason"] and row["capacity"] == found and row["level"] == "closed-4"
    assert launch["search"]["probes"]["value"] == 2 and launch["search"]["seconds"]["value"] == 70
    assert not [w for w in facts["warnings"] if "planned takings" in w["text"]]


def test_without_an_int8_rate_memory_alone_bounds(small):
    study, folder, out = small
    servers = tuple(synthetic.Server(name=n, flop_s=1e9) for n in ("vllm-bf16", "vllm-int8"))
    synthetic.write_study(folder, study, servers)
    level = build(study, folder, out)["launches"]["vllm-bf16"]["levels"]["closed-2"]
    # 269 MB of weights at 100 GB/s, and two sequences a sweep: 31 sweeps for 32 tokens each
    assert level["bound_tpot"]["value"] == pytest.approx(2.7, rel=0.02)
    assert level["bound_output_tok_s"]["value"] == pytest.approx(2 * 32 / 31 / 0.0027, rel=0.03)
    assert level["bound_output_tok_s"]["source"] == "host probe, memory alone"


def test_with_it_prefill_bounds_too(small):
    study, folder, out = small
    probe = {"bandwidth_bytes_s": 100e9, "flop_s": {"float32": 1e11, "int8": 4e11}, "seconds": 2.0}
    (folder / "vllm-int8.parquet").unlink()
    synthetic.write_launch(folder, study, synthetic.Server(extra={"host_probe": probe}))
    facts = build(study, folder, out)
    bound = (facts["launches"] | facts["set_aside"])["vllm-bf16"]["levels"]["closed-2"]["bound_output_tok_s"]
    # 2 x 106 million linear weights x (128 + 31) tokens and the head 32 times, at 400 GFLOP/s: 0.09 s for 32 tokens
    assert bound["value"] == pytest.approx(32 / 0.09, rel=0.05) and bound["source"] == "host probe"


def test_a_precision_without_data_has_no_bound_and_says_why(small):
    study, folder, out = small
    synthetic.write_launch(folder, study, synthetic.Server(precision="int3"))
    level = build(study, folder, out)["launches"]["vllm-bf16"]["levels"]["closed-2"]
    assert level["bound_tpot"]["value"] is None and "no precision 'int3'" in level["bound_tpot"]["reason"]


def test_nothing_measured_is_one_paragraph(tmp_path):
    study = synthetic.study()
    synthetic.outcome(tmp_path, "vllm-bf16", "failed", "The port was taken.")
    with pytest.raises(RecordError, match=r"has no record to read in .* vllm-bf16: The port was taken\. `make report`"):
        build(study, tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_facts_from_elsewhere_have_their_places(small):
    study, folder, out = small
    assert "make calibrate" in build(study, folder, out)["calibration"]["reason"]
    assert tables.build(study, folder, out)["h100"]["sla"]["ttft"]["value"] == 180


def test_a_number_needs_a_mark_and_a_missing_one_a_reason():
    assert number(1.0, "ms", "measured", "x")["value"] == 1.0
    with pytest.raises(ValueError, match="needs a reason"):
        number(float("nan"), "ms", "measured", "x")
    with pytest.raises(ValueError, match="mark 'guessed' is none of"):
        number(1.0, "ms", "guessed", "x")


@pytest.mark.parametrize(("marks", "weak"), [
    (["measured"], "measured"), (["measured", "bound"], "measured"), (["predicted", "published"], "predicted"),
    (["assumed", "measured"], "assumed"),
])
def test_a_computed_number_takes_the_weakest_mark(marks, weak):
    assert weakest(marks) == weak
