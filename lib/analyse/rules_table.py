"""Rules for what the article's table says: each row, all rows together, their order, and the ratio between them.

Pure functions: a case in, (verdict, reason, evidence) out. Refuses nothing; no reading and no record means "not
testable here".
"""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from lib.analyse import arithmetic
from lib.analyse.cases import Case, Finding, by_share, factor, measured_verdict, near, same_work_ratios
from lib.analyse.evidence import CONTRADICTED, DEPENDS, IMPLAUSIBLE, Evidence


def rule_row(case: Case) -> Finding:
    """TTFT and throughput of one row, together."""
    row, key_t, key_x = case.row, "ttft_p95_ms", "output_tok_s"
    if found := case.measured(key_t, key_x):
        agrees = all(near(found[key], row[key], found, key, case.limits["tolerance"]) for key in (key_t, key_x))
        return measured_verdict(
            f"measured {found[key_t]:.0f} ms and {found[key_x]:.0f} tok/s.", agrees, found[key_x], "tok/s"
        )
    bounds = [b for b in case.world.bounds if b["row"] == row["id"]]
    possible = [b for b in bounds if row[key_x] <= b[key_x] and row[key_t] >= b["ttft_ms"]]
    evidence = (
        [
            Evidence(
                "bound",
                "for" if possible else "against",
                f"possible in {len(possible)} of {len(bounds)} workloads",
                "physics.py",
                len(possible),
                "workloads",
            )
        ]
        if bounds
        else []
    )
    if bounds and not possible:
        return CONTRADICTED, "the row lies beyond the physical limit in every workload.", evidence
    margin, readings = case.limits["margin"], case.readings()
    fits = sum(factor(r[key_t], row[key_t]) <= margin and factor(r[key_x], row[key_x]) <= margin for r in readings)
    verdict, reason, more = by_share(
        case, fits, len(readings), f"come within a factor of {margin:g} of both its TTFT and its throughput"
    )
    return verdict, reason, evidence + more


def rule_one_workload(case: Case) -> Finding:
    """Is there one workload that fits the throughput and the TTFT of all rows at once?"""
    keys = ("ttft_p95_ms", "output_tok_s")
    measured = {row: found for row in case.rows if (found := case.measured(*keys, row=row))}
    if len(measured) == len(case.rows):
        off = max(factor(found[key], case.rows[row][key]) for row, found in measured.items() for key in keys)
        return measured_verdict(
            f"under one workload the measured rows are off by up to {off:.2f} times.",
            off <= case.limits["tolerance"],
            off,
            "ratio",
        )
    off_by: dict[str, float] = {}
    for workload in {reading["workload"] for reading in case.world.readings}:
        worst = []
        for row in case.rows.values():
            here = [r for r in case.readings(row["id"]) if r["workload"] == workload]
            worst.append(min((max(factor(r[key], row[key]) for key in keys) for r in here), default=float("inf")))
        off_by[workload] = max(worst)
    fits = [workload for workload, off in off_by.items() if off <= case.limits["margin"]]
    verdict, reason, evidence = by_share(case, len(fits), len(off_by), "fit all rows at once")
    if off_by:
        best = min(off_by, key=lambda workload: off_by[workload])
        reason = f"{reason} The nearest, {best}, is off by {off_by[best]:.1f} times in its worst row."
    return verdict, reason.replace("readings of the unstated settings", "workloads"), evidence


def _pairs(case: Case, key: str) -> list[float]:
    return same_work_ratios(case.world.readings, case.row["id"], case.claim["other"], key)


def rule_order(case: Case) -> Finding:
    """Judge a shorter TTFT of one row than of another."""
    key = "ttft_p95_ms"
    one, two = case.measured(key), case.measured(key, row=case.claim["other"])
    if one and two:
        return measured_verdict(
            f"measured {one[key]:.0f} against {two[key]:.0f} ms.",
            one.get(f"{key}_high", one[key]) < two.get(f"{key}_low", two[key]),
        )
    ratios = _pairs(case, key)
    verdict, reason, evidence = by_share(case, sum(ratio < 1 for ratio in ratios), len(ratios), "put it first")
    if ratios and "int4" in (case.row["precision"], case.rows[case.claim["other"]]["precision"]):
        reason = f"{reason} INT4 predictions are estimates: no INT4 kernel was measured on this GPU."
    return verdict, reason, evidence + _bound_on_order(case)


def _bound_on_order(case: Case) -> list[Evidence]:
    """Whether the shortest possible prefill of a row is shorter than another's: weight-only formats multiply at 16
    bit, so they save where a prompt is short enough for the reading of weights to decide.
    """
    least = {(b["row"], b["workload"]): b["ttft_ms"] for b in case.world.bounds}
    one, two = case.row["id"], case.claim["other"]
    pairs = [(t, least[two, work]) for (row, work), t in least.items() if row == one and (two, work) in least]
    if not pairs:
        return []
    shorter = sum(a < b for a, b in pairs) / len(pairs)
    says = f"its shortest possible prefill is shorter in {sum(a < b for a, b in pairs)} of {len(pairs)} workloads"
    return [
        Evidence("bound", "for" if shorter >= case.limits["side"] else "against", says, "physics.py", shorter, "share")
    ]


def rule_ratio(case: Case) -> Finding:
    """Throughput per dollar of one row over another on the same node.

    The article's own rows cannot vouch for their ratio, and an engine's or a precision's effect alone cannot refute
    one that mixes both: neither is on a side; the reason states them.
    """
    claimed, tolerance, key = case.claim["value"], case.limits["tolerance"], "output_tok_s"
    own = arithmetic.price_ratio(case.row[key], case.rows[case.claim["other"]][key])
    arithmetic_says = f"Arithmetic of the table gives {own:.2f}."
    one, two = case.measured(key), case.measured(key, row=case.claim["other"])
    if one and two:
        ratio = arithmetic.price_ratio(one[key], two[key])
        agrees = factor(ratio, claimed) <= tolerance
        return measured_verdict(f"measured {ratio:.2f} times. {arithmetic_says}", agrees, ratio, "ratio")
    ratios, joint = _pairs(case, key), _joint(case.world.ratios)
    verdict, reason, evidence = by_share(
        case,
        sum(factor(r, claimed) <= tolerance for r in ratios),
        len(ratios),
        f"come within {tolerance:g} times of it",
    )
    if ratios:
        reason = f"{reason} They span {min(ratios):.2f} to {max(ratios):.2f}."
    if joint:
        reason = f"{reason} Published effects of engine and precision multiply to {joint[0]:.2f} to {joint[1]:.2f}."
    reached = joint is not None and joint[0] / tolerance <= claimed <= joint[1] * tolerance
    return (DEPENDS if verdict == IMPLAUSIBLE and reached else verdict), f"{reason} {arithmetic_says}", evidence


def _joint(ratios: Iterable[Mapping[str, Any]]) -> tuple[float, float] | None:
    """Range of the published engine effects times the published precision effects; None without any."""
    given = list(ratios)
    effects = [[r["value"] for r in given if r["effect"] == effect] for effect in ("engine", "precision")]
    known = [values for values in effects if values]
    return (math.prod(map(min, known)), math.prod(map(max, known))) if known else None
