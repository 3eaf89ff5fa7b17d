"""The instrument's own error: the client against a server that knows the truth, at stated loads.

Rule: what is compared is what a record would say (TTFT from `sent`, gaps between token events) with what the server
knows, on this machine, at the load the study plans, idle or beside the engine's load; the result says which. The errors
are never subtracted from anything; a level whose instrument error is too large is flagged (`too_large`).

Refused: a load in which no request completed. Not measured here: the network card, which a loopback has not.
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from lib import records
from lib.errors import MeasureError, tell
from lib.measure import exchange, groundtruth, provenance
from lib.measure.clientplan import Plan, Request, split
from lib.measure.workers import run_workers
from lib.paths import BUILD, RECORDS

TTFT_MS = 100.0  # true time to first token


@dataclass(frozen=True)
class Load:
    """A load to calibrate at: streams held, tokens/s of each, tokens an answer, answers of each stream in turn."""

    name: str
    streams: int
    tokens_per_s: float
    output_tokens: int = 128
    answers: int = 2

    @property
    def seconds(self) -> float:
        """About how long it takes."""
        return 1.0 + self.answers * (TTFT_MS / 1e3 + (self.output_tokens - 1) / self.tokens_per_s)


# The loads at which peers were measured: see LOG.md.
SCENARIOS = (Load("a", 50, 50.0), Load("b", 128, 30.0), Load("c", 256, 100.0, answers=4))


def too_large(error_ms: float, median_ms: float) -> bool:
    """Tell whether an instrument's p99 error exceeds the larger of 1 ms and 2 % of the measured median (both in ms)."""
    return error_ms > max(1.0, 0.02 * median_ms)


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
    load and its parameters; errors in ms: ttft_error_p50/p95/p99_ms, gap_error_p50/p95/p99_ms (absolute values);
    events_per_s; receive_cpu_ms, parse_cpu_ms per 1,000 events; peak_mb of the largest client process;
    load_reached_percent; shared_reads_percent; complete, requests; stamp_sources; server, server_late_us_p99;
    start_s (command to first request). None where a figure does not exist.

    Raises
    ------
    MeasureError : no request completed.
    """
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
            planned_output_tokens=load.output_tokens,
        )
        for i in range(load.streams * load.answers)
    )
    BUILD.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="calibrate-", dir=BUILD) as folder,
        groundtruth.serve(ttft_ms=TTFT_MS, itl_ms=1e3 / load.tokens_per_s, cpus=server_cpus, twin=twin) as server,
    ):
        plan = Plan(
            port=server.port, requests=requests, journal=str(Path(folder) / "journal"), concurrency=load.streams,
            ramp_s=1.0, cpus=client_cpus,
        )
        plans = split(plan, workers)
        began = time.monotonic_ns()
        run_workers(plans)
        parse_began = time.process_time()
        exchanges, outcomes = exchange.merge(plans)
        rows = [exchange.exchange_row(e, e.answer("openai-completions")) for e in exchanges]
        parse_s = time.process_time() - parse_began
        return {
            "load": load.name, "streams": load.streams, "tokens_per_s": load.tokens_per_s,
            "output_tokens": load.output_tokens, "workers": len(plans), "server": server.kind,
            "server_late_us_p99": server.stats()["late_us_p99"], "load_average": os.getloadavg()[0],
            **_compare(load, rows, server.truths(), parse_s, began),
            "load_reached_percent": _reached(load, exchanges),
            **_cost(rows, [outcome.usage for outcome in outcomes]),
        }


def _compare(
    load: Load, rows: list[dict[str, Any]], truths: dict[str, groundtruth.Truth], parse_s: float, began: int
) -> dict[str, Any]:
    good = [row for row in rows if row["status"] == "complete"]
    if not good:
        causes = sorted({str(row["cause"]) for row in rows})
        raise MeasureError(f"Calibration at load {load.name}: none completed ({', '.join(causes) or 'none sent'}).")
    ttft, gaps = [], []
    for row in good:
        truth = truths[row["request_id"]]
        seen = np.array(row["event_ns"])
        ttft.append((seen[0] - row["sent_ns"]) - (truth.token_ns[0] - truth.arrival_ns))
        gaps.append(np.diff(seen) - np.diff(truth.token_ns))
    events = sum(len(row["event_ns"]) for row in good)
    first, last = min(row["sent_ns"] for row in good), max(row["event_ns"][-1] for row in good)
    return {
        **{f"ttft_error_p{p}_ms": float(np.percentile(np.abs(ttft), p)) / 1e6 for p in (50, 95, 99)},
        **{f"gap_error_p{p}_ms": float(np.percentile(np.abs(np.concatenate(gaps)), p)) / 1e6 for p in (50, 95, 99)},
        "events": events,
        "events_per_s": events / ((last - first) / 1e9),
        "parse_cpu_ms": parse_s / events * 1e6,
        "shared_reads_percent": 100 * sum(row["shared_reads"] for row in good) / events,
        "complete": len(good), "requests": len(rows),
        "stamp_sources": sorted({row["stamp_source"] for row in good}),
        "start_s": (first - began) / 1e9,
    }


def _reached(load: Load, exchanges: list[exchange.Exchange]) -> float | None:
    """Share of the ideal request rate that the closed loop held, in percent: from send to send over one connection."""
    sent: dict[tuple[int, int], list[int]] = {}
    for e in exchanges:
        if e.sent_ns is not None and e.connection is not None:
            sent.setdefault((id(e.reader), e.connection), []).append(e.sent_ns)
    cycles = [b - a for times in sent.values() for a, b in pairwise(sorted(times))]
    ideal_s = TTFT_MS / 1e3 + (load.output_tokens - 1) / load.tokens_per_s
    return 100 * ideal_s * 1e9 / float(np.mean(cycles)) if cycles else None


def _cost(rows: list[dict[str, Any]], usages: list[dict[str, float] | None]) -> dict[str, Any]:
    events = sum(len(row["event_ns"]) for row in rows)
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages) or not events:
        return {"receive_cpu_ms": None, "peak_mb": None}
    return {
        "receive_cpu_ms": sum(usage["cpu_s"] for usage in known) / events * 1e6,
        "peak_mb": max(usage["peak_mb"] for usage in known),
    }


def main() -> None:
    """Command line: names of scenarios (all when none is named); prints one line of JSON each.

    A run of all of them is kept as records/calibration.json, from which the article takes the client's error. Server
    and client get a core each where there are two.
    """
    cores = sorted(os.sched_getaffinity(0))
    apart = ((cores[0],), (cores[1],)) if len(cores) >= 2 else ((), ())
    chosen = [load for load in SCENARIOS if load.name in sys.argv[1:] or not sys.argv[1:]]
    found = []
    for load in chosen:
        found.append(calibrate(load, server_cpus=apart[0], client_cpus=apart[1]))
        print(json.dumps(found[-1]), flush=True)
    if len(chosen) == len(SCENARIOS):
        keep(found, RECORDS / "calibration.json")


def keep(found: Sequence[dict[str, Any]], path: Path) -> None:
    """Write what the scenarios found to disk, with the machine and the date, whole or not at all.

    Raises
    ------
    RecordError : a folder that cannot be written to.
    """
    whole = {"when_utc": provenance.utc(), "machine": provenance.machine(), "loads": list(found)}
    records.write_whole(path, (json.dumps(whole, indent=1) + "\n").encode())


if __name__ == "__main__":
    tell(main)
