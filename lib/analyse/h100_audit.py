"""Marked facts of the audit: what the article's rows imply, the claims with their evidence, and how far the verdicts
depend on one threshold.

Rule: nothing here is judged or computed a second time; verdicts are those of lib/analyse/claims.py, numbers those of
lib/analyse/arithmetic.py. Refuses nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lib.analyse import arithmetic, claims, published
from lib.analyse.evidence import KINDS, Evidence, Verdict, World
from lib.analyse.h100_marks import fact, key

LITTLE = "article, table, by Little's law"


def row_facts(data: Mapping[str, Any], prices: Mapping[str, float]) -> dict[str, Any]:
    """By row: its own numbers, what they imply at assumed lengths of answers, what would make them true, and USD per
    million tokens at each of `prices` (USD per GPU-hour by name).
    """
    out: dict[str, Any] = {}
    for row in data["rows"]:
        own = "article, table"
        facts: dict[str, Any] = {
            "engine": row["engine"],
            "precision": row["precision"],
            "version": str(data["article"]["engines"][row["engine"]]),
            "ttft_p95": fact(row["ttft_p95_ms"], "ms", "published", own),
            "output_tok_s": fact(row["output_tok_s"], "tok/s", "published", own),
            "max_concurrent": fact(row["max_concurrent"], "requests", "published", own),
        }
        for reading in arithmetic.row_readings(row, data["sla"]):
            n, source = reading["output_tokens"], f"{LITTLE}; {reading['output_tokens']} tokens an answer assumed"
            facts[f"implied_itl_at_{n}"] = fact(reading["implied_itl_ms"], "ms", "assumed", source)
            facts[f"implied_itl_at_sla_load_at_{n}"] = fact(
                reading["implied_itl_at_sla_load_ms"], "ms", "assumed", source
            )
            facts[f"concurrency_at_itl_limit_at_{n}"] = fact(
                reading["concurrency_at_itl_limit"], "requests", "assumed", source
            )
        for i, reading in enumerate(arithmetic.true_if(row, data["sla"]), start=1):
            facts[f"true_if_{i}"] = {
                **fact(reading["value"], str(reading["unit"]), "published", LITTLE, "at every length"),
                "reading": reading["reading"],
            }
        for name, usd in prices.items():
            facts[f"usd_per_million_{name}"] = fact(
                arithmetic.usd_per_million_tokens(usd * data["article"]["gpus"], row["output_tok_s"]),
                "USD/million tokens",
                "assumed" if name == "scenario" else "published",
                f"{own}; {usd:g} USD per GPU-hour, data/prices.csv",
            )
        out[key(row["id"])] = facts
    return out


def _piece(e: Evidence) -> dict[str, Any]:
    number = None if e.value is None else fact(e.value, e.unit or "ratio", e.kind, e.source)
    return {"says": e.says, "source": e.source, "number": number}


def ledger_facts(data: Mapping[str, Any], verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return the claims in the article's order: claim, text, where, verdict, reason and evidence; evidence is
    {kind: {"for": [...], "against": [...]}} with says, source and number (None, or marked) in each piece.
    """
    where = {claim["id"]: claim["where"] for claim in data["claims"]}
    return [
        {
            "claim": v.claim,
            "text": v.text,
            "where": where[v.claim],
            "verdict": v.verdict,
            "reason": v.reason,
            "evidence": {
                kind: {
                    side: [_piece(e) for e in v.evidence if (e.kind, e.side) == (kind, side)]
                    for side in ("for", "against")
                }
                for kind in KINDS
                if any(e.kind == kind for e in v.evidence)
            },
        }
        for v in verdicts
    ]


def margin_sensitivity(data: Mapping[str, Any], here: World, verdicts: list[Verdict]) -> dict[str, Any]:
    """Which verdicts change when predictions may be off by another factor than the margin in data/claims.yaml."""
    out: dict[str, Any] = {}
    for margin in (1.25, 2.0):
        other = {**data, "thresholds": {**data["thresholds"], "margin": margin}}
        changed = [(a, b) for a, b in zip(verdicts, claims.judge(other, here), strict=True) if a.verdict != b.verdict]
        out[key(f"margin {margin:g}")] = {
            "margin": margin,
            "changed": {key(b.claim): b.verdict for _, b in changed},
            "changes": [{"text": b.text, "from": a.verdict, "to": b.verdict} for a, b in changed],
        }
    return out


def price_facts(scenario: str) -> dict[str, Any]:
    """Every published rent, the scenario's, and the range; USD per GPU-hour."""
    prices = published.prices()
    low, high = min(p["value"] for p in prices), max(p["value"] for p in prices)
    return {
        **{key(p["id"]): fact(p["value"], p["unit"], "published", p["source"]) for p in prices},
        "scenario": fact(published.price(scenario)["value"], "USD/GPU-hour", "assumed", scenario),
        "low": fact(low, "USD/GPU-hour", "published", "data/prices.csv"),
        "high": fact(high, "USD/GPU-hour", "published", "data/prices.csv"),
    }
