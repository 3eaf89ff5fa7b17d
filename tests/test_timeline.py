"""Frames over time, against a server whose moments are known."""

import numpy as np
import pytest

from lib import records
from lib.analyse import tables, takings
from lib.analyse.collect import telemetry_of
from lib.analyse.timeline import agreement
from lib.errors import NoValue
from tests import synthetic

STUDY = synthetic.study(levels=(1, 4), seconds=6.0, repeats=1)
EXACT = synthetic.Server(jitter=0.0, taking_spread=(1.0,), lag_ms=2.0)


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return records.read(synthetic.write_launch(tmp_path_factory.mktemp("one"), STUDY, EXACT))


def test_the_first_request_of_a_timeline(record):
    first = tables.timeline(record, 0, 0, "closed-1").iloc[0]
    assert (first["due_s"], first["sent_s"], first["output_tokens"]) == (0.0, 0.002, 32)
    assert first["first_s"] == pytest.approx(0.052) and first["last_s"] == pytest.approx(0.052 + 31 * 0.010)
    assert first["end_s"] == pytest.approx(first["last_s"] + 0.0001)


def test_a_timeline_is_ordered_and_whole(record):
    frame = tables.timeline(record, 0, 0, "closed-4")
    assert frame["sent_s"].is_monotonic_increasing
    assert set(frame["phase"]) == {"measured", "cooldown"}


def test_a_taking_that_is_not_there_is_named(record):
    with pytest.raises(NoValue, match="no taking of level 'closed-9' in run 0, repeat 0"):
        tables.timeline(record, 0, 0, "closed-9")


def test_the_batch_is_rebuilt_from_the_stamps(record):
    frame, fits = tables.batch_over_time(record, 0, 0, "closed-4", step_s=0.05)
    steady = frame[(frame["t_s"] > 1) & (frame["t_s"] < 5)]
    request, decode = 0.002 + 0.065 + 31 * 0.0115 + 0.0001, 31 * 0.0115
    assert steady["batch"].mean() == pytest.approx(4 * decode / request, rel=0.05)
    assert steady["in_flight"].max() == 4 and (steady["batch"] <= steady["in_flight"]).all()
    assert (frame["running"].dropna() <= 4).all() and steady["kv_cache_usage"].max() == pytest.approx(4 * 0.03)
    assert np.isnan(frame["running"].iloc[0])       # before the first sample nothing is known
    assert fits.samples >= 5 and fits.distance == 0 and fits.outside_share == 0


def test_a_gauge_that_lies_is_measured(tmp_path):
    path = synthetic.write_launch(tmp_path, STUDY, synthetic.Server(gauge_factor=2.0))
    record = records.read(path)
    four = takings.of_record(record, telemetry_of(record))[1]
    assert agreement(four).distance == pytest.approx(1.0) and agreement(four).outside_share == 1


def test_without_telemetry_there_is_no_agreement(tmp_path):
    path = synthetic.write_launch(tmp_path, STUDY, EXACT)
    path.with_name("vllm-bf16.telemetry.parquet").unlink()
    frame, fits = tables.batch_over_time(records.read(path), 0, 0, "closed-4")
    assert fits is None and frame["running"].isna().all() and frame["batch"].max() == 4


def test_samples_are_the_requests_that_count(record):
    frame = tables.ttft_samples(record)
    assert set(frame["level"]) == {"closed-1", "closed-4"} and set(frame["load"]) == {1.0, 4.0}
    four = frame[frame["level"] == "closed-4"]
    assert four["ttft_s"].to_numpy() == pytest.approx(0.065, abs=1e-6)
    assert four["ttft_due_s"].to_numpy() == pytest.approx(0.067, abs=1e-6)


def test_requests_keep_every_row_and_say_how_it_ended(tmp_path):
    record = records.read(synthetic.write_launch(tmp_path, STUDY, synthetic.Server(failed=1, unfinished=1)))
    frame = tables.requests(record)
    assert len(frame) == record.table.num_rows and (frame["launch"] == "vllm-bf16").all()
    failed = frame[frame["status"] == "failed"]
    assert len(failed) == 2 and failed["ttft_s"].isna().all() and (failed["cause"] == "made failed for a test").all()
