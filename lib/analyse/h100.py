"""Everything that can be said about the article's H100 node without one: marked facts for the prose.

Every number of `h100_facts` is {"value", "unit", "mark", "source"}: mark is measured, published, predicted, bound or
assumed. A value that does not exist has value None and a "reason". Keys are words joined by underscores, so that a
template can walk them with dots.

Refuses nothing of its own: what data/ refuses, it passes on.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from lib.analyse import arithmetic, claims, evidence, factorial, predict, published, world
from lib.analyse.evidence import Verdict, World
from lib.analyse.h100_tables import PRICE, capacities, fleet_table
from lib.analyse.predict import records
from lib.paths import DATA

PREDICTED = "data/predictions.csv"


def key(text: str) -> str:
    """Return a word that a template can use as an attribute: `vllm-fp16` -> `vllm_fp16`."""
    return re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_")


def fact(value: Any, unit: str, mark: str, source: str, reason: str = "") -> dict[str, Any]:
    """One marked number; a missing or infinite one becomes None with its reason."""
    if isinstance(value, (int, float, np.number)) and not np.isfinite(value):
        value = None
    plain = value.item() if isinstance(value, np.generic) else value
    out = {"value": plain, "unit": unit, "mark": mark, "source": source}
    return out if plain is not None else {**out, "reason": reason or "no value exists"}


def _rows_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for row in data["rows"]:
        own, little = "article, table", "article, table, by Little's law"
        facts = {
            "ttft_p95": fact(row["ttft_p95_ms"], "ms", "published", own),
            "output_tok_s": fact(row["output_tok_s"], "tok/s", "published", own),
            "max_concurrent": fact(row["max_concurrent"], "requests", "published", own),
        }
        for reading in arithmetic.row_readings(row, data["sla"]):
            n = reading["output_tokens"]
            facts[f"implied_itl_at_{n}"] = fact(reading["implied_itl_ms"], "ms", "published", little)
            facts[f"implied_itl_at_sla_load_at_{n}"] = fact(
                reading["implied_itl_at_sla_load_ms"], "ms", "published", little
            )
            facts[f"concurrency_at_itl_limit_at_{n}"] = fact(
                reading["concurrency_at_itl_limit"], "requests", "published", little
            )
        for i, reading in enumerate(arithmetic.true_if(row, data["sla"]), start=1):
            facts[f"true_if_{i}"] = {
                **fact(reading["value"], str(reading["unit"]), "published", little, "at every length"),
                "reading": reading["reading"],
            }
        out[key(row["id"])] = facts
    return out


def h100_facts(measured: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """All facts of the H100 sections as nested plain JSON values; `measured` as in lib/analyse/evidence.py when
    records exist.
    """
    data = published.claims()
    here, findings = world.gather(data, predict.load(), measured)
    verdicts = claims.judge(data, here)
    about = json.loads((DATA / "predictions.meta.json").read_text(encoding="utf-8"))
    errors = json.loads((DATA / "prediction_errors.meta.json").read_text(encoding="utf-8"))
    versions = {key(name): f"{who['engine']} {who['version']}" for name, who in predict.meta()["contenders"].items()}
    predicted = f"{PREDICTED}: {about['library']} {about['library_version']}"
    best_row, last_row = data["rows"][-1], data["rows"][0]
    prices = published.prices()
    effects = factorial.factorial(predict.load(), published.references())
    mixed = factorial.mixed_ratio(effects, arithmetic.price_ratio(best_row["output_tok_s"], last_row["output_tok_s"]))
    return {
        "sla": {
            "ttft": fact(data["sla"]["ttft_ms"], "ms", "assumed", "article, SLA"),
            "itl": fact(data["sla"]["inter_token_latency_ms"], "ms", "assumed", "article, SLA"),
            "load": fact(data["sla"]["concurrent_requests"], "requests", "assumed", "article, SLA"),
        },
        "rows": _rows_facts(data),
        "ratio": {
            "own": fact(
                arithmetic.price_ratio(best_row["output_tok_s"], last_row["output_tok_s"]),
                "ratio",
                "published",
                "article, table",
            ),
            **{
                name: fact(value, "ratio", "predicted" if name != "claimed" else "published", predicted)
                for name, value in mixed.items()
            },
        },
        "bounds": _bound_facts(data),
        "capacity": _capacity_facts(predicted),
        "effects": {
            f"{key(row['effect'])}_{key(row['contrast'])}_{row['kind']}": {
                name: fact(row[name], "ratio", row["kind"], row["source"]) for name in ("low", "median", "high")
            }
            for row in records(effects)
        },
        "prices": {
            **{key(p["id"]): fact(p["value"], p["unit"], "published", p["source"]) for p in prices},
            "scenario": fact(published.price(PRICE)["value"], "USD/GPU-hour", "assumed", PRICE),
            **{
                name: fact(value, "USD/GPU-hour", "published", "data/prices.csv")
                for name, value in (("low", min(p["value"] for p in prices)), ("high", max(p["value"] for p in prices)))
            },
        },
        "claims": {key(v.claim): {"text": v.text, "verdict": v.verdict, "reason": v.reason} for v in verdicts},
        "verdicts": {
            key(name): fact(sum(v.verdict == name for v in verdicts), "claims", "predicted", "data/claims.yaml judged")
            for name in evidence.VERDICTS
        },
        "claims_judged": fact(len(verdicts), "claims", "predicted", "data/claims.yaml"),
        "fleet": _fleet_facts(predicted),
        "margin_sensitivity": _margin_sensitivity(data, here, verdicts),
        "set_aside": findings,
        "predictions": {
            "points": fact(about["points"], "points", "predicted", predicted),
            "versions": versions,
            "library": f"{about['library']} {about['library_version']}",
        },
        "agreement": {
            name: fact(
                value,
                "points" if name in ("points", "simulated") else "ratio",
                "predicted",
                "data/prediction_errors.csv",
            )
            for name, value in errors.items()
        },
    }


def _margin_sensitivity(data: Mapping[str, Any], here: World, verdicts: list[Verdict]) -> dict[str, Any]:
    """Which verdicts change when predictions may be off by another factor than the margin in data/claims.yaml."""
    out: dict[str, Any] = {}
    for margin in (1.25, 2.0):
        wider = {**data, "thresholds": {**data["thresholds"], "margin": margin}}
        changed = [b for a, b in zip(verdicts, claims.judge(wider, here), strict=True) if a.verdict != b.verdict]
        out[key(f"margin {margin:g}")] = {"changed": {key(v.claim): v.verdict for v in changed}}
    return out


def _fleet_facts(source: str) -> dict[str, Any]:
    units = {"nodes": "nodes", "usd_per_month": "USD/month", "usd_per_million_tokens": "USD/million tokens"}
    out: dict[str, Any] = {}
    for row in fleet_table():
        sizes = out.setdefault(key(row["config"]), {"layout": row["layout"], "workload": row["workload"]})
        sizes[f"sessions_{row['sessions']:.0f}"] = {
            name: fact(row[name], unit, "assumed", f"{source}; {PRICE}; demand as in lib/analyse/fleet.py")
            for name, unit in units.items()
        }
    return out


def _bound_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    article, source, out = data["article"], "lib/analyse/physics.py over data/hardware.yaml", {}
    for precision in ("bf16", "fp8", "int4"):
        limit, _ = world.bound_of(precision, "TP8", article["model"], article["gpu"])
        out[precision] = {
            "weight_floor": fact(limit.decode_step_s(1, 0) * 1e3, "ms", "bound", source),
            "decode_64_at_1088": fact(limit.decode_step_s(64, 1088) * 1e3, "ms", "bound", source),
            "prefill_1024": fact(limit.prefill_s(1024) * 1e3, "ms", "bound", source),
            "prefill_4096": fact(limit.prefill_s(4096) * 1e3, "ms", "bound", source),
            "output_tok_s_1024_128_at_64": fact(limit.throughput_tok_s(1024, 128, 64), "tok/s", "bound", source),
            "kv_tokens": fact(limit.kv_capacity_tokens(), "tokens", "bound", source),
            "sessions_at_8192": fact(limit.sessions_that_fit(8192), "sessions", "bound", source),
            "kv_bytes_per_token": fact(limit.kv_bytes_per_token(), "bytes", "bound", source),
            "allreduce_bytes_per_token": fact(limit.allreduce_bytes(1), "bytes", "bound", source),
        }
    return out


def _capacity_facts(source: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for row in records(capacities()):
        if row["policy"] == "chunked":
            reason = row["reason"] or "no level meets the SLA"
            out.setdefault(key(row["config"]), {}).setdefault(key(row["layout"]), {})[key(row["workload"])] = {
                "capacity": fact(row["capacity"], "requests", "predicted", source),
                "at_least": bool(row["at_least"]),
                "limited_by": row["limited_by"],
                "output_tok_s": fact(row["output_tok_s"], "tok/s", "predicted", source, reason),
                "usd_per_million": fact(
                    row["usd_per_million"], "USD/million tokens", "predicted", f"{source}; {PRICE}", reason
                ),
            }
    return out
