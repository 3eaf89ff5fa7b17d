"""Streams in the shapes that the engines of the H100 lane send: bytes as on the wire, and what they are taken for."""

import json

import pytest

from lib.measure.formats import FORMATS
from lib.measure.http1 import Response
from lib.measure.wire import Answer, decode

MS = 1_000_000


def sse(*events, end: str = "\n\n") -> bytes:
    return b"".join(b"data: " + (e if isinstance(e, str) else json.dumps(e)).encode() + end.encode() for e in events)


def answer(wire: str, *reads: bytes, planned: int | None = None, count=None, complete: bool = True) -> Answer:
    """Decode reads that came at 1, 2, 3... ms."""
    pieces = [((i + 1) * MS, data) for i, data in enumerate(reads)]
    return decode(wire, Response(200, {"content-type": "text/event-stream"}, pieces, complete), planned=planned,
                  keep_text=True, count=count)


def words(text: str) -> int:
    return len(text.split())


# --- vLLM ------------------------------------------------------------------------------------------------------------


def completion(text, finish=None, usage=None, **more):
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m",
            "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish, "stop_reason": None,
                         **more}],
            **({"usage": usage} if usage is not None else {})}


def final(prompt, output, **more):
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [],
            "usage": {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output, **more}}


def test_vllm_0_6_2_completions_one_usage_at_the_end():
    got = answer("openai-completions", sse(completion(" a")), sse(completion(" b")), sse(completion("", "length")),
                 sse(final(7, 3)), sse("[DONE]"), planned=3)
    assert (got.status, got.output_tokens, got.input_tokens, got.counted_by) == ("complete", 3, 7, "server")
    assert [t // MS for t in got.event_ns] == [1, 2] and got.done_ns == 5 * MS


def test_vllm_0_6_2_completions_running_usage_if_not_told_otherwise():
    running = [{"prompt_tokens": 7, "completion_tokens": n, "total_tokens": 7 + n} for n in (1, 2, 3)]
    got = answer("openai-completions", *(sse(completion(f" {n}", "length" if n == 3 else None, running[n - 1]))
                                         for n in (1, 2, 3)), sse(final(7, 3)), sse("[DONE]"), planned=3)
    assert (got.status, got.output_tokens, got.event_tokens) == ("complete", 3, (1, 1, 1))


def test_vllm_0_6_2_multi_step_sends_several_tokens_a_chunk():
    got = answer("openai-completions", sse(completion(" a b c d e f g h")), sse(completion(" i j", "length")),
                 sse(final(7, 10)), sse("[DONE]"), planned=10)
    assert (got.status, got.output_tokens, len(got.event_ns)) == ("complete", 10, 2)


def delta(finish=None, **fields):
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
            "choices": [{"index": 0, "delta": fields, "logprobs": None, "finish_reason": finish}]}


@pytest.mark.parametrize("first", [{"role": "assistant"}, {"role": "assistant", "content": ""}])
def test_vllm_chat_role_comes_first_and_is_no_token(first):
    got = answer("openai-chat", sse(delta(**first)), sse(delta(content="a")), sse(delta("length", content="b")),
                 sse(final(5, 2)), sse("[DONE]"), planned=2)
    assert (got.status, got.role_ns, got.event_ns[0], got.output_tokens) == ("complete", MS, 2 * MS, 2)


def test_vllm_0_24_usage_of_every_chunk_is_null_until_the_last():
    chunks = [completion(" a", usage=None) | {"usage": None}, completion(" b", "length", prompt_token_ids=None,
                                                                        token_ids=None) | {"usage": None}]
    got = answer("openai-completions", *map(sse, chunks), sse(final(7, 2, prompt_tokens_details=None)), sse("[DONE]"),
                 planned=2)
    assert (got.status, got.output_tokens, got.event_tokens) == ("complete", 2, None)


def test_vllm_error_inside_the_stream():
    broken = {"error": {"message": "CUDA out of memory", "type": "BadRequestError", "code": 400}}
    got = answer("openai-completions", sse(completion(" a")), sse(broken), sse("[DONE]"), planned=3)
    assert (got.status, got.cause) == ("failed", "error in stream: 400")


# --- TensorRT-LLM 1.2 ------------------------------------------------------------------------------------------------


def test_trtllm_serve_completions_with_empty_text_for_half_a_character():
    usage = {"prompt_tokens_details": {"cached_tokens": 0}}
    got = answer("trtllm-serve-completions", sse(completion(" a"), end=" \n\n"), sse(completion(""), end=" \n\n"),
                 sse(completion("€", "length"), end=" \n\n"), sse(final(7, 3, **usage), end=" \n\n"), sse("[DONE]"),
                 planned=3)
    assert (got.status, got.output_tokens, [t // MS for t in got.event_ns]) == ("complete", 3, [1, 3])


def test_trtllm_serve_chat():
    chunks = [delta(role="assistant", content=None), delta(content="a"), delta("length"), final(5, 1)]
    got = answer("trtllm-serve-chat", *(sse(chunk, end=" \n\n") for chunk in chunks), sse("[DONE]"), planned=1)
    assert (got.status, got.output_tokens, got.event_ns) == ("complete", 1, (2 * MS,))


# --- TensorRT-LLM 0.12 behind Triton ---------------------------------------------------------------------------------


def response(text, **more):
    return {"cum_log_probs": 0.0, "model_name": "ensemble", "model_version": "1", "output_log_probs": [0.0],
            "sequence_end": False, "sequence_id": 0, "sequence_start": False, "text_output": text, **more}


def test_triton_counts_by_the_tokenizer():
    got = answer("triton-generate-stream", *(sse(response(f" {w}")) for w in "abc"), planned=3, count=words)
    assert (got.status, got.output_tokens, got.counted_by, len(got.event_ns)) == ("complete", 3, "tokenizer", 3)
    assert got.input_tokens is None


def test_triton_a_response_per_token_proves_the_length_where_the_text_does_not():
    got = answer("triton-generate-stream", *(sse(response(t)) for t in (" a", "", "€")), planned=3, count=words)
    assert (got.status, got.output_tokens) == ("complete", 1)


def test_triton_too_few_responses_are_a_wrong_length():
    got = answer("triton-generate-stream", sse(response(" a")), sse(response(" b")), planned=3, count=words)
    assert (got.status, got.cause) == ("wrong_length", "asked 3 tokens, got 2")


def test_triton_error_inside_a_200_stream():
    broken = sse({"error": "Executor failed: out of memory"})
    got = answer("triton-generate-stream", sse(response(" a")), broken, planned=3, count=words)
    assert (got.status, got.cause) == ("failed", "error in stream")


def test_triton_cut_stream_is_truncated():
    got = answer("triton-generate-stream", sse(response(" a")), planned=3, count=words, complete=False)
    assert got.status == "truncated"


def test_triton_accumulated_text_is_counted_once():
    chunks = (sse(response(" a")), sse(response(" a b")))
    got = answer("triton-generate-stream-accumulated", *chunks, planned=2, count=words)
    assert (got.status, got.output_tokens, got.text) == ("complete", 2, " a b")


# --- TensorRT-LLM 0.12's own example server --------------------------------------------------------------------------


def test_tensorrt_llm_0_12_completions_has_no_usage_and_no_finish():
    chunks = (sse(completion(" a")), sse(completion(" b")), sse("[DONE]"))
    got = answer("tensorrt-llm-0.12-completions", *chunks, planned=2, count=words)
    assert (got.status, got.output_tokens, got.counted_by) == ("complete", 2, "tokenizer")


def test_a_server_that_counts_is_never_counted_for():
    got = answer("openai-completions", sse(completion(" a", "stop")), planned=1, count=lambda text: 99)
    assert (got.output_tokens, got.counted_by) == (None, None)


def test_every_format_says_whether_its_server_counts():
    silent = {name for name, form in FORMATS.items() if not form.counts}
    assert silent == {"triton-generate-stream", "triton-generate-stream-accumulated", "tensorrt-llm-0.12-completions"}
