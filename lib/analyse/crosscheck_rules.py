"""Why another load tool's number differs from ours: known differences, each tried by computing what it would explain.

Rule: a reason is given only where undoing it brings the difference within what counts as none, the larger of 2 % and
the noise of the day (A/A); no reason is written by hand for a run. Where none does, the word is "unexplained". What a
tool's use of shared cores can cost has only an upper bound, and the reason says so.

Definitions were read in the tools' own sources and documentation; see lib/measure/peers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib import metrics

SMALLEST = 0.02  # below this no difference is worth a reason, however quiet the day
METRICS = ("ttft_p50_ms", "tpot_p50_ms", "output_tok_s")
UNITS = {"ttft_p50_ms": "ms", "tpot_p50_ms": "ms", "output_tok_s": "tok/s"}
AGREES, UNEXPLAINED = "agrees", "unexplained"

WHOLE_RUN = "it divides by the whole run, the drain at its end included; ours by the time all slots were held"
DEFINITIONS = {
    ("vllm-bench", "output_tok_s"): WHOLE_RUN,
    ("aiperf", "output_tok_s"): WHOLE_RUN,
    ("vllm-bench", "ttft_p50_ms"): "its first event is the first chunk with choices, empty text included",
    ("aiperf", "ttft_p50_ms"): "its first event is the first non-empty response of any kind",
    ("vllm-bench", "tpot_p50_ms"): "its answer ends with the last chunk that has choices, text or not",
    ("aiperf", "tpot_p50_ms"): "its answer ends with the last response, usage included",
}


@dataclass(frozen=True)
class Verdict:
    """One metric of one tool: relative differences to ours as reported and as converted, what counts as none, why."""

    reported: float | None
    converted: float | None
    tolerance: float
    why: str


def columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Turn a run's rows into the columns that `lib.metrics` reads; a request that was never sent is left out."""
    kept = [row for row in rows if row["sent_ns"] is not None]
    stamps = [np.asarray(row["event_ns"], dtype=np.int64) for row in kept]
    numbers = {
        name: np.array([np.nan if row[name] is None else row[name] for row in kept], dtype=np.float64)
        for name in ("sent_ns", "end_ns", "output_tokens", "shared_reads")
    }
    last = np.array([s[-1] if len(s) else np.nan for s in stamps])
    # A peer's answer ends at its last token, ours at its last byte: one moment later, that token falls into the window.
    numbers["end_ns"] = np.fmax(numbers["end_ns"], last + 1)
    return {
        **numbers,
        "event_ns": np.concatenate(stamps) if stamps else np.empty(0, np.int64),
        "event_offsets": np.concatenate([[0], np.cumsum([len(s) for s in stamps])]).astype(np.int64),
        "first_event_ns": np.array([s[0] if len(s) else np.nan for s in stamps]),
        "last_event_ns": last,
        "status": np.array([row["status"] for row in kept], dtype=object),
        "phase": np.full(len(kept), "measured", dtype=object),
    }


def figures(c: Mapping[str, Any], concurrency: int, skip: int = 0) -> dict[str, float]:
    """Medians in ms and output tokens/s of a run, by this study's definitions; NaN where one does not exist.

    `skip` leaves out of the medians the requests that were sent first.
    """
    start, end = window = metrics.steady_window(c, concurrency)
    late = np.argsort(np.argsort(c["sent_ns"])) >= skip
    good = metrics.complete(c) & late

    def median_ms(values: metrics.Floats) -> float:
        kept = values[good & np.isfinite(values)]
        return float(np.median(kept)) * 1e3 if len(kept) else float("nan")

    return {
        "ttft_p50_ms": median_ms(metrics.ttft_s(c)),
        "tpot_p50_ms": median_ms(metrics.tpot_s(c)),
        "output_tok_s": metrics.tokens_in(c, window) / ((end - start) / 1e9) if end > start else float("nan"),
    }


def held(c: Mapping[str, Any], concurrency: int) -> float:
    """Share of the steady window in which a slot had a request in flight, 0 to 1; NaN without a window."""
    start, end = metrics.steady_window(c, concurrency)
    if not end > start:
        return float("nan")
    inside = np.clip(c["end_ns"], start, end) - np.clip(c["sent_ns"], start, end)
    return float(np.nansum(inside) / (concurrency * (end - start)))


@dataclass(frozen=True)
class Side:
    """What the rules know of one tool: its runs' columns, what it reported, its use of the cores, its own error."""

    runs: list[dict[str, Any]]
    reported: Mapping[str, float | None]
    cores: float | None  # CPU seconds a second while it measured
    bias_ms: Mapping[str, float | None]  # against the truth at the smallest load, by metric

    def figure(self, metric: str, concurrency: int, skip: int = 0) -> float:
        """Mean of a metric over the runs."""
        return float(np.mean([figures(c, concurrency, skip)[metric] for c in self.runs]))

    def held(self, concurrency: int) -> float:
        """Mean share of held slots over the runs."""
        return float(np.mean([held(c, concurrency) for c in self.runs]))


def floor(ours: Side, metric: str, concurrency: int) -> float:
    """How far two runs of ours are apart: |a - b| over their mean; 0 with a single run."""
    found = [figures(c, concurrency)[metric] for c in ours.runs]
    return float((max(found) - min(found)) / np.mean(found))


def judge(name: str, metric: str, ours: Side, peer: Side, concurrency: int, shared: bool) -> Verdict:
    """Compare one metric of a peer with ours and find the reason of a difference.

    Parameters
    ----------
    name : the tool's. shared : whether client and engine share their cores.
    """
    reference = ours.figure(metric, concurrency)
    tolerance = max(SMALLEST, floor(ours, metric, concurrency))
    said = peer.reported.get(metric)
    reported = None if said is None else said / reference - 1
    converted = peer.figure(metric, concurrency) / reference - 1

    def near(difference: float) -> bool:
        return bool(abs(difference) <= tolerance)

    if near(converted):
        if reported is None or near(reported):
            return Verdict(reported, converted, tolerance, AGREES)
        return Verdict(reported, converted, tolerance, f"definition: {DEFINITIONS[name, metric]}")
    tried = [
        _connecting(metric, ours, peer, concurrency),
        _own_error(metric, reference, converted, ours, peer),
        _empty_slots(metric, converted, ours, peer, concurrency),
    ]
    reasons = [why for difference, why in tried if difference is not None and near(difference)]
    reasons += [] if reasons else _shared_cores(metric, converted, ours, peer, shared)
    return Verdict(reported, converted, tolerance, reasons[0] if reasons else UNEXPLAINED)


Tried = tuple[float | None, str]  # what would be left of the difference, and the reason in words


def _connecting(metric: str, ours: Side, peer: Side, concurrency: int) -> Tried:
    """Leave out the requests that opened a connection: theirs is in a peer's TTFT, ours are open before the clock."""
    if metric != "ttft_p50_ms":
        return None, ""
    a, b = (side.figure(metric, concurrency, skip=concurrency) for side in (ours, peer))
    return b / a - 1, f"connecting is in its TTFT; without the first {concurrency} requests {b / a - 1:+.1%} is left"


def _own_error(metric: str, reference: float, converted: float, ours: Side, peer: Side) -> Tried:
    """Take off what each tool is wrong by against the truth at a load that none should feel."""
    a, b = ours.bias_ms.get(metric), peer.bias_ms.get(metric)
    if a is None or b is None:
        return None, ""
    left = converted - (b - a) / reference
    return left, f"its own error: it is {b:+.2f} ms off the truth at a small load (ours {a:+.2f}); {left:+.1%} is left"


def _empty_slots(metric: str, converted: float, ours: Side, peer: Side, concurrency: int) -> Tried:
    """Scale throughput by the share of time in which slots were held."""
    if metric != "output_tok_s":
        return None, ""
    a, b = ours.held(concurrency), peer.held(concurrency)
    left = (1 + converted) * a / b - 1
    empty = f"its slots stood empty {1 - b:.1%} of the time between requests (ours {1 - a:.1%})"
    return left, f"{empty}; {left:+.1%} is left"


def _shared_cores(metric: str, converted: float, ours: Side, peer: Side, shared: bool) -> list[str]:
    """Hold a slower server against the most that the tool's extra CPU can have taken from the engine's busiest core."""
    slower = converted < 0 if metric == "output_tok_s" else converted > 0
    if not (shared and slower and ours.cores is not None and peer.cores is not None):
        return []
    extra = peer.cores - ours.cores
    loss = extra if metric == "output_tok_s" else extra / (1 - extra) if extra < 1 else float("inf")
    if abs(converted) > loss:
        return []
    return [
        f"client and engine share their cores: it takes {peer.cores:.2f} of a core (ours {ours.cores:.2f}), which can "
        f"slow the engine by up to {min(loss, 1.0):.0%}"
    ]
