"""Two sets of takings side by side: what differs beyond chance and beyond the noise floor.

Serves two runs of the same study, and any two launches of one run. The unit of repetition, the test, its correction
and the floor are those of `floor`; nothing is estimated twice. Refused: tables that lack the columns of takings.csv.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pandas as pd

from lib import loads, stats
from lib.analyse.floor import COMPARED, explanation
from lib.errors import RecordError

NEEDED = {"launch", "run", "repeat", "level", "kind", "workload", *COMPARED}


@dataclass(frozen=True)
class Change:
    """Launch b over launch a at one level; values are geometric means over independent runs, in the table's units."""

    a: str
    b: str
    level: str
    metric: str
    before: float
    after: float
    ratio: float
    low: float
    high: float
    p_holm: float
    floor: float | None
    why: str | None  # chance | floor: what may explain it; None where it is a change


def changes(
    before: pd.DataFrame, after: pd.DataFrame, pairs: Iterable[tuple[str, str]], floor: Mapping[str, float | None]
) -> list[Change]:
    """Compare pairs of launches at every level both have.

    Parameters
    ----------
    before, after : takings.csv of two runs, or twice that of one.
    pairs : (launch in before, launch in after).
    floor : share by which two launches of the same thing differ, per metric; None where it is not known.

    Raises
    ------
    RecordError : a table without the columns of takings.csv.
    """
    for frame in (before, after):
        lacking = NEEDED - set(frame.columns)
        if lacking:
            raise RecordError(
                f"A table of takings has no column {', '.join(sorted(lacking))}: it was made by another version. "
                f"Run `make report` for that study again."
            )
    found = []
    for a, b in pairs:
        x, y = before[before["launch"] == a], after[after["launch"] == b]
        for level in [name for name in dict.fromkeys(x["level"]) if name in set(y["level"])]:
            saturated = x.loc[x["level"] == level, "kind"].isin(loads.SATURATED).all()
            for metric in COMPARED:
                if metric == "output_tok_s" and not saturated:
                    continue  # arrivals or pauses decide it, not the server
                old, new = values(x, level, metric), values(y, level, metric)
                result = stats.compare(new, old)
                if result is not None:
                    found.append((a, b, level, metric, old, new, result))
    corrected = stats.holm([result.p_value for *_, result in found])
    return [
        Change(a, b, level, metric, _middle(old), _middle(new), r.ratio, r.low, r.high, p, floor.get(metric),
               explanation(r.ratio, p, floor.get(metric)))
        for (a, b, level, metric, old, new, r), p in zip(found, corrected, strict=True)
    ]  # fmt: skip


def values(takings: pd.DataFrame, level: str, metric: str) -> list[float]:
    """Return one positive value per independent run: a start of the server where there are several, else a taking."""
    at = takings[(takings["level"] == level) & takings[metric].gt(0)]
    return [float(v) for v in (at.groupby("run")[metric].mean() if at["run"].nunique() > 1 else at[metric])]


def _middle(of: list[float]) -> float:
    return math.exp(sum(map(math.log, of)) / len(of))
