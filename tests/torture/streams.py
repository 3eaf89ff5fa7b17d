"""The stream parser and the whole decoder before random bytes: no crash, and the same bytes give the same answer in
whatever reads they come.
"""

import gc
import random
import time
from collections.abc import Sequence
from typing import Any

import psutil

from lib.measure.formats import FORMATS
from lib.measure.http1 import unframe
from lib.measure.sse import EventTooLong, SseParser
from lib.measure.wire import decode

LIMIT = 4096  # of a line or event, here: long enough for every piece, short enough to be met
TOKEN = b'data: {"choices":[{"index":0,"text":" a","delta":{"content":"b"},"finish_reason":null}]}\n\n'
PIECES = (
    TOKEN, TOKEN, TOKEN.replace(b"null", b'"length"'), TOKEN.replace(b"\n", b"\r\n"), TOKEN.replace(b"\n", b"\r"),
    b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n', b"data: [DONE]\n\n", b"data:\n\n",
    b": ping\n\n", b"event: error\ndata: {}\n\n", b'error: {"code": 500}\n\n', b"id: 7\nretry: 1\ndata: e\ndata: f\n\n",
    b'data: {"text_output": " x"}\n\n', b'data: {"content": "y", "stop": true, "tokens_predicted": 1}\n\n', b"\n",
    b"\r", b"\r\n", b"data", b"data: ", b"\xef\xbb\xbf", "data: \u2028\u0085\u00e9\U0001f600\n\n".encode(),
    b"\xff\xfe\x00",
    b'data: {"choices": 7}\n\n', b'data: {"choices": [null]}\n\n', b"data: " + b"x" * 3000 + b"\n\n", b"data: []\n\n",
    b'data: {"usage": {"completion_tokens": "2"}}\n\n', b'data: {"usage": [1]}\n\n', b"data: NaN\n\n", b"x" * 1500,
    b'data: {"error": {"code": "\\ud800"}}\n\n', b"data: " + b'{"a":' * 1000 + b"\n\n",
    b'data: {"choices":[{"text":"","finish_reason":"\\ud800"}]}\n\n',
    b'data: {"choices":[{"text":"\\ud800"}]}\n\n', b'data: {"choices":[{"text":{"a":1},"finish_reason":3}]}\n\n',
)  # fmt: skip
HEADS = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
    b"HTTP/1.1 500 No\r\ncontent-length: 2\r\n\r\n",
)
WIRES = tuple(FORMATS)


def body(rng: random.Random) -> bytes:
    """Random pieces of streams, some with random bytes in them."""
    whole = b"".join(rng.choices(PIECES, k=rng.randrange(1, 9)))
    if rng.random() < 0.3:
        at = rng.randrange(len(whole))
        whole = whole[:at] + rng.randbytes(rng.randrange(1, 5)) + whole[at + rng.randrange(3) :]
    return whole


def cuts(whole: bytes, rng: random.Random) -> list[bytes]:
    """The same bytes in reads of random lengths."""
    if rng.random() < 0.05:
        return [whole[i : i + 1] for i in range(len(whole))]
    places = sorted(rng.choices(range(len(whole) + 1), k=rng.randrange(1, 12)))
    return [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]


def parsed(reads: Sequence[bytes]) -> list[tuple[str, bytes]] | str:
    """Events of a body, or what it is refused for."""
    parser = SseParser(LIMIT)
    try:
        events = [event for read in reads for event in parser.feed(0, read)]
        last = parser.finish(0)
    except EventTooLong:
        return "too long"
    return [(name, data) for _, name, data in [*events, *([last] if last else [])]]


def answered(reads: Sequence[bytes], wire: str, closed: bool) -> tuple[Any, ...]:
    """Everything that one answer was judged to be, but for its stamps."""
    whole = unframe([(i, read) for i, read in enumerate(reads)], closed)
    answer = decode(wire, whole, planned=3, keep_text=True, count=lambda text: len(text.encode()))
    (answer.cause + (answer.finish_reason or "")).encode()  # as the record will
    return (answer.status, answer.cause, answer.http_status, len(answer.event_ns), answer.output_tokens, answer.text,
            answer.finish_reason, answer.role_ns is None, answer.done_ns is None)


def framed(text: bytes, rng: random.Random) -> bytes:
    """A body as a server would send it, chunks cut anywhere; sometimes the end is missing or spoilt."""
    head = rng.choice(HEADS)
    if b"chunked" in head:
        text = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in cuts(text, rng) if part) + b"0\r\n\r\n"
    whole = head + text
    return whole[: rng.randrange(len(whole))] if rng.random() < 0.1 else whole


def fuzz(inputs: int, seed: int, until: float = float("inf")) -> dict[str, Any]:
    """Try so many inputs; how many were tried, which ones were read differently in another cut, and the memory used."""
    wrong: list[str] = []
    before = held()
    tried = 0
    for number in range(inputs):
        if time.monotonic() > until:
            break
        rng = random.Random(seed * 1_000_003 + number)
        tried += 1
        try:
            if number % 4:
                whole = body(rng)
                same = parsed(cuts(whole, rng)) == parsed([whole])
            else:
                whole, wire, closed = framed(body(rng), rng), rng.choice(WIRES), rng.random() < 0.5
                same = answered(cuts(whole, rng), wire, closed) == answered([whole], wire, closed)
        except Exception as error:
            wrong.append(f"input {number} of seed {seed}: {error!r}")
            continue
        if not same:
            wrong.append(f"input {number} of seed {seed} is read otherwise in another cut")
    grown = round((held() - before) / 2**20, 1)
    return {"inputs": tried, "wrong": wrong[:20], "failures": len(wrong), "seed": seed, "grown_mb": grown}


def held() -> int:
    """Memory of this process in bytes, without the errors and frames that wait for the collector."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
