"""Capacity under an SLA: the largest concurrency at which the upper limits of TTFT and TPOT, at the percentile asked
for, stay within it, read from predictions by level.

Rule: a capacity is whole requests, rounded down; a missing value has a reason and is never 0. Between two simulated
levels the limiting metric is taken as linear in the load; above the highest level nothing is claimed, the capacity is
then "at least" that level. The same reading serves every contender, layout and SLA; without another the SLA is the
article's. Refuses an SLA with a limit that is no positive number, or at a percentile that no prediction holds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse.arithmetic import usd_per_million_tokens
from lib.errors import ConfigError

PERCENTILES = (50, 95, 99)  # of TTFT and TPOT, in data/predictions.csv
TTFT_LIMITS_MS = (100.0, 140.0, 180.0, 250.0, 350.0, 500.0, 1000.0)  # what costs are drawn over, beside the SLA's own
GROUP = ["config", "engine", "engine_version", "precision", "kernels", "layout", "policy", "workload", "isl", "osl"]


def crossing(levels: Iterable[float], values: Iterable[float], limit: float) -> float:
    """Load up to which `values` stay within `limit`, rising levels assumed; 0 if already the first is beyond it,
    inf if none is, NaN if the first has no value.
    """
    previous: tuple[float, float] | None = None
    for level, value in zip(levels, values, strict=True):
        if not value <= limit:
            if previous is None:
                return 0.0 if np.isfinite(value) else float("nan")
            low, base = previous
            return low + (level - low) * (limit - base) / (value - base) if np.isfinite(value) else low
        previous = (level, value)
    return float("inf")


@dataclass(frozen=True)
class Target:
    """An SLA: limits on TTFT and TPOT (ms), the percentile of requests that keep them, and sessions at once."""

    ttft_ms: float
    itl_ms: float
    percentile: int = 95
    sessions: float = 50.0

    @property
    def columns(self) -> tuple[str, str]:
        """Columns of the predictions that are held against the limits: upper limits of TTFT and TPOT."""
        return f"ttft_p{self.percentile}_s_high", f"tpot_p{self.percentile}_s_high"


def target(
    claims: Mapping[str, Any],
    ttft_ms: Any = None,
    itl_ms: Any = None,
    percentile: Any = None,
    sessions: Any = None,
) -> Target:
    """Return the article's SLA with what is given in place of its own; numbers may come as text, from a command line.

    ConfigError for a limit that is no positive number, and for a percentile other than `PERCENTILES`.
    """
    own = claims["sla"]
    asked = {
        "ttft_ms": own["ttft_ms"] if ttft_ms is None else ttft_ms,
        "itl_ms": own["inter_token_latency_ms"] if itl_ms is None else itl_ms,
        "percentile": 95 if percentile is None else percentile,
        "sessions": own["concurrent_requests"] if sessions is None else sessions,
    }
    numbers = {name: _positive(name, value) for name, value in asked.items()}
    if numbers["percentile"] not in PERCENTILES:
        raise ConfigError(
            f"no prediction holds the percentile {asked['percentile']}; data/predictions.csv has "
            f"{', '.join(map(str, PERCENTILES))} of TTFT and of TPOT. Ask for one of them."
        )
    return Target(numbers["ttft_ms"], numbers["itl_ms"], int(numbers["percentile"]), numbers["sessions"])


def _positive(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"an SLA needs {name} as a positive number, got {value!r}; the name carries its unit.")
    return number


def within(predictions: pd.DataFrame, asked: Target) -> pd.DataFrame:
    """Return `under_sla` at the limits and the percentile of an SLA."""
    return under_sla(predictions, asked.ttft_ms / 1e3, asked.itl_ms / 1e3, *asked.columns)


def under_sla(
    predictions: pd.DataFrame,
    ttft_s: float,
    tpot_s: float,
    ttft: str = "ttft_p95_s_high",
    tpot: str = "tpot_p95_s_high",
) -> pd.DataFrame:
    """One row per contender, layout, policy and workload: capacity (whole requests in flight or sessions), whether
    it is a lower limit, which metric ends it, and output throughput (tok/s) there.

    `ttft` and `tpot` name the columns held against the limits, by default the upper limits of both p95. A capacity
    of 0 means that a single request misses; where a contender has no values it is NaN, with `reason`.
    """
    ordered = predictions.sort_values("concurrency", kind="stable")
    loads, speeds = (ordered[name].to_numpy(float) for name in ("concurrency", "output_tok_s"))
    firsts, gaps, reasons = ordered[ttft].to_numpy(float), ordered[tpot].to_numpy(float), ordered["reason"].to_numpy()
    places: Any = ordered.groupby(GROUP, sort=False).indices
    rows: list[dict[str, Any]] = []
    for key, at in sorted(places.items(), key=lambda entry: entry[1][0]):  # contenders in the order of the file
        levels, speed = loads[at], speeds[at]
        top = float(levels[-1])
        ends = {"TTFT": crossing(levels, firsts[at], ttft_s), "TPOT": crossing(levels, gaps[at], tpot_s)}
        reason = str(max(reasons[at]))
        if any(np.isnan(end) for end in ends.values()):
            limiting, capacity, reason = "", float("nan"), reason or "the lowest level has no value"
        else:
            limiting = min(ends, key=lambda name: ends[name])
            capacity = float(np.floor(min(ends[limiting], top)))
        served = capacity >= levels[0] and bool(np.isfinite(speed).all())
        beyond = bool(limiting) and ends[limiting] > top
        rows.append(
            dict(zip(GROUP, key, strict=True))
            | {
                "capacity": capacity,
                "at_least": beyond,
                "output_tok_s": float(np.interp(capacity, levels, speed)) if served else np.nan,
                "limited_by": "" if beyond else limiting,
                "reason": reason,
            }
        )
    return pd.DataFrame(rows)


def cost_against_strictness(predictions: pd.DataFrame, node_usd_per_hour: float, asked: Target) -> pd.DataFrame:
    """USD per million output tokens at the capacity that each TTFT limit leaves, `TTFT_LIMITS_MS` and the SLA's own
    (column ttft_limit_s), per contender, layout and workload.
    """
    tables = []
    for limit in sorted({*TTFT_LIMITS_MS, asked.ttft_ms}):
        table = within(predictions, replace(asked, ttft_ms=limit)).assign(ttft_limit_s=limit / 1e3)
        table["usd_per_million"] = [
            usd_per_million_tokens(node_usd_per_hour, speed) if speed > 0 else np.nan for speed in table["output_tok_s"]
        ]
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def best_layout(capacities: pd.DataFrame) -> pd.DataFrame:
    """Return the layout of largest capacity, then throughput, of each contender, policy and workload."""
    order = capacities.sort_values(["capacity", "output_tok_s"], ascending=False)
    return order.drop_duplicates(["config", "policy", "workload"]).sort_index()
