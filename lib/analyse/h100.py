"""Everything that can be said about the article's H100 node: marked facts for the prose.

Every number of `h100_facts` is {"value", "unit", "mark", "source"}: mark is measured, published, predicted, bound or
assumed, the weakest of what it was computed from. A value that does not exist has value None and a "reason". Keys are
words joined by underscores, so that a template can walk them with dots. Lists keep their order.

article         its title
measured_rows   plain int: rows of the article's table that a record of this study measures; `measured` has their
                numbers by row
counts          plain ints: claims, measured, and each verdict (words joined by underscores); `verdicts` and
                `claims_judged` are the same as numbers
ledger          list of claims in the article's order with evidence by kind (h100_audit.ledger_facts); `claims` by id
rows            by row: own numbers, implied_itl_at_N, concurrency_at_itl_limit_at_N, true_if_1..4 (with "reading"),
                usd_per_million_low, _scenario, _high, engine, precision, version
unstated        list of what the article leaves unstated
versions        by engine: {"article", "predicted"}
ratio           own; low, median, high: predictions of the same ratio for the same work; unexplained: own / high
bounds          by precision, the best of all layouts; `layouts` in it by layout (tp8, tp4x2, tp2x4)
capacity        by contender, layout, workload: capacity, at_least, output_tok_s, usd_per_million, bound_output_tok_s
                (of that layout at that capacity), bound_sessions, bound_usd_per_million (of any layout in the SLA)
best_layout     by contender and workload: the layout of largest capacity, its name and capacity
effects         by contrast; `factorial` is the whole table as a list, published and measured evidence included
agreement       counts and ratios over all points; `by_group` splits them by metric and for the article's versions
published_points  list: each published point with prediction, ratio, bound, both versions, or the reason of a gap
fleet           by contender and number of sessions, with bound_usd_per_million; `fleet_sensitivity` by contender:
                list, widest swing first
                `fleet_demand` holds what is assumed of the demand
shard           list: each shard record's step times: `measured` and `predicted` of the same kernels, and `together`, a
                prediction: measured kernels with all-reduce and head as predicted; a refused record has reasons only

Refuses nothing of its own: what data/ refuses, it passes on.
"""

import json
from collections.abc import Mapping
from typing import Any

from lib.analyse import (
    agreement,
    arithmetic,
    claims,
    evidence,
    factorial,
    h100_fleet,
    h100_tables,
    physics,
    predict,
    published,
)
from lib.analyse import world as worlds
from lib.analyse.capacity import best_layout
from lib.analyse.cases import same_work_ratios
from lib.analyse.h100_audit import ledger_facts, margin_sensitivity, price_facts, row_facts
from lib.analyse.h100_marks import NONE_KEEPS, PHYSICS, PREDICTED, fact, key
from lib.analyse.h100_tables import PRICE
from lib.analyse.predict import LAYOUTS, records
from lib.paths import DATA

__all__ = ["fact", "h100_facts", "key"]


def h100_facts(measured: Mapping[str, Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """All facts of the H100 sections as nested plain JSON values; `measured` as `world.measured_from` gives it."""
    data = published.claims()
    here, findings = worlds.gather(data, predict.load(), measured)
    verdicts, kept = claims.judge(data, here), here.measured
    own_rows = [row["id"] for row in data["rows"] if row["id"] in kept]
    about = json.loads((DATA / "predictions.meta.json").read_text(encoding="utf-8"))
    predicted = f"{PREDICTED}: {about['library']} {about['library_version']}"
    prices = price_facts(PRICE)
    best, last = data["rows"][-1], data["rows"][0]
    own = arithmetic.price_ratio(best["output_tok_s"], last["output_tok_s"])
    same = same_work_ratios(here.readings, best["id"], last["id"], "output_tok_s")
    effects = h100_tables.factorial_table(kept)
    counts = {key(name): sum(v.verdict == name for v in verdicts) for name in evidence.VERDICTS}
    sla, judged = data["sla"], "data/claims.yaml judged"
    return {
        "article": {"title": data["article"]["title"]},
        "measured_rows": len(own_rows),
        "measured": {key(row): _measured_facts(kept[row]) for row in own_rows},
        "sla": {
            "ttft": fact(sla["ttft_ms"], "ms", "assumed", "article, SLA"),
            "itl": fact(sla["inter_token_latency_ms"], "ms", "assumed", "article, SLA"),
            "load": fact(sla["concurrent_requests"], "requests", "assumed", "article, SLA"),
        },
        "rows": row_facts(data, {name: prices[name]["value"] for name in ("low", "scenario", "high")}),
        "unstated": list(data["article"]["unstated"]),
        "versions": _versions(data),
        "ratio": {
            "own": fact(own, "ratio", "published", "arithmetic of the article's table"),
            **{
                name: fact(value, "ratio", "predicted" if name != "claimed" else "published", predicted)
                for name, value in factorial.mixed_ratio(same, own).items()
            },
        },
        "bounds": _bound_facts(data),
        "capacity": _capacity_facts(predicted),
        "best_layout": _best_layout_facts(predicted),
        "effects": {
            f"{key(row['effect'])}_{key(row['contrast'])}_{row['kind']}": _spread(row, row["kind"], row["source"])
            for row in records(effects)
        },
        "factorial": [
            {name: row[name] for name in ("effect", "contrast", "kind", "n", "held", "source")}
            | _spread(row, row["kind"], row["source"])
            for row in records(effects)
        ],
        "prices": prices,
        "claims": {key(v.claim): {"text": v.text, "verdict": v.verdict, "reason": v.reason} for v in verdicts},
        "ledger": ledger_facts(data, verdicts),
        "counts": {"claims": len(verdicts), "measured": len(own_rows), **counts},
        "verdicts": {name: fact(value, "claims", "predicted", judged) for name, value in counts.items()},
        "claims_judged": fact(len(verdicts), "claims", "predicted", "data/claims.yaml"),
        "fleet": h100_fleet.fleet_facts(predicted, kept),
        "fleet_demand": h100_fleet.demand_facts(),
        "fleet_sensitivity": h100_fleet.sensitivity_facts(predicted),
        "margin_sensitivity": margin_sensitivity(data, here, verdicts),
        "set_aside": findings,
        "predictions": {
            "points": fact(about["points"], "points", "predicted", predicted),
            "versions": {key(n): f"{w['engine']} {w['version']}" for n, w in predict.meta()["contenders"].items()},
            "library": f"{about['library']} {about['library_version']}",
        },
        "agreement": _agreement_facts(),
        "published_points": _point_facts(predicted),
        "shard": _shard_facts(),
    }


def _spread(row: Mapping[str, Any], mark: str, source: str) -> dict[str, Any]:
    return {name: fact(row[name], "ratio", mark, source) for name in ("low", "median", "high")}


def _measured_facts(found: Mapping[str, Any]) -> dict[str, Any]:
    source = str(found.get("source", "record of this study"))
    units = {"ttft_p95_ms": "ms", "tpot_p95_ms": "ms", "output_tok_s": "tok/s", "capacity": "requests"}
    return {
        **{n: found.get(n, "") for n in ("launch", "level", "workload")},
        **{n: fact(found[n], unit, "measured", source) for n, unit in units.items() if n in found},
    }


def _versions(data: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    today = {who["engine"]: who["version"] for who in predict.meta()["contenders"].values()}
    return {e: {"article": str(v), "predicted": today.get(e, "none")} for e, v in data["article"]["engines"].items()}


def _agreement_facts() -> dict[str, Any]:
    source = "data/prediction_errors.csv"
    errors = json.loads((DATA / "prediction_errors.meta.json").read_text(encoding="utf-8"))
    groups = agreement.spreads(agreement.per_point(published.references()))
    return {
        **{
            name: fact(value, "points" if name in ("points", "simulated") else "ratio", "predicted", source)
            for name, value in errors.items()
            if name != "made_by"
        },
        "counts": {name: errors[name] for name in ("points", "simulated")},
        "by_group": {
            name: {"points": int(found["points"]), **_spread(found, "predicted", source)}
            for name, found in groups.items()
        },
    }


def _point_facts(predicted: str) -> list[dict[str, Any]]:
    said = ["id", "who", "engine", "precision", "layout", "isl", "osl", "load", "metric", "model", "reason"]
    said += ["published_version", "predicted_version"]
    return [
        {name: p[name] for name in said}
        | {
            "published": fact(p["published"], p["unit"], "published", p["source"]),
            "predicted": fact(p["predicted"], p["unit"], "predicted", predicted, p["reason"]),
            "ratio": fact(p["ratio"], "ratio", "predicted", "data/prediction_errors.csv", p["reason"]),
            "bound": fact(p["bound"], p["unit"], "bound", PHYSICS),
        }
        for p in agreement.per_point(published.references())
    ]


def _bound_facts(data: Mapping[str, Any]) -> dict[str, Any]:
    article, out = data["article"], {}
    for precision in ("bf16", "fp8", "int4"):
        best = physics.node(article["model"], article["gpu"], article["gpus"], precision)
        tp8, _ = worlds.bound_of(precision, "TP8", article["model"], article["gpu"])
        layouts: dict[str, Any] = {}
        for layout in LAYOUTS:
            one, replicas = worlds.bound_of(precision, layout, article["model"], article["gpu"])
            most = replicas * one.throughput_tok_s(1024, 128, 64 / replicas)
            layouts[key(layout)] = {
                "output_tok_s_1024_128_at_64": fact(most, "tok/s", "bound", PHYSICS),
                "sessions_at_8192": fact(replicas * one.sessions_that_fit(8192), "sessions", "bound", PHYSICS),
                "allreduce_bytes_per_token": fact(one.allreduce_bytes(1), "bytes", "bound", PHYSICS),
            }
        out[precision] = {
            "weight_floor": fact(best.decode_step_s(1, 0) * 1e3, "ms", "bound", PHYSICS),
            "decode_64_at_1088": fact(best.decode_step_s(64, 1088) * 1e3, "ms", "bound", PHYSICS),
            "prefill_1024": fact(best.prefill_s(1024) * 1e3, "ms", "bound", PHYSICS),
            "prefill_4096": fact(best.prefill_s(4096) * 1e3, "ms", "bound", PHYSICS),
            "output_tok_s_1024_128_at_64": fact(best.throughput_tok_s(1024, 128, 64), "tok/s", "bound", PHYSICS),
            "kv_tokens": fact(best.kv_capacity_tokens(), "tokens", "bound", PHYSICS),
            "sessions_at_8192": fact(best.sessions_that_fit(8192), "sessions", "bound", PHYSICS),
            "kv_bytes_per_token": fact(tp8.kv_bytes_per_token(), "bytes", "bound", PHYSICS),
            "allreduce_bytes_per_token": fact(tp8.allreduce_bytes(1), "bytes", "bound", f"{PHYSICS}; TP8"),
            "layouts": layouts,
        }
    return out


def _capacity(row: Mapping[str, Any], source: str) -> dict[str, Any]:
    found = fact(row["capacity"], "requests", "predicted", source, row["reason"])
    more = f"or more: within the SLA at {row['capacity']:g}, the highest load simulated"
    return found | ({"reason": more} if row["at_least"] else {})


def _capacity_facts(source: str) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for row in records(h100_tables.capacities()):
        if row["policy"] == "chunked":
            reason = row["reason"] or "no level meets the SLA"
            out.setdefault(key(row["config"]), {}).setdefault(key(row["layout"]), {})[key(row["workload"])] = {
                "capacity": _capacity(row, source),
                "at_least": bool(row["at_least"]),
                "limited_by": row["limited_by"],
                "output_tok_s": fact(row["output_tok_s"], "tok/s", "predicted", source, reason),
                "usd_per_million": fact(
                    row["usd_per_million"], "USD/million tokens", "assumed", f"{source}; {PRICE}", reason
                ),
                "bound_output_tok_s": fact(row["bound_output_tok_s"], "tok/s", "bound", PHYSICS, reason),
                "bound_usd_per_million": fact(
                    row["bound_usd_per_million"], "USD/million tokens", "bound", f"{PHYSICS}; {PRICE}", NONE_KEEPS
                ),
                "bound_sessions": fact(row["bound_sessions"], "sessions", "bound", PHYSICS),
            }
    return out


def _best_layout_facts(source: str) -> dict[str, Any]:
    table = h100_tables.capacities()
    out: dict[str, Any] = {}
    for row in records(best_layout(table[table["policy"] == "chunked"])):
        out.setdefault(key(row["config"]), {})[key(row["workload"])] = {
            "layout": row["layout"],
            "capacity": _capacity(row, source),
        }
    return out


def _shard_facts() -> list[dict[str, Any]]:
    given = "data/operator_times.csv"
    found = []
    for row in records(h100_tables.shard_steps()):
        own = f"records/shard/{row['record']}: {row['mark']}"
        no = row["reason"] or "not every operator was timed"
        found.append(
            {n: "none" if row["reason"] else row[n] for n in ("precision", "phase")}
            | {n: "none" if row["reason"] else int(row[n]) for n in ("batch", "context")}
            | {
                "record": row["record"],
                "measured": fact(row.get("measured_ms"), "ms", "measured", own, no),
                "predicted": fact(row.get("predicted_ms"), "ms", "predicted", given, row["reason"] or "not predicted"),
                "together": fact(row.get("together_ms"), "ms", "predicted", f"{own}; {given}", no),
            }
        )
    return found
