"""Other tools' result files become rows like ours; a tool that fails is absent and says why, without the key."""

import json
import sys
import time
from contextlib import contextmanager
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lib import paths
from lib.errors import EngineError, MeasureError
from lib.measure import crosscheck, groundtruth
from lib.measure.finance import Writer
from lib.measure.groundtruth import Truth
from lib.measure.peers import aiperf, ours, outside, vllm_bench
from lib.measure.peers.target import Run, Target

SECRET = "a-random-key"


def target(**changes):
    def body(prompt, tokens):
        said = {"model": "m", "prompt": prompt, "max_tokens": tokens, "stream": True, "ignore_eos": True}
        return "/v1/completions", said

    told = {"port": 1, "model": "m", "prompts": ("a", "b"), "output_tokens": 3, "concurrency": 2, "body": body,
            "tokenizer": paths.ROOT, "key": SECRET}  # fmt: skip
    return Target(**{**told, **changes})


def vllm_result(folder, **changes):
    found = {
        "completed": 1, "start_times": [10.0, 10.5], "ttfts": [0.1, 0.0], "itls": [[0.02, 0.03], []],
        "latencies": [0.15, 0.0], "output_lens": [3, 0], "errors": ["", "Traceback\nTimeoutError: too slow"],
        "median_ttft_ms": 100.0, "median_tpot_ms": 25.0, "output_throughput": 6.0,
    }  # fmt: skip
    (folder / "result.json").write_text(json.dumps({**found, **changes}))


def test_vllm_bench_gives_moments_of_the_monotonic_clock(tmp_path):
    vllm_result(tmp_path)
    rows, reported = vllm_bench.read(tmp_path)
    assert rows[0]["event_ns"] == [10_100_000_000, 10_120_000_000, 10_150_000_000]
    assert (rows[0]["id"], rows[0]["sent_ns"], rows[0]["end_ns"]) == ("vllm-bench-0", 10_000_000_000, 10_150_000_000)
    assert (rows[0]["output_tokens"], rows[0]["status"]) == (3, "complete")
    assert (rows[1]["event_ns"], rows[1]["status"], rows[1]["cause"]) == ([], "failed", "TimeoutError: too slow")
    assert reported == {"ttft_p50_ms": 100.0, "tpot_p50_ms": 25.0, "output_tok_s": 6.0}


def test_a_run_of_failures_is_not_reported_as_zero(tmp_path):
    vllm_result(tmp_path, completed=0, median_ttft_ms=0.0, median_tpot_ms=0.0, output_throughput=0.0)
    assert set(vllm_bench.read(tmp_path)[1].values()) == {None}


def aiperf_result(folder, unit="ms", whole=None):
    good = {
        "metadata": {"x_request_id": "r-1", "request_start_ns": 5_000_000_000, "request_end_ns": 5_150_000_000},
        "metrics": {
            "time_to_first_token": {"value": 100.0, "unit": unit},
            "inter_chunk_latency": {"value": [20.0, 30.0], "unit": "ms"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
        },
        "error": None,
    }
    bad = {
        "metadata": {"x_request_id": "r-2", "request_start_ns": 6_000_000_000, "request_end_ns": 6_000_000_001},
        "metrics": None, "error": {"type": "TimeoutError", "message": "too slow"},
    }  # fmt: skip
    (folder / "profile_export.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(bad) + "\n")
    (folder / "profile_export_aiperf.json").write_text(json.dumps(whole or {
        "time_to_first_token": {"unit": "ms", "avg": 100.0, "p50": 100.0},
        "inter_token_latency": {"unit": "ms", "avg": 25.0, "p50": 25.0},
        "output_token_throughput": {"unit": "tokens/sec", "avg": 20.0},
    }))  # fmt: skip


def test_aiperf_is_moved_from_the_wall_clock(tmp_path):
    aiperf_result(tmp_path)
    rows, reported = aiperf.read(tmp_path, offset_ns=4_000_000_000)
    assert rows[0]["event_ns"] == [1_100_000_000, 1_120_000_000, 1_150_000_000]
    assert (rows[0]["id"], rows[0]["sent_ns"], rows[0]["end_ns"]) == ("r-1", 1_000_000_000, 1_150_000_000)
    assert (rows[0]["output_tokens"], rows[0]["status"]) == (3, "complete")
    assert (rows[1]["event_ns"], rows[1]["status"], rows[1]["cause"]) == ([], "failed", "TimeoutError: too slow")
    assert reported == {"ttft_p50_ms": 100.0, "tpot_p50_ms": 25.0, "output_tok_s": 20.0}


def test_another_unit_is_not_taken_for_milliseconds(tmp_path):
    aiperf_result(tmp_path, unit="us")
    with pytest.raises(ValueError, match="time_to_first_token is in us, not ms"):
        aiperf.read(tmp_path)


def test_what_a_tool_does_not_report_is_missing(tmp_path):
    aiperf_result(tmp_path, whole={"time_to_first_token": {"unit": "ms", "avg": 1.0}})
    assert set(aiperf.read(tmp_path)[1].values()) == {None}


def test_every_tool_is_asked_for_the_same_and_no_argument_holds_the_key(tmp_path):
    said = vllm_bench.command(target(), tmp_path)
    after = dict(pairwise(said))
    assert (after["--num-prompts"], after["--max-concurrency"], after["--sharegpt-output-len"]) == ("2", "2", "3")
    assert json.loads(after["--extra-body"]) == {"ignore_eos": True}
    told = aiperf.settings(target(), tmp_path)["benchmark"]
    assert (told["phases"]["requests"], told["phases"]["concurrency"]) == (2, 2)
    assert told["endpoint"]["extra"] == {"ignore_eos": True, "max_tokens": 3}
    assert told["endpoint"]["apiKey"] == "${FIRST_TOKEN_SLA_KEY}"
    assert SECRET not in json.dumps([said, told, aiperf.command(tmp_path)])
    assert "apiKey" not in aiperf.settings(target(key=None), tmp_path)["benchmark"]["endpoint"]


def run_script(script, tmp_path, read=lambda folder: ([], {}), **changes):
    return outside.run("The tool", [sys.executable, "-c", script], {"KEY": SECRET}, target(**changes), tmp_path, read)


def answered(folder):
    now = time.monotonic_ns()
    one = {"id": "1", "sent_ns": now - 100, "event_ns": [now - 50, now], "end_ns": now, "output_tokens": 2,
           "shared_reads": 0, "status": "complete", "cause": None}  # fmt: skip
    return [one], {"ttft_p50_ms": 1.0}


def test_a_tool_is_run_and_read(tmp_path):
    found = run_script("import time; time.sleep(0.5)", tmp_path, answered)
    assert found.reported == {"ttft_p50_ms": 1.0} and found.usage["peak_mb"] > 1
    assert found.usage["span_s"] == pytest.approx(100e-9) and found.usage["start_s"] > 0.3


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("import os, sys; print('bad key', os.environ['KEY']); sys.exit(3)", r"ended with status 3: bad key \(key\)"),
        ("import sys; print('12:00 ERROR no hub'); print('bye'); sys.exit(1)", "status 1: 12:00 ERROR no hub$"),
        ("pass", r"left no result that can be read \(KeyError\('rows'\)\)"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
    ],
)
def test_a_tool_that_fails_says_so_without_the_key(script, says, tmp_path):
    def read(folder):
        raise KeyError("rows")

    with pytest.raises(MeasureError, match=says) as refused:
        run_script(script, tmp_path, read, limit_s=1.0)
    assert SECRET not in str(refused.value)


def test_a_tool_that_completes_nothing_is_refused(tmp_path):
    def read(folder):
        return [{"status": "failed", "cause": "HTTP 500", "sent_ns": 1, "event_ns": []}], {}

    with pytest.raises(MeasureError, match=r"completed no request \(HTTP 500\)"):
        run_script("pass", tmp_path, read)


def test_a_dead_server_is_not_the_tools_fault(tmp_path):
    def check():
        raise EngineError("the server ended by itself")

    with pytest.raises(EngineError, match="the server ended by itself"):
        run_script("import time; time.sleep(60)", tmp_path, check=check)


def tool(name, run):
    return SimpleNamespace(NAME=name, TITLE=name, run=run)


def test_a_peer_that_fails_is_absent_and_the_rest_goes_on(capsys):
    def fails(asked, folder):
        raise MeasureError("it needs a newer Python")

    good = tool("good", lambda asked, folder: Run([], {}, {}))
    absent = {"never": "it cannot be installed"}
    order = [good, tool("bad", fails), tool("never", fails), tool("bad", fails), good]
    runs = list(crosscheck.taken(order, target(), absent))
    assert [run["tool"] for run in runs] == ["good", "good"]
    assert absent == {"never": "it cannot be installed", "bad": "it needs a newer Python"}
    assert capsys.readouterr().out.count("bad is absent: it needs a newer Python") == 1


def test_ours_must_not_fail(monkeypatch):
    def fails(asked, folder):
        raise MeasureError("nothing was answered")

    monkeypatch.setattr(ours, "run", fails)
    with pytest.raises(MeasureError, match="nothing was answered"):
        list(crosscheck.taken([ours], target(), {}))


def test_errors_against_the_truth():
    def row(name, sent, events, status="complete"):
        return {"id": name, "sent_ns": sent, "event_ns": events, "status": status}

    ms = 1_000_000
    truths = {name: Truth(0, np.array([100 * ms, 120 * ms, 140 * ms])) for name in ("a", "b", "c")}
    rows = [
        row("a", 0, [102 * ms, 122 * ms, 142 * ms]),        # first token 2 ms late, gaps right
        row("b", 0, [104 * ms, 124 * ms, 148 * ms]),        # 4 ms late, second gap 4 ms too long
        row("c", 0, [100 * ms, 120 * ms]),                  # lost a token: not matched
        row("d", 0, [], "failed"),
    ]
    found = crosscheck.errors(rows, truths)
    assert (found["requests"], found["complete"], found["matched"]) == (4, 3, 2)
    assert found["ttft_bias_ms"] == pytest.approx(3.0) and found["tpot_bias_ms"] == pytest.approx(1.0)
    assert found["ttft_error_p50_ms"] == pytest.approx(3.0) and found["gap_error_p50_ms"] == 0.0
    assert found["gap_error_p99_ms"] == pytest.approx(4.0, rel=0.05)
    assert crosscheck.errors([], {})["ttft_bias_ms"] is None


def test_ours_against_the_truth(tmp_path):
    with groundtruth.serve(ttft_ms=30, itl_ms=5) as server:
        asked = target(
            port=server.port, prompts=("one", "two", "three", "four"), output_tokens=5, key=None, body=crosscheck._body
        )
        found = ours.run(asked, tmp_path)
        errors = crosscheck.errors(found.rows, server.truths())
    assert (errors["matched"], errors["complete"]) == (4, 4)
    assert abs(errors["ttft_bias_ms"]) < 5 and found.usage["span_s"] > 2 * 0.05
    assert found.rows[0]["output_tokens"] == 5 and found.reported == {}


class Engine:
    """Stands in for vLLM: the server that knows the truth, under an engine's name."""

    keeps_connections = True

    @contextmanager
    def start(self, launch, log, progress):
        progress("starting")
        with groundtruth.serve(ttft_ms=20, itl_ms=2) as server:
            yield SimpleNamespace(
                port=server.port, model=launch.name, key=SECRET, engine=self, version="a server 1", added_tokens=0,
                body=crosscheck._body, check_alive=lambda: None, proof=lambda: [],
            )  # fmt: skip


def test_the_whole_record_from_the_study_to_the_file(tmp_path, monkeypatch):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    writer = Writer(1)
    tokenizer.train_from_iterator((writer.sentence("news") for _ in range(400)), trainer)

    def cannot():
        raise EngineError("no index in reach")

    peer = SimpleNamespace(NAME="peer", TITLE="A peer", version=lambda: "1", prepare=cannot)
    for module, name, value in (
        (crosscheck.registry, "of", lambda launch: Engine()),
        (crosscheck.build, "build", lambda artifact: None),
        (crosscheck.environments, "ensure", lambda name: None),
        (crosscheck.workload, "load_tokenizer", lambda path: tokenizer),
        (crosscheck.paths, "RECORDS", tmp_path), (crosscheck.paths, "BUILD", tmp_path / "build"),
        (crosscheck, "TOOLS", (ours, peer)), (crosscheck, "ORDER", (ours, peer, ours)), (crosscheck, "REQUESTS", 6),
        (crosscheck, "LOADS", (crosscheck.Load("small", 2, 100.0, output_tokens=4, answers=2),)),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    crosscheck.main()
    found = json.loads((tmp_path / "crosscheck.json").read_text())
    assert [run["tool"] for run in found["live"]["runs"]] == ["ours", "ours"] and found["absent"] == {
        "peer": "no index in reach"
    }
    assert all(row["status"] == "complete" and len(row["event_ns"]) == 16 for row in found["live"]["runs"][0]["rows"])
    assert found["truth"][0]["tools"]["ours"]["matched"] == 4 and found["live"]["server"] == "a server 1"
    assert SECRET not in (tmp_path / "crosscheck.json").read_text()
    assert not list((tmp_path / "build").iterdir())         # what tools wrote, answers included, is gone
