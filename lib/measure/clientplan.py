"""What a load client is told before its clock starts: where, which requests, in which order and under which limits.

A `Plan` is data that survives JSON, so that a client runs as a process of its own. Request bodies are final bytes:
nothing is built, drawn or encoded while the clock runs. Keys are never in it, only the name of the environment
variable that holds one.

Rule: a plan says the same to every contender. Refused at the door: a plan that cannot run (no request, unknown load
kind, an `after` that names no earlier request, an open loop without due times).
"""

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lib.errors import MeasureError
from lib.whole import write_whole

KEY_ENV = "FIRST_TOKEN_SLA_KEY"  # the server's key, handed to the client by environment only
CLOSED, OPEN = "closed", "open"
STAGGER, BURST = "stagger", "burst"


@dataclass(frozen=True, slots=True)
class Request:
    """One request, ready to send.

    due_s: seconds after the level's start (open loop). think_s: pause before it once its slot or its predecessor is
    free. after: id of the request that must have finished first (multi-turn).
    planned_output_tokens: asked for, or None.
    """

    id: str
    path: str
    body: bytes
    due_s: float | None = None
    think_s: float = 0.0
    after: str | None = None
    planned_output_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """One worker's level.

    load: `closed` (concurrency slots, each sends its next request when the last has finished and thought) or `open`
    (at due times, whatever the server does). ramp: `stagger` spreads the first starts evenly over ramp_s; `burst`
    starts all at once, a workload of its own; starts_s, one per slot, replaces both. issue_s: no request starts later;
    drain_s: how long those in flight may then take. cooldown: after issue_s go on sending until all that were due
    before it have ended, so that they end under the same load; the rest is cut. timeout_s: per request. connections:
    opened before the clock (0: as many as slots). key_env: environment variable holding the bearer key. indices: each
    request's place in the whole level. reuse: send several requests over one connection; False for servers that
    close it unannounced, which would fail the next request. cpus: cores to pin to, empty for any. journal: path of the
    file to write; journal_bytes: its size, 0 to estimate.
    """

    port: int
    requests: tuple[Request, ...]
    journal: str
    host: str = "127.0.0.1"
    key_env: str | None = None
    tls: bool = False
    tls_ca: str | None = None
    load: str = CLOSED
    concurrency: int = 1
    ramp: str = STAGGER
    ramp_s: float = 1.0
    starts_s: tuple[float, ...] = ()
    issue_s: float | None = None
    drain_s: float = 120.0
    cooldown: bool = False
    reuse: bool = True
    timeout_s: float = 600.0
    connections: int = 0
    indices: tuple[int, ...] = ()
    cpus: tuple[int, ...] = ()
    journal_bytes: int = 0
    headers: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot run; number the requests where the level is not split."""
        if not self.requests:
            raise MeasureError("This plan has no request: a level needs at least one.")
        if self.load not in (CLOSED, OPEN):
            raise MeasureError(f"Load kind {self.load!r} is unknown: use {CLOSED!r} or {OPEN!r}.")
        if self.ramp not in (STAGGER, BURST):
            raise MeasureError(f"Ramp {self.ramp!r} is unknown: use {STAGGER!r} or {BURST!r}.")
        if self.load == CLOSED and self.concurrency < 1:
            raise MeasureError(f"A closed loop of concurrency {self.concurrency} sends nothing: use 1 or more.")
        if self.starts_s and len(self.starts_s) != self.concurrency:
            raise MeasureError(f"{len(self.starts_s)} start times for {self.concurrency} slots: give one for each.")
        if self.indices and len(self.indices) != len(self.requests):
            raise MeasureError(f"{len(self.indices)} indices for {len(self.requests)} requests: give one for each.")
        seen: set[str] = set()
        for request in self.requests:
            if request.id in seen:
                raise MeasureError(f"Request id {request.id!r} stands twice in this plan: ids must differ.")
            if request.after is not None and request.after not in seen:
                raise MeasureError(f"Request {request.id!r} comes after {request.after!r}, which is none before it.")
            if self.load == OPEN and request.after is None and request.due_s is None:
                raise MeasureError(f"Request {request.id!r} has no due time, and an open loop needs one.")
            seen.add(request.id)
        if not self.indices:
            object.__setattr__(self, "indices", tuple(range(len(self.requests))))

    def size(self) -> int:
        """Estimate the journal's bytes: 640 per planned token is twice what servers send, and sparse until used."""
        if self.journal_bytes:
            return self.journal_bytes
        tokens = sum(request.planned_output_tokens or 2048 for request in self.requests)
        return (1 << 20) + 4096 * len(self.requests) + 640 * tokens

    def write(self, path: Path) -> None:
        """Store as JSON; bodies as text, any byte kept by surrogate escapes."""
        raw = asdict(self)
        for request in raw["requests"]:
            request["body"] = request["body"].decode("utf-8", "surrogateescape")
        write_whole(path, json.dumps(raw).encode())

    @staticmethod
    def read(path: Path) -> "Plan":
        """Load the plan stored at `path`. Raises MeasureError for a file that is none."""
        try:
            raw: dict[str, Any] = json.loads(path.read_text())
            raw["requests"] = tuple(
                Request(**{**request, "body": request["body"].encode("utf-8", "surrogateescape")})
                for request in raw["requests"]
            )
            for name in ("indices", "cpus", "starts_s"):
                raw[name] = tuple(raw[name])
            return Plan(**raw)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MeasureError(f"{path} is not a client plan ({error}): write it with Plan.write.") from error


def split(plan: Plan, workers: int) -> list[Plan]:
    """Share the plan over several processes: conversations stay whole, slots and connections are shared out evenly.

    The journals get `.0`, `.1`, ... appended. With more workers than slots or conversations, fewer are returned.
    """
    home: dict[str, int] = {}
    heads = sum(request.after is None for request in plan.requests)
    workers = max(1, min(workers, heads, plan.concurrency if plan.load == CLOSED else heads))
    parts: list[list[tuple[int, Request]]] = [[] for _ in range(workers)]
    turn = 0
    for index, request in zip(plan.indices, plan.requests, strict=True):
        if request.after is None:
            home[request.id] = turn % workers
            turn += 1
        else:
            home[request.id] = home[request.after]
        parts[home[request.id]].append((index, request))

    def share(total: int, worker: int) -> int:
        return total // workers + (worker < total % workers)

    starts_s = plan.starts_s
    if not starts_s and plan.load == CLOSED and plan.ramp == STAGGER:  # one ramp, not one for each worker in step
        starts_s = tuple(slot * plan.ramp_s / plan.concurrency for slot in range(plan.concurrency))
    return [
        replace(
            plan,
            requests=tuple(request for _, request in part),
            indices=tuple(index for index, _ in part),
            concurrency=share(plan.concurrency, worker),
            starts_s=starts_s[worker::workers],
            connections=share(plan.connections, worker),
            journal=f"{plan.journal}.{worker}",
            cpus=(plan.cpus[worker % len(plan.cpus)],) if plan.cpus else (),
        )
        for worker, part in enumerate(parts)
    ]


def message(plan: Plan, request: Request) -> bytes:
    """Build the request as it goes over the wire."""
    head = [
        f"POST {request.path} HTTP/1.1",
        f"Host: {plan.host}:{plan.port}",
        f"X-Request-Id: {request.id}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        f"Content-Length: {len(request.body)}",
    ]
    if plan.key_env is not None:
        key = os.environ.get(plan.key_env)
        if not key:
            raise MeasureError(
                f"The plan takes its key from the environment variable {plan.key_env}, which is not set: export it."
            )
        head.append(f"Authorization: Bearer {key}")
    head += [f"{name}: {value}" for name, value in plan.headers.items()]
    return "\r\n".join([*head, "", ""]).encode() + request.body
