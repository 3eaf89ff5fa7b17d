"""Metrics a reader can check in the head: stamps in ns, answers in seconds."""

import math

import numpy as np
import pyarrow as pa
import pytest

from lib import metrics, records

S = 1_000_000_000


def request(sent=0.0, tokens=(), n=None, status="complete", phase="measured", end=None, due=None, shared=0):
    """One row; times in seconds."""
    row = dict.fromkeys(records.REQUESTS.names)
    stamps = [round(t * S) for t in tokens]
    return row | {
        "sent_ns": round(sent * S),
        "due_ns": round((sent if due is None else due) * S),
        "event_ns": stamps,
        "end_ns": round((end if end is not None else (tokens[-1] if tokens else sent)) * S),
        "output_tokens": len(tokens) if n is None else n,
        "status": status,
        "phase": phase,
        "shared_reads": shared,
        "visible_ns": stamps[0] if stamps else None,
        "run": 0,
        "repeat": 0,
        "level": "closed-1",
        "index": 0,
    }


def columns(*rows):
    return records.columns(pa.Table.from_pylist(list(rows), schema=records.REQUESTS))


def test_ttft_is_first_token_minus_sent():
    assert metrics.ttft_s(columns(request(sent=1.0, tokens=(1.25, 1.5))))[0] == 0.25


def test_ttft_from_due_counts_the_clients_own_delay():
    c = columns(request(sent=4.0, due=1.0, tokens=(4.5,)))
    assert metrics.ttft_due_s(c)[0] == 3.5 and metrics.lag_s(c)[0] == 3.0


def test_tpot_uses_the_servers_count():
    assert metrics.tpot_s(columns(request(tokens=(0.2, 0.6), n=8)))[0] == pytest.approx(0.4 / 7)


@pytest.mark.parametrize(
    "row",
    [
        request(tokens=(0.4,)),  # one token
        request(tokens=()),  # none
        request(tokens=(0.2, 0.4), n=0) | {"output_tokens": None},  # no server count
        request(tokens=(0.3, 0.3, 0.3), shared=2),  # all in one read
    ],
)
def test_tpot_is_undefined_never_zero(row):
    assert math.isnan(metrics.tpot_s(columns(row))[0])


def test_no_token_no_ttft():
    assert math.isnan(metrics.ttft_s(columns(request(sent=1.0, tokens=(), status="failed")))[0])


def test_chunk_gaps_stay_within_requests():
    c = columns(
        request(tokens=(1.0, 1.5, 2.5)), request(tokens=()), request(tokens=(9.0,)), request(tokens=(10.0, 10.25))
    )
    assert metrics.chunk_gaps_s(c, np.ones(4, bool)).tolist() == [0.5, 1.0, 0.25]
    assert metrics.chunk_gaps_s(c, np.array([False, True, True, True])).tolist() == [0.25]


def test_throughput_counts_tokens_in_the_window():
    c = columns(request(tokens=(1.0, 2.0, 3.0, 4.0), n=8), request(tokens=(2.5, 9.0), status="failed"))
    assert metrics.tokens_in(c, (1.5 * S, 3.5 * S)) == 2 * 2 + 1


def test_steady_window_of_a_closed_loop():
    """Two sessions: the second starts at 1, the last measured request ends at 9, cooldown held the load."""
    c = columns(
        request(sent=0, tokens=(0.5,), end=2.0),
        request(sent=1, tokens=(1.5,), end=4.0),
        request(sent=2.0, tokens=(3,), end=6.0),
        request(sent=4.0, tokens=(5,), end=9.0),
        request(sent=6.0, tokens=(7,), end=8.0),
        request(sent=8.0, tokens=(8.5,), end=9.5, phase="cooldown"),
    )
    assert metrics.steady_window(c, 2) == (1 * S, 9 * S)


def test_no_steady_window_where_the_target_was_never_held():
    assert math.isnan(metrics.steady_window(columns(request(tokens=(0.5,), end=1.0)), 2)[0])


def test_open_loop_window_spans_the_due_times():
    c = columns(
        request(sent=1.1, due=1.0, tokens=(2,)),
        request(sent=5, due=5, tokens=(6,)),
        request(sent=7, due=7, tokens=(8,), phase="cooldown"),
    )
    assert metrics.steady_window(c, None) == (1 * S, 5 * S)


def test_good_needs_a_complete_answer_within_both_limits():
    c = columns(
        request(tokens=(0.1, 0.11)),
        request(tokens=(2.0, 2.01)),
        request(tokens=(0.1, 0.6)),
        request(tokens=(0.1, 0.11), status="truncated"),
        request(tokens=(0.1,)),
    )
    assert metrics.good(c, 0.5, 0.05).tolist() == [True, False, False, False, True]


def test_good_may_count_from_when_a_request_was_due():
    c = columns(request(sent=1.0, due=0.5, tokens=(1.25, 1.26)))
    assert metrics.good(c, 0.5, 0.05).tolist() == [True]
    assert metrics.good(c, 0.5, 0.05, from_due=True).tolist() == [False]


def test_window_of_clients_that_think_opens_with_the_last_of_them():
    """Two clients: 7 joins at 0, 9 at 2; requests are due until 6, the level issues until 5."""
    c = columns(
        request(sent=0, tokens=(0.5,)) | {"connection": 7},
        request(sent=2, tokens=(2.5,)) | {"connection": 9},
        request(sent=4, tokens=(4.5,)) | {"connection": 7},
        request(sent=6, tokens=(6.5,), phase="cooldown") | {"connection": 7},
    )
    assert metrics.thinking_window(c, 2, 5 * S) == (2 * S, 5 * S)
    assert metrics.thinking_window(c, 2, 8 * S) == (2 * S, 6 * S)  # nothing was due after 6: the list had run out
    assert math.isnan(metrics.thinking_window(c, 3, 5 * S)[0])
