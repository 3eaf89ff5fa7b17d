"""Every kind of load, from study.yaml to the page: at the door, as requests, with real processes, in words."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import yaml
from tokenizers import Tokenizer

from lib import config, paths, records
from lib.analyse import ladder, levels, tables, takings, warnings
from lib.analyse.collect import collect
from lib.errors import ConfigError
from lib.loads import SATURATED, TraceRow, read_trace
from lib.measure import schedule
from lib.measure import takings as asking
from lib.show import article, figures, verdict
from tests import mini_study, synthetic

HEADER = "arrival_s,input_tokens,output_tokens\n"
TRACE = HEADER + "5.0,40,4\n5.05,50,8\n5.3,45,6\n5.3,60,2\n5.55,70,5\n9.0,40,4\n"  # the last one is never played
NEWS = {"input_tokens": {"mean": 60, "spread": 0.2}, "output_tokens": {"mean": 8, "spread": 0.5}, "reads_like": "x"}
ANALYST = {
    "input_tokens": {"mean": 120, "shape": "constant"}, "question_tokens": {"mean": 60, "spread": 0.1},
    "output_tokens": {"mean": 6, "shape": "constant"}, "turns": 3, "prefix_cache": "wanted", "reads_like": "x",
}  # fmt: skip
KINDS = [
    {"kind": "closed", "concurrency": 3, "seconds": 0.6},
    {"kind": "closed", "concurrency": 3, "seconds": 1.2, "think_seconds": 0.1},
    {"kind": "closed", "concurrency": 3, "seconds": 0.6, "start": "burst"},
    {"kind": "constant", "rate_rps": 10, "seconds": 0.6},
    {"kind": "gamma", "rate_rps": 10, "cv": 2, "seconds": 0.9},
    {"kind": "trace", "trace": "day.csv", "seconds": 0.6},
    {"kind": "sessions", "concurrency": 2, "seconds": 1.2, "think_seconds": 0.05, "workload": "analyst"},
]
IDS = ["closed-3", "closed-3-think-0.1", "closed-3-burst", "constant-10", "gamma-10-cv2", "trace-day",
       "sessions-2-think-0.05"]  # fmt: skip


def stated(*changed, **sections):
    """The miniature study with every kind of load, or with the levels given; as text."""
    data = yaml.safe_load(mini_study.STUDY)
    data["workloads"] = {"news": NEWS, "analyst": ANALYST}
    data["levels"] = [{"workload": "news", "seconds": 1} | level for level in changed or KINDS]
    data["statistics"]["repeats"] = 1
    return yaml.safe_dump(data | sections, sort_keys=False)


@pytest.fixture
def door(tmp_path, monkeypatch):
    """Write a study.yaml and load it."""
    monkeypatch.setattr(paths, "CONFIG", tmp_path / "config")

    def load(*changed, trace=TRACE, **sections):
        mini_study.prepare(tmp_path, stated(*changed, **sections))
        (tmp_path / "config" / "mini" / "day.csv").write_text(trace)
        return config.load_study("mini")

    return load


def test_every_kind_has_its_name_and_its_family(door):
    study = door()
    assert [level.id for level in study.levels] == IDS
    assert [level.family for level in study.levels] == [
        "closed", "closed-think", "closed-burst", "constant", "gamma", "trace", "sessions"
    ]  # fmt: skip
    trace = study.levels[5]
    assert trace.rate_rps == pytest.approx(5 / 0.6) and len(trace.trace_sha256) == 64


def test_a_trace_counts_with_its_content_and_may_be_pinned(door):
    launch = config.Launch(name="x", engine="x", precision="x", artifact="x", environment="x", start_seconds=1)
    level = {"kind": "trace", "trace": "day.csv"}
    before = door(level)
    assert config.config_hash(door(level, trace=TRACE.replace("5.3,45", "5.3,46")), launch) != (
        config.config_hash(before, launch)
    )
    pinned = level | {"trace_sha256": before.levels[0].trace_sha256}
    assert config.config_hash(door(pinned), launch) == config.config_hash(before, launch)
    with pytest.raises(ConfigError, match="the trace was changed"):
        door(pinned, trace=TRACE + "9.5,40,4\n")


CLOSED = {"kind": "closed", "concurrency": 2}


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ({"kind": "closed"}, "a closed level needs `concurrency`.*`concurrency` is missing"),
        (CLOSED | {"rate_rps": 1}, "a closed level needs `concurrency`.*takes no `rate_rps`"),
        ({"kind": "poisson", "rate_rps": 1, "requests": 9}, "takes no `requests`"),
        ({"kind": "poisson", "rate_rps": 1, "cv": 2}, "takes no `cv`"),
        ({"kind": "gamma", "rate_rps": 1}, "needs `rate_rps` and `cv`; `cv` is missing"),
        ({"kind": "constant", "rate_rps": 1, "think_seconds": 1}, "takes no `think_seconds`"),
        ({"kind": "bursts", "rate_rps": 1}, "'closed', 'sessions', 'poisson', 'constant', 'gamma' or 'trace'"),
        (CLOSED | {"think_shape": "constant"}, "there is no `think_seconds`"),
        (CLOSED | {"start": "slow"}, "'ramp' or 'burst'"),
        (CLOSED | {"think_seconds": -1}, "greater than 0"),
        (CLOSED | {"think_second": 1}, "did you mean 'think_seconds'"),
        (CLOSED | {"workload": "analyst"}, "closed-2 and workload 'analyst' do not fit"),
        ({"kind": "sessions", "concurrency": 2}, "sessions-2 and workload 'news' do not fit"),
        ({"kind": "trace"}, "`trace` is missing"),
        ({"kind": "trace", "trace": "none.csv"}, "none.csv: the trace cannot be read"),
        ({"kind": "trace", "trace": "/day.csv"}, "relative to the profile's folder"),
        ({"kind": "trace", "trace": "day.csv", "rate_rps": 2}, "takes no `rate_rps`"),
    ],
)
def test_levels_that_cannot_be_are_refused_in_one_paragraph(door, level, said):
    with pytest.raises(ConfigError, match=said) as refusal:
        door(level)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"question_tokens": None}, "both `turns` and `question_tokens`"),
        ({"prefix_cache": "avoid"}, "state `prefix_cache: wanted`"),
        ({"turns": 9}, "can grow to 768 tokens and the served context is 512"),  # 120 + 9 x (66 + 6)
    ],
)
def test_sessions_that_cannot_be_are_refused(door, change, said):
    with pytest.raises(ConfigError, match=said):
        door(workloads={"news": NEWS, "analyst": ANALYST | change})


def test_trace_is_read(tmp_path):
    (tmp_path / "trace.csv").write_text(HEADER + "0.5,128,16\n0.5,64,1\n2,1000,200\n")
    assert read_trace(tmp_path / "trace.csv") == [TraceRow(0.5, 128, 16), TraceRow(0.5, 64, 1), TraceRow(2, 1000, 200)]


@pytest.mark.parametrize(
    ("text", "line", "named"),
    [
        ("", 1, "header"),
        ("arrival,input,output\n0,1,1\n", 1, "arrival,input,output"),
        (HEADER, 1, "no row"),
        (HEADER + "0,8,8\n0,8\n", 3, "2 fields"),
        (HEADER + "0,8,8\n\n1,8,8\n", 3, "0 fields"),
        (HEADER + "0,8,8\n1,8,8,8\n", 3, "4 fields"),
        (HEADER + "soon,8,8\n", 2, "soon"),
        (HEADER + "0,8.5,8\n", 2, "8.5"),
        (HEADER + "0,8,0\n", 2, "8 and 0"),
        (HEADER + "0,-8,8\n", 2, "-8"),
        (HEADER + "-1,8,8\n", 2, "-1"),
        (HEADER + "nan,8,8\n", 2, "nan"),
        (HEADER + "2,8,8\n1,8,8\n", 3, "arrival_s 1 "),
        (HEADER + '0,8,"8\n', 2, "unexpected end"),
        (HEADER + "0,8,8\n1,500,13\n", 3, "500 and 13 exceed the served context of 512"),
    ],
)
def test_a_bad_trace_is_refused_at_the_door_with_its_line(door, text, line, named):
    with pytest.raises(ConfigError, match=rf"day.csv, line {line}: ") as refusal:
        door(trace=text)
    assert named in str(refusal.value) and "\n" not in str(refusal.value)


def test_a_binary_trace_is_refused(tmp_path):
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        read_trace(tmp_path / "binary.csv")


def asked(tmp_path, study, level, count, warm=False):
    tokenizer = Tokenizer.from_file(str(tmp_path / "artifacts" / mini_study.ARTIFACT / "tokenizer.json"))
    taking = asking.Taking(0, 0, level, 0)
    return asking.ask(study, taking, tokenizer, lambda text, n: ("/", {"prompt": text}), 0, count, warm)


def test_a_faster_contender_only_gets_further_down_the_same_list(door, tmp_path):
    study = door(*KINDS[1::2], KINDS[6])  # pauses, constant arrivals, a trace, sessions
    for level in study.levels:
        few, many = asked(tmp_path, study, level, 9), asked(tmp_path, study, level, 24)
        assert many.requests[: len(few.requests)] == few.requests and many.turns[: len(few.turns)] == few.turns
        warm = asked(tmp_path, study, level, 9, warm=True)
        assert not {p.hash for p in warm.prompts} & {p.hash for p in many.prompts}
        assert all(r.due_s is None and not r.think_s for r in warm.requests)


def test_pauses_are_those_stated(door, tmp_path):
    study = door(CLOSED | {"think_seconds": 0.5}, CLOSED | {"think_seconds": 0.5, "think_shape": "constant"})
    random, constant = (asked(tmp_path, study, level, 60) for level in study.levels)
    assert np.mean([r.think_s for r in random.requests]) == pytest.approx(0.5, rel=0.4)  # three standard errors
    assert {r.think_s for r in constant.requests} == {0.5}


def test_thinking_takes_its_time_and_asks_less():
    level = config.Level(kind="closed", workload="x", concurrency=4, think_seconds=2, seconds=8, requests=40)
    # ten requests a second without pauses: 4 clients then take 0.4 s for each and think 2 s, 0.6 s per request
    assert asking.seconds(level, 10) == pytest.approx(40 * 0.6 + 2)
    assert asking.count(level, 10, 26) == 2 * 2 * 28 + 4 * 4 + 8  # four that think 2 s ask twice a second at most
    plain = level.model_copy(update={"think_seconds": None})
    assert asking.seconds(plain, 10) == 8 + 2 and asking.seconds(plain.model_copy(update={"start": "burst"}), 10) == 8


def test_a_sample_that_is_out_of_reach_is_not_waited_for():
    level = config.Level(kind="closed", workload="x", concurrency=4, seconds=5, requests=26, at_most_seconds=12)
    ramp = 5 / 4
    assert asking.seconds(level, 4.0) == pytest.approx(26 / 4 + ramp)  # all 26 in 6.5 s
    assert asking.seconds(level, 1.7) == pytest.approx(12 + ramp)  # 20 of them in 12 s, by a rough rate: worth trying
    assert asking.seconds(level, 1.6) == pytest.approx(5 + ramp)  # 19 of 26 are too few, and 8 of them take 5 s
    assert asking.seconds(level, 1.0) == pytest.approx(8 + ramp)  # 12 of 26 support none: two answers of each client
    assert asking.seconds(level, 0.3) == pytest.approx(12 + ramp)  # two of each take 27 s, and never longer than this


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Every kind of load taken with real processes: its root, study and rows by level."""
    root = tmp_path_factory.mktemp("kinds")
    mini_study.prepare(root, stated(), good={})
    (root / "config" / "mini" / "day.csv").write_text(TRACE)
    done = subprocess.run(
        [sys.executable, str(Path(mini_study.__file__)), str(root), "good"],
        capture_output=True, text=True, check=False, env=os.environ | {"PYTHONPATH": str(paths.ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paths, "CONFIG", root / "config")
        study = config.load_study("mini")
    rows = records.read(root / "records" / "mini" / "good.parquet").table.to_pylist()
    by_level = {name: sorted((r for r in rows if r["level"] == name), key=lambda r: r["due_ns"] or 0) for name in IDS}
    return root, study, by_level


def due_s(rows):
    """When requests were due, in seconds after the first, rounded to a microsecond."""
    return [round((r["due_ns"] - rows[0]["due_ns"]) / 1e9, 6) for r in rows]


def by_client(rows):
    return [[r for r in rows if r["connection"] == n] for n in sorted({r["connection"] for r in rows})]


def test_every_request_has_the_lengths_that_were_planned_as_the_server_counts(measured):
    for name, rows in measured[2].items():
        whole = [r for r in rows if r["phase"] == "measured"]
        assert len(whole) >= 5, name
        assert {r["status"] for r in whole} == {"complete"}, name
        assert all(r["input_tokens"] == r["planned_input_tokens"] for r in whole), name
        assert all(r["output_tokens"] == r["planned_output_tokens"] for r in whole), name


def test_clients_think(measured):
    clients = by_client(measured[2]["closed-3-think-0.1"])
    pauses = [(now["due_ns"] - before["end_ns"]) / 1e9 for own in clients for before, now in pairwise(own)]
    assert len(clients) == 3 and min(pauses) >= 0
    assert 0.05 < np.mean(pauses) < 0.2 and np.std(pauses) > 0.03  # exponential: as spread as it is long
    first = [own[0]["due_ns"] for own in clients]
    assert 0.15 < (max(first) - min(first)) / 1e9 < 0.25  # over a ramp of 0.3 s, a third for each


def test_a_burst_starts_all_at_once(measured):
    clients = by_client(measured[2]["closed-3-burst"])
    assert len({own[0]["due_ns"] for own in clients}) == 1 and len(clients) == 3


def test_arrivals_keep_their_schedule_whatever_the_server_does(measured):
    _, study, rows = measured
    constant = due_s(rows["constant-10"])
    assert constant == [round(i / 10, 6) for i in range(len(constant))]
    assert sum(r["phase"] == "measured" for r in rows["constant-10"]) == 6
    seed = schedule.seed_for(study.seed, "gamma-10-cv2", 0, 0, "measured-arrivals")
    planned = schedule.arrivals_ns("gamma", rate_rps=10, count=len(rows["gamma-10-cv2"]), seed=seed, burstiness=0.25)
    assert due_s(rows["gamma-10-cv2"]) == [round((ns - planned[0]) / 1e9, 6) for ns in planned.tolist()]


def test_a_trace_is_replayed_with_its_arrivals_and_lengths(measured):
    rows = measured[2]["trace-day"]
    assert due_s(rows)[:5] == [0, 0.05, 0.3, 0.3, 0.55]
    lengths = [(r["planned_input_tokens"], r["planned_output_tokens"]) for r in sorted(rows, key=lambda r: r["index"])]
    assert lengths[:5] == [(40, 4), (50, 8), (45, 6), (60, 2), (70, 5)]


def test_a_session_asks_turn_by_turn_and_repeats_its_document(measured):
    for own in by_client(measured[2]["sessions-2-think-0.05"]):
        own = [r for r in own if r["status"] == "complete"]
        assert [r["turn"] for r in own[:4]] == [0, 1, 2, 0]
        for before, now in pairwise(own):
            assert now["due_ns"] >= before["end_ns"]
            if now["turn"]:
                question = now["input_tokens"] - before["input_tokens"] - before["output_tokens"]
                assert 54 <= question <= 66  # and the rest is the turn before, its answer included
            else:
                assert 120 + 54 <= now["input_tokens"] <= 120 + 66


@pytest.fixture(scope="module")
def told(measured):
    root, study, _ = measured
    return study, tables.build(study, root / "records" / "mini", root / "tables", about_h100={})


def test_each_kind_is_judged_by_its_own_rules(told):
    study, facts = told
    of = facts["launches"]["good"]["levels"]
    assert [(name, level["kind"]) for name, level in of.items()] == [(x.id, x.family) for x in study.levels]
    assert [of[name]["load"]["unit"] for name in IDS] == ["requests"] * 3 + ["requests/s"] * 3 + ["requests"]
    said = " ".join(w["where"] + w["text"] for w in facts["warnings"])
    assert "input lengths" not in said
    for name in (x.id for x in study.levels if x.family not in SATURATED):  # a busy machine may starve the others
        own = " ".join(w["text"] for w in facts["warnings"] if w["where"] == f"good {name}")
        assert "in flight" not in own + of[name]["meets_sla"]["reason"] and "clients asked" not in own
    assert facts["launches"]["good"]["capacity"]["next_level"] == 3  # p95 of few requests: undecided at the only rung
    thinking = of["closed-3-think-0.1"]
    assert 0.8 < thinking["in_flight"]["value"] < 2.2  # 3 x 0.12 s / (0.12 s + 0.1 s) are 1.6
    assert thinking["bound_output_tok_s"]["value"] and of["constant-10"]["bound_output_tok_s"]["value"] is None
    turns = of["sessions-2-think-0.05"]["ttft_p50_by_turn"]
    assert len(turns) == 3 and not thinking["ttft_p50_by_turn"] and all(t["unit"] == "ms" for t in turns)
    assert all(20 < turn["value"] < 120 for turn in turns)  # 40 ms each, on a machine that may be busy


def test_the_page_shows_each_kind_in_its_table(told):
    _, facts = told
    text = json.dumps(facts).replace("stand-in", "llama-cpp")  # an engine that the page knows
    shown = article.pathed(json.loads(text))
    source = (
        '{% from "blocks.html.j2" import open_table, closed_table, turn_table with context %}'
        "{{ open_table(study.levels | select('open_loop') | list) }}|"
        "{{ closed_table(study.levels | select('no_rung') | list) }}|"
        "{% for name in study.levels | select('session') %}{{ turn_table(name) }}{% endfor %}"
    )
    text = article.templates().from_string(source).render(**shown, answer=verdict.judge(shown), facts=shown)
    opened, closed, turns = text.split("|")
    for words in ("10 requests a second, evenly", "10 requests a second, gaps of cv 2", "the trace day"):
        assert words in opened and words not in closed
    for words in ("3 at once, pausing 0.1 s", "3 at once from the first moment", "2 sessions, pausing 0.05 s"):
        assert words in closed and words not in opened
    assert "3 at once<" not in text and "turn 3</th>" in turns and "turn 4" not in turns


THINKER = {"kind": "closed", "concurrency": 4, "think_seconds": 0.5}
EXACT = synthetic.Server(jitter=0.0, taking_spread=(1.0,), lag_ms=0.0)


def synthetic_levels(tmp_path, study, server=EXACT):
    record = records.read(synthetic.write_launch(tmp_path, study, server))
    return levels.group(takings.of_record(record), [level.id for level in study.levels], study.sla)


def test_littles_law_holds_where_clients_think_and_the_level_is_reached(tmp_path):
    study = synthetic.study(levels=(4, 8), more=(THINKER,), seconds=20.0)
    plain, _, thinking = synthetic_levels(tmp_path, study)
    request_s = 0.065 + 31 * 0.0115 + 0.0001
    assert thinking.mean("in_flight_mean") == pytest.approx(4 * request_s / (request_s + 0.5), rel=0.02)
    assert thinking.mean("output_tok_s") == pytest.approx(4 * 32 / (request_s + 0.5), rel=0.03)
    assert thinking.mean("clients") == 4 and thinking.short is None and thinking.verdict.answer == "yes"
    assert plain.saturated and not thinking.saturated
    assert ladder.capacity([thinking], "news").value is None  # no rung of the ladder
    assert ladder.reading_level([plain, thinking], "news", 50) is plain


def test_clients_that_never_asked_are_named(tmp_path):
    study = synthetic.study(levels=(), more=(THINKER,), seconds=20.0, repeats=1)
    (level,) = synthetic_levels(tmp_path, study)
    taking = level.takings[0]
    five = takings.Taking(taking.launch, dict(taking.entry) | {"concurrency": 5}, taking.columns, {})
    short = levels.Level("x", level.id, (five,), study.sla)
    assert short.short == "only 4 of 5 clients asked" and np.isnan(short.rows[0]["output_tok_s"])
    assert any("4 of 5 clients asked (below 95%)" in str(doubt) for doubt in warnings.of_level(short, study))


def test_a_list_that_ran_out_ends_the_window(tmp_path):
    study = synthetic.study(levels=(), more=(THINKER,), seconds=20.0, repeats=1)
    (level,) = synthetic_levels(tmp_path, study)
    taking, c = level.takings[0], level.takings[0].columns
    early = takings.select(c, np.flatnonzero(c["due_ns"] < c["due_ns"].min() + 10e9))
    cut = takings.Taking(taking.launch, taking.entry, early, {})
    assert 18.9 < taking.steady_s <= 20 - 0.15  # three clients join 50 ms after each other; 0.92 s from due to due
    assert 8.9 < cut.steady_s <= 10 - 0.15


def test_open_levels_of_every_kind_count_from_when_they_were_due(tmp_path):
    study = synthetic.study(
        levels=(), more=({"kind": "constant", "rate_rps": 2.0}, {"kind": "gamma", "rate_rps": 2.0, "cv": 2.0}),
        seconds=60.0, ttft_p95_ms=60.0,
    )  # fmt: skip
    late = synthetic.Server(jitter=0.0, taking_spread=(1.0,), lag_ms=30.0)  # 50 ms from sent, 80 ms from due
    for level in synthetic_levels(tmp_path, study, late):
        assert level.is_open and "ttft_due" in level.judged and level.verdict.answer == "no"
        assert level.short is None and level.rows[0]["goodput_s"] == 0


def test_a_session_whose_prefix_cache_never_hits_is_named(tmp_path):
    talk = {"input_tokens": {"mean": 128, "shape": "constant"}, "output_tokens": {"mean": 32, "shape": "constant"},
            "turns": 3, "question_tokens": {"mean": 30}, "prefix_cache": "wanted", "reads_like": "x"}  # fmt: skip
    study = synthetic.study(
        levels=(), more=({"kind": "sessions", "concurrency": 2, "workload": "talk"},), seconds=20.0,
        workloads={"news": synthetic.study().workloads["news"].model_dump(), "talk": talk},
    )  # fmt: skip
    record = records.read(synthetic.write_launch(tmp_path, study, EXACT))
    (one,), _ = collect(study, tmp_path)
    (level,) = levels.group(one.takings, ["sessions-2"], study.sla)
    assert record.meta["takings"][0]["kind"] == "sessions" and level.turns == 3 and level.short is None
    said = [str(doubt) for doubt in warnings.of_level(level, study)]
    assert [text for text in said if "this workload repeats its prompts (set `prefix_cache: true`" in text]
    said = [str(doubt) for doubt in warnings.of_level(level, study, {"prefix_cache": False})]  # off on purpose
    assert not [text for text in said if "repeats its prompts" in text]


def test_a_study_without_a_rung_still_has_its_pictures(tmp_path):
    study = synthetic.write_study(
        tmp_path / "records", synthetic.study(levels=(), more=(THINKER,), seconds=5.0), (synthetic.Server(),)
    )
    tables.build(study, tmp_path / "records", tmp_path / "tables", about_h100={})
    shown = figures.Study(study, tmp_path / "tables", tmp_path / "records", tmp_path / "figures")
    for name in figures.FIGURES.keys() - {*figures.ABOUT_H100, *figures.ABOUT_INSIDE}:
        figures.draw(shown, name)
        picture = (tmp_path / "figures" / f"{name}.svg").read_text()
        assert "a closed loop of workload" in picture or "without pauses and burst" in picture, name
