"""Compare launches at equal level, and know the noise floor of the day.

Two launches that are the same thing (A/A) differ only by noise; the largest difference they show is the floor, per
metric. Rules: all comparisons are corrected for their number by Holm's method; a difference whose corrected p is
0.05 or more, or that lies below the floor, is "not distinguishable".
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lib import stats
from lib.analyse.levels import Level

SIGNIFICANT = 0.05
# Compared by per-run values: medians, and the throughput of the steady window (saturated levels: arrivals decide an
# open level's throughput, pauses that of clients who think).
COMPARED = ("ttft_p50_s", "tpot_p50_s", "output_tok_s")


@dataclass(frozen=True)
class Floor:
    """What two launches of the same thing differ by, per metric: largest |ratio - 1| over their common levels."""

    pair: tuple[str, str] | None
    spread: dict[str, float]
    levels: int
    reason: str | None  # why there is none


@dataclass(frozen=True)
class Compared:
    """Launch a over launch b: ratio of their values at one level."""

    a: str
    b: str
    metric: str
    level: str
    ratio: float
    low: float
    high: float
    p_holm: float
    noise_floor: float | None
    verdict: str  # differs | not distinguishable
    why: str | None  # chance | floor: what may explain the difference; None where it counts


def noise_floor(pair: tuple[str, str] | None, launches: Mapping[str, Sequence[Level]]) -> Floor:
    """Largest difference of the A/A pair per metric.

    Parameters
    ----------
    pair : two launches that are the same thing, or None.
    launches : name of the launch -> its levels.
    """
    if pair is None:
        return Floor(None, {}, 0, "the profile names no pair of launches that are the same thing (noise_floor_pair)")
    gone = [name for name in pair if name not in launches]
    if gone:
        return Floor(pair, {}, 0, f"without a record to compare: {', '.join(gone)}")
    both = list(_common(launches[pair[0]], launches[pair[1]]))
    spread = {}
    for metric in COMPARED:
        ratios = [_mean(x, metric) / _mean(y, metric) for x, y in both if _says(x, metric)]
        found = [max(r, 1 / r) - 1 for r in ratios if math.isfinite(r) and r > 0]
        if found:
            spread[metric] = max(found)
    return Floor(pair, spread, len(both), None if spread else "the pair has no level in common")


def compare_all(launches: Mapping[str, Sequence[Level]], floor: Floor) -> list[Compared]:
    """Every pair of launches at every level both have taken; the second of the A/A pair only serves as the floor."""
    spare = floor.pair[1] if floor.pair and floor.pair[0] in launches else None
    names = [name for name in launches if name != spare]
    found = []
    for a, b in itertools.combinations(names, 2):
        for x, y in _common(launches[a], launches[b]):
            for metric in (m for m in COMPARED if _says(x, m)):
                result = stats.compare(x.per_run(metric), y.per_run(metric))
                if result is not None:
                    found.append((a, b, metric, x.id, result))
    corrected = stats.holm([result.p_value for *_, result in found])
    return [
        Compared(
            a,
            b,
            metric,
            level,
            r.ratio,
            r.low,
            r.high,
            p,
            floor.spread.get(metric),
            "not distinguishable" if (why := explanation(r.ratio, p, floor.spread.get(metric))) else "differs",
            why,
        )
        for (a, b, metric, level, r), p in zip(found, corrected, strict=True)
    ]


def explanation(ratio: float, p: float, floor: float | None) -> str | None:
    """Say what else may explain a difference (chance, floor, or None); chance first, the stronger objection."""
    if p >= SIGNIFICANT:
        return "chance"
    return "floor" if floor is not None and max(ratio, 1 / ratio) - 1 < floor else None


def _common(a: Sequence[Level], b: Sequence[Level]) -> list[tuple[Level, Level]]:
    others = {level.id: level for level in b}
    return [(level, others[level.id]) for level in a if level.id in others]


def _says(level: Level, metric: str) -> bool:
    """Whether a metric speaks of the server at this level."""
    return level.saturated or metric != "output_tok_s"


def _mean(level: Level, metric: str) -> float:
    """Geometric mean over independent runs, the location that `stats.compare` tests."""
    values = stats.finite(np.array(level.per_run(metric)))
    values = values[values > 0]
    return float(np.exp(np.log(values).mean())) if len(values) else float("nan")
