"""Tidy frames of single requests and of what happened over time, for figures and the explorer. Seconds, no judgement.

Rules: a moment that never came is NaN; the batch is rebuilt from the token stamps alone, so that the engine's own
gauge can be checked against it.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lib import metrics, records
from lib.analyse import takings
from lib.analyse.collect import telemetry_of
from lib.errors import NoValue, RecordError


@dataclass(frozen=True)
class Agreement:
    """How the engine's running gauge fits the batch rebuilt from the token stamps.

    The gauge should lie between the requests that decode and all those in flight, since engines count a request
    that is still in prefill as running and one that waits as not.
    """

    samples: int
    outside_share: float  # share of samples at which the gauge is more than one request outside that range
    distance: float  # mean distance from that range over the mean of requests in flight


def requests(record: records.Record) -> pd.DataFrame:
    """Return one row per request of any phase: its identity, counts, status and every metric, in seconds."""
    c = records.columns(record.table)
    identity = ("run", "repeat", "level", "index", "phase", "status", "cause", "input_tokens", "output_tokens")
    frame = pd.DataFrame({name: c[name] for name in identity})
    frame.insert(0, "launch", record.meta["launch"])
    for name, metric in metrics.METRICS.items():
        frame[name] = metric.of(c)
    return frame.astype({"run": "int64", "repeat": "int64", "index": "int64"})


def ttft_samples(record: records.Record) -> pd.DataFrame:
    """Return launch, level, kind, load, run, repeat, ttft_s and ttft_due_s of every request that enters statistics."""
    parts = []
    for taking in takings.of_record(record):
        rows = taking.counted
        parts.append(
            pd.DataFrame(
                {
                    "launch": taking.launch,
                    "level": taking.key[2],
                    "kind": taking.entry["kind"],
                    "load": taking.load,
                    "run": taking.key[0],
                    "repeat": taking.key[1],
                    "ttft_s": metrics.ttft_s(taking.columns)[rows],
                    "ttft_due_s": metrics.ttft_due_s(taking.columns)[rows],
                }
            )
        )
    if not parts:
        raise NoValue(f"{record.path.name} holds no request, so there is no distribution of its TTFT.")
    return pd.concat(parts, ignore_index=True)


def timeline(record: records.Record, run: int, repeat: int, level: str) -> pd.DataFrame:
    """One row per request of one taking, in the order sent.

    Returns
    -------
    index, phase, status, output_tokens, and in seconds from the taking's start: due_s, sent_s, first_s and last_s
    (token events), end_s (last byte).

    Raises
    ------
    NoValue : the record has no such taking.
    """
    taking = _find(record, run, repeat, level)
    c, start = taking.columns, float(taking.entry["issue_start_ns"])
    frame = pd.DataFrame(
        {
            "index": c["index"].astype(int),
            "phase": c["phase"],
            "status": c["status"],
            "output_tokens": c["output_tokens"],
            "due_s": (c["due_ns"] - start) / metrics.NS,
            "sent_s": (c["sent_ns"] - start) / metrics.NS,
            "first_s": (c["first_event_ns"] - start) / metrics.NS,
            "last_s": (c["last_event_ns"] - start) / metrics.NS,
            "end_s": (c["end_ns"] - start) / metrics.NS,
        }
    )
    return frame.sort_values(["sent_s", "index"], kind="stable", ignore_index=True)


def batch_over_time(
    record: records.Record, run: int, repeat: int, level: str, step_s: float = 0.1
) -> tuple[pd.DataFrame, Agreement | None]:
    """Return the requests that decode and requests in flight over one taking, beside the engine's own gauges.

    Parameters
    ----------
    step_s : distance of the grid's points in seconds.

    Returns
    -------
    frame : t_s from the taking's start, batch (between first and last token event), in_flight (sent, not ended),
        running, waiting and kv_cache_usage (last sample at or before t, NaN before the first or without telemetry).
    agreement : of the running gauge with the batch; None without samples of it.

    Raises
    ------
    NoValue : the record has no such taking.
    """
    taking = _find(record, run, repeat, level)
    start, end = float(taking.entry["issue_start_ns"]), float(taking.entry["end_ns"])
    at = np.arange(start, end + 1, step_s * metrics.NS)
    batch, flying = rebuilt(taking, at)
    frame = pd.DataFrame({"t_s": (at - start) / metrics.NS, "batch": batch, "in_flight": flying})
    for name in ("running", "waiting", "kv_cache_usage"):
        frame[name] = _last_known(taking, name, at)
    return frame, agreement(taking)


def rebuilt(taking: takings.Taking, at_ns: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count requests between their first and last token event, and requests sent and not ended, at each moment."""
    c = taking.columns
    until = np.where(np.isfinite(c["sent_ns"]) & ~np.isfinite(c["end_ns"]), np.inf, c["end_ns"])
    return _inside(c["first_event_ns"], c["last_event_ns"], at_ns), _inside(c["sent_ns"], until, at_ns)


def agreement(taking: takings.Taking) -> Agreement | None:
    """Hold the engine's running gauge against the rebuilt batch, at the gauge's own samples in the steady window."""
    if "running" not in taking.telemetry:
        return None
    times, values = taking.telemetry["running"]
    inside = (times >= taking.window[0]) & (times <= taking.window[1]) & np.isfinite(values)
    if not inside.any():
        return None
    batch, flying = rebuilt(taking, times[inside])
    outside = np.clip(batch - values[inside], 0, None) + np.clip(values[inside] - flying, 0, None)
    return Agreement(int(inside.sum()), float((outside > 1).mean()), float(outside.mean() / max(1.0, flying.mean())))


def _inside(starts: NDArray[np.float64], ends: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.int64]:
    has = np.isfinite(starts)
    begun = np.searchsorted(np.sort(starts[has]), at, side="right")
    return np.asarray(begun - np.searchsorted(np.sort(ends[has]), at, side="right"), dtype=np.int64)


def _last_known(taking: takings.Taking, name: str, at: NDArray[np.float64]) -> NDArray[np.float64]:
    if name not in taking.telemetry:
        return np.full(len(at), np.nan)
    times, values = taking.telemetry[name]
    place = np.searchsorted(times, at, side="right") - 1
    return np.where(place >= 0, values[np.clip(place, 0, None)], np.nan)


def _find(record: records.Record, run: int, repeat: int, level: str) -> takings.Taking:
    try:
        telemetry = telemetry_of(record)
    except RecordError:
        telemetry = None
    for taking in takings.of_record(record, telemetry):
        if taking.key == (run, repeat, level):
            return taking
    raise NoValue(f"{record.path.name} holds no taking of level {level!r} in run {run}, repeat {repeat}.")
