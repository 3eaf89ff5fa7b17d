"""What the facts of this run allow to be said: which case it is and who is meant. The words stand in report/article.md.

Rules: a contender measured twice is one contender; "ahead" needs a comparison that differs beyond the day's noise
floor; where nothing meets the SLA nobody is recommended.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lib.analyse import asked

Row = Mapping[str, Any]


def contenders(facts: Mapping[str, Any]) -> list[Row]:
    """Headline rows without the second launch of the A/A pair, best first: capacity, then output throughput."""
    pair = facts["noise_floor"]["pair"]
    rows = [row for row in facts["headline"] if not pair or row["launch"] != pair[1]]
    return sorted(rows, key=lambda row: (-_or(row["capacity"], 0.0), -_or(row["output_tok_s"], 0.0), row["launch"]))


def judge(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Decide the case of the answer.

    Returns
    -------
    case : "met" (somebody carries the SLA's sessions), "nearest" (somebody meets the SLA, for fewer sessions),
        "missed" (every closed level of the headline workload misses it), "undecided" (nobody is shown to meet it, some
        levels are undecided), "nothing" (no launch has a level to show).
    carrying, nearest, undecided : the rows meant.
    by_medians : rows whose medians carry the sessions where p95 does not say.
    throughput, first_token, token : who leads at the headline level, see `lead`.
    """
    rows, sessions = contenders(facts), float(facts["sla"]["sessions"]["value"])
    carrying = [row for row in rows if _or(row["capacity"], 0.0) >= sessions]
    largest = max((_or(row["capacity"], 0.0) for row in rows), default=0.0)
    undecided = [
        row for row in rows if row not in carrying and (row["meets_sla"]["answer"] == "undecided" or _open(row))
    ]
    answers = _answers(facts, rows)
    case = (
        "nothing"
        if not answers
        else "met"
        if carrying
        else "nearest"
        if largest > 0
        else "missed"
        if answers == {"no"}
        else "undecided"
    )
    return {
        "case": case,
        "rows": rows,
        "carrying": carrying,
        "undecided": undecided,
        "nearest": [row for row in rows if largest > 0 and row["capacity"]["value"] == largest],
        "by_medians": [row for row in undecided if _or(row["capacity_by_medians"], 0.0) >= sessions],
        "throughput": lead(rows, "output_tok_s", "output_tok_s", facts["comparisons"], largest_first=True),
        "first_token": lead(rows, "ttft_p50", "ttft_p50_s", facts["comparisons"], largest_first=False),
        "token": lead(rows, "tpot_p50", "tpot_p50_s", facts["comparisons"], largest_first=False),
    }


def lead(
    rows: Sequence[Row], key: str, metric: str, comparisons: Sequence[Mapping[str, Any]], *, largest_first: bool
) -> dict[str, Any]:
    """Who has the best value, who is next, and whether they differ.

    Returns
    -------
    relation : "none" (no value), "alone" (one contender), "ahead" (differs), "level" (not distinguishable), "unknown"
        (they were not compared, or were read at different levels); first, second : rows or None; ratio : first over
        second as a number of facts, or None; p, why : the corrected p and what may explain the difference, or None.
    """
    having = sorted(
        (row for row in rows if row[key]["value"] is not None), key=lambda row: row[key]["value"], reverse=largest_first
    )
    unknown = {"ratio": None, "p": None, "why": None}
    if not having:
        return {"relation": "none", "first": None, "second": None, **unknown}
    if len(having) == 1:
        return {"relation": "alone", "first": having[0], "second": None, **unknown}
    first, second = having[:2]
    for c in comparisons:
        if (
            c["metric"] == metric
            and c["level"] == first["level"] == second["level"]
            and {c["a"], c["b"]} == {first["launch"], second["launch"]}
        ):
            ratio = c["ratio"] if c["a"] == first["launch"] else inverse(c["ratio"])
            relation = "ahead" if c["verdict"] == "differs" else "level"
            return {
                "relation": relation,
                "first": first,
                "second": second,
                "ratio": ratio,
                "p": c["p_holm"],
                "why": c["why"],
            }
    return {"relation": "unknown", "first": first, "second": second, **unknown}


def inverse(ratio: Mapping[str, Any]) -> dict[str, Any]:
    """Turn the ratio the other way round, its limits swapped."""

    def turned(key: str) -> float | None:
        return 1 / ratio[key] if ratio[key] else None

    return {**ratio, "value": turned("value"), "low": turned("high"), "high": turned("low")}


def doubts(facts: Mapping[str, Any], launch: str, level: str | None, engine: str | None = None) -> list[str]:
    """Warnings that belong to a launch as a whole or to one of its levels; of a study beside, with its engine."""
    return [f"{w['text']}; {w['next']}" for w in asked.doubts(facts, launch, level, engine)]


def _answers(facts: Mapping[str, Any], rows: Sequence[Row]) -> set[str]:
    """Verdicts of every closed level of the headline workload."""
    workload = facts["study"]["headline_workload"]
    return {
        level["meets_sla"]["answer"]
        for row in rows
        for level in facts["launches"][row["launch"]]["levels"].values()
        if level["kind"] == "closed" and level["workload"] == workload
    }


def _or(number: Mapping[str, Any], otherwise: float) -> float:
    return otherwise if number["value"] is None else float(number["value"])


def _open(row: Row) -> bool:
    return bool(row["capacity"].get("next_answer") == "undecided")
