"""The load client against real sockets: loads, limits, bad manners, deaths."""

import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from lib.errors import MeasureError
from lib.measure import exchange
from lib.measure.client import run
from lib.measure.clientplan import BURST, OPEN, Plan, Request, split
from lib.measure.workers import run_workers, workers_needed
from tests import hostile
from tests.hostile import END, HEAD, Server, event, plain, stream, token, usage

WIRE = "openai-completions"
CLOSING_HEAD = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")


def requests(n, tokens=3, **more):
    body = json.dumps({"max_tokens": tokens}).encode()
    common = {"path": "/v1/completions", "body": body, "planned_output_tokens": tokens, **more}
    return tuple(Request(id=f"r{i}", **common) for i in range(n))


def make(server, tmp_path, asked, **more) -> Plan:
    return Plan(port=server.port, requests=asked, journal=str(tmp_path / "journal"), ramp_s=0.0, **more)


def good(_headers, body):
    return stream(body["max_tokens"])


def rows_of(plan):
    return list(exchange.rows([plan], WIRE))


def test_closed_loop_keeps_its_connections_and_finishes(tmp_path):
    with Server(good) as server:
        plan = make(server, tmp_path, requests(20), concurrency=4)
        run(plan)
    rows = rows_of(plan)
    assert [row["index"] for row in rows] == list(range(20))
    assert {row["status"] for row in rows} == {"complete"} and server.accepted == 4
    assert sum(row["connect_ns"] is not None for row in rows) == 4  # told once, by the first request over each
    assert all(row["output_tokens"] == 3 and row["output_tokens_source"] == "server" for row in rows)
    assert all(row["due_ns"] <= row["sent_ns"] < row["event_ns"][0] <= row["done_ns"] <= row["end_ns"] for row in rows)
    assert exchange.read(plan)[1].reason == "finished"


@pytest.mark.skipif(sys.platform != "linux", reason="kernel receive stamps are Linux's")
def test_kernel_stamps_are_used_and_precede_user_stamps(tmp_path):
    with Server(good) as server:
        plan = make(server, tmp_path, requests(5), concurrency=1)
        run(plan)
    rows = rows_of(plan)
    assert {row["stamp_source"] for row in rows} <= {"kernel", "mixed"}
    assert all(row["event_lag_ns_max"] >= 0 for row in rows)


def test_fault_54_starts_are_staggered_and_burst_is_named(tmp_path):
    with Server(lambda h, b: stream(3, 0.05)) as server:
        plan = replace(make(server, tmp_path, requests(8), concurrency=8), ramp_s=0.4)
        run(plan)
        sent = [row["sent_ns"] / 1e9 for row in rows_of(plan)]
        assert all(b - a == pytest.approx(0.05, abs=0.03) for a, b in pairwise(sent))
        plan = replace(plan, ramp=BURST)
        run(plan)
        sent = [row["sent_ns"] / 1e9 for row in rows_of(plan)]
        assert max(sent) - min(sent) < 0.05


def test_think_time_separates_answers_from_requests(tmp_path):
    with Server(good) as server:
        plan = make(server, tmp_path, requests(4, think_s=0.1), concurrency=1)
        run(plan)
    rows = rows_of(plan)
    assert all(b["sent_ns"] - a["end_ns"] >= 0.1e9 for a, b in pairwise(rows))
    assert all(row["sent_ns"] - row["due_ns"] < 0.05e9 for row in rows)


def test_fault_50_open_loop_sends_on_schedule_whatever_the_server_does(tmp_path):
    asked = tuple(replace(r, due_s=0.05 * i) for i, r in enumerate(requests(10)))
    with Server(lambda h, b: stream(3, 0.1)) as server:
        plan = make(server, tmp_path, asked, load=OPEN, connections=2)
        run(plan)
    rows = rows_of(plan)
    due = [row["due_ns"] for row in rows]
    assert [round((d - due[0]) / 1e9, 9) for d in due] == [round(0.05 * i, 9) for i in range(10)]
    assert max(row["sent_ns"] - row["due_ns"] for row in rows) < 0.15e9  # to wait for another takes 0.2 s
    assert {row["status"] for row in rows} == {"complete"} and server.accepted >= 6


def test_multi_turn_requests_wait_for_the_answer_before_them(tmp_path):
    asked = tuple(
        replace(r, after=f"r{i - 2}" if i >= 2 else None, think_s=0.05 if i >= 2 else 0.0)
        for i, r in enumerate(requests(6))
    )
    with Server(good) as server:
        plan = make(server, tmp_path, asked, concurrency=2)
        run(plan)
    rows = rows_of(plan)
    assert all(b["sent_ns"] - a["end_ns"] >= 0.05e9 for a, b in zip(rows, rows[2:], strict=False))


def test_a_failed_turn_ends_its_conversation_by_name(tmp_path):
    asked = tuple(replace(r, after=f"r{i - 1}" if i else None) for i, r in enumerate(requests(3)))
    with Server(lambda h, b: [plain("500 Oops", "{}")]) as server:
        plan = make(server, tmp_path, asked)
        run(plan)
    assert [row["cause"] for row in rows_of(plan)] == ["http 500", *["not sent: the request before it failed"] * 2]


def test_fault_47_no_pool_limit(tmp_path):
    seen, lock = [0, 0], threading.Lock()

    def answer(_headers, _body):
        with lock:
            seen[0] += 1
            seen[1] = max(seen)
        yield HEAD
        time.sleep(1.0)
        with lock:
            seen[0] -= 1
        yield token("x", "length") + usage(1) + event("[DONE]") + END

    with Server(answer) as server:
        plan = make(server, tmp_path, requests(150, tokens=1), concurrency=150)
        run(plan)
    assert seen[1] == 150 and {row["status"] for row in rows_of(plan)} == {"complete"}


def test_fault_56_issue_limit_drains_and_counts_what_is_cut(tmp_path):
    with Server(lambda h, b: stream(3, 0.5 if h["x-request-id"] == "r1" else 0.02)) as server:
        plan = make(server, tmp_path, requests(500), concurrency=2, issue_s=0.5, drain_s=0.5)
        run(plan)
    rows, outcome = rows_of(plan), exchange.read(plan)[1]
    assert outcome.reason == "drain limit" and len(rows) < 100
    assert [row["index"] for row in rows if row["status"] == "unfinished"] == [1]
    assert max(row["sent_ns"] for row in rows) - min(row["due_ns"] for row in rows) <= 0.5e9


def test_cooldown_keeps_the_load_up_until_measured_requests_have_ended(tmp_path):
    with Server(lambda h, b: stream(3, 0.25 if h["x-request-id"] == "r1" else 0.02)) as server:
        plan = make(server, tmp_path, requests(500), concurrency=2, issue_s=0.4, drain_s=5.0, cooldown=True)
        run(plan)
    rows = rows_of(plan)
    start = min(row["due_ns"] for row in rows)
    measured = [row for row in rows if row["due_ns"] < start + 0.4e9]
    assert {row["status"] for row in measured} == {"complete"} and len(rows) > len(measured)
    assert {row["cause"] for row in rows if row["status"] == "unfinished"} <= {"cut: cooldown"}
    assert exchange.read(plan)[1].reason == "cooldown"


def test_fault_45_a_timeout_is_one_request_s_own(tmp_path):
    def answer(headers, _body):
        yield from (HEAD, token("x"))
        if headers["x-request-id"] == "r2":
            time.sleep(5)
        yield token("y", "length") + usage(2) + event("[DONE]") + END

    with Server(answer) as server:
        plan = make(server, tmp_path, requests(6, tokens=2), concurrency=2, timeout_s=0.6)
        run(plan)
    rows = rows_of(plan)
    assert [row["status"] for row in rows] == ["complete", "complete", "failed", "complete", "complete", "complete"]
    assert rows[2]["cause"] == "timeout" and len(rows[2]["event_ns"]) == 1


def test_fault_44_nothing_is_sent_twice(tmp_path):
    with Server(lambda h, b: [plain("429 Too Many", "{}")]) as server:
        plan = make(server, tmp_path, requests(5), concurrency=2)
        run(plan)
    assert len(server.requests) == 5
    assert {(row["status"], row["cause"], row["http_status"]) for row in rows_of(plan)} == {("failed", "http 429", 429)}


@pytest.mark.parametrize(
    ("answer", "status", "cause"),
    [
        (lambda h, b: None, "failed", "connection closed"),
        (lambda h, b: [HEAD, token("a")] + [b""] * 0, "failed", "timeout"),
        (lambda h, b: [b"SSH-2.0-OpenSSH\r\n"], "failed", "bad HTTP: Expected HTTP/, RTSP/ or ICE/"),
        (lambda h, b: [plain("200 OK", '{"choices":[{"text":"abc"}]}')], "failed", "not a stream"),
        (lambda h, b: [b"HTTP/1.1 100 Continue\r\n\r\n", *stream(3)], "complete", None),
        (lambda h, b: [CLOSING_HEAD, *list(stream(3))[1:]], "complete", None),
    ],
    ids=["closes", "stalls", "not http", "not a stream", "100 continue", "connection close"],
)
def test_servers_of_bad_manners(tmp_path, answer, status, cause):
    with Server(answer) as server:
        plan = make(server, tmp_path, requests(3), timeout_s=0.4)
        run(plan)
    assert {(row["status"], row["cause"]) for row in rows_of(plan)} == {(status, cause)}


def test_a_server_that_closes_idle_connections_costs_no_request(tmp_path):
    def answer(_headers, body):
        yield from stream(body["max_tokens"])
        time.sleep(0.02)
        raise OSError  # closes after each answer, without having said so

    with Server(answer) as server:
        plan = make(server, tmp_path, requests(5, think_s=0.15), concurrency=1)
        run(plan)
    assert {row["status"] for row in rows_of(plan)} == {"complete"} and server.accepted >= 5


def test_without_reuse_every_request_has_a_connection_of_its_own(tmp_path):
    with Server(good) as server:
        plan = make(server, tmp_path, requests(6), concurrency=2, reuse=False)
        run(plan)
    rows = rows_of(plan)
    assert {row["status"] for row in rows} == {"complete"} and len({r["connect_ns"] for r in rows} - {None}) == 6
    assert server.accepted >= 6


def test_an_answer_before_the_body_was_read_is_that_request_s_own(tmp_path):
    asked = (Request("big", "/v1/completions", b"x" * 20_000_000), *requests(1))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        def serve():
            conn, _ = listener.accept()
            conn.recv(1000)
            conn.sendall(plain("413 Too Large", "{}"))
            again, _ = listener.accept()
            again.recv(1000)
            again.sendall(b"".join(stream(3)))
            time.sleep(0.2)
            conn.close()
            again.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        plan = Plan(port=listener.getsockname()[1], requests=asked, journal=str(tmp_path / "j"), timeout_s=3.0)
        run(plan)
        thread.join()
    assert [row["cause"] for row in rows_of(plan)] == ["http 413", None]


@pytest.mark.parametrize("more", [{"host": "no-such-host.invalid"}, {"tls": True, "tls_ca": "/no/such/file"}])
def test_addresses_that_cannot_be_used_are_named(tmp_path, more):
    with pytest.raises(MeasureError, match=r"has no address|cannot be used"):
        run(Plan(port=1, requests=requests(1), journal=str(tmp_path / "j"), **more))


def test_cut_stream_and_body_ended_by_close(tmp_path):
    def answer(headers, _body):
        head = HEAD if headers["x-request-id"] == "r0" else HEAD.replace(b"transfer-encoding: chunked\r\n", b"")
        plain_body = b"".join(piece.split(b"\r\n")[1] for piece in (token("a"), token("b", "length"), usage(2)))
        yield head
        yield token("a") if headers["x-request-id"] == "r0" else plain_body
        raise OSError  # closes

    with Server(answer) as server:
        plan = make(server, tmp_path, requests(2, tokens=2))
        run(plan)
    rows = rows_of(plan)
    assert [(row["status"], row["cause"]) for row in rows] == [("truncated", "connection closed"), ("complete", None)]


def test_bytes_of_several_chunks_and_long_bodies(tmp_path):
    body = json.dumps({"max_tokens": 3, "prompt": "x" * 3_000_000}).encode()
    with Server(good) as server:
        plan = make(server, tmp_path, (Request("big", "/v1/completions", body, planned_output_tokens=3),))
        run(plan)
    (row,) = rows_of(plan)
    assert row["status"] == "complete" and row["sent_ns"] > row["due_ns"]


def test_a_server_that_dies_ends_the_level_with_what_was_finished(tmp_path):
    def kill_it_when_some_are_answered():
        while len(server.requests) < 12:
            time.sleep(0.01)
        server.kill()
        killed.append(time.monotonic())

    killed = []
    with Server(lambda h, b: stream(3, 0.02)) as server:
        plan = make(server, tmp_path, requests(1000), concurrency=4)
        killer = threading.Thread(target=kill_it_when_some_are_answered)
        killer.start()
        run(plan)
        killer.join()
        assert time.monotonic() - killed[0] < 6
    rows, outcome = rows_of(plan), exchange.read(plan)[1]
    statuses = [row["status"] for row in rows]
    assert outcome.reason == "server gone" and statuses.count("complete") >= 4 and len(rows) < 1000
    assert set(statuses) <= {"complete", "failed", "truncated"}
    assert all(row["due_ns"] is not None for row in rows)


def test_no_server_is_named_before_the_clock(tmp_path):
    with Server(good) as server:
        pass
    with pytest.raises(MeasureError, match=r"No connection to 127\.0\.0\.1"):
        run(make(server, tmp_path, requests(1)))


def client(plan, tmp_path, **env):
    file = tmp_path / "plan.json"
    plan.write(file)
    return subprocess.Popen(
        [sys.executable, "-m", "lib.measure.client", str(file)], stderr=subprocess.PIPE, text=True,
        env={**os.environ, **env}, start_new_session=True,
    )


def wait_for(condition, seconds=8.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_client_told_to_stop_or_killed_leaves_what_was_finished(tmp_path, number):
    with Server(lambda h, b: stream(3, 0.03)) as server:
        plan = make(server, tmp_path, requests(1000), concurrency=4)
        process = client(plan, tmp_path)
        wait_for(lambda: len(server.requests) > 20)
        process.send_signal(number)
        process.communicate(timeout=5)
    rows, outcome = rows_of(plan), exchange.read(plan)[1]
    statuses = [row["status"] for row in rows]
    assert statuses.count("complete") >= 12 and set(statuses) == {"complete", "unfinished"}
    assert outcome.reason == (None if number == signal.SIGKILL else "stopped by signal")
    assert (process.returncode == 0) == (number != signal.SIGKILL)


def test_the_key_comes_from_the_environment_and_is_in_no_file(tmp_path):
    with Server(good) as server:
        plan = make(server, tmp_path, requests(2), key_env="TEST_KEY")
        assert client(plan, tmp_path, TEST_KEY="s3cr3t").wait() == 0
    assert all(headers["authorization"] == "Bearer s3cr3t" for _, headers in server.requests)
    assert all(b"s3cr3t" not in file.read_bytes() for file in tmp_path.iterdir())
    process = client(replace(plan, key_env="NO_SUCH_KEY"), tmp_path)
    _, words = process.communicate()
    assert process.returncode == 2 and "NO_SUCH_KEY" in words and "Traceback" not in words


def test_proxies_are_ignored_and_said_so(tmp_path):
    with Server(good) as server:
        process = client(make(server, tmp_path, requests(1)), tmp_path, HTTP_PROXY="http://127.0.0.1:9")
        _, words = process.communicate()
    assert process.returncode == 0 and len(server.requests) == 1 and "HTTP_PROXY is set and ignored" in words


def test_workers_share_a_start_and_their_journals_merge(tmp_path):
    with Server(lambda h, b: stream(3, 0.02)) as server:
        plan = make(server, tmp_path, requests(30), concurrency=5)
        plans = split(plan, 2)
        shown = []
        start = run_workers(plans, watch=shown.append)
    rows = list(exchange.rows(plans, WIRE))
    assert [row["index"] for row in rows] == list(range(30)) and {row["status"] for row in rows} == {"complete"}
    assert [p.concurrency for p in plans] == [3, 2] and len({row["connection"] for row in rows}) == 5
    assert min(row["due_ns"] for row in rows) == start
    assert shown[-1].finished == 30


def test_a_worker_s_refusal_is_passed_on_and_nothing_is_left_running(tmp_path):
    with Server(good) as server:
        pass
    with pytest.raises(MeasureError, match="No connection"):
        run_workers(split(make(server, tmp_path, requests(4), concurrency=2), 2))


def test_a_dead_server_stops_the_workers(tmp_path):
    with Server(lambda h, b: stream(3, 0.3)) as server:
        plan = make(server, tmp_path, requests(1000), concurrency=2)
        run_workers([plan], alive=lambda: len(server.requests) < 4)
    assert exchange.read(plan)[1].reason == "stopped by signal"


def test_how_many_workers():
    assert [workers_needed(e, 4) for e in (0, 1000, 40_001, 1e6)] == [1, 1, 2, 4]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate for 127.0.0.1 and the server's context with it."""
    folder = tmp_path_factory.mktemp("certificate")
    if not shutil.which("openssl"):
        pytest.skip("no openssl to make a certificate with")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        capture_output=True, check=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return str(folder / "cert.pem"), context


def test_tls_keeps_stamps_and_answers(tmp_path, certificate):
    with Server(good, certificate[1]) as server:
        plan = make(server, tmp_path, requests(6), concurrency=2, tls=True, tls_ca=certificate[0])
        run(plan)
        rows = rows_of(plan)
        assert {row["status"] for row in rows} == {"complete"}
        with pytest.raises(MeasureError, match="TLS"):
            run(replace(plan, tls_ca=None))


def test_connections_dropped_before_the_clock_are_opened_again_where_the_server_is_there(tmp_path, certificate):
    class Fickle(Server):
        def _serve(self, conn):
            if 1 < next(number) <= 4:
                conn.close()  # in place of a handshake
            else:
                super()._serve(conn)

    number = itertools.count(1)
    with Fickle(good, certificate[1]) as server:
        plan = make(server, tmp_path, requests(12), concurrency=6, tls=True, tls_ca=certificate[0])
        run(plan)
    assert {row["status"] for row in rows_of(plan)} == {"complete"} and server.accepted == 9


def test_plan_round_trip_and_refusals(tmp_path):
    asked = (Request("a", "/x", b"\xff\x00{}", due_s=1.5), Request("b", "/x", b"{}", after="a"))
    plan = Plan(port=1, requests=asked, journal="j", load=OPEN, cpus=(0,), headers={"x-a": "b"})
    plan.write(tmp_path / "p")
    assert Plan.read(tmp_path / "p") == plan
    (tmp_path / "q").write_text("{}")
    with pytest.raises(MeasureError, match="not a client plan"):
        Plan.read(tmp_path / "q")
    for bad in ({"requests": ()}, {"load": "x"}, {"ramp": "x"}, {"load": "closed", "concurrency": 0},
                {"requests": (asked[0], asked[0])}, {"requests": (asked[1],)}, {"requests": (Request("c", "/", b""),)}):
        with pytest.raises(MeasureError):
            replace(plan, indices=(), **bad)


def test_split_keeps_conversations_whole():
    asked = tuple(Request(f"r{i}", "/", b"", after=f"r{i - 3}" if i >= 3 else None) for i in range(9))
    parts = split(Plan(port=1, requests=asked, journal="j", concurrency=3), 2)
    assert sorted(i for part in parts for i in part.indices) == list(range(9))
    for part in parts:
        homes = {int(r.id[1:]) % 3 for r in part.requests}
        assert {int(r.id[1:]) % 3 for r in asked if r.id not in {x.id for x in part.requests}}.isdisjoint(homes)


def test_journal_full_ends_the_level_by_name(tmp_path):
    with Server(lambda h, b: [HEAD, *[token("x" * 5000)] * 200, END]) as server:
        plan = make(server, tmp_path, requests(20), journal_bytes=1)
        run(plan)
    rows, outcome = rows_of(plan), exchange.read(plan)[1]
    assert outcome.reason == "journal full" and rows[-1]["cause"] == "cut: journal full"


def test_hostile_frame_helper_frames():
    assert hostile.frame("ab") == b"2\r\nab\r\n"
