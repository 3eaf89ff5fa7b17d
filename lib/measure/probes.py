"""A search as takings on disk: each probe a taking like any other, and the search rebuilt from those that are finished.

Rule: a probe is listed in `probes.json` before it is taken and counts once its note is there, so a search killed at any
moment goes on with the probe it was at; none is measured twice. The levels taken before are what it starts from.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lib import config, loads, metrics, records
from lib.config import Level, Study
from lib.measure import takings
from lib.measure.search import Probe, Result, Search
from lib.measure.takings import Taking


def listed(partial: Path) -> list[Taking]:
    """Probes in the order they were proposed; the last may be unfinished."""
    path = partial / "probes.json"
    return [Taking(**t | {"level": Level(**t["level"])}) for t in json.loads(path.read_text())] if path.exists() else []


def seconds_left(study: Study, partial: Path) -> float:
    """Measuring time that a launch's search may still take; 0 where there is none or it is over."""
    meta = partial / "meta.json"
    if study.search is None or (meta.exists() and "search" in json.loads(meta.read_text())):
        return 0.0
    spent = sum(float(_note(partial, t)["took_s"]) for t in listed(partial) if takings.done(partial, t))
    return max(1.0, study.search.at_most_seconds - spent)


class Hunt:
    """The search of one launch, under way on its last run's server."""

    def __init__(self, study: Study, partial: Path) -> None:
        """Rebuild the search from what is on disk."""
        assert study.search is not None
        self.study, self.wanted, self.partial = study, study.search, partial
        self.search = Search(self.wanted.kind, self.wanted.lowest, self.wanted.highest, self.wanted.at_most_seconds)
        self.ended = ""
        self.path: list[dict[str, Any]] = []
        for run in range(study.statistics.runs):
            for taking in takings.order(study, run):
                if taking.level.family == self.wanted.kind and takings.done(partial, taking):
                    self.search.tell(result(study, partial, taking))
        self.probes = listed(partial)
        for taking in self.probes:
            if takings.done(partial, taking):
                self.tell(taking)

    @property
    def seconds(self) -> float:
        """Measuring time spent on probes."""
        return self.search.seconds

    @property
    def standing(self) -> str:
        """The bracket in a few words, for progress."""
        found = self.search.found()
        low, high = (f"{x:g}" if x is not None else "?" for x in (found.low, found.high))
        return f"capacity between {low} and {high}"

    def next(self) -> Taking | None:
        """The next probe, listed on disk; None where the search is over."""
        if self.ended:
            return None
        if self.probes and not takings.done(self.partial, self.probes[-1]):
            return self.probes[-1]
        probe = self.search.ask()
        if probe is None:
            return None
        self.probes.append(self._taking(probe))
        said = [{**vars(t), "level": t.level.model_dump()} for t in self.probes]
        records.write_whole(self.partial / "probes.json", json.dumps(said).encode())
        return self.probes[-1]

    def tell(self, taking: Taking) -> None:
        """Take in a finished probe."""
        found = result(self.study, self.partial, taking, _note(self.partial, taking)["took_s"])
        self.search.tell(found)
        stand = self.search.found()
        self.path.append(
            {
                "level": taking.level.id,
                "repeat": taking.repeat,
                "requests": [n for n, _ in found.counts],
                "beyond": [n for _, n in found.counts],
                "failed": found.failed,
                "seconds": found.seconds,
                "low": stand.low,
                "high": stand.high,
            }
        )

    def end(self, reason: str) -> None:
        """End the search early."""
        self.ended = reason

    def written(self) -> dict[str, Any]:
        """The search's path and result, as the record's metadata keeps them."""
        found = self.search.found()
        return {
            **self.wanted.model_dump(),
            "capacity": found.low,
            "likely": found.likely,
            "next": found.high,
            "next_answer": found.answer,
            "reason": self.ended or found.reason,
            "seconds": found.seconds,
            "path": self.path,
        }

    def _taking(self, probe: Probe) -> Taking:
        """A probe as a taking of the last run, after all that was taken of its load."""
        closed = self.wanted.kind == "closed"
        level = Level(
            kind=self.wanted.kind,
            workload=self.wanted.workload,
            concurrency=round(probe.load) if closed else None,
            rate_rps=None if closed else probe.load,
            seconds=probe.seconds,
            requests=probe.requests,
            at_most_seconds=probe.at_most_seconds,
        )
        statistics = self.study.statistics
        run, planned = statistics.runs - 1, {one.id for one in self.study.levels}
        repeat = sum(t.level.id == level.id for t in self.probes) + (statistics.repeats if level.id in planned else 0)
        return Taking(run, repeat, level, statistics.repeats * len(planned) + len(self.probes))


def result(study: config.Study, partial: Path, taking: Taking, took_s: float = 0.0) -> Result:
    """What a finished taking says about its load: requests within the steady window against both promises."""
    c = records.columns(pq.read_table(takings.rows_path(partial, taking)))
    level, sla = taking.level, study.sla
    rows = metrics.counted(c, level.kind in loads.OPEN, metrics.steady_window(c, level.concurrency))
    first = metrics.ttft_s if level.kind == "closed" else metrics.ttft_due_s
    counts = []
    for metric, limit_ms in ((first, sla.ttft_p95_ms), (metrics.tpot_s, sla.tpot_p95_ms)):
        values = metric(c)[rows]
        values = values[values == values]
        counts.append((len(values), int((values > limit_ms / 1e3).sum())))
    measured = c["phase"] == "measured"
    failures = int((measured & ~metrics.complete(c)).sum())
    return Result(
        taking.level.concurrency or float(level.rate_rps or 0),
        tuple(counts),
        failures > sla.failure_budget * int(measured.sum()),
        level.seconds,
        took_s,
    )


def _note(partial: Path, taking: Taking) -> dict[str, Any]:
    noted: dict[str, Any] = json.loads(takings.note_path(partial, taking).read_text())
    return noted
