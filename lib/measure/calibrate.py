"""The instrument's own error: the client against a server that knows the truth, at stated loads.

Rule: what is compared is what a record would say (TTFT from `sent`, gaps between token events) with what the server
knows, on this machine, at one load; which loads, and beside what, is calibrate_study's business. The errors are never
subtracted from anything; the reading half flags a level whose instrument error is too large.

Refused: a load in which no request completed. Not measured here: the network card, which a loopback has not.
"""

import json
import os
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib.errors import MeasureError
from lib.measure import exchange, groundtruth, schedule
from lib.measure.clientplan import CLOSED, OPEN, Plan, Request, split
from lib.measure.connection import allow_files
from lib.measure.workers import run_workers
from lib.paths import BUILD

TTFT_MS = 100.0  # true time to first token
SEED = 1  # of an open load's arrivals
LONGEST, START_S = 2.0, 5.0  # a load may take this many times its own length and this much more; the rest is cut


@dataclass(frozen=True)
class Load:
    """A load to calibrate at.

    streams: held at once, or expected at once in an open loop. tokens_per_s: of each stream. output_tokens: of an
    answer. answers: of each stream in turn, or of the whole load in an open loop. ramp_s: over which the streams start.
    rate_rps: Poisson arrivals per second, which make the loop an open one.
    """

    name: str
    streams: int
    tokens_per_s: float
    output_tokens: int = 128
    answers: int = 2
    ramp_s: float = 1.0
    rate_rps: float | None = None

    @property
    def answer_s(self) -> float:
        """How long one answer takes."""
        return TTFT_MS / 1e3 + (self.output_tokens - 1) / self.tokens_per_s

    @property
    def requests(self) -> int:
        """How many there are."""
        return self.answers if self.rate_rps else self.streams * self.answers

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        if self.rate_rps:
            return self.answers / self.rate_rps + self.answer_s
        return self.ramp_s + self.answers * self.answer_s


def calibrate(
    load: Load,
    *,
    workers: int = 1,
    server_cpus: tuple[int, ...] = (),
    client_cpus: tuple[int, ...] = (),
    twin: bool = False,
) -> dict[str, Any]:
    """Run the client at one load and compare it with the truth.

    Returns
    -------
    load and its parameters; errors in ms: ttft_error_*, gap_error_*, tpot_error_p50/p95/p99_ms (absolute values);
    events_per_s over the middle half of the time; receive_cpu_ms, parse_cpu_ms per 1,000 events; peak_mb of the largest
    client process; load_reached_percent (closed loop); shared_reads_percent; complete, requests; causes of those that
    were not; stamp_sources; server, server_late_us_p99; start_s (command to first request). None where a figure does
    not exist.

    Raises
    ------
    MeasureError : no request completed, or this account may not open so many files.
    """
    dues: list[float | None] = [None] * load.requests
    if load.rate_rps:
        offsets = schedule.arrivals_ns("poisson", rate_rps=load.rate_rps, seed=SEED, count=load.requests)
        dues = [float(ns) / 1e9 for ns in offsets]
    requests = tuple(
        Request(
            id=f"{load.name}-{i}",
            path="/v1/completions",
            body=json.dumps(
                {
                    "model": groundtruth.MODEL,
                    "prompt": f"{i}: a ship on the horizon",
                    "max_tokens": load.output_tokens,
                    "stream": True,
                    "stream_options": {"include_usage": True},
                }
            ).encode(),
            due_s=due,
            planned_output_tokens=load.output_tokens,
        )
        for i, due in enumerate(dues)
    )
    allow_files(load.streams + 64)  # for the server, which inherits it
    BUILD.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="calibrate-", dir=BUILD) as folder,
        groundtruth.serve(ttft_ms=TTFT_MS, itl_ms=1e3 / load.tokens_per_s, cpus=server_cpus, twin=twin) as server,
    ):
        plan = Plan(
            port=server.port, requests=requests, journal=str(Path(folder) / "journal"), cpus=client_cpus,
            load=OPEN if load.rate_rps else CLOSED, concurrency=load.streams, ramp_s=load.ramp_s,
            connections=2 * load.streams if load.rate_rps else 0,
            issue_s=LONGEST * load.seconds + START_S, drain_s=LONGEST * load.answer_s + START_S,
        )
        plans = split(plan, workers) if workers > 1 else [plan]
        began = time.monotonic_ns()
        run_workers(plans)
        parse_began = time.process_time()
        exchanges, outcomes = exchange.merge(plans)
        rows = [exchange.exchange_row(e, e.answer("openai-completions")) for e in exchanges]
        parse_s = time.process_time() - parse_began
        return {
            "load": load.name, "streams": load.streams, "tokens_per_s": load.tokens_per_s,
            "output_tokens": load.output_tokens, "rate_rps": load.rate_rps, "workers": len(plans),
            "server": server.kind, "server_late_us_p99": server.stats()["late_us_p99"],
            "load_average": os.getloadavg()[0],
            **_compare(load, rows, server.truths(), parse_s, began),
            "load_reached_percent": None if load.rate_rps else _reached(load, exchanges),
            **_cost(rows, [outcome.usage for outcome in outcomes]),
        }


def _compare(
    load: Load, rows: list[dict[str, Any]], truths: dict[str, groundtruth.Truth], parse_s: float, began: int
) -> dict[str, Any]:
    good = [row for row in rows if row["status"] == "complete"]
    if not good:
        causes = sorted({str(row["cause"]) for row in rows})
        raise MeasureError(f"Calibration at load {load.name}: none completed ({', '.join(causes) or 'none sent'}).")
    ttft, gaps, tpot = [], [], []
    for row in good:
        truth = truths[row["request_id"]]
        seen = np.array(row["event_ns"])
        ttft.append((seen[0] - row["sent_ns"]) - (truth.token_ns[0] - truth.arrival_ns))
        gaps.append(np.diff(seen) - np.diff(truth.token_ns))
        tpot += [gaps[-1].mean()] if len(seen) > 1 else []
    events = sum(len(row["event_ns"]) for row in good)
    first, last = min(row["sent_ns"] for row in good), max(row["event_ns"][-1] for row in good)
    return {
        **_percentiles("ttft", np.array(ttft)),
        **_percentiles("gap", np.concatenate(gaps)),
        **_percentiles("tpot", np.array(tpot)),
        "events": events,
        "events_per_s": _middle_rate(np.concatenate([row["event_ns"] for row in good]), first, last),
        "parse_cpu_ms": parse_s / events * 1e6,
        "shared_reads_percent": 100 * sum(row["shared_reads"] for row in good) / events,
        "complete": len(good), "requests": load.requests,
        "causes": dict(Counter(str(row["cause"]) for row in rows if row["status"] != "complete")),
        "stamp_sources": sorted({row["stamp_source"] for row in good}),
        "start_s": (first - began) / 1e9,
    }


def _percentiles(name: str, errors: NDArray[Any]) -> dict[str, float | None]:
    """Percentiles of absolute errors, ns in and ms out; None where there is none (one-token answers have no gap)."""
    return {
        f"{name}_error_p{p}_ms": float(np.percentile(np.abs(errors), p)) / 1e6 if len(errors) else None
        for p in (50, 95, 99)
    }


def _middle_rate(stamps: NDArray[Any], first: int, last: int) -> float:
    """Events per second over the middle half of the time: ramp and end are outside it."""
    low, high = first + (last - first) / 4, last - (last - first) / 4
    return float(((stamps >= low) & (stamps < high)).sum() / ((high - low) / 1e9))


def _reached(load: Load, exchanges: list[exchange.Exchange]) -> float | None:
    """Share of the ideal request rate that the closed loop held, in percent: from send to send over one connection."""
    sent: dict[tuple[int, int], list[int]] = {}
    for e in exchanges:
        if e.sent_ns is not None and e.connection is not None:
            sent.setdefault((id(e.reader), e.connection), []).append(e.sent_ns)
    cycles = [b - a for times in sent.values() for a, b in pairwise(sorted(times))]
    return 100 * load.answer_s * 1e9 / float(np.mean(cycles)) if cycles else None


def _cost(rows: list[dict[str, Any]], usages: list[dict[str, float] | None]) -> dict[str, Any]:
    events = sum(len(row["event_ns"]) for row in rows)
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages) or not events:
        return {"receive_cpu_ms": None, "peak_mb": None}
    return {
        "receive_cpu_ms": sum(usage["cpu_s"] for usage in known) / events * 1e6,
        "peak_mb": max(usage["peak_mb"] for usage in known),
    }
