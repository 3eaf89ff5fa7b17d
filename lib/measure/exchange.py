"""From journals to rows, after the clock: gather each request's entries, map its stamps, decode its answer.

Rule: one row per request that was due, finished or not, merged over all workers by the request's index; a worker that
was killed gives what it had committed. Refused: a journal that is none (RecordError, from the journal module).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lib.measure import journal as jn
from lib.measure.clientplan import Plan, Request
from lib.measure.clock import ClockMap, Ints, choose
from lib.measure.connection import SENT_FIELDS
from lib.measure.http1 import unframe
from lib.measure.wire import CUT, Answer, decode

DIED = f"{CUT}: the client died"
CLOSED = {"eof": "connection closed", "reset": "connection reset"}


@dataclass(slots=True)
class Exchange:
    """One request and the raw bytes that answered it.

    Times in ns of the monotonic clock, None where it never happened. stamps, user: one per read, shape (n,).
    places: where the reads lie. size: bytes received. cause: why it
    ended before its frame did ('' when it did not; `eof` when the server closed).
    """

    index: int
    request: Request
    reader: jn.Reader
    places: list[int] = field(default_factory=list)
    size: int = 0
    due_ns: int | None = None
    sent_ns: int | None = None
    connect_ns: int | None = None
    connection: int | None = None
    end_ns: int | None = None
    cause: str = DIED
    stamp_source: str = "user"
    stamps: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    user: Ints = field(default_factory=lambda: np.empty(0, np.int64))

    def reads(self) -> Iterator[tuple[int, memoryview]]:
        """(stamp ns, raw bytes) of each read; views into the journal."""
        # Made on the way: a view kept per event would be a million objects for the garbage collector to walk.
        return zip(self.stamps.tolist(), map(self.reader.payload, self.places), strict=True)

    def answer(self, wire: str, keep_text: bool = False, count: Callable[[str], int] | None = None) -> Answer:
        """Decode the answer in the given wire format (a key of formats.FORMATS); `count` as for `wire.decode`."""
        closed = self.cause == "eof"
        response = unframe(self.reads(), closed)
        return decode(
            wire,
            response,
            transport=CLOSED.get(self.cause, self.cause),
            planned=self.request.planned_output_tokens,
            keep_text=keep_text,
            count=count,
        )


@dataclass(slots=True)
class Outcome:
    """How one worker's level ended.

    reason: None when the worker was killed. clock_steps: of the wall clock, seen in the level. usage: `cpu_s` of the
    level and `peak_mb` of the process, None when it was killed. note: what the journal was opened with.
    """

    reason: str | None
    clock_steps: int
    usage: dict[str, float] | None
    note: dict[str, Any]


def read(plan: Plan) -> tuple[list[Exchange], Outcome]:
    """All exchanges of one worker's journal, in order of index, and how its level ended."""
    reader = jn.Reader(Path(plan.journal))
    requests = dict(zip(plan.indices, plan.requests, strict=True))
    found: dict[int, Exchange] = {}
    samples: list[tuple[int, int]] = []
    reason: str | None = None
    usage: dict[str, float] | None = None
    for kind, index, at in reader.scan():
        if kind == jn.CLOCK:
            samples.append((reader.user_ns(at), reader.kernel_ns(at)))
            continue
        if kind == jn.DONE:
            ended = json.loads(bytes(reader.payload(at)))
            reason, usage = ended["reason"], {"cpu_s": ended["cpu_s"], "peak_mb": ended["peak_mb"]}
            continue
        if index not in requests:
            continue
        if index not in found:
            found[index] = Exchange(index, requests[index], reader)
        if kind == jn.DATA:
            found[index].places.append(at)
        elif kind == jn.SENT:
            exchange = found[index]
            exchange.due_ns, connect, exchange.connection = SENT_FIELDS.unpack(reader.payload(at))
            exchange.sent_ns, exchange.connect_ns = reader.user_ns(at), connect if connect >= 0 else None
        elif kind == jn.DUE:
            found[index].due_ns = reader.user_ns(at)
        elif kind == jn.END:
            exchange = found[index]
            exchange.end_ns, exchange.cause = reader.user_ns(at), bytes(reader.payload(at)).decode()
    clock, words = ClockMap(samples), np.asarray(reader.words)
    for exchange in found.values():
        at_words = np.array(exchange.places, dtype=np.int64) >> 3
        exchange.size = int((words[at_words] >> 8 & 0xFFFFFF).sum())
        exchange.user = words[at_words + 1]
        kernel = words[at_words + 2] * 1_000_000_000 + words[at_words + 3]
        exchange.stamps, exchange.stamp_source = choose(kernel, exchange.user, clock)
    return [found[index] for index in sorted(found)], Outcome(reason, clock.steps, usage, reader.note)


def merge(plans: Iterable[Plan]) -> tuple[list[Exchange], list[Outcome]]:
    """Exchanges of all workers of one level in order of index, and each worker's outcome."""
    exchanges: list[Exchange] = []
    outcomes: list[Outcome] = []
    workers = list(plans)
    for worker, plan in enumerate(workers):
        some, outcome = read(plan)
        for exchange in some:  # every worker counts its connections from 0
            if exchange.connection is not None:
                exchange.connection = exchange.connection * len(workers) + worker
        exchanges += some
        outcomes.append(outcome)
    exchanges.sort(key=lambda exchange: exchange.index)
    return exchanges, outcomes


def exchange_row(exchange: Exchange, answer: Answer) -> dict[str, Any]:
    """Fill the record's columns that the client knows (records.REQUESTS); times in ns, None where there is none."""
    stamps, source = exchange.stamps, exchange.stamp_source
    count = len(stamps)
    return {
        "index": exchange.index,
        "request_id": exchange.request.id,
        "planned_output_tokens": exchange.request.planned_output_tokens,
        "due_ns": exchange.due_ns,
        "sent_ns": exchange.sent_ns,
        "connect_ns": exchange.connect_ns,
        "first_byte_ns": int(stamps[0]) if count else None,
        "role_ns": answer.role_ns,
        "visible_ns": answer.visible_ns,
        "done_ns": answer.done_ns,
        "end_ns": int(stamps[-1]) if count else exchange.end_ns,
        "event_ns": list(answer.event_ns),
        "event_lag_ns_max": int((exchange.user - stamps).max()) if count and source != "user" else None,
        "reads": count,
        "shared_reads": answer.shared_reads,
        "bytes": exchange.size,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "output_tokens_source": answer.counted_by,
        "status": answer.status,
        "cause": answer.cause or None,
        "http_status": answer.http_status,
        "finish_reason": answer.finish_reason,
        "text_hash": answer.text_hash,
        "stamp_source": source,
        "connection": exchange.connection,
    }


def rows(
    plans: Iterable[Plan], wire: str, count: Callable[[str], int] | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of one level, over all its workers, in order of index; `count` as for `wire.decode`."""
    for exchange in merge(plans)[0]:
        yield exchange_row(exchange, exchange.answer(wire, count=count))
