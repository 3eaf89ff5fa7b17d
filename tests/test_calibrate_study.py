"""Which loads a study is calibrated at, where its capacity is found, and when none is taken."""

import json

import psutil
import pytest

from lib import config, paths
from lib.errors import MeasureError
from lib.measure import calibrate_study, engine_load, provenance
from lib.measure.calibrate import Load
from tests import mini_study, synthetic


@pytest.fixture
def root(tmp_path, monkeypatch):
    for name, folder in (("CONFIG", "config"), ("ARTIFACTS", "artifacts"), ("RECORDS", "records")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    mini_study.prepare(tmp_path, good={})
    return tmp_path


def result(load: Load, error_ms=0.1, **more):
    return {
        "load": load.name, "streams": load.streams, "tokens_per_s": load.tokens_per_s, "server_late_us_p99": 50,
        "ttft_error_p50_ms": 0.01, "ttft_error_p99_ms": error_ms, "gap_error_p99_ms": 0.02, "tpot_error_p99_ms": 0.001,
        "events_per_s": load.streams * load.tokens_per_s, "requests": 4, "complete": 4, "causes": {}, **more,
    }  # fmt: skip


def test_planned_loads_are_the_levels_at_the_sla_s_pace(root):
    (closed, one), (poisson, two) = calibrate_study.planned(config.load_study("mini"), 1.0)
    assert (one, two) == (None, None)  # no record says how fast the engine is
    # 50 ms a token, 8 tokens: an answer takes 0.1 + 7 * 0.05 = 0.45 s, three of them a second
    assert (closed.name, closed.streams, closed.tokens_per_s, closed.output_tokens) == ("closed-3", 3, 20.0, 8)
    assert (closed.answers, closed.requests, closed.ramp_s) == (3, 9, 0.25)
    assert (poisson.name, poisson.rate_rps, poisson.requests, poisson.streams) == ("poisson-6", 6.0, 6, 3)


def test_a_record_gives_the_pace_of_the_fastest(root):
    study = synthetic.study(levels=(2,), seconds=3.0, repeats=2)
    folder = paths.RECORDS / study.name
    slow, fast = synthetic.Server(name="slow", tpot_ms=20.0), synthetic.Server(name="fast", tpot_ms=10.0)
    synthetic.write_study(folder, study, (slow, fast))
    ((load, record),) = calibrate_study.planned(study, 1.0)
    assert record == f"records/{study.name}/fast.parquet"
    assert load.tokens_per_s == pytest.approx(1 / fast.tpot_at(2), rel=0.05)


def capacity_of(limit, flaky=()):
    """Climb on a client that holds up to `limit` streams, and stumbles once at those of `flaky`."""
    stumbles = set(flaky)

    def measure(load):
        bad = load.streams > limit or load.streams in stumbles
        stumbles.discard(load.streams)
        return result(load, 5.0 if bad else 0.1)

    return calibrate_study.climb(measure)


def test_capacity_is_bracketed_and_halved():
    tried, found = capacity_of(1200)
    # 512 and 1,024 hold, 2,000 does not; between: 1,512 does not, 1,268 does not
    assert [load["streams"] for load in tried] == [512, 1024, 2000, 1512, 1268]
    assert (found["streams"], found["events_per_s"], found["broke_streams"]) == (1024, 102_400.0, 1268)
    assert found["why"] == "the p99 error of TTFT was 5 ms"


def test_one_stumble_is_no_limit():
    tried, found = capacity_of(5000, flaky=(512,))
    assert [load["streams"] for load in tried] == [512, 1024, 2000]
    assert (found["streams"], found["why"]) == (2000, None)


def test_nothing_held_says_so():
    def fails(load):
        raise MeasureError("no connection")

    assert calibrate_study.climb(fails) == (
        [], {"streams": None, "events_per_s": None, "broke_streams": 512, "why": "no connection"}
    )  # fmt: skip


def test_what_counts_as_held():
    load = Load("x", 2, 10.0)
    assert calibrate_study.trouble(result(load)) is None
    lost = result(load, complete=3, causes={"timeout": 1})
    assert calibrate_study.trouble(lost) == "1 of 4 requests did not complete (timeout)"
    late = calibrate_study.trouble(result(load, 2.0, server_late_us_p99=3000))
    assert late == "the p99 error of TTFT was 2 ms (the server itself was late by 3 ms)"
    assert "gaps" in calibrate_study.trouble(result(load, gap_error_p99_ms=1.5))


def test_light_measures_the_plan_twice_and_once_only(root, monkeypatch):
    monkeypatch.setattr(calibrate_study, "LIGHT_S", 0.2)
    study = root / "config" / "mini" / "study.yaml"
    study.write_text(study.read_text().replace("tpot_p95_ms: 50", "tpot_p95_ms: 10"))
    found = calibrate_study.take("mini", light=True)
    assert [(load["load"], load["condition"]) for load in found["loads"]] == [
        ("closed-3", "idle"), ("poisson-6", "idle"), ("closed-3", "engine load"), ("poisson-6", "engine load"),
    ]  # fmt: skip
    assert all(load["complete"] == load["requests"] for load in found["loads"])
    assert found["capacity"] is None and found["machine"]["cpu"] == provenance.machine()["cpu"]
    assert "stand-in, no engine" in found["engine_load"]
    path = paths.RECORDS / "mini" / "calibration.json"
    assert json.loads(path.read_text()) == found
    before = path.stat().st_mtime_ns
    assert calibrate_study.take("mini", light=True) == found and path.stat().st_mtime_ns == before


def test_records_of_another_computer_are_not_calibrated_here(root, capsys):
    study = config.load_study("mini")
    synthetic.write_launch(paths.RECORDS / "mini", study, synthetic.Server())
    with pytest.raises(MeasureError, match="were taken on another computer"):
        calibrate_study.take("mini")
    assert calibrate_study.take("mini", light=True) is None and "calibrate there" in capsys.readouterr().out
    assert not (paths.RECORDS / "mini" / "calibration.json").exists()


def test_the_engine_s_stand_in_keeps_its_core_busy_and_ends():
    with engine_load.busy([0]):
        (reader,) = [p for p in psutil.Process().children() if engine_load.READER in p.cmdline()]
        assert reader.cpu_affinity() == [0]
        before = sum(reader.cpu_times()[:2])
        reader.cpu_percent(0.5)
        assert sum(reader.cpu_times()[:2]) - before > 0.1
    assert not reader.is_running()


def test_the_table_says_what_held_and_what_did_not():
    loads = [result(Load("a", 2, 10.0), condition="idle", receive_cpu_ms=None, load_reached_percent=99.5,
                    parse_cpu_ms=8.0, peak_mb=20.0, start_s=0.5)]  # fmt: skip
    _, found = capacity_of(1200)
    said = calibrate_study.table({"loads": loads, "capacity": found}).splitlines()
    assert said[1].split()[:4] == ["a", "idle", "2", "10"] and " - " in said[1]
    assert said[-1].startswith("One client process holds 102400 events/s of 1024 streams; with 1268 streams the p99")
    _, nothing = capacity_of(100)
    assert calibrate_study.table({"loads": loads, "capacity": nothing}).splitlines()[-1].startswith("No load beyond c")
