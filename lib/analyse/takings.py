"""One taking of one level: its requests, its steady window and what it says. Records in, plain values out.

Rules: only measured requests that start within the steady window and end complete enter latency statistics; all
measured ones are counted, by status. A value that does not exist is NaN. Everything is vectorised over requests and
token events: ten million events take seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from lib import loads, metrics, records, stats
from lib.analyse import energy
from lib.config import Sla

NS = metrics.NS
Key = tuple[int, int, str]  # run, repeat, level
Samples = Mapping[str, tuple[NDArray[np.float64], NDArray[np.float64]]]  # name -> t_ns, value; both (samples,)


@dataclass(frozen=True)
class Taking:
    """One taking. `columns` holds all its rows (warm-up and cool-down too), `entry` its line in the record's meta."""

    launch: str
    entry: Mapping[str, Any]
    columns: metrics.Columns
    telemetry: Samples

    @property
    def key(self) -> Key:
        """Run, repeat and level."""
        return int(self.entry["run"]), int(self.entry["repeat"]), str(self.entry["level"])

    @property
    def is_open(self) -> bool:
        """Whether requests came when they were due, whatever the server did."""
        return self.entry["kind"] in loads.OPEN

    @property
    def load(self) -> float:
        """Clients of a closed loop, requests per second of an open one."""
        return float(self.entry["rate_rps" if self.is_open else "concurrency"])

    @cached_property
    def window(self) -> tuple[float, float]:
        """The steady window: start and end in ns, NaN where the target was never held."""
        if self.entry["kind"] in loads.THINKING:
            return metrics.thinking_window(self.columns, self.entry["concurrency"], self.entry["issue_end_ns"])
        return metrics.steady_window(self.columns, self.entry["concurrency"])

    @property
    def steady_s(self) -> float:
        """Length of the steady window in seconds, NaN where it has none."""
        length = (self.window[1] - self.window[0]) / NS
        return length if length > 0 else float("nan")

    @cached_property
    def measured(self) -> NDArray[np.bool_]:
        """Requests that are measured, whatever became of them. Shape: (requests,)."""
        return np.asarray(self.columns["phase"] == "measured")

    @cached_property
    def counted(self) -> NDArray[np.bool_]:
        """Requests that enter latency statistics; without a steady window, every complete measured one."""
        return metrics.counted(self.columns, self.is_open, self.window)

    def values(self, metric: str, turn: int | None = None) -> metrics.Floats:
        """One of `metrics.METRICS` for the counted requests (of one turn), in seconds; undefined ones left out."""
        rows = self.counted if turn is None else self.counted & (self.columns["turn"] == turn)
        return stats.finite(self.every(metric)[rows])

    def every(self, metric: str) -> metrics.Floats:
        """One of `metrics.METRICS` for all rows of the taking, in seconds, NaN where undefined."""
        return self._all[metric]

    @cached_property
    def _all(self) -> dict[str, metrics.Floats]:
        return {name: metric.of(self.columns) for name, metric in metrics.METRICS.items()}

    def gauge(self, name: str) -> NDArray[np.float64]:
        """Return the sampled values of one telemetry name, empty where there are none."""
        return self.telemetry[name][1] if name in self.telemetry else np.zeros(0)


def of_record(record: records.Record, telemetry: pd.DataFrame | None = None) -> list[Taking]:
    """Cut a record into its takings, in the order they were taken; one without a row is left out."""
    c = records.columns(record.table)
    rows = _groups(pd.DataFrame({k: c[k] for k in ("run", "repeat", "level")}))
    sampled = _groups(telemetry) if telemetry is not None else {}
    found = []
    # `order` counts within a run.
    for entry in sorted(record.meta["takings"], key=lambda t: (int(t["run"]), int(t["order"]))):
        key = int(entry["run"]), int(entry["repeat"]), str(entry["level"])
        if key in rows:
            samples = _samples(telemetry.iloc[sampled[key]]) if telemetry is not None and key in sampled else {}
            found.append(Taking(str(record.meta["launch"]), entry, select(c, rows[key]), samples))
    return found


def select(c: metrics.Columns, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    """Pick some rows of a record's columns, their token stamps with them. `rows` holds indices."""
    offsets = c["event_offsets"]
    lengths = np.diff(offsets)[rows]
    new = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    place = np.repeat(offsets[:-1][rows] - new[:-1], lengths) + np.arange(new[-1])
    picked = {k: v[rows] for k, v in c.items() if k not in ("event_ns", "event_offsets")}
    return picked | {"event_ns": c["event_ns"][place], "event_offsets": new}


def in_flight_mean(taking: Taking) -> float:
    """Average the requests in flight over the steady window by time; NaN without a window."""
    start, end = taking.window
    sent, ended = taking.columns["sent_ns"], taking.columns["end_ns"]
    until = np.where(np.isfinite(ended), ended, np.inf)  # one that never ended was in flight to the last
    inside = np.minimum(until, end) - np.maximum(sent, start)
    return float(np.nansum(np.clip(inside, 0, None)) / NS / taking.steady_s)


def clients(taking: Taking) -> float:
    """How many clients of a closed loop sent a measured request; NaN for an open one and where no record says."""
    numbers = stats.finite(taking.columns.get("connection", np.zeros(0))[taking.measured])
    return float(len(np.unique(numbers))) if len(numbers) and not taking.is_open else float("nan")


def decoding_mean(taking: Taking) -> float:
    """Average the requests between their first and last token event over the steady window by time; NaN without one."""
    start, end = taking.window
    inside = np.minimum(taking.columns["last_event_ns"], end) - np.maximum(taking.columns["first_event_ns"], start)
    return float(np.nansum(np.clip(inside, 0, None)) / NS / taking.steady_s)


def joined_share(taking: Taking) -> float:
    """Share of counted requests whose first token comes while another is in the middle of its answer: after that
    one's second token event and before its last. Without batching in flight it is 0; NaN without requests.
    """
    c = taking.columns
    several = np.diff(c["event_offsets"]) >= 2
    begun = np.sort(c["event_ns"][c["event_offsets"][:-1][several] + 1])
    ended = np.sort(c["last_event_ns"][several])
    first = stats.finite(c["first_event_ns"][taking.counted])
    amid = np.searchsorted(begun, first, side="left") - np.searchsorted(ended, first, side="right")
    return float(np.mean(amid > 0)) if len(first) else float("nan")


def summary(taking: Taking, sla: Sla) -> dict[str, Any]:
    """Return the row of takings.csv: latencies and windows in seconds, rates per second, shares 0..1."""
    c, steady = taking.columns, taking.steady_s
    status = c["status"][taking.measured]
    ended_inside = (c["end_ns"] >= taking.window[0]) & (c["end_ns"] < taking.window[1])
    good = metrics.good(c, sla.ttft_p95_ms / 1e3, sla.tpot_p95_ms / 1e3, taking.is_open)
    events = np.diff(c["event_offsets"])
    counted = taking.counted & np.isfinite(c["output_tokens"])
    entry, tokens = taking.entry, metrics.tokens_in(c, taking.window)
    return {
        "launch": taking.launch,
        "run": taking.key[0],
        "repeat": taking.key[1],
        "level": taking.key[2],
        "kind": entry["kind"],
        "load": taking.load,
        "workload": entry["workload"],
        "steady_s": steady,
        "in_flight_mean": in_flight_mean(taking),
        "decoding_mean": decoding_mean(taking),
        "joined_share": joined_share(taking),
        "requests": int(taking.measured.sum()),
        **{s: int((status == s).sum()) for s in records.STATUSES},
        "ttft_p50_s": _percentile(taking.values("ttft_s"), 0.5),
        "ttft_p95_s": _percentile(taking.values("ttft_s"), 0.95),
        "tpot_p50_s": _percentile(taking.values("tpot_s"), 0.5),
        "tpot_p95_s": _percentile(taking.values("tpot_s"), 0.95),
        "e2e_p50_s": _percentile(taking.values("e2e_s"), 0.5),
        "output_tok_s": tokens / steady,
        "requests_s": float((ended_inside & metrics.complete(c)).sum()) / steady,
        "goodput_s": float((ended_inside & good).sum()) / steady,
        "lag_p99_s": _quantile(metrics.lag_s(c)[taking.measured], 0.99),
        "kv_cache_usage_max": _largest(taking.gauge("kv_cache_usage")),
        "preemptions": _growth(taking.gauge("preemptions_total")),
        "prefix_hit_share": _ratio(
            _growth(taking.gauge("prefix_cache_hits_total")), _growth(taking.gauge("prefix_cache_queries_total"))
        ),
        "client_cpu_share": _ratio(entry["client_cpu_s"], (entry["end_ns"] - entry["issue_start_ns"]) / NS),
        "tokens_per_event": _ratio(float(c["output_tokens"][counted].sum()), float(events[counted].sum())),
        "shared_reads_share": _ratio(float(np.nansum(c["shared_reads"])), float(events.sum())),
        "ttft_p50_with_ramp_s": _percentile(metrics.ttft_s(c)[taking.measured & metrics.complete(c)], 0.5),
        "clients": clients(taking),
        **energy.summary(taking.telemetry, taking.window, tokens),
        "ended": entry["ended"],
    }


def _groups(frame: pd.DataFrame) -> dict[Key, NDArray[np.int64]]:
    groups: Any = frame.groupby(["run", "repeat", "level"], sort=False, observed=True).indices
    return {(int(run), int(repeat), str(level)): np.asarray(rows) for (run, repeat, level), rows in groups.items()}


def _samples(frame: pd.DataFrame) -> Samples:
    ordered = frame.sort_values("t_ns", kind="stable")
    return {
        str(name): (part["t_ns"].to_numpy(float), part["value"].to_numpy(float))
        for name, part in ordered.groupby("name", sort=True)
    }


def _quantile(values: metrics.Floats, p: float) -> float:
    x = stats.finite(values)
    return float(np.quantile(x, p)) if len(x) else float("nan")


def _percentile(values: metrics.Floats, p: float) -> float:
    """Percentile where the sample supports it: a median always, others from `stats.needed` values."""
    x = stats.finite(values)
    return _quantile(x, p) if p == 0.5 or len(x) >= stats.needed(p) else float("nan")


def _largest(values: NDArray[np.float64]) -> float:
    x = stats.finite(values)
    return float(x.max()) if len(x) else float("nan")


def _growth(counter: NDArray[np.float64]) -> float:
    """Growth of a counter from its first to its last sample."""
    x = stats.finite(counter)
    return float(x[-1] - x[0]) if len(x) > 1 else float("nan")


def _ratio(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole and whole > 0 else float("nan")
