"""All takings of one level of one launch become estimates with intervals, and a verdict against the SLA.

Rules: the unit of repetition is an independent run: a start of the server where there are several, else a taking.
Verdicts rest on limits, never on values: "yes" needs both upper limits within the SLA, "no" a lower limit beyond it;
anything between is undecided, with its reason.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lib import loads, stats
from lib.analyse.takings import Taking, summary
from lib.config import Sla
from lib.stats import Estimate

REACHED = 0.95  # share of the target that must be in flight, or ask: below it another load was measured


@dataclass(frozen=True)
class Spec:
    """How one number of a level is estimated and shown."""

    label: str
    unit: str  # on the page and in facts
    scale: float  # seconds or events per second, times this, are in `unit`
    of: Callable[["Level"], Estimate]


@dataclass(frozen=True)
class Verdict:
    """Whether a level meets the SLA: yes, no or undecided."""

    answer: str
    reason: str


@dataclass(frozen=True)
class Level:
    """One level of one launch with all its takings, in the order they were taken."""

    launch: str
    id: str
    takings: tuple[Taking, ...]
    sla: Sla

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """Row of takings.csv per taking."""
        return [summary(t, self.sla) for t in self.takings]

    @property
    def kind(self) -> str:
        """Family of its load, see `loads.Level.family`."""
        return str(self.takings[0].entry["kind"])

    @property
    def is_open(self) -> bool:
        """Whether requests came when they were due, whatever the server did."""
        return self.takings[0].is_open

    @property
    def saturated(self) -> bool:
        """Whether requests in flight are constant, so that the throughput is the server's own."""
        return self.kind in loads.SATURATED

    @property
    def load(self) -> float:
        """Clients of a closed loop, or requests per second."""
        return self.takings[0].load

    @property
    def workload(self) -> str:
        """Name of the workload."""
        return str(self.takings[0].entry["workload"])

    @cached_property
    def _units(self) -> list[list[int]]:
        """Places of the takings of each independent run."""
        runs = [t.key[0] for t in self.takings]
        several = len(set(runs)) > 1
        labels = runs if several else list(range(len(runs)))
        return [[i for i, label in enumerate(labels) if label == unit] for unit in dict.fromkeys(labels)]

    def pooled(self, metric: str, turn: int | None = None) -> list[stats.Floats]:
        """Values of a per-request metric in seconds, one array per independent run; `turn`: of that turn alone."""
        return [np.concatenate([self.takings[i].values(metric, turn) for i in unit]) for unit in self._units]

    @cached_property
    def turns(self) -> int:
        """Turns of its sessions, 0 for single requests."""
        seen = [stats.finite(t.columns["turn"]) for t in self.takings] if self.kind == "sessions" else []
        return int(max((turn.max() for turn in seen if len(turn)), default=-1)) + 1

    def per_run(self, column: str) -> list[float]:
        """Mean of a column of takings.csv per independent run; NaN where a run has no value."""
        values = [[v for i in unit if np.isfinite(v := float(self.rows[i][column]))] for unit in self._units]
        return [float(np.mean(v)) if v else float("nan") for v in values]

    def total(self, column: str) -> int:
        """Sum of a count over all takings."""
        return sum(int(row[column]) for row in self.rows)

    def mean(self, column: str) -> float:
        """Mean of a column over takings, NaN where none has a value."""
        values = stats.finite(np.array([row[column] for row in self.rows], dtype=float))
        return float(values.mean()) if len(values) else float("nan")

    def largest(self, column: str) -> float:
        """Largest value of a column over takings, NaN where none has a value."""
        values = stats.finite(np.array([row[column] for row in self.rows], dtype=float))
        return float(values.max()) if len(values) else float("nan")

    @property
    def failures(self) -> int:
        """Measured requests without a complete answer."""
        return self.total("requests") - self.total("complete")

    @property
    def failure_share(self) -> float:
        """Share of measured requests without a complete answer, NaN without requests."""
        return self.failures / self.total("requests") if self.total("requests") else float("nan")

    @property
    def short(self) -> str | None:
        """What says that a closed loop's target was not held: requests in flight, or clients where these think."""
        column, noun = "in_flight_mean", "requests were in flight"
        if self.kind in loads.THINKING:
            column, noun = "clients", "clients asked"
        held = self.mean(column)
        return None if self.is_open or held >= REACHED * self.load else f"only {held:.3g} of {self.load:g} {noun}"

    @cached_property
    def estimates(self) -> dict[str, Estimate]:
        """Every number of `SPECS`, in seconds or per second."""
        return {name: spec.of(self) for name, spec in SPECS.items()}

    @property
    def judged(self) -> dict[str, float]:
        """Metrics the SLA is about and their limits in seconds: an open level counts its TTFT from when it was due."""
        first = "ttft_due" if self.is_open else "ttft"
        return {first: self.sla.ttft_p95_ms / 1e3, "tpot": self.sla.tpot_p95_ms / 1e3}

    @cached_property
    def verdict(self) -> Verdict:
        """Whether the level meets the SLA by the limits of its p95."""
        return _verdict(self, "p95")

    @cached_property
    def verdict_by_medians(self) -> Verdict:
        """The same with medians in place of p95: not the SLA, a stand-in where p95 is unsupported."""
        return _verdict(self, "p50")


def group(takings: Sequence[Taking], order: Sequence[str], sla: Sla) -> list[Level]:
    """Group a launch's takings into its levels, in the config's order."""
    return [
        Level(of[0].launch, name, tuple(of), sla) for name in order if (of := [t for t in takings if t.key[2] == name])
    ]


def _verdict(level: Level, which: str) -> Verdict:
    budget = level.sla.failure_budget
    if not level.total("requests"):
        return Verdict("undecided", "no request was measured")
    if level.failure_share > budget:
        return Verdict(
            "no", f"{level.failures} of {level.total('requests')} requests failed, the budget is {budget * 100:g} %"
        )
    open_reasons = []
    for metric, limit in level.judged.items():
        name = metric.split("_")[0].upper()
        median, wanted = level.estimates[f"{metric}_p50_s"], level.estimates[f"{metric}_{which}_s"]
        for e, label in ((wanted, which), (median, "p50")):
            if e.low is not None and e.low > limit:  # a percentile is never below the median
                return Verdict(
                    "no",
                    f"{label} of {name} is above {limit * 1e3:g} ms even at its lower limit of {e.low * 1e3:.3g} ms",
                )
        if wanted.high is None:
            open_reasons.append(f"{name}: {wanted.reason or 'no upper limit'}")
        elif wanted.high > limit:
            open_reasons.append(
                f"{name}: the upper limit of {which}, {wanted.high * 1e3:.3g} ms, is above {limit * 1e3:g} ms, "
                f"the lower one, {wanted.low * 1e3:.3g} ms, is not"
                if wanted.low is not None
                else name
            )
    if level.short:
        open_reasons.append(level.short)
    if open_reasons:
        return Verdict("undecided", "; ".join(open_reasons))
    return Verdict("yes", f"the upper limits of {which} of TTFT and TPOT are within the SLA")


def _median(metric: str) -> Callable[[Level], Estimate]:
    return lambda level: stats.median_interval(level.pooled(metric))


def _p95(metric: str) -> Callable[[Level], Estimate]:
    return lambda level: stats.percentile_interval(level.pooled(metric), 0.95)


def _mean(column: str) -> Callable[[Level], Estimate]:
    return lambda level: stats.mean_interval(level.per_run(column), positive=True)


SPECS: dict[str, Spec] = {
    "ttft_p50_s": Spec("Time to first token, median", "ms", 1e3, _median("ttft_s")),
    "ttft_p95_s": Spec("Time to first token, p95", "ms", 1e3, _p95("ttft_s")),
    "ttft_due_p50_s": Spec("Time to first token from due, median", "ms", 1e3, _median("ttft_due_s")),
    "ttft_due_p95_s": Spec("Time to first token from due, p95", "ms", 1e3, _p95("ttft_due_s")),
    "tpot_p50_s": Spec("Time per output token, median", "ms", 1e3, _median("tpot_s")),
    "tpot_p95_s": Spec("Time per output token, p95", "ms", 1e3, _p95("tpot_s")),
    "e2e_p50_s": Spec("End-to-end latency, median", "s", 1.0, _median("e2e_s")),
    "output_tok_s": Spec("Output throughput", "tok/s", 1.0, _mean("output_tok_s")),
    "requests_s": Spec("Request throughput", "requests/s", 1.0, _mean("requests_s")),
    "goodput_s": Spec("Goodput: requests within the SLA", "requests/s", 1.0, _mean("goodput_s")),
}
