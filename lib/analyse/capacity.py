"""Capacity under the SLA: the largest concurrency at which the upper limits of p95 TTFT and p95 TPOT stay within it,
read from predictions by level.

Rule: a capacity is whole requests, rounded down; a missing value has a reason and is never 0. Between two simulated
levels the limiting metric is taken as linear in the load; above the highest level nothing is claimed, the capacity is
then "at least" that level. The same reading serves every contender, layout and SLA strictness.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse.arithmetic import usd_per_million_tokens

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
    rows: list[dict[str, Any]] = []
    for key, part in predictions.groupby(GROUP, sort=False):
        part = part.sort_values("concurrency")
        levels, top = part["concurrency"].to_numpy(float), float(part["concurrency"].max())
        ends = {"TTFT": crossing(levels, part[ttft], ttft_s), "TPOT": crossing(levels, part[tpot], tpot_s)}
        reason = str(part["reason"].max())
        if any(np.isnan(end) for end in ends.values()):
            limiting, capacity, reason = "", float("nan"), reason or "the lowest level has no value"
        else:
            limiting = min(ends, key=lambda name: ends[name])
            capacity = float(np.floor(min(ends[limiting], top)))
        speed = (
            float(np.interp(capacity, levels, part["output_tok_s"]))
            if capacity >= levels[0] and part["output_tok_s"].notna().all()
            else np.nan
        )
        beyond = bool(limiting) and ends[limiting] > top
        rows.append(
            dict(zip(GROUP, key, strict=True))
            | {
                "capacity": capacity,
                "at_least": beyond,
                "output_tok_s": speed,
                "limited_by": "" if beyond else limiting,
                "reason": reason,
            }
        )
    return pd.DataFrame(rows)


def cost_against_strictness(
    predictions: pd.DataFrame,
    node_usd_per_hour: float,
    tpot_s: float,
    ttft_limits_s: Iterable[float] = (0.1, 0.14, 0.18, 0.25, 0.35, 0.5, 1.0),
) -> pd.DataFrame:
    """USD per million output tokens at the capacity that each TTFT limit (s) leaves, per contender, layout and
    workload.
    """
    tables = []
    for limit in ttft_limits_s:
        table = under_sla(predictions, limit, tpot_s).assign(ttft_limit_s=limit)
        table["usd_per_million"] = [
            usd_per_million_tokens(node_usd_per_hour, speed) if speed > 0 else np.nan for speed in table["output_tok_s"]
        ]
        tables.append(table)
    return pd.concat(tables, ignore_index=True)


def best_layout(capacities: pd.DataFrame) -> pd.DataFrame:
    """Return the layout of largest capacity, then throughput, of each contender, policy and workload."""
    order = capacities.sort_values(["capacity", "output_tok_s"], ascending=False)
    return order.drop_duplicates(["config", "policy", "workload"]).sort_index()
