"""Tidy tables of what is known about the article's H100 node: rows against bound and prediction, ledger, capacity,
cost, fleet.

Each table is a few lines over the modules beside it, so that a notebook cell is one call. Kinds of number stand in a
column, never mixed. Refuses nothing of its own: what data/ refuses, it passes on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse import agreement, arithmetic, capacity, claims, factorial, fleet, predict, published, world
from lib.analyse.predict import records

PRICE = "lambda-2026"  # the scenario that costs are shown for; the range stands beside it
FLEET_WORKLOAD = "filing excerpt"


def article_rows(measured: Mapping[str, Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Return the article's rows beside bound, prediction and this study's records: tidy rows (row, workload, kind,
    ttft_ms, itl_ms, tok/s).
    """
    data = published.claims()
    rows = []
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
        for b in world.bound_rows(data):
            if b["row"] == row["id"]:
                rows.append(
                    {
                        **base,
                        "workload": b["workload"],
                        "kind": "bound",
                        "reading": "TP8",
                        "ttft_p95_ms": b["ttft_ms"],
                        "itl_ms": b["itl_ms"],
                        "output_tok_s": b["output_tok_s"],
                    }
                )
        for r in world.readings(data, predict.load()):
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


def ledger(measured: Mapping[str, Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Return the claims ledger: one row per claim with verdict, reason and evidence."""
    data = published.claims()
    here, _ = world.gather(data, predict.load(), measured)
    return claims.ledger(claims.judge(data, here))


def capacities(price_id: str = PRICE) -> pd.DataFrame:
    """Capacity under the article's SLA by contender, layout, policy and workload, with throughput and cost there
    (USD per million tokens).
    """
    data = published.claims()
    sla, node = data["sla"], published.price(price_id)["value"] * data["article"]["gpus"]
    table = capacity.under_sla(predict.load(), sla["ttft_ms"] / 1e3, sla["inter_token_latency_ms"] / 1e3)
    table["usd_per_million"] = [
        arithmetic.usd_per_million_tokens(node, speed) if speed > 0 else np.nan for speed in table["output_tok_s"]
    ]
    return table


def cost_curves(price_id: str = PRICE) -> pd.DataFrame:
    """Cost against SLA strictness: USD per million output tokens by TTFT limit (s), contender, layout and workload."""
    data = published.claims()
    node = published.price(price_id)["value"] * data["article"]["gpus"]
    return capacity.cost_against_strictness(predict.load(), node, data["sla"]["inter_token_latency_ms"] / 1e3)


def fleet_table(
    price_id: str = PRICE, workload: str = FLEET_WORKLOAD, demand: fleet.Demand | None = None
) -> list[dict[str, Any]]:
    """Nodes and cost per contender for a demand (by default the article's 50 sessions), each in its best layout
    under the SLA.
    """
    data = published.claims()
    node_usd = published.price(price_id)["value"] * data["article"]["gpus"]
    best = capacity.best_layout(capacities(price_id))
    rows = []
    for row in records(best[(best["workload"] == workload) & (best["policy"] == "chunked")]):
        base = {"config": row["config"], "layout": row["layout"], "workload": workload, "capacity": row["capacity"]}
        if row["capacity"] > 0 and row["output_tok_s"] > 0:
            node = fleet.Node(row["capacity"], row["output_tok_s"], node_usd)
            rows += [{**base, **scaled} for scaled in fleet.scales(node, demand or fleet.Demand())]
    return rows


def fleet_sensitivity(config: str, price_id: str = PRICE, workload: str = FLEET_WORKLOAD) -> list[dict[str, Any]]:
    """Return what each assumption does to the monthly cost of 10,000 sessions on one contender, widest swing first."""
    best = capacity.best_layout(capacities(price_id))
    row = records(best[(best["config"] == config) & (best["workload"] == workload) & (best["policy"] == "chunked")])[0]
    data = published.claims()
    node = fleet.Node(
        row["capacity"], row["output_tok_s"], published.price(price_id)["value"] * data["article"]["gpus"]
    )
    return fleet.sensitivity(fleet.Demand(sessions=10_000), node)


def factorial_table() -> pd.DataFrame:
    """Return the factorial: engine, precision, load, version and layout effects by kind of evidence."""
    return factorial.factorial(predict.load(), published.references())


def prediction_errors() -> pd.DataFrame:
    """Return the predictions against every published point, good or bad."""
    return agreement.load()
