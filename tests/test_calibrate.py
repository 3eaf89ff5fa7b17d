"""The ground truth and the calibration, small. Timings here are smoke: figures come from `make calibrate`."""

import numpy as np
import pytest

from lib.errors import MeasureError
from lib.measure import calibrate, groundtruth
from lib.measure.calibrate import Load
from lib.measure.clientplan import Plan, Request
from lib.measure.probe import probe

SMALL = Load("small", streams=4, tokens_per_s=100.0, output_tokens=20, answers=2)


@pytest.mark.parametrize("twin", [False, True])
def test_calibration_states_small_errors_and_its_costs(twin):
    if not twin and groundtruth.compiled() is None:
        pytest.skip("no C compiler here: the twin stands in")
    result = calibrate.calibrate(SMALL, twin=twin)
    assert result["server"] == ("python" if twin else "c")
    assert (result["complete"], result["requests"], result["events"]) == (8, 8, 160)
    assert result["ttft_error_p50_ms"] < 5 and result["gap_error_p50_ms"] < 5
    assert 0 < result["load_reached_percent"] < 101 and 0 < result["start_s"] < 10
    assert result["receive_cpu_ms"] > 0 and result["parse_cpu_ms"] > 0 and 5 < result["peak_mb"] < 200


def test_two_workers_give_one_calibration():
    result = calibrate.calibrate(SMALL, workers=2)
    assert result["workers"] == 2 and result["complete"] == 8


def test_an_error_is_seen_where_there_is_one():
    rows = [
        {
            "status": "complete", "request_id": "r", "sent_ns": 1_000, "event_ns": [100_001_000, 150_001_000],
            "shared_reads": 0, "stamp_source": "user",
        }
    ]
    truth = {"r": groundtruth.Truth(500, np.array([98_000_500, 138_000_500]))}
    found = calibrate._compare(SMALL, rows, truth, parse_s=0.001, began=0)
    assert found["ttft_error_p99_ms"] == pytest.approx(2.0) and found["gap_error_p99_ms"] == pytest.approx(10.0)
    assert found["tpot_error_p99_ms"] == pytest.approx(10.0)  # one gap: its error is the request's
    assert found["parse_cpu_ms"] == pytest.approx(500.0)


def test_answers_of_one_token_have_no_gap():
    row = {"status": "complete", "request_id": "r", "sent_ns": 0, "event_ns": [9_000_000], "shared_reads": 0,
           "stamp_source": "user"}  # fmt: skip
    found = calibrate._compare(SMALL, [row], {"r": groundtruth.Truth(0, np.array([8_000_000]))}, 0.0, 0)
    assert found["ttft_error_p99_ms"] == pytest.approx(1.0)
    assert found["gap_error_p99_ms"] is None and found["tpot_error_p99_ms"] is None


def test_an_open_load_arrives_at_its_rate():
    load = Load("open", streams=3, tokens_per_s=200.0, output_tokens=10, answers=12, rate_rps=20.0)
    assert load.requests == 12 and load.seconds == pytest.approx(12 / 20 + 0.1 + 9 / 200)
    result = calibrate.calibrate(load)
    assert (result["complete"], result["events"], result["load_reached_percent"]) == (12, 120, None)


def test_the_middle_rate_leaves_ramp_and_end_out():
    stamps = np.array([0, 1, 2, 3, 4, 5, 6, 7]) * 125_000_000  # eight events in the second they begin
    assert calibrate._middle_rate(stamps, 0, 1_000_000_000) == pytest.approx(8.0)
    assert calibrate._middle_rate(np.array([0, 999]), 0, 1_000_000_000) == 0.0


def test_no_completed_request_is_refused():
    with pytest.raises(MeasureError, match=r"none completed \(timeout\)"):
        calibrate._compare(SMALL, [{"status": "failed", "cause": "timeout"}], {}, 0.0, 0)


@pytest.mark.parametrize("twin", [False, True])
def test_both_servers_speak_chat(twin):
    def body(text, tokens):
        messages = [{"role": "user", "content": text}]
        return {"messages": messages, "max_tokens": tokens, "stream": True, "stream_options": {"include_usage": True}}

    with groundtruth.serve(ttft_ms=20, itl_ms=2, twin=twin) as server:
        plan = Plan(port=server.port, requests=(Request("r", "/", b""),), journal="unused")
        found = probe(plan, "/v1/chat/completions", body, "openai-chat")
        (truth,) = server.truths().values()
    assert found.answer.output_tokens == len(truth.token_ns) == 5 and found.first_token_s > 0.02


def test_truth_is_reset_and_counts():
    with groundtruth.serve(ttft_ms=5, itl_ms=1) as server:
        assert server.truths() == {} and server.stats()["requests"] == 0
        server.reset()
