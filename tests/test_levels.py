"""Verdicts and capacity, from servers whose numbers are known: TTFT 50, 55, 65, 85 ms at 1, 2, 4, 8 in flight."""

import numpy as np
import pytest

from lib import records
from lib.analyse import ladder, levels, takings
from lib.analyse.levels import Verdict
from tests import synthetic


def levels_of(tmp_path, study, server):
    record = records.read(synthetic.write_launch(tmp_path, study, server))
    return levels.group(takings.of_record(record), [level.id for level in study.levels], study.sla)


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    study = synthetic.study()
    return study, levels_of(tmp_path_factory.mktemp("known"), study, synthetic.Server())


def test_the_truth_lies_within_the_limits(known):
    for level, c in zip(known[1], (1, 2, 4, 8), strict=True):
        truth = synthetic.Server()
        for name, value in (("ttft_p50_s", truth.ttft_at(c)), ("tpot_p50_s", truth.tpot_at(c))):
            e = level.estimates[name]
            assert e.low < value < e.high and e.takings == 3


def test_verdicts_rest_on_limits(known):
    assert [level.verdict.answer for level in known[1]] == ["yes", "yes", "yes", "no"]
    assert "lower limit" in known[1][3].verdict.reason


def test_capacity_has_its_bracket(known):
    study, of = known
    found = ladder.capacity(of, study.headline_workload)
    assert (found.value, found.next_level, found.next_answer, found.monotone) == (4, 8, "no", True)
    assert ladder.by_medians(of, study.headline_workload).value == 4


def test_few_requests_leave_the_sla_undecided_and_the_medians_beside_it(tmp_path):
    study = synthetic.study(levels=(1, 2), seconds=3.0)
    of = levels_of(tmp_path, study, synthetic.Server())
    assert [x.verdict.answer for x in of] == ["undecided", "undecided"]
    assert "p95 needs 72 requests, there are" in of[0].verdict.reason
    found = ladder.capacity(of, "news")
    assert found.value is None and (found.next_level, found.next_answer) == (1, "undecided")
    assert ladder.by_medians(of, "news").value == 2


def test_a_median_beyond_the_sla_decides_without_p95(tmp_path):
    level = levels_of(tmp_path, synthetic.study(levels=(1,), seconds=3.0, ttft_p95_ms=40.0), synthetic.Server())[0]
    assert level.estimates["ttft_p95_s"].high is None
    assert level.verdict.answer == "no" and level.verdict.reason.startswith("p50 of TTFT is above 40 ms")


def test_a_limit_within_the_interval_is_undecided(known):
    e = known[1][1].estimates["ttft_p95_s"]
    study = synthetic.study(ttft_p95_ms=1e3 * (e.value + e.high) / 2)
    again = levels.Level("x", "closed-2", known[1][1].takings, study.sla)
    assert again.verdict.answer == "undecided" and "upper limit of p95" in again.verdict.reason


@pytest.mark.parametrize(("budget", "answer"), [(0.0, "no"), (0.05, "yes")])
def test_failures_are_judged_by_the_budget(tmp_path, budget, answer):
    sla = synthetic.study().sla.model_dump() | {"failure_budget": budget}
    study = synthetic.study(levels=(2,), sla=sla)
    level = levels_of(tmp_path, study, synthetic.Server(failed=2))[0]
    assert level.failures == 6 and level.verdict.answer == answer


def test_a_load_that_was_not_reached_meets_nothing(known):
    level = known[1][0]
    short = [takings.Taking(t.launch, dict(t.entry) | {"concurrency": 2}, t.columns, {}) for t in level.takings]
    assert levels.Level("x", "closed-2", tuple(short), level.sla).verdict.answer == "undecided"


def test_an_open_level_is_judged_from_when_requests_were_due(tmp_path):
    study = synthetic.study(levels=(), rates=(10.0,), seconds=12.0)
    on_time = levels_of(tmp_path / "a", study, synthetic.Server())[0]
    late = levels_of(tmp_path / "b", study, synthetic.Server(lag_ms=100.0))[0]
    assert on_time.verdict.answer == "yes" and late.verdict.answer == "no"
    assert late.estimates["ttft_p50_s"].value == pytest.approx(on_time.estimates["ttft_p50_s"].value, rel=1e-6)


def test_starts_of_the_server_are_the_unit_where_there_are_several(tmp_path):
    study = synthetic.study(levels=(1,), seconds=3.0, runs=2, repeats=2)
    server = synthetic.Server(jitter=0.0, taking_spread=(1.0, 1.2, 1.4, 1.6))
    level = levels_of(tmp_path, study, server)[0]
    assert [t.key[:2] for t in level.takings] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert len(level.takings) == 4 and level.estimates["output_tok_s"].takings == 2
    assert np.allclose(level.per_run("ttft_p50_s"), [0.055, 0.075], atol=1e-6)      # means of 50, 60 and of 70, 80 ms


def test_a_ladder_that_recovers_is_named(known):
    answers = {1: "yes", 2: "no", 4: "yes", 8: "undecided"}
    found = ladder.capacity(known[1], "news", lambda level: Verdict(answers[int(level.load)], "made up"))
    assert (found.value, found.next_level, found.next_answer, found.monotone) == (4, 8, "undecided", False)


def test_a_ladder_that_ends_too_early_says_so(known):
    found = ladder.capacity(known[1], "news", lambda level: Verdict("yes", "made up"))
    assert found.value == 8 and found.next_level is None and "may be higher" in found.reason


def test_a_workload_without_closed_levels_has_no_capacity(known):
    assert ladder.capacity(known[1], "filings").value is None
    assert ladder.reading_level(known[1], "filings", 4) is None


@pytest.mark.parametrize(("sessions", "load"), [(4, 4), (5, 4), (100, 8)])
def test_the_headline_is_read_at_the_sessions_or_the_level_below(known, sessions, load):
    assert ladder.reading_level(known[1], "news", sessions).load == load


def test_the_headline_is_read_at_the_smallest_level_where_all_are_above(tmp_path):
    of = levels_of(tmp_path, synthetic.study(levels=(4, 8), seconds=1.0, repeats=1), synthetic.Server())
    assert ladder.reading_level(of, "news", 2).load == 4
