"""The real client before servers that misbehave: each is named, none costs another request, memory stays bounded."""

import gzip
import json
import resource
import socket
import struct
import time
from dataclasses import replace

import pytest
from test_client import WIRE, client, make, requests, rows_of

from lib.measure import exchange, groundtruth
from lib.measure.client import run
from tests.hostile import END, HEAD, Server, event, frame, plain, stream, token, usage

HTML = "<html>Please log in</html>"


def head(*lines):
    return HEAD.replace(b"\r\n\r\n", b"\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")


def drop(conn):
    """Reset the connection: what is not yet read of it is lost."""
    conn.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    conn.close()


def whole(*pieces):
    """Put pieces of a stream before its good end for three tokens."""
    return [HEAD, *pieces, token("c", "length"), usage(3), event("[DONE]"), END]


PACKED = gzip.compress(b'data: {"choices":[{"text":"a"}]}\n\n' * 3)
FIRST_TWO = [token("a"), token("b")]
BAD = {
    "reset": ([HEAD, *FIRST_TWO, drop], "truncated", "connection reset"),
    "half closed": ([HEAD, *FIRST_TWO, lambda c: c.shutdown(socket.SHUT_WR), lambda c: time.sleep(0.6)],
                    "truncated", "connection closed"),
    "page under 200": ([plain("200 OK", HTML, "text/html")], "failed", "not a stream"),
    "invalid UTF-8": (whole(frame(b'data: {"choices":[{"text":"\xff\xfe"}]}\n\n')), "failed", "parse"),
    "invalid JSON": (whole(frame("data: {'choices': None}\n\n")), "failed", "parse"),
    "error under 200": (whole(token("a"), event({"error": {"code": 507, "message": "x"}})), "failed",
                        "error in stream: 507"),
    "503": ([plain("503 Busy", "{}").replace(b"\r\n\r\n", b"\r\nretry-after: 60\r\n\r\n", 1)], "failed", "http 503"),
    "redirect": ([plain("302 Found", "").replace(b"\r\n\r\n", b"\r\nlocation: http://127.0.0.1:9/\r\n\r\n")],
                 "failed", "http 302"),
    "other count": ([HEAD, *FIRST_TWO, token("c", "length"), usage(9), event("[DONE]"), END],
                    "wrong_length", "asked 3 tokens, got 9"),
    "tokens after the end": ([HEAD, *FIRST_TWO, token("c", "length"), usage(3), event("[DONE]"), token("d"), END],
                             "failed", "tokens after the end"),
    "gzip": ([head(b"content-encoding: gzip"), frame(PACKED), END], "failed", "content-encoding gzip"),
    "no end of the body": ([HEAD, *FIRST_TWO, token("c", "length"), usage(3)], "failed", "timeout"),
    "headers never end": ([b"HTTP/1.1 200 OK\r\n", *[b"x-a: b\r\n", lambda c: time.sleep(0.05)] * 40],
                          "failed", "timeout"),
    "bytes after the end": ([HEAD, *FIRST_TWO, token("c", "length"), usage(3), event("[DONE]"), END + b"junk"],
                            "complete", None),
}  # fmt: skip


@pytest.mark.parametrize("manner", BAD)
def test_a_bad_answer_is_named_and_costs_no_other_request(tmp_path, manner):
    pieces, status, cause = BAD[manner]
    began = time.monotonic()
    with Server(lambda h, b: pieces if h["x-request-id"] == "r1" else stream(3)) as server:
        plan = make(server, tmp_path, requests(4), concurrency=2, timeout_s=0.8)
        run(plan)
    rows = rows_of(plan)
    assert [(row["status"], row["cause"]) for row in rows] == [("complete", None), (status, cause)] + 2 * [
        ("complete", None)
    ]
    assert len(server.requests) == 4 and time.monotonic() - began < 3  # sent once, and no Retry-After is waited for


def test_slow_headers_are_part_of_the_first_token_time(tmp_path):
    def answer(_headers, _body):
        for i in range(0, len(HEAD), 8):
            yield HEAD[i : i + 8]
            time.sleep(0.02)
        yield from list(stream(3))[1:]

    with Server(answer) as server:
        plan = make(server, tmp_path, requests(1))
        run(plan)
    (row,) = rows_of(plan)
    assert row["status"] == "complete" and 0.15 < (row["event_ns"][0] - row["sent_ns"]) / 1e9 < 2
    assert row["first_byte_ns"] < row["event_ns"][0]


def test_an_endless_stream_ends_at_the_request_s_limit(tmp_path):
    def endless():
        yield HEAD
        while True:
            yield token("x")
            time.sleep(0.005)

    with Server(lambda h, b: endless() if h["x-request-id"] == "r0" else stream(3)) as server:
        plan = make(server, tmp_path, requests(2), concurrency=1, timeout_s=0.5)
        run(plan)
    rows = rows_of(plan)
    assert [(row["status"], row["cause"]) for row in rows] == [("failed", "timeout"), ("complete", None)]
    assert len(rows[0]["event_ns"]) > 10


def flood(size):
    """A body of so many bytes without a line end, in one go."""
    yield HEAD
    for _ in range(size >> 16):
        yield frame(b"x" * 65536)
    yield END


def test_a_gigabyte_without_a_line_end_fills_the_journal_not_the_memory(tmp_path):
    with Server(lambda h, b: flood(1 << 30)) as server:
        plan = make(server, tmp_path, requests(3), timeout_s=20)
        assert client(plan, tmp_path).wait() == 0
    outcome = exchange.read(plan)[1]
    assert outcome.reason == "journal full" and outcome.usage["peak_mb"] < 100
    assert rows_of(plan)[0]["cause"] == "cut: journal full"


def test_a_line_that_fits_the_journal_is_refused_by_the_parser(tmp_path):
    with Server(lambda h, b: flood(24 << 20)) as server:
        plan = make(server, tmp_path, requests(1), timeout_s=20, journal_bytes=40 << 20)
        run(plan)
    assert [(row["status"], row["cause"]) for row in rows_of(plan)] == [("failed", "event too long")]


def test_two_thousand_streams_at_once(tmp_path):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2200:
        pytest.skip("this account may not open 2,200 files")
    body = json.dumps({"max_tokens": 3, "stream": True, "prompt": "x"}).encode()
    asked = tuple(replace(request, body=body) for request in requests(2000))
    with groundtruth.serve(ttft_ms=1500.0, itl_ms=20.0) as server:
        if server.kind != "c":
            pytest.skip("the ground-truth server's Python twin is too slow for this many")
        plan = make(server, tmp_path, asked, concurrency=2000, ramp="burst", timeout_s=30.0)
        assert client(plan, tmp_path).wait() == 0
    found, outcome = exchange.read(plan)
    answers = [one.answer(WIRE) for one in found]
    assert {answer.status for answer in answers} == {"complete"} and len(answers) == 2000
    first = [answer.event_ns[0] for answer in answers]
    assert max(one.sent_ns for one in found) < min(first)  # all of them were open at once
    assert outcome.usage["peak_mb"] < 200
