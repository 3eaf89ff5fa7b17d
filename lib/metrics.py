"""Every metric, once: name, unit, formula, and when it does not exist. Numpy alone, so that the SLA search, the
tables and the figures use the same definitions.

All functions take the columns of a record (`records.columns`): times in ns of one monotonic clock. They return
seconds, one float64 per request, NaN where the metric is undefined; NaN is never replaced by 0.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Columns = Mapping[str, Any]  # one array per column; float64, object or int64, see `records.columns`
Floats = NDArray[np.float64]
NS = 1e9


def _seconds(ns: Any) -> Floats:
    return np.asarray(ns / NS, dtype=np.float64)


def ttft_s(c: Columns) -> Floats:
    """Time to first token: first token event - sent. Undefined for a request without a token event."""
    return _seconds(c["first_event_ns"] - c["sent_ns"])


def ttft_due_s(c: Columns) -> Floats:
    """Time to first token from the moment the schedule wanted the request sent: a late client hides nothing."""
    return _seconds(c["first_event_ns"] - c["due_ns"])


def tpot_s(c: Columns) -> Floats:
    """Time per output token after the first: (last token event - first) / (n - 1), n as the server counts.

    Undefined below two tokens, without a server count, and where all events came in one read: the gaps are then
    those of the network, not of the engine.
    """
    n = c["output_tokens"]
    one_read = (c["shared_reads"] >= np.diff(c["event_offsets"]) - 1) & (np.diff(c["event_offsets"]) > 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (c["last_event_ns"] - c["first_event_ns"]) / (n - 1) / NS
    return np.where((n >= 2) & (np.diff(c["event_offsets"]) >= 2) & ~one_read, value, np.nan)


def e2e_s(c: Columns) -> Floats:
    """End to end: last token event - sent. The stream's own end marker may come later and is not waited for."""
    return _seconds(c["last_event_ns"] - c["sent_ns"])


def lag_s(c: Columns) -> Floats:
    """The client's own lateness: sent - due."""
    return _seconds(c["sent_ns"] - c["due_ns"])


@dataclass(frozen=True)
class Metric:
    """A per-request metric: how it is named, shown and computed."""

    label: str
    unit: str  # on the page
    scale: float  # seconds times this is what the page shows
    of: Callable[[Columns], Floats]


METRICS: dict[str, Metric] = {
    "ttft_s": Metric("Time to first token", "ms", 1e3, ttft_s),
    "ttft_due_s": Metric("Time to first token, from due", "ms", 1e3, ttft_due_s),
    "tpot_s": Metric("Time per output token", "ms", 1e3, tpot_s),
    "e2e_s": Metric("End-to-end latency", "s", 1.0, e2e_s),
    "lag_s": Metric("Client lag", "ms", 1e3, lag_s),
}


def complete(c: Columns) -> NDArray[np.bool_]:
    """Requests whose answer is complete: only these enter latency statistics."""
    return np.asarray(c["status"] == "complete")


def chunk_gaps_s(c: Columns, rows: NDArray[np.bool_]) -> Floats:
    """Gaps between neighbouring token events of the chosen requests, pooled. Shape: (gaps,)."""
    stamps, offsets = c["event_ns"], c["event_offsets"]
    gaps = np.diff(stamps) / NS
    inside = np.ones(max(len(stamps) - 1, 0), dtype=bool)
    borders = offsets[1:-1]
    inside[borders[(borders > 0) & (borders < len(stamps))] - 1] = False
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))[:-1] if len(stamps) else np.zeros(0, dtype=int)
    return gaps[inside & rows[owner]] if len(stamps) else np.zeros(0)


def in_flight(starts_ns: Floats, ends_ns: Floats) -> tuple[Floats, Floats]:
    """Requests in flight as a step function.

    Returns
    -------
    times_ns, counts : at times_ns[i] the count becomes counts[i]. An end and a start at one moment leave it as it was.
    """
    times = np.concatenate([starts_ns, ends_ns])
    steps = np.concatenate([np.ones(len(starts_ns)), -np.ones(len(ends_ns))])
    order = np.lexsort((-steps, times))
    return times[order], np.cumsum(steps[order])


def steady_window(c: Columns, concurrency: int | None) -> tuple[float, float]:
    """Find the steady window of one taking of one level.

    Closed loop: from the moment the target concurrency is first held until it is held for the last time; cooldown
    requests hold it until the last measured one has ended. Open loop (`concurrency` None): from the first to the last
    due time of a measured request. Clients that think: `thinking_window`.

    Returns
    -------
    start_ns, end_ns : NaN, NaN where the target was never held.
    """
    rows = c["phase"] != "warmup"
    if concurrency is None:
        due = c["due_ns"][rows & (c["phase"] == "measured")]
        return (float(due.min()), float(due.max())) if len(due) else (np.nan, np.nan)
    sent = c["sent_ns"][rows & np.isfinite(c["sent_ns"])]
    ends = c["end_ns"][rows & np.isfinite(c["sent_ns"]) & np.isfinite(c["end_ns"])]
    times, counts = in_flight(sent, ends)
    held = np.flatnonzero(counts >= concurrency)
    if not len(held) or not (c["phase"] == "measured").any():
        return np.nan, np.nan
    start = times[held[0]]
    return float(start), float(times[min(held[-1] + 1, len(times) - 1)])


def thinking_window(c: Columns, clients: int, issue_end_ns: float) -> tuple[float, float]:
    """Find the steady window of one taking of a closed loop whose clients pause, so that requests in flight vary.

    From the moment the last of the clients sends its first request until the end of issuing, or until the last request
    was due where that was earlier. Each client keeps a connection of its own.

    Returns
    -------
    start_ns, end_ns : NaN, NaN where not all clients ever sent a request.
    """
    sent = np.flatnonzero((c["phase"] != "warmup") & np.isfinite(c["sent_ns"]))
    sent = sent[np.argsort(c["sent_ns"][sent], kind="stable")]
    firsts = sent[np.sort(np.unique(c["connection"][sent], return_index=True)[1])]
    if len(firsts) < clients or not (c["phase"] == "measured").any():
        return np.nan, np.nan
    return float(c["sent_ns"][firsts[clients - 1]]), float(min(issue_end_ns, c["due_ns"][sent].max()))


def counted(c: Columns, is_open: bool, window: tuple[float, float]) -> NDArray[np.bool_]:
    """Find the requests that enter latency statistics: complete measured ones that start within the steady window.

    Without a window (NaN) every complete measured one counts. An open level goes by due times: a late client must not
    push its requests out.
    """
    rows = np.asarray(c["phase"] == "measured") & complete(c)
    if window[1] > window[0]:
        starts = c["due_ns" if is_open else "sent_ns"]
        rows &= (starts >= window[0]) & (starts <= window[1])
    return rows


def tokens_in(c: Columns, window: tuple[float, float]) -> float:
    """Output tokens whose events fall into the window.

    A request's server count is spread evenly over its token events, since an event may carry several tokens;
    a request without a server count gives each event one token. Failed and unfinished requests count with what
    they delivered: the window measures the server.
    """
    stamps, offsets = c["event_ns"], c["event_offsets"]
    events = np.diff(offsets).astype(float)
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = np.where(np.isfinite(c["output_tokens"]) & (events > 0), c["output_tokens"] / events, 1.0)
    per_event = np.repeat(weight, np.diff(offsets))
    return float(per_event[(stamps >= window[0]) & (stamps < window[1])].sum())


def good(c: Columns, ttft_limit_s: float, tpot_limit_s: float, from_due: bool = False) -> NDArray[np.bool_]:
    """Requests that met every SLA bound. Incomplete ones and undefined metrics are not good.

    A one-token answer has no TPOT; it is good when its TTFT is. `from_due`: TTFT counts from when a request was due.
    """
    single, first = c["output_tokens"] == 1, ttft_due_s(c) if from_due else ttft_s(c)
    return np.asarray(complete(c) & (first <= ttft_limit_s) & (single | (tpot_s(c) <= tpot_limit_s)))
