"""Each doubt is raised by the fault it is for, and by none else."""

import dataclasses

import numpy as np
import pytest

from lib import records
from lib.analyse import levels, takings, warnings
from lib.analyse.collect import collect, telemetry_of
from tests import synthetic

STUDY = synthetic.study(levels=(4,), seconds=18.0)
SHORT = synthetic.study(levels=(4,), seconds=6.0)


def doubts_of(tmp_path, study, **faults):
    record = records.read(synthetic.write_launch(tmp_path, study, synthetic.Server(**faults)))
    level = levels.group(takings.of_record(record, telemetry_of(record)), ["closed-4"], study.sla)[0]
    return [str(doubt) for doubt in warnings.of_level(level, study)]


def test_a_sound_level_raises_nothing(tmp_path):
    assert doubts_of(tmp_path, STUDY) == []


@pytest.mark.parametrize(("faults", "said"), [
    ({"failed": 1}, "3 of 175 requests did not complete: 3 x made failed for a test"),
    ({"wrong_length": 1}, "3 answers are of another length than asked"),
    ({"lag_ms": 8.0}, "the client sent late: p99 lag 8 ms (above 5 ms)"),
    ({"client_cpu_share": 0.9}, "the client used 90% of a core (above 80%)"),
    ({"prefix_hits": 0.2}, "20.0% of prefix-cache queries hit"),
    ({"others_cpu": 0.6}, "other programs used 0.6 of this computer's cores (above 0.25)"),
    ({"throttled": True}, "throttled by heat or the board: GPU 1 in"),
    ({"tokens_per_event": 2}, "2 tokens per stream event"),
    ({"shared_share": 0.25}, "25% of token events came in one read"),
    ({"preemptions": 2}, "the engine preempted 2 requests in a taking"),
    ({"gauge_factor": 2.0}, "the engine's running gauge is 100% off"),
    ({"taking_spread": (1.3, 1.0, 1.0), "jitter": 0.0}, "first taking unlike the rest: TTFT +30%"),
    ({"taking_spread": (1.0, 0.8, 1.2)}, "takings differ: TTFT spreads by 20%"),
    ({"drift": 0.5}, "TPOT drifts within the level: second half +2"),
    ({}, "p95 of TTFT and TPOT rests on 8 requests above it (take 200 requests or more, now 166)"),
])
def test_each_fault_is_named_with_its_next_step(tmp_path, faults, said):
    found = doubts_of(tmp_path, SHORT, **faults)
    assert any(doubt.startswith(said) and doubt.endswith(")") for doubt in found), found


def test_a_count_below_the_events_is_named(tmp_path):
    record = records.read(synthetic.write_launch(tmp_path, SHORT, synthetic.Server()))
    found = [dataclasses.replace(t, columns=dict(t.columns) | {"output_tokens": t.columns["output_tokens"] / 2})
             for t in takings.of_record(record)]  # fmt: skip
    said = [str(d) for d in warnings.of_level(levels.Level("x", "closed-4", tuple(found), SHORT.sla), SHORT)]
    assert any(text.startswith("the server counts 0.5 tokens per stream event") for text in said)


def test_clean_studies_raise_at_most_one_false_doubt_in_twenty(tmp_path):
    false = {}
    for seed in range(20):
        spread = tuple(np.random.default_rng(seed).lognormal(0.0, 0.02, 3))
        found = doubts_of(tmp_path / str(seed), STUDY, seed=seed, taking_spread=spread, jitter=0.1)
        if found:
            false[seed] = found
    assert len(false) <= 1, false


def test_a_load_that_was_not_reached_is_named(tmp_path):
    record = records.read(synthetic.write_launch(tmp_path, SHORT, synthetic.Server()))
    found = takings.of_record(record)
    short = [takings.Taking(t.launch, dict(t.entry) | {"concurrency": 5}, t.columns, {}) for t in found]
    said = [str(d) for d in warnings.of_level(levels.Level("x", "closed-4", tuple(short), SHORT.sla), SHORT)]
    assert any("of 5 requests were in flight (below 95%)" in text for text in said)


def test_prefix_hits_are_right_where_they_are_wanted(tmp_path):
    workload = STUDY.workloads["news"].model_dump() | {"prefix_cache": "wanted"}
    wanted = synthetic.study(levels=(4,), seconds=18.0, workloads={"news": workload})
    assert doubts_of(tmp_path, wanted, prefix_hits=0.5) == []


def test_takings_that_are_missing_or_ended_early_are_named(tmp_path):
    record = records.read(synthetic.write_launch(tmp_path, STUDY, synthetic.Server()))
    found = takings.of_record(record)[:2]
    found[1] = dataclasses.replace(found[1], entry=dict(found[1].entry) | {"ended": "the server died"})
    said = [str(d) for d in warnings.of_level(levels.Level("x", "closed-4", tuple(found), STUDY.sla), STUDY)]
    assert any(text.startswith("1 of 2 takings ended early: the server died") for text in said)
    assert any(text.startswith("2 of 3 planned takings are there") for text in said)


@pytest.mark.parametrize(("faults", "said"), [
    ({"stamp_source": "user"}, "answers carry user-space instead of kernel stamps"),
    ({"dirty": True}, "measured with uncommitted changes in the code"),
    ({"extra": {"clock": {"steps": 2, "stamp_sources": {}}}}, "the wall clock was stepped 2 times while measuring"),
])
def test_a_doubtful_launch_is_named(tmp_path, faults, said):
    synthetic.write_study(tmp_path, SHORT, (synthetic.Server(**faults),))
    one = collect(SHORT, tmp_path)[0][0]
    assert [said in doubt.text for doubt in warnings.of_launch(one, SHORT)] == [True]


def test_a_config_that_changed_since_is_named(tmp_path):
    synthetic.write_study(tmp_path, SHORT, (synthetic.Server(),))
    one = collect(SHORT, tmp_path)[0][0]
    other = synthetic.study(levels=(4,), seconds=6.0, ttft_p95_ms=99.0, repeats=4)
    assert warnings.of_launch(one, SHORT) == []
    assert "sla, statistics changed since" in warnings.of_launch(one, other)[0].text


def test_launches_that_should_be_alike_and_are_not(tmp_path):
    servers = (synthetic.Server(), synthetic.Server(name="vllm-int8", engine_version="vllm 0.33.0",
                                                    extra={"git": {"commit": "1" * 40, "dirty": False}}))
    synthetic.write_study(tmp_path, SHORT, servers)
    said = [str(doubt) for doubt in warnings.of_study(collect(SHORT, tmp_path)[0])]
    assert len(said) == 2
    assert said[0].startswith("measured with 2 different versions of this code")
    assert said[1].startswith("measured in mixed versions: vllm 0.32.0, vllm 0.33.0")
