"""Judge one answer: stamped body pieces in, an `Answer` out. Pure; what a chunk means is the `formats` module's.

Rule: a token event is a stream event that carries visible output (non-empty content, reasoning or tool arguments);
role-only, empty, ping, finish-only and usage-only events are not. The first token's time is written once. Token counts
come from the server; where its format has none, from the model's tokenizer over the answer's text; else they stay
None: chunks are never counted as tokens.

An answer is `complete`, `truncated`, `failed`, `empty`, `wrong_length` or, when the client itself cut it at the end of
a level, `unfinished`; only complete ones may enter latency statistics. Refused: nothing is raised for a bad stream,
`Answer.cause` names what was wrong with it.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec  # 1.0 us for a 230-byte chunk against 1.3 (orjson) and 4 (json): half of the parsing budget

from lib.measure.formats import FORMATS, Format, Tally
from lib.measure.http1 import Response
from lib.measure.sse import Event, EventTooLong, SseParser

LOADS = msgspec.json.Decoder().decode
CUT = "cut"  # how causes begin when the client ended the exchange because the level ended


@dataclass(frozen=True, slots=True)
class Answer:
    """What one answer was. Stamps in ns on the clock of the pieces; None where there was nothing to stamp or count.

    event_ns: token events. event_tokens: tokens per token event where the server sends a running usage, else None.
    role_ns: first role-only event. visible_ns: first event with content or tool arguments (not reasoning).
    done_ns: [DONE]. input_tokens, output_tokens, reasoning_tokens: as the server counted (the last usage it sent).
    shared_reads: token events that arrived in the same read as the one before. single_read: all of at least two did.
    usage_jump: a running usage grew by more than one token at once. hidden_reasoning: reasoning tokens were counted
    but none streamed, so TPOT is not measurable. text_hash: first 16 hex digits of SHA-256; text only when asked for.
    """

    status: str
    cause: str
    http_status: int | None
    event_ns: tuple[int, ...]
    event_tokens: tuple[int, ...] | None
    role_ns: int | None
    visible_ns: int | None
    done_ns: int | None
    input_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    finish_reason: str | None
    shared_reads: int
    single_read: bool
    usage_jump: bool
    hidden_reasoning: bool
    text_hash: str | None
    text: str | None = None
    counted_by: str | None = None  # server | tokenizer


def decode(
    wire: str,
    response: Response,
    *,
    transport: str = "",
    planned: int | None = None,
    keep_text: bool = False,
    count: Callable[[str], int] | None = None,
) -> Answer:
    """Judge and stamp one answer.

    wire: a key of FORMATS. transport: why the client ended the exchange early, '' when it did not (`timeout` makes
    the answer failed, anything else truncated). planned: output tokens asked for, None when open. count: tokens of a
    text by the model's tokenizer, for formats whose server sends no count.
    """
    form = FORMATS[wire]
    fold, tally = form.fold, Tally()
    event_ns: list[int] = []
    running: list[tuple[bool, int]] = []  # (token event?, running completion_tokens) of every chunk with usage
    role_ns = visible_ns = done_ns = None
    failure = ""
    events, overlong = _events(response) if response.status == 200 else ([], "")
    loads = LOADS
    for stamp, name, data in events:
        if data == b"[DONE]":
            if done_ns is None:
                done_ns = stamp
            continue
        try:
            chunk = loads(data)
        except (msgspec.DecodeError, RecursionError):
            if not data.strip():
                continue
            chunk = _tolerant(data)
        if not isinstance(chunk, dict):
            failure = failure or ("error in stream" if name == "error" else "parse")
            continue
        if name == "error" or chunk.get("error"):
            failure = failure or _error_cause(chunk)
            continue
        try:
            token = fold(chunk, tally)
            usage = chunk.get("usage")
            if usage:
                _counts(usage)
                tally.usage = usage
                tally.last_chunk_usage = not chunk.get("choices")
                if usage.get("completion_tokens") is not None:
                    running.append((token, usage["completion_tokens"]))
        except (AttributeError, TypeError):
            failure = failure or "parse"
            continue
        if token and done_ns is not None:
            failure = failure or "tokens after the end"
        elif token:
            event_ns.append(stamp)
            if visible_ns is None and tally.visible:
                visible_ns = stamp
        elif role_ns is None and tally.role:
            role_ns = stamp
    try:
        given, output, reasoning = _counts(tally.usage or {})
    except (AttributeError, TypeError):  # a format of its own may have filled it in
        given = output = reasoning = None
        failure = failure or "parse"
    status, cause = _judge(form, response, tally, failure or overlong, transport, len(event_ns), done_ns is not None)
    text = "".join(tally.text)
    counted_by = "server" if output is not None else None
    if output is None and not form.counts and count is not None and text:
        output, counted_by = count(_sendable(text)), "tokenizer"
    # A text does not always come back as the tokens it was made of: a response per token is as good a proof.
    right = output in (None, planned) or (counted_by == "tokenizer" and tally.responses == planned)
    if status == "complete" and planned is not None and not right:
        status, cause = "wrong_length", f"asked {planned} tokens, got {output}"
    event_tokens, jump = _per_event(running, len(event_ns), output)
    shared = sum(a == b for a, b in pairwise(event_ns))
    return Answer(
        status=status,
        cause=_sendable(cause),
        http_status=response.status,
        event_ns=tuple(event_ns),
        event_tokens=event_tokens,
        role_ns=role_ns,
        visible_ns=visible_ns,
        done_ns=done_ns,
        input_tokens=given,
        output_tokens=output,
        reasoning_tokens=reasoning,
        finish_reason=None if tally.finish is None else _sendable(tally.finish),
        shared_reads=shared,
        single_read=len(event_ns) > 1 and shared == len(event_ns) - 1,
        usage_jump=jump,
        hidden_reasoning=bool(reasoning) and not tally.reasoning,
        text_hash=hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16] if text else None,
        text=text if keep_text else None,
        counted_by=counted_by,
    )


def _events(response: Response) -> tuple[list[Event], str]:
    """All events of the body, and the name of an overflow if one ended the parsing."""
    parser = SseParser()
    events: list[Event] = []
    extend, feed, stamp = events.extend, parser.feed, 0
    try:
        for stamp, piece in response.pieces:
            extend(feed(stamp, piece))
        last = parser.finish(stamp)
    except EventTooLong:
        return events, "event too long"
    # A stream may end without its last blank line; what stands there counts only when it is whole.
    if last is not None and (last[2] == b"[DONE]" or isinstance(_tolerant(last[2]), dict)):
        events.append(last)
    return events, ""


def _tolerant(data: bytes) -> Any:
    """JSON by the standard library (which accepts NaN and lone surrogates, as some servers send), or None."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _counts(usage: dict[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Input, output and reasoning tokens of a usage. Raises AttributeError or TypeError where they are no counts."""
    details = usage.get("completion_tokens_details") or {}
    found = usage.get("prompt_tokens"), usage.get("completion_tokens"), details.get("reasoning_tokens")
    if any(n is not None and (type(n) is not int or not 0 <= n < 1 << 31) for n in found):
        raise TypeError
    return found


def _sendable(text: str) -> str:
    """Text without lone surrogates, which JSON may hold and neither a record nor a tokenizer can."""
    return text.encode("utf-8", "replace").decode()


def _error_cause(chunk: dict[str, Any]) -> str:
    error = chunk.get("error")
    code = error.get("code") if isinstance(error, dict) else chunk.get("code")
    return f"error in stream: {code}" if isinstance(code, int | str) and code != "" else "error in stream"


def _judge(
    form: Format, response: Response, tally: Tally, failure: str, transport: str, tokens: int, done: bool
) -> tuple[str, str]:
    if transport == "timeout":
        return "failed", "timeout"
    if transport.startswith(CUT):
        return "unfinished", transport
    if response.cause:
        return "failed", response.cause
    if response.status is None:
        return "failed", transport or "no answer"
    if response.status != 200:
        return "failed", f"http {response.status}"
    coding = response.headers.get("content-encoding", "identity").strip().lower()
    if coding not in ("", "identity"):
        return "failed", f"content-encoding {coding}"  # nobody asked for it, and what is unpacked has no stamp
    if failure:
        return "failed", failure
    ended = (
        ("finish" in form.ends and tally.finish is not None)
        or ("done" in form.ends and done)
        or ("usage" in form.ends and tally.last_chunk_usage)
        or "close" in form.ends
    )
    whole = response.complete or (done and tally.finish is not None)
    if not whole:
        return "truncated", transport or "cut stream"
    if not tokens:
        if "event-stream" not in response.headers.get("content-type", "text/event-stream"):
            return "failed", "not a stream"
        return "empty", "no token event"
    if not ended:
        return "truncated", "no finish_reason" if "finish" in form.ends else "no end mark"
    return "complete", ""


def _per_event(running: list[tuple[bool, int]], events: int, total: int | None) -> tuple[tuple[int, ...] | None, bool]:
    """Tokens per token event from a running usage, and whether it ever jumped by more than one.

    Some servers count up, vLLM 0.6.2's chat endpoint sends each chunk's own tokens: the total tells which.
    """
    seen = [count for token, count in running if token]
    if not seen or len(seen) != events:
        return None, False
    if len(seen) > 1 and sum(seen) == total:
        return tuple(seen), max(seen) > 1
    counts = [count for _, count in running]
    jump = any(b - a > 1 for a, b in pairwise([0, *counts]))
    steps = tuple(b - a for a, b in pairwise([0, *seen]))
    return (steps if min(steps) >= 0 else None), jump
