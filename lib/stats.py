"""Estimates with their uncertainty. The unit of repetition is a taking (one run of one level), not a request.

- Mean or median of a metric: one value per taking, Student t interval over takings, on logarithms for what is positive.
- p95 and other percentiles: pooled requests, numpy's linear estimator (Hyndman-Fan type 7), with the two-sided rank
  (order-statistic) interval, widened in quadrature by the spread between takings that chance within them does not
  explain. Below `needed(p)` requests no such interval exists and the value is unsupported.
- Sums over texts or items that two models share (perplexity, KL, right answers): paired bootstrap over the units, its
  percentiles widened for few units as a t interval is (Hesterberg, The American Statistician 2015, "expanded").
- Comparisons: Welch's t on logarithms of per-taking values, corrected for their number by Holm's method.

A bootstrap over three takings does not cover and is not used; nor is one over fewer than eight texts. Special
functions come from scipy.special.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
LEVEL = 0.95
LEAST_UNITS = 8             # of a bootstrap


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval; `reason` says why a part of it is missing (None)."""

    value: float | None
    low: float | None
    high: float | None
    n: int                    # values it rests on
    takings: int              # independent takings they came from
    method: str
    reason: str | None = None

    def scaled(self, factor: float) -> "Estimate":
        """The same estimate in another unit."""
        value, low, high = (None if x is None else x * factor for x in (self.value, self.low, self.high))
        return replace(self, value=value, low=low, high=high)


def t_quantile(df: float, level: float = LEVEL) -> float:
    """Two-sided Student t factor for `df` degrees of freedom."""
    return float(special.stdtrit(df, 0.5 + level / 2))


def mean_interval(values: Sequence[float], what: str = "mean", positive: bool = False) -> Estimate:
    """Mean of one value per taking with a t interval over takings.

    With `positive`, for quantities that cannot be 0 or less (latencies, rates): geometric mean and a t interval on
    logarithms, whose limits are never negative. A value of 0 among them makes it the plain mean again.

    >>> e = mean_interval([1.0, 2.0, 3.0]); round(e.value, 2), round(e.low, 2), round(e.high, 2)
    (2.0, -0.48, 4.48)
    """
    x = np.asarray([v for v in values if math.isfinite(v)], dtype=float)
    method = f"{what} per taking, t interval over takings"
    if not len(x):
        return Estimate(None, None, None, 0, 0, method, "no taking gave a value")
    if len(x) == 1:
        return Estimate(float(x[0]), None, None, 1, 1, method, "one taking has no spread; take at least two")
    logs = positive and bool((x > 0).all())
    y = np.log(x) if logs else x
    middle, half = float(y.mean()), t_quantile(len(y) - 1) * float(y.std(ddof=1)) / math.sqrt(len(y))
    parts = (middle, middle - half, middle + half)
    if logs:
        parts = (math.exp(parts[0]), math.exp(parts[1]), math.exp(parts[2]))
        method = f"geometric mean of one {what} per taking, t interval on logarithms over takings"
    return Estimate(*parts, len(x), len(x), method)


def median_interval(takings: Sequence[Floats]) -> Estimate:
    """Geometric mean over takings of each taking's median, with a t interval on logarithms; `n` counts requests."""
    kept = [finite(t) for t in takings]
    e = mean_interval([float(np.median(t)) for t in kept if len(t)], "median", positive=True)
    return Estimate(e.value, e.low, e.high, sum(map(len, kept)), e.takings, e.method, e.reason)


def needed(p: float, level: float = LEVEL) -> int:
    """Smallest sample with a two-sided rank interval for percentile `p` (0..1).

    >>> needed(0.95), needed(0.99), needed(0.5)
    (72, 368, 6)
    """
    tail = (1 - level) / 2
    return math.ceil(math.log(tail) / math.log(max(p, 1 - p)))


def rank_interval(n: int, p: float, level: float = LEVEL) -> tuple[int, int] | None:
    """Ranks (1-based) of the order statistics that enclose percentile `p`, or None below `needed(p)`.

    >>> rank_interval(100, 0.95), rank_interval(1000, 0.95), rank_interval(71, 0.95)
    ((90, 100), (936, 964), None)
    """
    if n < needed(p, level):
        return None
    tail = (1 - level) / 2
    k = np.arange(n + 1)
    below = special.bdtr(k, n, p)                      # P(at most k values lie below the percentile)
    low = int(np.searchsorted(below, tail, side="right"))
    high = int(np.searchsorted(below, 1 - tail, side="left")) + 1
    return (low, high) if low >= 1 and high <= n else None


def percentile_interval(takings: Sequence[Floats], p: float, level: float = LEVEL) -> Estimate:
    """Percentile of the pooled values, rank interval widened by the spread between takings.

    Parameters
    ----------
    takings : one array of positive values per taking.
    p : percentile as a share, 0.95 for p95.
    """
    kept = [finite(t) for t in takings if len(finite(t))]
    method = "pooled percentile (linear, type 7), rank interval widened by the spread between takings"
    pooled = np.sort(np.concatenate(kept)) if kept else np.zeros(0)
    n = len(pooled)
    if not n:
        return Estimate(None, None, None, 0, 0, method, "no request gave a value")
    value = float(np.quantile(pooled, p))
    ranks = rank_interval(n, p, level)
    if ranks is None:
        why = f"p{p * 100:g} needs {needed(p, level)} requests, there are {n}"
        return Estimate(value, None, None, n, len(kept), method, why)
    low, high = float(pooled[ranks[0] - 1]), float(pooled[ranks[1] - 1])
    if len(kept) > 1 and low > 0:
        extra = t_quantile(len(kept) - 1, level) * between_spread(kept) / math.sqrt(len(kept))
        low = value * math.exp(-math.hypot(math.log(value / low), extra))
        high = value * math.exp(math.hypot(math.log(high / value), extra))
    return Estimate(value, low, high, n, len(kept), method)


def between_spread(takings: Sequence[Floats]) -> float:
    """Standard deviation between takings on the log scale, less what chance within takings explains.

    Taken from the takings' medians: they are the steadiest location of a skewed sample, and a taking that is slow
    as a whole moves its tail with it.
    """
    medians = np.log([float(np.median(t)) for t in takings])
    within = np.mean([median_variance(np.log(t)) for t in takings])
    return math.sqrt(max(0.0, float(medians.var(ddof=1)) - float(within)))


def median_variance(x: Floats) -> float:
    """Variance of a sample's median, from the order statistics one standard error of rank around it."""
    x = np.sort(x)
    n = len(x)
    step = math.sqrt(n) / 2
    low, high = max(0, math.floor((n - 1) / 2 - step)), min(n - 1, math.ceil((n - 1) / 2 + step))
    return float(((x[high] - x[low]) / 2) ** 2)


@dataclass(frozen=True)
class Comparison:
    """A against B: ratio of their values with its interval, and the chance of such a ratio without a difference."""

    ratio: float
    low: float
    high: float
    p_value: float


def compare(a: Sequence[float], b: Sequence[float]) -> Comparison | None:
    """Ratio a / b of positive per-taking values by Welch's t on logarithms; None below two takings each."""
    x, y = np.log(finite(np.asarray(a, dtype=float))), np.log(finite(np.asarray(b, dtype=float)))
    if len(x) < 2 or len(y) < 2:
        return None
    vx, vy = x.var(ddof=1) / len(x), y.var(ddof=1) / len(y)
    difference, error = float(x.mean() - y.mean()), math.sqrt(vx + vy)
    if error == 0.0:
        return Comparison(math.exp(difference), math.exp(difference), math.exp(difference), 0.0 if difference else 1.0)
    df = (vx + vy) ** 2 / (vx**2 / (len(x) - 1) + vy**2 / (len(y) - 1))
    half = t_quantile(df) * error
    p = 2 * float(special.stdtr(df, -abs(difference) / error))
    return Comparison(math.exp(difference), math.exp(difference - half), math.exp(difference + half), p)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(p_values)
    corrected = np.empty(len(p_values))
    largest = 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, p_values[i] * (len(p_values) - rank)))
        corrected[i] = largest
    return [float(v) for v in corrected]


def wilson(successes: int, n: int, level: float = LEVEL) -> tuple[float, float]:
    """Wilson's interval for a share; (0, 1) where there is nothing."""
    if n == 0:
        return 0.0, 1.0
    z, share = float(special.ndtri(0.5 + level / 2)), successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


def bootstrap(parts: Floats, statistic: Callable[[Floats], Floats], draws: int = 4000) -> Estimate:
    """Estimate a function of sums over units, with a bootstrap over the units.

    Parameters
    ----------
    parts : what each unit adds to each sum (units x sums). Paired quantities of one unit stand in one row.
    statistic : sums (draws x sums) -> values (draws).

    >>> e = bootstrap(np.array([[1.0, 2.0]] * 9), lambda s: s[:, 0] / s[:, 1]); e.value, e.low, e.high
    (0.5, 0.5, 0.5)
    """
    n = len(parts)
    method = f"expanded percentile bootstrap over {n} texts or items, paired"
    if not n:
        return Estimate(None, None, None, 0, 0, method, "there is nothing to score")
    value = float(statistic(parts.sum(axis=0, keepdims=True))[0])
    if n < LEAST_UNITS:
        few = f"an interval needs {LEAST_UNITS} texts or items, there are {n}"
        return Estimate(value, None, None, n, n, method, few)
    drawn = np.random.default_rng(n).multinomial(n, np.full(n, 1 / n), draws)
    tail = float(special.ndtr(-math.sqrt(n / (n - 1)) * t_quantile(n - 1)))
    low, high = np.quantile(statistic(drawn @ parts), (tail, 1 - tail))
    return Estimate(value, float(low), float(high), n, n, method)


def finite(x: Floats) -> Floats:
    """The values that exist."""
    x = np.asarray(x, dtype=float)
    return x[np.isfinite(x)]
