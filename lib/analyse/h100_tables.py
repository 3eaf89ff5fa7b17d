"""Tidy tables of what is known about the article's H100 node: arithmetic, rows against bound and prediction, ledger,
capacity, cost, factorial, and how far predictions and kernels are from what was published and measured.

`measured` is everywhere what `world.measured_from` gives, or None without records. Each table is a few lines over the
modules beside it, so that a notebook cell is one call. Kinds of number stand in a column, never mixed. Refuses nothing
of its own: what data/ refuses, it passes on.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse import (
    agreement,
    arithmetic,
    capacity,
    cheapest,
    claims,
    factorial,
    physics,
    predict,
    published,
    shards,
    world,
)
from lib.analyse.predict import records

Measured = Mapping[str, Mapping[str, Any]]
PRICE = "lambda-2026"  # the scenario that costs are shown for; the range stands beside it
WORK = {w.name: w for w in predict.WORKLOADS}


def arithmetic_table() -> list[dict[str, Any]]:
    """Return Little's law over the article's rows: by row and assumed tokens an answer, the implied ITL (ms) at the
    row's and at the SLA's load, and the requests at once that the SLA's ITL allows.
    """
    data = published.claims()
    return [reading for row in data["rows"] for reading in arithmetic.row_readings(row, data["sla"])]


def true_if_table() -> list[dict[str, Any]]:
    """Which reading of what each row leaves unstated would make it agree with the SLA's ITL, with its number."""
    data = published.claims()
    return [{"row": row["id"], **reading} for row in data["rows"] for reading in arithmetic.true_if(row, data["sla"])]


def unstated() -> list[str]:
    """Return what the article does not state."""
    return list(published.claims()["article"]["unstated"])


def price_table() -> list[dict[str, Any]]:
    """USD per million output tokens of each row at each published rent, and each row over the first per dollar."""
    data = published.claims()
    first = data["rows"][0]["output_tok_s"]
    return [
        {
            "row": row["id"],
            "price": p["id"],
            "usd_per_gpu_hour": p["value"],
            "usd_per_million": arithmetic.usd_per_million_tokens(
                p["value"] * data["article"]["gpus"], row["output_tok_s"]
            ),
            "tokens_per_usd_over_first": arithmetic.price_ratio(row["output_tok_s"], first),
        }
        for row in data["rows"]
        for p in published.prices()
    ]


def article_rows(measured: Measured | None = None) -> list[dict[str, Any]]:
    """Return the article's rows beside bound, prediction and this study's records: tidy rows (row, workload, kind,
    ttft_ms, itl_ms, tok/s).
    """
    data, rows = published.claims(), []
    bounds, readings = world.bound_rows(data), world.readings(data, predict.load())
    for row in data["rows"]:
        base = {
            "row": row["id"],
            "engine": row["engine"],
            "precision": row["precision"],
            "concurrency": row["max_concurrent"],
        }
        rows.append(
            {
                **base,
                "workload": "unstated",
                "kind": "published",
                "reading": "article",
                "ttft_p95_ms": row["ttft_p95_ms"],
                "itl_ms": np.nan,
                "output_tok_s": row["output_tok_s"],
            }
        )
        for b in bounds:
            if b["row"] == row["id"]:
                rows.append(
                    {
                        **base,
                        "workload": b["workload"],
                        "kind": "bound",
                        "reading": "best layout",
                        "ttft_p95_ms": b["ttft_ms"],
                        "itl_ms": b["itl_ms"],
                        "output_tok_s": b["output_tok_s"],
                    }
                )
        for r in readings:
            if r["row"] == row["id"]:
                rows.append(
                    {
                        **base,
                        "workload": r["workload"],
                        "kind": "predicted",
                        "reading": f"{r['config']}, {r['reading']}",
                        "ttft_p95_ms": r["ttft_p95_ms"],
                        "itl_ms": r["tpot_p95_ms"],
                        "output_tok_s": r["output_tok_s"],
                    }
                )
        if found := (measured or {}).get(row["id"]):
            rows.append(
                {
                    **base,
                    "workload": found.get("workload", ""),
                    "kind": "measured",
                    "reading": "record",
                    "ttft_p95_ms": found.get("ttft_p95_ms", np.nan),
                    "itl_ms": found.get("tpot_p95_ms", np.nan),
                    "output_tok_s": found.get("output_tok_s", np.nan),
                }
            )
    return rows


def bounds_table() -> list[dict[str, Any]]:
    """Bounds of the article's model on its GPU: one row per precision, layout and workload, at 64 in flight (ms,
    tok/s, tokens, bytes).
    """
    article, rows = published.claims()["article"], []
    for precision in ("bf16", "fp8", "int4"):
        for layout in predict.LAYOUTS:
            limit, replicas = world.bound_of(precision, layout, article["model"], article["gpu"])
            for w in world.SINGLE:
                each = 64 / replicas
                rows.append(
                    {
                        "precision": precision,
                        "layout": layout,
                        "workload": w.name,
                        "isl": w.isl,
                        "osl": w.osl,
                        "concurrency": 64,
                        "prefill_ms": limit.prefill_s(w.isl) * 1e3,
                        "decode_step_ms": limit.decode_step_s(each, w.isl + w.osl / 2) * 1e3,
                        "output_tok_s": replicas * limit.throughput_tok_s(w.isl, w.osl, each),
                        "kv_tokens": replicas * limit.kv_capacity_tokens(),
                        "sessions": replicas * limit.sessions_that_fit(w.isl + w.osl),
                        "allreduce_bytes_per_token": limit.allreduce_bytes(1),
                    }
                )
    return rows


def ledger(measured: Measured | None = None) -> list[dict[str, Any]]:
    """Return the claims ledger: one row per claim with verdict, reason and evidence."""
    data = published.claims()
    here, _ = world.gather(data, predict.load(), measured)
    return claims.ledger(claims.judge(data, here))


def target(ttft_ms: Any = None, itl_ms: Any = None, percentile: Any = None, sessions: Any = None) -> capacity.Target:
    """Return the article's SLA with what is given in place of its own limits (ms), percentile and sessions; ConfigError
    as in `capacity.target`.
    """
    return capacity.target(published.claims(), ttft_ms, itl_ms, percentile, sessions)


def capacities(price_id: str = PRICE, sla: capacity.Target | None = None) -> pd.DataFrame:
    """Capacity under an SLA, by default the article's, by contender, layout, policy and workload, with throughput and
    cost there (USD per million tokens), and beside them the bounds: of that layout throughput at that load and sessions
    that fit, of any layout the lowest cost under the SLA.
    """
    return _capacities(price_id, sla or target()).copy()


@lru_cache(maxsize=8)
def _capacities(price_id: str, sla: capacity.Target) -> pd.DataFrame:
    article = published.claims()["article"]
    node = node_usd_per_hour(price_id)
    table = capacity.within(predict.load(), sla)
    table["usd_per_million"] = [
        arithmetic.usd_per_million_tokens(node, speed) if speed > 0 else np.nan for speed in table["output_tok_s"]
    ]
    most, sessions = [], []
    for row in records(table):
        limit, replicas = world.bound_of(row["precision"], row["layout"], article["model"], article["gpu"])
        new = WORK[row["workload"]].turn_isl or row["isl"]  # of a session at least the newest message is prefilled
        used = min(replicas, row["capacity"])
        served = row["capacity"] >= 1
        most.append(used * limit.throughput_tok_s(new, row["osl"], row["capacity"] / used) if served else np.nan)
        sessions.append(replicas * limit.sessions_that_fit(row["isl"] + row["osl"]))
    least = [lowest_usd(p, w, sla, node) for p, w in zip(table["precision"], table["workload"], strict=True)]
    return table.assign(bound_output_tok_s=most, bound_sessions=sessions, bound_usd_per_million=least)


def node_usd_per_hour(price_id: str = PRICE) -> float:
    """Rent of the article's whole node at one of the published prices, USD per hour."""
    return float(published.price(price_id)["value"] * published.claims()["article"]["gpus"])


@lru_cache(maxsize=1024)
def lowest_usd(precision: str, workload: str, sla: capacity.Target, usd_per_hour: float) -> float:
    """USD per million output tokens that nothing on the article's node can undercut at a precision; NaN where nothing
    keeps the SLA.
    """
    article = published.claims()["article"]
    node = physics.node(article["model"], article["gpu"], article["gpus"], precision)
    return cheapest.lowest_usd_per_million(node, WORK[workload], sla, usd_per_hour)


def cost_curves(price_id: str = PRICE, sla: capacity.Target | None = None) -> pd.DataFrame:
    """Cost against SLA strictness: USD per million output tokens by TTFT limit (s), contender, layout and workload,
    beside the lowest that physics allows for that precision at that limit, in any layout.
    """
    asked, node = sla or target(), node_usd_per_hour(price_id)
    table = capacity.cost_against_strictness(predict.load(), node, asked)
    at = zip(table["precision"], table["workload"], table["ttft_limit_s"], strict=True)
    return table.assign(
        bound_usd_per_million=[lowest_usd(p, w, replace(asked, ttft_ms=limit * 1e3), node) for p, w, limit in at]
    )


def factorial_table(measured: Measured | None = None) -> pd.DataFrame:
    """Return the factorial: engine, precision, load, version and layout effects by kind of evidence."""
    own = (measured or {}).get("contrasts", {}).get("rows", [])
    return factorial.factorial(predict.load(), published.references(), own)


def prediction_errors() -> pd.DataFrame:
    """Return the predictions against every published point, good or bad, with both versions and the bound."""
    return pd.DataFrame(agreement.per_point(published.references()))


def shard_steps() -> pd.DataFrame:
    """Return the steps of every record of the shard probe against predictions (ms); a record that was refused is a
    row with its reason. Empty without a record.
    """
    compared, refused = shards.every()
    steps = [table.assign(record=name, mark=of["mark"].iloc[0], reason="") for name, (of, table) in compared.items()]
    if refused:
        steps.append(pd.DataFrame([{"record": n, "mark": "refused", "reason": why} for n, why in refused.items()]))
    return pd.concat(steps, ignore_index=True) if steps else pd.DataFrame()


def shard_operators() -> pd.DataFrame:
    """Return the same by operator, without the records that were refused."""
    tables = [table.assign(record=name) for name, (table, _) in shards.every()[0].items()]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
