"""How a number is written down for prose and page: with its unit, its mark, its interval, its reason and its source.

Rules: a number without a value has a reason; NaN and Infinity never leave; a computed number takes the weakest mark
of its inputs.
One exception: a limit that the SLA states in advance is a criterion, not an input, so a capacity read from records
under it stays measured.
"""

import math
import re
from collections.abc import Iterable
from typing import Any

from lib.stats import Estimate

# Weakest last. A bound is physics and is never mixed into another number: a share of a bound keeps the other's mark.
MARKS = ("measured", "published", "predicted", "assumed")

Number = dict[str, Any]

TOO_FEW = re.compile(r"p[\d.]+ needs ")  # how lib.stats begins the reason of an unsupported percentile


def number(
    value: float | None,
    unit: str,
    mark: str,
    source: str,
    *,
    low: float | None = None,
    high: float | None = None,
    n: int | None = None,
    reason: str | None = None,
) -> Number:
    """Write one number down.

    Parameters
    ----------
    value : in `unit`; None or NaN where it does not exist, and then `reason` says why.
    mark : one of `MARKS`, "bound", or "rehearsed" (which never stands beside any of these).
    low, high : 95 % limits; where only they are missing, `reason` says why.
    n : values it rests on.

    Raises
    ------
    ValueError : an unknown mark, or a missing value without a reason.
    """
    if mark not in (*MARKS, "bound", "rehearsed"):
        raise ValueError(f"mark {mark!r} is none of {', '.join(MARKS)}, bound, rehearsed")
    if clean(value) is None and not reason:
        raise ValueError(f"a missing value (from {source}) needs a reason")
    return {
        "value": clean(value),
        "unit": unit,
        "mark": mark,
        "low": clean(low),
        "high": clean(high),
        "n": n,
        "reason": reason,
        "source": source,
    }


def from_estimate(e: Estimate, unit: str, scale: float, mark: str, source: str) -> Number:
    """Write an estimate down, its values times `scale` being in `unit`."""
    s = e.scaled(scale)
    return number(s.value, unit, mark, source, low=s.low, high=s.high, n=e.n, reason=e.reason)


def unsupported(reason: object) -> bool:
    """Tell whether a reason says that the sample is too small for a percentile.

    >>> unsupported("p95 needs 72 requests, there are 9"), unsupported(None)
    (True, False)
    """
    return isinstance(reason, str) and TOO_FEW.match(reason) is not None


def weakest(marks: Iterable[str]) -> str:
    """Mark of a number computed from several: the weakest of theirs.

    >>> weakest(["measured", "published"])
    'published'
    """
    return MARKS[max((MARKS.index(m) for m in marks if m != "bound"), default=0)]


def clean(value: float | None) -> float | None:
    """Return a finite float, or None."""
    return float(value) if value is not None and math.isfinite(value) else None
