"""Find the largest load that meets the SLA, and spend the measuring time where the answer is. Pure: no clock, no I/O.

A `Search` proposes the next probe (`ask`) and is told what came of it (`tell`); the same results in the same order
give the same proposals, so a search that was interrupted is rebuilt from what lies on disk.

Method. A p95 meets its limit where at most 5 % of requests lie beyond it. The share beyond grows with the load as
a normal distribution function of log load, with an unknown place (where it crosses 5 %: the capacity) and an unknown
steepness, one such curve per promise. The posterior over a grid of both, from all probes so far, says of every load
how likely it meets the SLA: from `SURE` on it does, up to 1 - `SURE` it does not. Probes go where that is open, the
first low and at most doubling, so a load is left as soon as its verdict is clear, and every probe counts for all.
This is the psychometric search of Kontsevich and Tyler (Vision Research 39, 1999), after Watson and Pelli (QUEST,
1983).
Why it may stop at any look: a posterior does not depend on the rule that ended the sampling (Edwards, Lindman and
Savage, Psychological Review 70, 1963), given its model; `tests/test_search.py` measures the errors on servers that
are not the model. Of 200 servers, within 5 % or one step, in at most a quarter of the time of a grid of ten levels
taken three times each: the best estimate for 196 by concurrency and 194 by rate, the limit for 185 and 183, and too
high for 0 and 4.
Requests of one probe share its moment and wait for each other, so n of them count as n / (1 + (n - 1) `ALIKE`)
(the design effect of a cluster: Kish, Survey Sampling, 1965); a longer probe never counts as much as a second one.
One probe, and one load, can pull only so far (`STRAY`, `ODD`): a contradicted probe is taken again before anything
ends on it, and a server that fails at one load and not above it is searched above it.

Refused: nothing. A search that runs out of its time says so and keeps the bracket it has.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]

SHARE = 0.05  # of requests that a p95 lets lie beyond its limit
SURE = 0.9  # posterior probability from which a load counts as decided
STEP = 1.025  # between neighbouring loads: half of the 5 % to which a capacity is wanted; whole numbers where closed
GROWTH = 2.0  # the next load is at most this much above the largest that seems to meet the SLA
BEYOND = 1.3  # where to look above the first load that fails, and again while promises are kept there: a fault ends
ALIKE = 0.01  # correlation of two requests of one probe: latencies that shift by 2 % from probe to probe
STRAY = 0.02  # probability that a probe says nothing about its load: the machine was busy with something else
ODD = 0.001  # probability that a load says nothing about the loads around it
LAPSE = 0.002  # share beyond a limit for reasons that no load explains
AT_PLACE = float(special.ndtri((SHARE - LAPSE) / (1 - 2 * LAPSE)))
SLOPES = np.geomspace(1.5, 800.0, 14)  # steepness: growth of latency with load over its spread (logs); 800: a wall
OUTSIDE = np.array([0.1, 0.3, 1.0])  # places tried beyond the lowest and the highest load, in logs
SHORT, LONG = 1 / 60, 1 / 24  # of the time: a probe far from the answer, and one near it
FAR = 1.5  # ends of a bracket this far apart ask for short probes
AIMS = (0.3, 0.7)  # probabilities of meeting the SLA at which loads are probed in turn: above and below the answer
FEWEST, PATIENCE = 2, 3.0  # requests of every client of a closed probe, unless it would take this many times its length


@dataclass(frozen=True)
class Probe:
    """What to measure next: a load, for so many seconds, longer where fewer requests than `requests` would be seen."""

    load: float
    seconds: float
    requests: int
    at_most_seconds: float


@dataclass(frozen=True)
class Result:
    """What a probe, or a level taken before the search, showed. `counts`: (requests, beyond its limit) per promise."""

    load: float
    counts: tuple[tuple[int, int], ...]
    failed: bool  # more requests failed than the budget allows: the load is not carried, however fast the others were
    asked: float = 0.0  # seconds that were asked for,
    seconds: float = 0.0  # and all that it took; 0 for a level that was taken anyway


@dataclass(frozen=True)
class Found:
    """How a search stands. None where there is no such load.

    low: the largest load that surely meets the SLA, the capacity by upper limits. likely: the largest that does so more
    likely than not, the best estimate. high, answer: the next load probed, no or undecided. seconds: spent measuring.
    """

    low: float | None
    likely: float | None
    high: float | None
    answer: str | None
    reason: str
    seconds: float


def loads(kind: str, lowest: float, highest: float) -> Floats:
    """Loads a search may probe, in order: whole numbers for a closed loop, else requests per second to 4 digits.

    >>> loads("closed", 1, 6), loads("poisson", 1.0, 1.06)
    (array([1., 2., 3., 4., 5., 6.]), array([1.   , 1.025, 1.051, 1.06 ]))
    """
    steps = max(0, math.floor(math.log(highest / lowest) / math.log(STEP) + 1e-9))
    all_of_them = np.append(lowest * STEP ** np.arange(steps + 1), highest)
    if kind == "closed":
        return np.unique(np.rint(all_of_them))
    return np.unique([float(f"{x:.4g}") for x in all_of_them])


class Search:
    """A search between two loads, with a limit of measuring time in seconds."""

    def __init__(self, kind: str, lowest: float, highest: float, at_most_seconds: float, promises: int = 2) -> None:
        self.kind, self.limit, self.promises = kind, at_most_seconds, promises
        self.loads = loads(kind, lowest, highest)
        logs = np.log(self.loads)
        # A place between two neighbours, or outside: everything below it meets the SLA.
        self.places = np.concatenate([logs[0] - OUTSIDE[::-1], (logs[1:] + logs[:-1]) / 2, logs[-1] + OUTSIDE])
        outside = np.full(len(OUTSIDE), math.log(2) / len(OUTSIDE))
        self.prior = np.log(np.concatenate([outside, np.diff(logs), outside]))[:, None]
        self.about: dict[float, Floats] = {}  # load -> log likelihood, shape (promises, places, slopes)
        self.bounded: dict[float, Floats] = {}  # the same, no lower than `ODD` allows
        self.results: list[Result] = []
        self.meets = self._meets()

    @property
    def seconds(self) -> float:
        """Measuring time spent."""
        return sum(r.seconds for r in self.results)

    def tell(self, result: Result) -> None:
        """Take in what was measured."""
        self.results.append(result)
        if all(n for n, _ in result.counts) or result.failed:
            above = math.log(result.load) - self.places[:, None]
            p = LAPSE + (1 - 2 * LAPSE) * np.asarray(special.ndtr(AT_PLACE + SLOPES * above))
            told = []
            for n, beyond in result.counts:
                n, q = (n, beyond / n) if n and not result.failed else (max(n, 1), 1.0)
                distance = special.xlogy(q, q / p) + special.xlogy(1 - q, (1 - q) / (1 - p))
                told.append(np.logaddexp(-n * distance / (1 + (n - 1) * ALIKE), math.log(STRAY)))
            self.about[result.load] = self.about.get(result.load, 0.0) + np.array(told)
            self.bounded[result.load] = np.logaddexp(self.about[result.load], math.log(ODD))
            self.meets = self._meets()

    def ask(self) -> Probe | None:
        """Propose the next probe; None where the search is over, and `found` says why."""
        if self._answered():
            return None
        load, share = self._next()
        left = self.limit - self.seconds - self._extra(load)
        if left < SHORT * self.limit:
            return None
        seconds = min(share * self.limit, left)
        requests = round(FEWEST * load) if self.kind == "closed" else 0
        return Probe(load, seconds, requests, min(PATIENCE * seconds, left))

    def found(self) -> Found:
        """Tell how the search stands."""
        low = self._bracket()[0]
        above = [i for i in np.flatnonzero(self._probed()) if i > low]
        high = above[0] if above else None
        likely = np.flatnonzero(self.meets > 0.5)
        return Found(
            low=float(self.loads[low]) if low >= 0 else None,
            likely=float(self.loads[likely[-1]]) if low >= 0 else None,
            high=None if high is None else float(self.loads[high]),
            answer=None if high is None else "no" if self.meets[high] <= 1 - SURE else "undecided",
            reason=self._answered() or "its time was spent",
            seconds=self.seconds,
        )

    def _extra(self, load: float) -> float:
        """Seconds that a probe takes beyond those asked for (warm-up, ramp, drain): as at the nearest load probed."""
        took = [(abs(math.log(r.load / load)), r.asked - r.seconds) for r in self.results if r.seconds]
        return -min(took)[1] if took else SHORT * self.limit

    def _meets(self) -> Floats:
        """Probability that each load meets the SLA: all its promises."""
        meets = np.ones(len(self.loads))
        for promise in range(self.promises):
            log = self.prior + sum(x[promise] for x in self.bounded.values())
            weight = np.exp(log - log.max()).sum(axis=1)
            meets *= 1 - np.cumsum(weight / weight.sum())[len(OUTSIDE) - 1 : -len(OUTSIDE)]
        return meets

    def _probed(self) -> NDArray[np.bool_]:
        """Which loads were measured."""
        return np.isin(self.loads, list(self.about))

    def _look(self, high: int) -> float | None:
        """Load to look at above the first that fails: once, and on while what is found there keeps all promises."""
        if high == len(self.loads):
            return None
        last = float(self.loads[np.flatnonzero(self._probed())[-1]])
        start = float(self.loads[high]) * BEYOND
        told = [r for r in self.results if r.load == last]
        kept = all(not r.failed and all(beyond <= SHARE * n for n, beyond in r.counts) for r in told)
        above = self.loads[self.loads >= (start if last < start else last * BEYOND)]
        return float(above[0]) if len(above) and (last < start or kept) else None

    def _bracket(self) -> tuple[int, int]:
        """Places of the largest load that surely meets the SLA (-1) and of the smallest that surely does not."""
        probed = self._probed()
        met = np.flatnonzero(self.meets >= SURE)
        if not (probed & (self.meets >= SURE)).any():
            met = met[:0]
        missed = np.flatnonzero(self.meets <= 1 - SURE)
        if not (probed & (self.meets <= 1 - SURE)).any():  # what no probe has shown is not known
            missed = missed[:0]
        return (int(met[-1]) if len(met) else -1), (int(missed[0]) if len(missed) else len(self.loads))

    def _answered(self) -> str:
        """Why nothing more needs to be measured, or nothing."""
        low, high = self._bracket()
        if low == len(self.loads) - 1:
            return "the highest load meets the SLA, so the capacity may be higher"
        if high == 0:
            return "the lowest load does not meet the SLA"
        if low < 0 or high == len(self.loads):
            return ""
        return "its ends are neighbours" if high == low + 1 and self._look(high) is None else ""

    def _next(self) -> tuple[float, float]:
        """Load of the next probe and its length as a share of the time."""
        probed = self._probed()
        fine = np.flatnonzero(probed & (self.meets > 0.5))
        top = self.loads[fine[-1]] * GROWTH if len(fine) else self.loads[0]
        low, high = self._bracket()
        look = self._look(high)
        if look is not None:
            return look, SHORT
        aim = AIMS[len(self.results) % 2]
        within = np.flatnonzero(self.loads <= top)
        place = within[np.argmin(np.abs(self.meets[within] - aim))]
        far = high - low > 2 and self.loads[min(high, len(self.loads) - 1)] > FAR * self.loads[max(low, 0)]
        return float(self.loads[place]), SHORT if far else LONG
