"""The instrument's error as the reading half sees it: facts, and the levels it makes doubtful."""

import json

import pytest

from lib import records
from lib.analyse import calibration, levels, takings
from lib.errors import RecordError
from tests import synthetic

STUDY = synthetic.study(levels=(4,), seconds=9.0)
MACHINE = {"cpu": "a", "cores": 2}
SOURCE = "records/synthetic/calibration.json"


def load(name="closed-4", part="planned", condition="idle", ttft=0.1, gap=0.05, tpot=0.01, **more):
    return {
        "load": name, "part": part, "condition": condition, "streams": 4, "tokens_per_s": 50.0, "rate_from": None,
        "events_per_s": 180.0, "events": 160, "complete": 10, "ttft_error_p50_ms": 0.01, "ttft_error_p99_ms": ttft,
        "gap_error_p99_ms": gap, "tpot_error_p99_ms": tpot, **more,
    }  # fmt: skip


def calibrated(*loads, capacity=None, machine=MACHINE):
    return {"when_utc": "2026-01-01T00:00:00Z", "machine": machine, "before": {"cpu_percent": 3.0},
            "engine_load": "a stand-in", "loads": list(loads), "capacity": capacity}  # fmt: skip


@pytest.fixture(scope="module")
def level(tmp_path_factory):
    """A level whose TTFT is 65 ms and whose TPOT is 13 ms in the median, about."""
    path = synthetic.write_launch(tmp_path_factory.mktemp("records"), STUDY, synthetic.Server())
    return levels.group(takings.of_record(records.read(path)), ["closed-4"], STUDY.sla)[0]


def test_the_plan_s_errors_become_facts():
    capacity = {"streams": 1024, "events_per_s": 9e4, "broke_streams": 2000, "why": "no"}
    loads = load(), load(condition="engine load", ttft=0.4, gap=0.2), load("a", "scenario", ttft=9.0)
    found = calibrated(*loads, capacity=capacity)
    said = calibration.facts(found, MACHINE, SOURCE)
    assert (said["value"], said["gap"]["value"], said["unit"]) == (0.4, 0.2, "ms")  # scenarios are beyond the plan
    (row,) = said["planned"]
    assert row["level"] == "closed-4"
    assert (row["idle"]["ttft_p99"]["value"], row["loaded"]["ttft_p99"]["value"]) == (0.1, 0.4)
    assert row["rate"]["mark"] == "assumed" and row["idle"]["gap_p99"]["n"] == 150
    assert [other["ttft_p99"]["value"] for other in said["others"]] == [9.0]
    assert (said["busy"]["value"], said["busy"]["unit"]) == (3.0, "%")
    assert said["capacity"]["value"] == 9e4 and said["capacity"]["broke"] == "with 2000 streams no"


def test_a_rate_from_a_record_is_measured():
    found = calibrated(load(rate_from="records/x/y.parquet"), load(condition="engine load"))
    said = calibration.facts(found, MACHINE, SOURCE)
    assert said["planned"][0]["rate"]["mark"] == "measured"
    assert said["planned"][0]["rate"]["source"] == "records/x/y.parquet"


def test_what_is_not_known_says_so():
    assert "not measured" in calibration.facts(None, MACHINE, SOURCE)["reason"]
    elsewhere = calibration.facts(calibrated(load()), {"cpu": "b", "cores": 2}, SOURCE)
    assert elsewhere["value"] is None and "another computer (a)" in elsewhere["capacity"]["reason"]
    light = calibration.facts(calibrated(load(), load(condition="engine load")), MACHINE, SOURCE)
    assert light["value"] == 0.1 and "only the planned loads" in light["capacity"]["reason"]
    one_token = calibration.facts(calibrated(load(gap=None, tpot=None)), MACHINE, SOURCE)
    assert one_token["gap"]["reason"] == "answers of one token have no gap"


def test_a_damaged_calibration_is_refused(tmp_path):
    path = tmp_path / "calibration.json"
    assert calibration.read(path) is None
    path.write_text("{}")
    with pytest.raises(RecordError, match="make calibrate"):
        calibration.read(path)
    path.write_text(json.dumps(calibrated(load())))
    assert calibration.read(path) == calibrated(load())


def test_the_flag_is_the_larger_of_1_ms_and_2_percent():
    assert [calibration.too_large(*pair) for pair in ((1.0, 10), (4.0, 200))] == [False, False]
    assert [calibration.too_large(*pair) for pair in ((1.1, 10), (4.1, 200))] == [True, True]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ({}, []),
        ({"ttft": 1.0, "gap": 1.0, "tpot": 1.0}, []),
        ({"ttft": 1.4}, ["TTFT"]),  # the limit is 1.3 ms: 2 % of 65 ms
        ({"tpot": 1.1}, ["TPOT"]),
        ({"gap": 1.1}, ["gaps between tokens"]),
        ({"ttft": 3.0, "gap": 3.0, "tpot": 3.0}, ["TTFT", "TPOT", "gaps between tokens"]),
    ],
)
def test_a_level_is_doubted_per_metric(level, errors, said):
    assert 60 < level.estimates["ttft_p50_s"].value * 1e3 < 68
    found = calibration.doubts(level, calibrated(load(), load(condition="engine load", **errors)), MACHINE)
    assert [d.text.split("p99 error of ")[1].split(" at this load")[0] for d in found] == said
    assert all(d.where == "vllm-bf16 closed-4" and "beside the engine's load" in d.text and d.next for d in found)


def test_errors_of_another_load_or_computer_do_not_touch_a_level(level):
    bad = load(ttft=9.0)
    assert len(calibration.doubts(level, calibrated(bad), MACHINE)) == 1
    assert calibration.doubts(level, calibrated(bad), {"cpu": "b", "cores": 2}) == []
    assert calibration.doubts(level, calibrated(load("closed-8", ttft=9.0)), MACHINE) == []
    assert calibration.doubts(level, calibrated(load("closed-4", "scenario", ttft=9.0)), MACHINE) == []
    # Beside the engine's load is how the level was taken: idle errors do not count where those are known.
    assert calibration.doubts(level, calibrated(bad, load(condition="engine load")), MACHINE) == []
    assert calibration.doubts(level, None, MACHINE) == []
