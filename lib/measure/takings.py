"""Which levels are taken in which order, and what one taking asks: from the study's config to client requests.

Rule: everything here depends on the study's seed, the level, the run and the repeat, never on the contender. All
contenders meet the same prompts, lengths and due times; a faster one only gets further down the same list.
"""

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lib import config, loads, paths
from lib.config import Level, Study
from lib.measure import schedule, workload
from lib.measure.clientplan import BURST, CLOSED, OPEN, STAGGER, Plan, Request

# Prompt, output tokens and, where one is asked for, the adapter -> path, JSON body.
Body = Callable[..., tuple[str, dict[str, Any]]]

RAMP_SHARE = 0.25  # a closed level's starts are spread over this share of its seconds
REACHED = 0.75  # of the requests a level wants; below it they are given up. The warm-up tells the rate roughly
ANSWERS = 2  # of each client, where those requests are out of reach
SPARE = 8  # requests prepared beyond twice those expected


@dataclass(frozen=True)
class Taking:
    """One level taken once: run, repeat, level, and its place in the run's order."""

    run: int
    repeat: int
    level: Level
    order: int

    @property
    def key(self) -> str:
        """Name of its files: r0-p2-closed-8."""
        return f"r{self.run}-p{self.repeat}-{self.level.id}"


def rows_path(partial: Path, taking: Taking) -> Path:
    """Where a finished taking's rows are."""
    return partial / f"{taking.key}.parquet"


def samples_path(partial: Path, taking: Taking) -> Path:
    """Where a finished taking's telemetry is."""
    return partial / f"{taking.key}.telemetry.parquet"


def note_path(partial: Path, taking: Taking) -> Path:
    """Where a finished taking's own facts are; written last, so that it marks the taking as done."""
    return partial / f"{taking.key}.json"


def done(partial: Path, taking: Taking) -> bool:
    """Whether a taking is finished and on disk."""
    return note_path(partial, taking).exists()


def order(study: Study, run: int) -> list[Taking]:
    """Takings of one run in the order they are measured: every repeat takes all levels, shuffled anew."""
    takings: list[Taking] = []
    for repeat in range(study.statistics.repeats):
        levels = list(study.levels)
        random.Random(f"{study.seed}|order|{run}|{repeat}").shuffle(levels)
        takings += [Taking(run, repeat, level, len(takings) + i) for i, level in enumerate(levels)]
    return takings


def seconds(level: Level, rate_rps: float = math.inf) -> float:
    """Seconds during which a level issues requests: its ramp and its measured part.

    `rate_rps` is how many requests per second the server answered in the level's warm-up: a slow one gets the time it
    needs for the requests that the level wants at least, and one that can come nowhere near them in the time allowed
    gets what a few answers of each client take. Clients that think get the time that thinking takes, too.
    """
    each = 1 / rate_rps + (level.think_seconds or 0.0) / (level.concurrency or 1)
    wanted = level.requests * each
    if REACHED * wanted > level.at_most_seconds:  # out of reach: medians will do
        wanted = min(wanted, ANSWERS * (level.concurrency or 1) * each)
    return max(level.seconds, min(level.at_most_seconds, wanted)) + ramp_s(level)


def ramp_s(level: Level) -> float:
    """Seconds over which a closed loop's first starts are spread; an open loop and a burst have no ramp."""
    ramped = (level.concurrency or 0) > 1 and level.start != "burst"
    return RAMP_SHARE * level.seconds if ramped else 0.0


def count(level: Level, rate_rps: float, issue_s: float) -> int:
    """How many requests to prepare for a closed loop that issues for so many seconds: twice those expected, and spare.

    `rate_rps` as for `seconds`; clients that think cannot ask more often than they stop thinking.
    """
    clients = level.concurrency or 1
    most = min(rate_rps, clients / level.think_seconds) if level.think_seconds else rate_rps
    return round(2 * most * (issue_s + 2)) + 4 * clients + SPARE


def longest(study: Study) -> tuple[int, int]:
    """Input and output tokens of the longest request that any level of the study may ask; a session's last turn is."""
    found = []
    for level in study.levels:
        spec = study.workloads[level.workload]
        output = spec.output_tokens.longest
        rows = [(row.input_tokens, row.output_tokens) for row in _trace(study, level)]
        found += rows or [(spec.longest - output, output)]
    return max(found, key=sum)


@dataclass(frozen=True)
class Asked:
    """The requests of one taking and what each of them planned; `turns`: place in its session, from 0, else None;
    `adapters`: the LoRA adapter asked for, None for the model itself.
    """

    requests: tuple[Request, ...]
    prompts: tuple[workload.Prompt, ...]
    turns: tuple[int | None, ...]
    adapters: tuple[str | None, ...]


@dataclass(frozen=True)
class _One:
    """A request before it has a body: `name` and `after` are the ends of request ids."""

    prompt: workload.Prompt
    name: str
    due_s: float | None = None
    think_s: float = 0.0
    after: str | None = None
    turn: int | None = None
    adapter: str | None = None


def ask(
    study: Study, taking: Taking, tokenizer: Tokenizer, body: Body, added_tokens: int, count: int, warm: bool
) -> Asked:
    """Make the requests of one taking (or, with `warm`, of the warm-up before it, which neither thinks nor waits).

    `count` is how many are prepared for a closed loop; an open loop's schedule decides its own number.
    """
    purpose = "warm-up" if warm else "measured"

    def seed(what: str) -> int:
        return schedule.seed_for(study.seed, taking.level.id, taking.repeat, taking.run, f"{purpose}-{what}")

    common: dict[str, Any] = {
        "role": purpose,
        "added_tokens": added_tokens,
        "context_tokens": study.model.context,
    }
    make = _sessions if taking.level.kind == "sessions" else _singles
    ones = make(study, taking.level, tokenizer, count, warm, seed, common)
    requests = []
    for one in ones:
        path, data = body(one.prompt.text, one.prompt.output_tokens, *([one.adapter] if one.adapter else []))
        requests.append(
            Request(
                id=f"{purpose}-{taking.key}-{one.name}",
                path=path,
                body=json.dumps(data).encode(),
                due_s=one.due_s,
                think_s=one.think_s,
                after=None if one.after is None else f"{purpose}-{taking.key}-{one.after}",
                planned_output_tokens=one.prompt.output_tokens,
            )
        )
    return Asked(
        tuple(requests),
        tuple(one.prompt for one in ones),
        tuple(one.turn for one in ones),
        tuple(one.adapter for one in ones),
    )


def _singles(
    study: Study,
    level: Level,
    tokenizer: Tokenizer,
    count: int,
    warm: bool,
    seed: Callable[[str], int],
    common: dict[str, Any],
) -> list[_One]:
    """Requests that know nothing of each other, when they are due or how long their client thinks before."""
    trace = _trace(study, level)
    dues: Sequence[float | None] = [None] * count
    if level.kind in loads.OPEN and not warm:
        dues = _dues_s(level, trace, level.seconds + study.statistics.drain_seconds, seed("arrivals"))
    spec = study.workloads[level.workload]
    if trace:
        rows = [trace[i % len(trace)] for i in range(len(dues))]
        lengths = [(row.input_tokens, row.output_tokens) for row in rows]
    else:
        inputs = _lengths(spec.input_tokens).draw(len(dues), seed("input"))
        outputs = _lengths(spec.output_tokens).draw(len(dues), seed("output"))
        lengths = list(zip(inputs, outputs, strict=True))
    made = workload.prompts(tokenizer, lengths, seed("text"), **common)
    think_s = 0.0 if warm else level.think_seconds or 0.0
    pauses = schedule.think_ns(len(dues), think_s, level.think_shape or "exponential", seed("think"))
    several = zip(made, dues, pauses.tolist(), adapters(level, len(dues), seed("adapters")), strict=True)
    return [
        _One(prompt, str(i), due, pause / 1e9, adapter=adapter)
        for i, (prompt, due, pause, adapter) in enumerate(several)
    ]


def adapters(level: Level, count: int, seed: int) -> list[str | None]:
    """Names of the adapters that so many requests ask for, drawn independently by the level's popularity."""
    if level.adapters is None:
        return [None] * count
    names: list[str | None] = [loads.adapter_name(i) for i in range(level.adapters)]
    weights = [1 / (i + 1) if level.popularity == "zipf" else 1.0 for i in range(level.adapters)]
    return random.Random(seed).choices(names, weights, k=count)


def _sessions(
    study: Study,
    level: Level,
    tokenizer: Tokenizer,
    count: int,
    warm: bool,
    seed: Callable[[str], int],
    common: dict[str, Any],
) -> list[_One]:
    """Conversations, each turn after the one before it: as many as hold `count` requests."""
    spec = study.workloads[level.workload]
    assert spec.turns is not None and spec.question_tokens is not None
    talks = workload.sessions(
        tokenizer,
        count=math.ceil(count / spec.turns),
        turns=spec.turns,
        document=_lengths(spec.input_tokens),
        question=_lengths(spec.question_tokens),
        answer=_lengths(spec.output_tokens),
        think_s=0.0 if warm else level.think_seconds or 0.0,
        think_shape=level.think_shape or "exponential",
        seed=seed("text"),
        **common,
    )
    return [
        _One(turn.prompt, f"{i}-turn-{k}", None, turn.think_ns / 1e9, f"{i}-turn-{k - 1}" if k else None, k)
        for i, talk in enumerate(talks)
        for k, turn in enumerate(talk)
    ]


def _trace(study: Study, level: Level) -> list[loads.TraceRow]:
    if level.trace is None:
        return []
    return loads.read_trace(paths.CONFIG / study.profile / level.trace, level.trace_sha256)


def _dues_s(level: Level, trace: Sequence[loads.TraceRow], until_s: float, seed: int) -> list[float]:
    """When the requests of an open loop are due, in seconds from its start."""
    if trace:
        offsets = schedule.trace_ns([row.arrival_s for row in trace])
        offsets = offsets[offsets < until_s * 1e9]
    else:
        assert level.rate_rps is not None
        offsets = schedule.arrivals_ns(
            level.kind,  # type: ignore[arg-type]  # the open kinds but trace are patterns by that name
            rate_rps=level.rate_rps,
            seed=seed,
            duration_s=until_s,
            burstiness=(level.cv or 1.0) ** -2,
        )
    return [float(ns) / 1e9 for ns in offsets]


def plan(
    study: Study, taking: Taking, asked: Asked, where: dict[str, Any], journal: Path, issue_s: float, warm: bool = False
) -> Plan:
    """The client's plan for a taking (or its warm-up), on a server `where`: port, key_env, reuse.

    `issue_s`: seconds during which requests are issued.
    """
    level, statistics = taking.level, study.statistics
    common: dict[str, Any] = {
        **where,
        "journal": str(journal),
        "requests": asked.requests,
        "drain_s": statistics.drain_seconds,
        "timeout_s": statistics.request_timeout_seconds,
    }
    if warm:
        sessions = level.concurrency or max(1, math.ceil(level.rate_rps or 1))
        return Plan(**common, load=CLOSED, concurrency=sessions, ramp_s=0.0, issue_s=issue_s)
    if level.concurrency is not None:
        ramp = BURST if level.start == "burst" else STAGGER
        common |= {"load": CLOSED, "concurrency": level.concurrency, "ramp": ramp, "ramp_s": ramp_s(level)}
        return Plan(**common, issue_s=issue_s, cooldown=True)
    connections = max(16, math.ceil(4 * (level.rate_rps or 1)))
    return Plan(**common, load=OPEN, issue_s=issue_s, connections=connections, cooldown=True)


def _lengths(spec: config.Lengths) -> workload.Lengths:
    return workload.Lengths(mean=spec.mean, spread=spec.spread, shape=spec.shape)
