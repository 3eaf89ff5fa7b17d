"""One taking, checked in the head: exact servers (jitter 0) and records built by hand."""

import time

import numpy as np
import pyarrow as pa
import pytest

from lib import records
from lib.analyse import takings
from lib.analyse.collect import telemetry_of
from tests import synthetic

STUDY = synthetic.study(levels=(1, 4), rates=(5.0,), seconds=6.0, repeats=1)
EXACT = synthetic.Server(jitter=0.0, taking_spread=(1.0,), lag_ms=0.0)


def rows_of(tmp_path, server=EXACT, study=STUDY):
    record = records.read(synthetic.write_launch(tmp_path, study, server))
    found = takings.of_record(record, telemetry_of(record))
    return {t.key[2]: (t, takings.summary(t, study.sla)) for t in found}


def test_latencies_are_those_of_the_server(tmp_path):
    rows = rows_of(tmp_path)
    assert rows["closed-1"][1]["ttft_p50_s"] == pytest.approx(0.050, abs=1e-6)
    assert rows["closed-1"][1]["tpot_p50_s"] == pytest.approx(0.010, abs=1e-6)
    assert rows["closed-4"][1]["ttft_p50_s"] == pytest.approx(0.050 * 1.3, abs=1e-6)
    assert rows["closed-4"][1]["tpot_p50_s"] == pytest.approx(0.010 * 1.15, abs=1e-6)


def test_throughput_of_a_closed_loop_is_littles_law(tmp_path):
    row = rows_of(tmp_path)["closed-4"][1]
    request_s = 0.065 + 31 * 0.0115 + 0.0001        # TTFT, 31 gaps, and 0.1 ms until the last byte
    assert row["in_flight_mean"] == pytest.approx(4, rel=1e-3)
    assert row["output_tok_s"] == pytest.approx(4 * 32 / request_s, rel=0.03)
    assert row["requests_s"] == pytest.approx(4 / request_s, rel=0.05)


def test_batching_in_flight_shows_in_the_stamps(tmp_path):
    row = rows_of(tmp_path)["closed-4"][1]
    assert row["decoding_mean"] == pytest.approx(4 * 31 * 0.0115 / (0.065 + 31 * 0.0115 + 0.0001), rel=0.02)
    assert row["joined_share"] == 1.0  # the clients start 50 ms apart, an answer takes 357 ms
    assert rows_of(tmp_path)["closed-1"][1]["joined_share"] == 0.0  # nobody to join


def test_a_static_batch_joins_nobody():
    """Two batches of two: in each both begin together, and the second batch begins when the first has ended."""
    stamps = [[10, 20, 30], [11, 20, 40], [50, 60, 70], [50, 61, 90]]
    assert takings.joined_share(of_stamps(stamps)) == 0.0
    assert takings.joined_share(of_stamps([*stamps, [25, 60, 70]])) == pytest.approx(1 / 5)  # amid the first two
    assert np.isnan(takings.joined_share(of_stamps([])))


def of_stamps(stamps):
    n = len(stamps)
    columns = {
        "event_ns": np.array([t for row in stamps for t in row], dtype=np.int64),
        "event_offsets": np.arange(n + 1) * 3,
        "first_event_ns": np.array([row[0] for row in stamps], dtype=float),
        "last_event_ns": np.array([row[-1] for row in stamps], dtype=float),
        "phase": np.array(["measured"] * n, dtype=object),
        "status": np.array(["complete"] * n, dtype=object),
        "due_ns": np.zeros(n),
        "sent_ns": np.zeros(n),
        "end_ns": np.full(n, 100.0),
    }
    return takings.Taking("x", {"kind": "closed", "concurrency": None, "rate_rps": 1.0}, columns, {})


def test_the_ramp_is_outside_the_steady_window(tmp_path):
    taking = rows_of(tmp_path)["closed-4"][0]
    started = taking.columns["sent_ns"][taking.measured & ~taking.counted]
    assert len(started) == 3                        # the first three of four clients started before four were in flight
    assert started.max() < taking.window[0] <= taking.columns["sent_ns"][taking.counted].min()


def test_a_request_that_never_ended_was_in_flight_to_the_last(tmp_path):
    rows = rows_of(tmp_path, synthetic.Server(unfinished=1))
    assert 1.4 < rows["closed-1"][1]["in_flight_mean"] < 1.6      # it was sent half way through the taking


def test_a_target_that_is_never_held_gives_no_throughput(tmp_path):
    record = records.read(synthetic.write_launch(tmp_path, STUDY, EXACT))
    taking = takings.of_record(record)[0]
    higher = takings.Taking(taking.launch, dict(taking.entry) | {"concurrency": 9}, taking.columns, {})
    row = takings.summary(higher, STUDY.sla)
    assert np.isnan(row["output_tok_s"]) and np.isnan(row["in_flight_mean"]) and np.isnan(row["steady_s"])
    assert row["ttft_p50_s"] == pytest.approx(0.050, abs=1e-6)


@pytest.mark.parametrize("status", records.STATUSES[1:])
def test_every_bad_end_is_counted_and_leaves_the_statistics(tmp_path, status):
    clean = rows_of(tmp_path / "clean")["closed-1"][1]
    bad = synthetic.Server(jitter=0.0, taking_spread=(1.0,), **{status: 2})
    taking, row = rows_of(tmp_path / "bad", bad)["closed-1"]
    assert taking.counted.sum() == row["complete"]
    assert row[status] == 2 and row["complete"] == row["requests"] - 2 and row["requests"] == clean["requests"]
    assert row["ttft_p50_s"] == pytest.approx(clean["ttft_p50_s"], abs=1e-6)
    assert row["requests_s"] < clean["requests_s"]


def test_p95_of_few_requests_is_missing_not_guessed(tmp_path):
    row = rows_of(tmp_path)["closed-1"][1]
    assert row["complete"] < 72 and np.isnan(row["ttft_p95_s"])


def test_goodput_counts_only_what_met_the_sla(tmp_path):
    strict = synthetic.study(levels=(1, 4), seconds=6.0, repeats=1, ttft_p95_ms=60.0)
    rows = rows_of(tmp_path, study=strict)
    assert rows["closed-1"][1]["goodput_s"] == pytest.approx(rows["closed-1"][1]["requests_s"])
    assert rows["closed-4"][1]["goodput_s"] == 0      # 65 ms each: measured, and none of them good


def test_gauges_and_counters_come_from_the_telemetry(tmp_path):
    server = synthetic.Server(kv_per_request=0.1, preemptions=3, prefix_hits=0.25, client_cpu_share=0.5)
    row = rows_of(tmp_path, server)["closed-4"][1]
    assert row["kv_cache_usage_max"] == pytest.approx(0.4)
    assert row["preemptions"] == 3 and row["prefix_hit_share"] == pytest.approx(0.25)
    assert row["client_cpu_share"] == pytest.approx(0.5)


def test_without_telemetry_they_are_missing(tmp_path):
    record = records.read(synthetic.write_launch(tmp_path, STUDY, EXACT))
    row = takings.summary(takings.of_record(record)[0], STUDY.sla)
    assert np.isnan(row["kv_cache_usage_max"]) and np.isnan(row["preemptions"]) and np.isnan(row["prefix_hit_share"])


def test_tokens_per_event_and_shared_reads(tmp_path):
    row = rows_of(tmp_path, synthetic.Server(tokens_per_event=2, shared_share=0.25))["closed-1"][1]
    assert row["tokens_per_event"] == 2 and row["shared_reads_share"] == pytest.approx(0.25)


def test_select_keeps_each_request_with_its_own_stamps():
    c = {"index": np.array([0.0, 1.0, 2.0]), "event_ns": np.array([1, 2, 3, 4, 5]),
         "event_offsets": np.array([0, 2, 2, 5])}
    picked = takings.select(c, np.array([2, 0]))
    assert picked["index"].tolist() == [2, 0]
    assert picked["event_ns"].tolist() == [3, 4, 5, 1, 2] and picked["event_offsets"].tolist() == [0, 3, 5]


def test_a_million_token_events_take_no_time(tmp_path):
    requests, tokens = 10_000, 100
    sent = np.arange(requests) * 1_000_000
    stamps = pa.ListArray.from_arrays(np.arange(requests + 1, dtype=np.int32) * tokens,
                                      (sent[:, None] + 1_000_000 * np.arange(1, tokens + 1)).ravel())
    record = records.read(synthetic.write_launch(tmp_path, STUDY, EXACT))
    first = record.table.slice(0, 1).to_pylist()[0]
    columns = {name: [value] * requests for name, value in first.items()}
    columns |= {"sent_ns": sent, "due_ns": sent, "end_ns": sent + 101_000_000, "event_ns": stamps,
                "output_tokens": [tokens] * requests}
    table = pa.table([pa.array(columns[f.name], f.type) if f.name != "event_ns" else stamps for f in records.REQUESTS],
                     schema=records.REQUESTS)
    big = records.Record(record.path, table, record.meta)
    began = time.perf_counter()
    taking = takings.of_record(big)[0]
    row = takings.summary(taking, STUDY.sla)
    assert time.perf_counter() - began < 3          # far below a second on an idle machine; loops would take minutes
    assert row["requests"] == requests and row["tpot_p50_s"] == pytest.approx(0.001)
