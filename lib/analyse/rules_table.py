"""Rules for what the article's table says: each row, all rows together, their order, and the ratio between them.

Pure functions: a case in, (verdict, reason, evidence) out. Refuses nothing; no reading and no record means "not
testable here".
"""

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
    physics = Evidence(
        "bound", "against", "weight-only INT4 multiplies at 16 bit: the prefill has the same work", "physics.py"
    )
    return verdict, reason, [*evidence, physics]


def rule_ratio(case: Case) -> Finding:
    """Throughput per dollar of one row over another on the same node."""
    claimed, tolerance, key = case.claim["value"], case.limits["tolerance"], "output_tok_s"
    own = arithmetic.price_ratio(case.row[key], case.rows[case.claim["other"]][key])
    evidence = [
        Evidence(
            "published",
            "for" if factor(own, claimed) <= tolerance else "against",
            "ratio of the article's own rows at equal node price",
            "article",
            own,
            "ratio",
        )
    ]
    one, two = case.measured(key), case.measured(key, row=case.claim["other"])
    if one and two:
        ratio = arithmetic.price_ratio(one[key], two[key])
        verdict, reason, more = measured_verdict(
            f"measured {ratio:.2f} times.", factor(ratio, claimed) <= tolerance, ratio, "ratio"
        )
        return verdict, reason, evidence + more
    ratios = _pairs(case, key)
    for peer in case.world.ratios:
        side = "for" if factor(peer["value"], claimed) <= tolerance else "against"
        evidence.append(Evidence("published", side, f"{peer['effect']} effect", peer["source"], peer["value"], "ratio"))
    near_peers = sum(factor(peer["value"], claimed) <= tolerance for peer in case.world.ratios)
    verdict, reason, more = by_share(
        case,
        sum(factor(r, claimed) <= tolerance for r in ratios),
        len(ratios),
        f"come within {tolerance:g} times of it",
    )
    if ratios:
        span = f"They span {min(ratios):.2f} to {max(ratios):.2f}"
        reason = f"{reason} {span}; {near_peers} published ratios of engines or precisions come near it."
    return (DEPENDS if verdict == IMPLAUSIBLE and near_peers else verdict), reason, evidence + more
