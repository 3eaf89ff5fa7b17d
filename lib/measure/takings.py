"""Which levels are taken in which order, and what one taking asks: from the study's config to client requests.

Rule: everything here depends on the study's seed, the level, the run and the repeat, never on the contender. All
contenders meet the same prompts, lengths and due times; a faster one only gets further down the same list.
"""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lib import config
from lib.config import Level, Study
from lib.measure import schedule, workload
from lib.measure.clientplan import CLOSED, OPEN, Plan, Request

Body = Callable[[str, int], tuple[str, dict[str, Any]]]  # prompt, output tokens -> path, JSON body

RAMP_SHARE = 0.25  # a closed level's starts are spread over this share of its seconds


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
    needs for the requests that the level wants at least.
    """
    wanted = min(level.at_most_seconds, level.requests / rate_rps)
    return max(level.seconds, wanted) + ramp_s(level)


def ramp_s(level: Level) -> float:
    """Seconds over which a closed level's first starts are spread; an open loop has no ramp."""
    return RAMP_SHARE * level.seconds if level.kind == "closed" and (level.concurrency or 0) > 1 else 0.0


def longest(study: Study) -> tuple[int, int]:
    """Input and output tokens of the longest request that any level of the study may ask."""
    specs = [study.workloads[level.workload] for level in study.levels]
    return max(
        ((_lengths(spec.input_tokens).bounds[1], _lengths(spec.output_tokens).bounds[1]) for spec in specs), key=sum
    )


@dataclass(frozen=True)
class Asked:
    """The requests of one taking and what each of them planned."""

    requests: tuple[Request, ...]
    prompts: tuple[workload.Prompt, ...]


def ask(
    study: Study, taking: Taking, tokenizer: Tokenizer, body: Body, added_tokens: int, count: int, warm: bool
) -> Asked:
    """Make the requests of one taking (or, with `warm`, of the warm-up before it).

    `count` is how many are prepared for a closed loop; an open loop's schedule decides its own number.
    """
    level = taking.level
    purpose = "warm-up" if warm else "measured"

    def seed(what: str) -> int:
        return schedule.seed_for(study.seed, level.id, taking.repeat, taking.run, f"{purpose}-{what}")

    dues: list[float | None] = [None] * count
    if level.kind == "poisson" and not warm:
        assert level.rate_rps is not None
        offsets = schedule.arrivals_ns(
            "poisson",
            rate_rps=level.rate_rps,
            seed=seed("arrivals"),
            duration_s=seconds(level) + study.statistics.drain_seconds,
        )
        dues = [float(ns) / 1e9 for ns in offsets]
    spec = study.workloads[level.workload]
    inputs = _lengths(spec.input_tokens).draw(len(dues), seed("input"))
    outputs = _lengths(spec.output_tokens).draw(len(dues), seed("output"))
    made = workload.prompts(
        tokenizer,
        list(zip(inputs, outputs, strict=True)),
        seed("text"),
        role="warm-up" if warm else "measured",
        added_tokens=added_tokens,
        context_tokens=study.model.context,
    )
    requests = []
    for i, (prompt, due) in enumerate(zip(made, dues, strict=True)):
        path, data = body(prompt.text, prompt.output_tokens)
        requests.append(
            Request(
                id=f"{purpose}-{taking.key}-{i}",
                path=path,
                body=json.dumps(data).encode(),
                due_s=due,
                planned_output_tokens=prompt.output_tokens,
            )
        )
    return Asked(tuple(requests), tuple(made))


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
    if level.kind == "closed":
        assert level.concurrency is not None
        return Plan(
            **common, load=CLOSED, concurrency=level.concurrency, ramp_s=ramp_s(level), issue_s=issue_s, cooldown=True
        )
    connections = max(16, math.ceil(4 * (level.rate_rps or 1)))
    return Plan(**common, load=OPEN, issue_s=issue_s, connections=connections, cooldown=True)


def _lengths(spec: config.Lengths) -> workload.Lengths:
    return workload.Lengths(mean=spec.mean, spread=spec.spread, shape=spec.shape)
