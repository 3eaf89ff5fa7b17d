"""Capacity under the SLA: the largest concurrency at which p95 TTFT and p95 TPOT stay within it, read from
predictions by level.

Rule: between two simulated levels the limiting metric is taken as linear in the load; above the highest level nothing
is claimed, the capacity is then "at least" that level. The same reading serves every contender, layout and SLA
strictness.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse.arithmetic import usd_per_million_tokens

GROUP = ["config", "engine", "engine_version", "precision", "kernels", "layout", "policy", "workload", "isl", "osl"]


def crossing(levels: Iterable[float], values: Iterable[float], limit: float) -> float:
    """Load up to which `values` stay within `limit`, rising levels assumed; 0 if already the first is beyond it,
    inf if none is.
    """
    previous: tuple[float, float] | None = None
    for level, value in zip(levels, values, strict=True):
        if not value <= limit:
            if previous is None:
                return 0.0
            low, base = previous
            return low + (level - low) * (limit - base) / (value - base) if np.isfinite(value) else low
        previous = (level, value)
    return float("inf")


def under_sla(
    predictions: pd.DataFrame, ttft_s: float, tpot_s: float, ttft: str = "ttft_p95_s", tpot: str = "tpot_p95_s"
) -> pd.DataFrame:
    """One row per contender, layout, policy and workload: capacity (requests in flight or sessions), whether it is
    a lower limit, which metric ends it, and output throughput (tok/s) there.
    """
    rows: list[dict[str, Any]] = []
    for key, part in predictions.groupby(GROUP, sort=False):
        part = part.sort_values("concurrency")
        levels, top = part["concurrency"].to_numpy(float), float(part["concurrency"].max())
        ends = {"TTFT": crossing(levels, part[ttft], ttft_s), "TPOT": crossing(levels, part[tpot], tpot_s)}
        limiting = min(ends, key=lambda name: ends[name])
        capacity = min(ends[limiting], top)
        speed = (
            float(np.interp(capacity, levels, part["output_tok_s"]))
            if capacity >= levels[0] and part["output_tok_s"].notna().all()
            else np.nan
        )
        rows.append(
            dict(zip(GROUP, key, strict=True))
            | {
                "capacity": capacity,
                "at_least": ends[limiting] > top,
                "output_tok_s": speed,
                "limited_by": "" if ends[limiting] > top else limiting,
                "reason": part["reason"].max(),
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


def as_measured(level: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a prediction's row as the milliseconds that a claim is stated in."""
    return {
        "ttft_p95_ms": level["ttft_p95_s"] * 1e3,
        "tpot_p95_ms": level["tpot_p95_s"] * 1e3,
        "output_tok_s": level["output_tok_s"],
    }
