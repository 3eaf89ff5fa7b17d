"""A claim with all its rule needs, and the three ways of judging that the rules share: near, by a record, by the
share of readings.

Rule: a measurement at the load in question decides alone; without one the share of readings that agree decides, by the
thresholds in data/claims.yaml.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lib.analyse.evidence import CONSISTENT, CONTRADICTED, DEPENDS, IMPLAUSIBLE, REPRODUCED, UNTESTABLE, Evidence, World


@dataclass(frozen=True)
class Case:
    """A claim with what its rule needs: the table, the SLA, the thresholds and the world."""

    claim: Mapping[str, Any]
    rows: Mapping[str, Mapping[str, Any]]
    sla: Mapping[str, float]
    limits: Mapping[str, float]
    world: World

    @property
    def row(self) -> Mapping[str, Any]:
        """The row of the article's table that the claim is about."""
        return self.rows[self.claim["row"]]

    def readings(self, row: str | None = None) -> list[Mapping[str, Any]]:
        """Predicted readings of the claim's row or of the one named."""
        return [reading for reading in self.world.readings if reading["row"] == (row or self.claim["row"])]

    def measured(self, *keys: str, row: str | None = None, least: float | None = None) -> Mapping[str, Any] | None:
        """Return the row's measurement if it has all of `keys` and was taken at the load asked for.

        That is the row's stated load, within the tolerance, or with `least` any number of requests from there up. A
        measurement that names no load counts as taken at the stated one.
        """
        name = row or self.claim["row"]
        found, stated = self.world.measured.get(name, {}), self.rows[name]["max_concurrent"]
        load = found.get("load", stated)
        fits = load >= least if least is not None else factor(load, stated) <= self.limits["tolerance"]
        return found if fits and all(key in found for key in keys) else None


Finding = tuple[str, str, list[Evidence]]


def same_work_ratios(readings: Iterable[Mapping[str, Any]], row: str, other: str, key: str) -> list[float]:
    """Ratio row / other of `key` in every workload and reading that both rows have."""
    given = list(readings)
    others: dict[tuple[str, str], list[float]] = {}
    for reading in given:
        if reading["row"] == other:
            others.setdefault((reading["workload"], reading["reading"]), []).append(reading[key])
    return [
        reading[key] / value
        for reading in given
        if reading["row"] == row
        for value in others.get((reading["workload"], reading["reading"]), [])
    ]


def factor(a: float, b: float) -> float:
    """How far two positive values are apart, as a ratio of at least 1."""
    return max(a / b, b / a)


def near(value: float, claimed: float, measured: Mapping[str, Any], key: str, tolerance: float) -> bool:
    """Whether a measured value is within the tolerance of the claimed one, or its interval holds it."""
    return factor(value, claimed) <= tolerance or measured.get(f"{key}_low", value) <= claimed <= measured.get(
        f"{key}_high", value
    )


def measured_verdict(says: str, agrees: bool, value: float | None = None, unit: str = "") -> Finding:
    """Judge by a record alone: reproduced or contradicted."""
    piece = Evidence("measured", "for" if agrees else "against", says, "record of this study", value, unit)
    return (REPRODUCED if agrees else CONTRADICTED), says, [piece]


def by_share(case: Case, agreeing: int, total: int, says: str) -> Finding:
    """Consistent, dependent or implausible by how many readings agree; not testable without any."""
    if total == 0:
        return UNTESTABLE, "no prediction covers this claim and no record measures it.", []
    share = agreeing / total
    piece = Evidence(
        "predicted",
        "for" if share >= case.limits["side"] else "against",
        f"{agreeing} of {total} readings {says}",
        case.world.predicted_by,
        share,
        "share",
    )
    reason = f"{agreeing} of {total} readings of the unstated settings {says}."
    if share >= case.limits["most"]:
        return CONSISTENT, reason, [piece]
    return (DEPENDS if agreeing else IMPLAUSIBLE), reason, [piece]
