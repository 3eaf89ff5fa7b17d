"""Every case of the fixture file, and every stream fault of the study's fault list as a test named after it."""

import json
import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.measure.formats import FORMATS
from lib.measure.http1 import Response, unframe
from lib.measure.wire import Answer, decode

CASES = json.loads((Path(__file__).parent / "fixtures" / "sse_cases.json").read_text())
MS = 1_000_000
STATUS = {"ok": "complete", "error": "failed", "truncated": "truncated", "empty": "empty"}


def answer(*reads, wire="openai-chat", headers=None, status=200, complete=True, **options) -> Answer:
    """Decode reads of (ms, text or bytes or JSON values); a JSON value becomes a whole event."""
    pieces = []
    for at, *parts in reads:
        data = b"".join(part if isinstance(part, bytes) else data_event(part) for part in parts)
        pieces.append((at * MS, data))
    kind = headers or {"content-type": "text/event-stream"}
    return decode(wire, Response(status, kind, pieces, complete), keep_text=True, **options)


def data_event(value) -> bytes:
    return b"data: " + (value if isinstance(value, str) else json.dumps(value)).encode() + b"\n\n"


def delta(finish=None, **fields):
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def text(value, finish=None, **more):
    return {"choices": [{"index": 0, "text": value, "finish_reason": finish}], **more}


def usage(n, **details):
    return {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": n, **details}}


A, B, C = (delta(content=c) for c in "abc")
FINISH, DONE = delta("stop"), "[DONE]"


def ms(answer: Answer) -> list[float]:
    return [stamp / MS for stamp in answer.event_ns]


def gaps(answer: Answer) -> list[float]:
    stamps = ms(answer)
    return [round(b - a, 6) for a, b in pairwise(stamps)]


def tpot(answer: Answer):
    n, stamps = answer.output_tokens, ms(answer)
    if answer.status != "complete" or n is None or n < 2:
        return None
    return (stamps[-1] - stamps[0]) / (n - 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_fixture(case):
    reads = [(0, b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")]
    for at, body in case["reads"]:
        data = body.encode("latin-1")
        reads.append((round(at * 1e9), b"%x\r\n%b\r\n" % (len(data), data)))
    reads.append((reads[-1][0], b"0\r\n\r\n"))
    got, expect = decode("openai-chat", unframe(reads, closed=False), keep_text=True), case["expect"]
    seconds = [stamp / 1e9 for stamp in got.event_ns]
    assert got.status == STATUS[expect["status"]]
    assert (seconds[0] if seconds else None) == expect["ttft"]
    assert (seconds[-1] if seconds else None) == expect["last"]
    assert [b - a for a, b in pairwise(seconds)] == pytest.approx(expect["gaps"])
    assert got.output_tokens == expect["n"]
    value = tpot(got)
    assert (value if value is None else value / 1e3) == pytest.approx(expect["tpot"])
    if "text" in expect:
        assert got.text == expect["text"]
    if "ttfo" in expect:
        assert got.visible_ns == expect["ttfo"] * 1e9


# --- A1: reading the stream ------------------------------------------------------------------------------------------


def test_fault_01_role_only_chunk():
    got = answer((100, delta(role="assistant", content="")), (450, A), (650, B), (900, FINISH))
    assert ms(got)[0] == 450 and gaps(got) == [200] and got.role_ns == 100 * MS


def test_fault_02_finish_chunk_adds_no_gap():
    assert gaps(answer((200, A), (400, B), (400, FINISH))) == [200]


def test_fault_03_usage_chunk_leaves_first_token_alone():
    assert ms(answer((200, A), (300, FINISH), (2000, usage(1)))) == [200]


def test_fault_04_several_tokens_per_chunk():
    got = answer((200, delta(content="a b c d")), (600, delta("stop", content=" e f g h")), (600, usage(8)))
    assert gaps(got) == [400] and tpot(got) == pytest.approx(400 / 7)


def test_fault_05_stream_interval_shows_in_tokens_per_event():
    got = answer((1, {**A, **usage(10)} | {"choices": A["choices"]}), (2, {**B, "usage": {"completion_tokens": 20}}),
                 (2, FINISH), (2, usage(20)))
    assert got.event_tokens == (10, 10) and got.usage_jump


def test_fault_06_chunks_are_not_tokens():
    got = answer(*[(i, A) for i in range(30)], (30, FINISH), (30, usage(137)))
    assert len(got.event_ns) == 30 and got.output_tokens == 137


def test_fault_08_late_usage_does_not_stretch_tpot():
    got = answer((200, A), (300, B), (300, FINISH), (2300, usage(2)), (2300, DONE))
    assert tpot(got) == 100 and got.done_ns == 2300 * MS


def test_fault_09_reasoning_counts_as_first_token():
    got = answer((100, delta(role="assistant", content="")), (300, delta(reasoning_content="h")),
                 (500, delta(reasoning="k")), (1500, delta(content="42")), (1500, FINISH))
    assert ms(got)[0] == 300 and got.visible_ns == 1500 * MS


def test_fault_10_hidden_reasoning_is_marked():
    hidden = usage(600, completion_tokens_details={"reasoning_tokens": 598})
    got = answer((8000, A), (8020, B), (8020, FINISH), (8020, hidden))
    assert got.hidden_reasoning and got.reasoning_tokens == 598


def test_fault_11_reasoning_tokens_are_not_added():
    got = answer((1, A), (1, FINISH), (1, usage(100, completion_tokens_details={"reasoning_tokens": 60})))
    assert got.output_tokens == 100


def test_fault_12_swallowed_chunks_are_marked():
    got = answer((1, text("a", usage={"completion_tokens": 1})), (2, text("", "stop", usage={"completion_tokens": 17})),
                 wire="openai-completions")
    assert got.usage_jump and got.output_tokens == 17


def test_fault_12_one_token_per_event_is_not_marked():
    got = answer((1, text("a", usage={"completion_tokens": 1})), (2, text("b", "stop", usage={"completion_tokens": 2})),
                 wire="openai-completions")
    assert not got.usage_jump and got.event_tokens == (1, 1)


def test_fault_13_event_split_across_reads():
    got = answer((200, b"data:"), (300, data_event(A)[5:]), (400, FINISH))
    assert ms(got) == [300]


def test_fault_13_space_and_character_at_the_cut_survive():
    whole = data_event(delta(content="hello w\u00f6rld \U0001f600"))
    for cut in range(len(whole)):
        got = answer((1, whole[:cut]), (2, whole[cut:]), (3, FINISH))
        assert got.text == "hello w\u00f6rld \U0001f600" and got.status == "complete"


def test_fault_14_crlf_and_no_space():
    whole = b"".join(data_event(v) for v in (A, B, FINISH, DONE)).replace(b"\n", b"\r\n").replace(b"data: ", b"data:")
    got = answer((1, whole))
    assert got.text == "ab" and got.done_ns == 1 * MS and got.status == "complete"


def test_fault_15_line_separators_inside_text():
    raw = 'data: {"choices":[{"index":0,"delta":{"content":"a\u2028b\u0085c\u2029"}}]}\n\n'.encode()
    assert answer((1, raw), (2, FINISH)).text == "a\u2028b\u0085c\u2029"


def test_fault_16_shared_reads_are_counted():
    got = answer((200, delta(role="assistant"), A, B), (800, C, FINISH, usage(3)))
    assert gaps(got) == [0, 600] and tpot(got) == 300 and got.shared_reads == 1 and not got.single_read


def test_fault_17_comments_pings_and_empty_data():
    got = answer((1, b": ping\n\n"), (2, b": ping\n" + data_event(A)), (3, b"event: message\nid: 7\n" + data_event(B)),
                 (4, b"data:\n\n"), (5, FINISH))
    assert ms(got) == [2, 3] and got.status == "complete"


@pytest.mark.parametrize("error", [
    {"error": {"message": "out of memory", "code": 500}}, {"error": "boom"}, {"error": {"message": "x"}},
])
def test_fault_18_error_in_a_200_stream(error):
    got = answer((200, A), (300, error), (300, DONE))
    assert got.status == "failed" and got.cause.startswith("error in stream") and ms(got) == [200]


def test_fault_18_error_event_and_error_field():
    assert answer((1, A), (2, b"event: error\ndata: {}\n\n"), (3, FINISH)).cause == "error in stream"
    assert answer((1, A), (2, b'error: {"message":"x"}\n\n'), (3, FINISH)).cause == "error in stream"


@pytest.mark.parametrize("tail", [[], [(500, DONE)]])
def test_fault_19_truncated_stream(tail):
    got = answer((200, A), (400, B), *tail)
    assert got.status == "truncated" and got.cause == "no finish_reason"


def test_fault_19_cut_frame_is_truncated_even_after_finish_reason():
    assert answer((200, A), (400, FINISH), complete=False).status == "truncated"
    assert answer((200, A), (400, FINISH), (400, usage(1)), (400, DONE), complete=False).status == "complete"


def test_fault_20_broken_event_fails_the_request():
    got = answer((200, A), (300, b'data: {"choices":[{"delta"\n\n'), (400, FINISH))
    assert (got.status, got.cause) == ("failed", "parse")


@pytest.mark.parametrize("odd", ["[1, 2]", '{"choices": "x"}', '{"choices": [7]}', '{"choices": [{"delta": 3}]}'])
def test_fault_20_chunk_of_another_shape(odd):
    assert answer((200, A), (300, odd), (400, FINISH)).cause == "parse"


def test_nan_and_lone_surrogates_are_read():
    raw = b'data: {"choices":[{"delta":{"content":"\\ud83d"},"logprob":NaN}]}\n\n'
    got = answer((1, raw), (2, FINISH))
    assert got.status == "complete" and got.text_hash is not None


# --- A2: token counts and lengths -------------------------------------------------------------------------------------


def test_fault_22_usage_that_contradicts_the_plan():
    got = answer((1, A), (2, delta("length")), (2, usage(97)), planned=128)
    assert (got.status, got.cause) == ("wrong_length", "asked 128 tokens, got 97")


def test_fault_22_no_usage_is_unknown_not_zero_or_planned():
    got = answer((1, A), (2, B), (2, FINISH), planned=128)
    assert got.output_tokens is None and got.status == "complete"


def test_fault_23_last_non_null_usage_of_any_chunk():
    got = answer((1, {**A, "usage": None}), (2, {**B, "usage": {"completion_tokens": 2}}),
                 (2, {**FINISH, "usage": {"prompt_tokens": 4, "completion_tokens": 3}}),
                 (3, {"choices": [], "usage": None}))
    assert (got.output_tokens, got.input_tokens) == (3, 4)


def test_fault_24_one_token_has_no_tpot():
    assert tpot(answer((400, A), (400, FINISH), (400, usage(1)))) is None


def test_fault_25_single_read_is_flagged():
    got = answer((300, *[A] * 50, FINISH, usage(50)))
    assert got.single_read and got.shared_reads == 49


def test_fault_30_early_stop_is_a_wrong_length():
    assert answer((1, A), (2, FINISH), (2, usage(71)), planned=128).status == "wrong_length"


def test_running_usage_per_chunk_as_vllm_0_6_2_sends_it():
    chunks = [(i, {**A, "usage": {"completion_tokens": 1}}) for i in range(3)]
    got = answer(*chunks, (3, FINISH), (3, usage(3)))
    assert got.event_tokens == (1, 1, 1) and got.output_tokens == 3 and not got.usage_jump


# --- A3: failures -----------------------------------------------------------------------------------------------------


def test_fault_35_no_token_has_no_first_token():
    got = answer((1, DONE))
    assert got.status == "empty" and got.event_ns == () and got.visible_ns is None


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
def test_fault_44_http_errors_are_failures_by_code(status):
    got = answer((1, b'{"error":"no"}'), status=status, headers={"content-type": "application/json"})
    assert (got.status, got.cause) == ("failed", f"http {status}")


def test_fault_45_timeout_keeps_partial_tokens():
    got = answer((1, A), (2, B), complete=False, transport="timeout")
    assert (got.status, got.cause, len(got.event_ns)) == ("failed", "timeout", 2)


def test_fault_56_a_cut_at_the_level_s_end_is_unfinished_not_failed():
    got = answer((1, A), complete=False, transport="cut: drain limit")
    assert (got.status, got.cause) == ("unfinished", "cut: drain limit")


def test_a_server_that_does_not_stream_is_named():
    got = answer((1, b'{"choices":[{"text":"abc"}]}'), headers={"content-type": "application/json"})
    assert (got.status, got.cause) == ("failed", "not a stream")


def test_nothing_received():
    got = decode("openai-chat", Response(), transport="reset")
    assert (got.status, got.cause, got.http_status) == ("failed", "reset", None)


def test_endless_line_is_named():
    got = answer((1, b"data: " + b"x" * (9 << 20)))
    assert (got.status, got.cause) == ("failed", "event too long")


# --- formats ----------------------------------------------------------------------------------------------------------


def test_chat_tool_calls_are_visible_output():
    call = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": ""}}]}
    more = {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}
    none = {"tool_calls": [{"index": 0, "function": {"arguments": ""}}]}
    got = answer((1, delta(**call)), (2, delta(**none)), (3, delta(**more)), (4, delta("tool_calls")))
    assert ms(got) == [1, 3] and got.visible_ns == 1 * MS and got.finish_reason == "tool_calls"


def test_llama_cpp_counts_on_its_last_chunk():
    last = text("", "length", usage={"prompt_tokens": 9, "completion_tokens": 2})
    got = answer((1, text("a")), (2, text("b")), (3, last), (3, DONE), wire="llama-cpp", planned=2)
    assert (got.status, got.output_tokens, got.input_tokens, ms(got)) == ("complete", 2, 9, [1, 2])


def test_llama_cpp_timings_stand_in_for_usage():
    last = text("", "length", timings={"prompt_n": 9, "predicted_n": 2})
    assert answer((1, text("a")), (2, last), wire="llama-cpp").output_tokens == 2


def test_llama_cpp_native_chunks():
    last = {"content": "", "stop": True, "stop_type": "limit", "tokens_predicted": 2, "tokens_evaluated": 9}
    got = answer((1, {"content": "a", "stop": False}), (2, {"content": "b"}), (2, last), wire="llama-cpp")
    assert (got.status, got.finish_reason, got.output_tokens, got.text) == ("complete", "length", 2, "ab")


def test_triton_generate_stream():
    chunks = [(i, {"model_name": "ensemble", "sequence_id": 0, "text_output": t}) for i, t in enumerate(["a", "", "b"])]
    got = answer(*chunks, wire="triton-generate-stream", planned=2)
    assert (got.status, ms(got), got.output_tokens, got.finish_reason) == ("complete", [0, 2], None, None)
    assert answer(*chunks, wire="triton-generate-stream", complete=False).status == "truncated"
    assert answer(*chunks, (3, {"error": "x"}), wire="triton-generate-stream").status == "failed"


def test_triton_accumulated_text():
    chunks = [(i, {"text_output": t}) for i, t in enumerate(["a", "ab", "ab", "abc"])]
    got = answer(*chunks, wire="triton-generate-stream-accumulated")
    assert (got.text, ms(got)) == ("abc", [0, 1, 3])


def test_tensorrt_llm_0_12_completions_end_with_done_alone():
    wire = "tensorrt-llm-0.12-completions"
    got = answer((1, text("a")), (2, text("b")), (2, DONE), wire=wire, planned=2)
    assert (got.status, got.output_tokens, got.finish_reason) == ("complete", None, None)
    assert answer((1, text("a")), (2, text("b")), wire=wire).status == "truncated"


def test_tensorrt_llm_0_12_chat_ends_without_done():
    wire = "tensorrt-llm-0.12-chat"
    got = answer((0, delta(role="assistant")), (1, A), (2, B), (2, usage(2)), wire=wire, planned=2)
    assert (got.status, got.output_tokens) == ("complete", 2)
    assert answer((0, delta(role="assistant")), (1, A), wire=wire).status == "truncated"


def test_trtllm_serve_trailing_space_and_tokens_without_text():
    role = b"data: " + json.dumps(delta(role="assistant")).encode() + b" \n\n"
    got = answer((0, role), (1, A), (2, delta(content="")), (3, delta("length", content="b")), (3, usage(3)), (3, DONE),
                 wire="trtllm-serve-chat", planned=3)
    assert (got.status, ms(got), got.output_tokens) == ("complete", [1, 3], 3)


# --- any split, and speed ---------------------------------------------------------------------------------------------

WHOLE = b"".join(
    data_event(value) for value in (delta(role="assistant"), A, delta(reasoning="r"), B, FINISH, usage(3), DONE)
).replace(b"\n\ndata: [DONE]", b"\r\n\r\n: ping\r\rdata: [DONE]")


@given(st.lists(st.integers(0, len(WHOLE)), max_size=20), st.sampled_from(sorted(FORMATS)))
@settings(max_examples=80, deadline=None)
def test_any_split_gives_the_same_answer_but_for_its_stamps(places, wire):
    cuts = [WHOLE[a:b] for a, b in zip([0, *sorted(places)], [*sorted(places), len(WHOLE)], strict=True)]
    whole = answer((1, WHOLE), wire=wire)
    split = answer(*[(1, cut) for cut in cuts], wire=wire)
    assert split == whole
    chunked = [(0, b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"),
               *[(1 * MS, b"%x\r\n%b\r\n" % (len(cut), cut)) for cut in cuts if cut], (1 * MS, b"0\r\n\r\n")]
    assert decode(wire, unframe(chunked, closed=False), keep_text=True) == whole


def test_parsing_is_linear_in_the_number_of_events():
    def cost(n: int) -> float:
        pieces = [(i, data_event(text(" the"))) for i in range(n)] + [(n, data_event(text("", "length")))]
        response = Response(200, {}, pieces, complete=True)
        best = 1e9
        for _ in range(3):
            began = time.process_time()
            decode("openai-completions", response)
            best = min(best, time.process_time() - began)
        return best

    assert cost(8000) < 8 * 4 * cost(1000)
