"""Capacity under the SLA, read from the ladder of measured closed levels: the largest concurrency whose upper limits
meet it. Levels that start with a burst or whose clients think are other loads, and no rungs of it. Where a search ran
for the capacity, its result is it: it weighs all probes together.

Rule: a value always comes with its bracket, the next level taken that does not meet the SLA or is undecided, and with
its reason. Where p95 is unsupported the SLA's capacity is undecided; a figure by medians may stand beside it, named so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.analyse.levels import Level, Verdict


@dataclass(frozen=True)
class Capacity:
    """Largest concurrency that meets the SLA, or None, with why."""

    value: int | None
    next_level: int | None  # first level above the value that is not a "yes"
    next_answer: str | None  # no | undecided
    reason: str
    monotone: bool = True  # False: a level that fails lies below one that meets
    by: str = "levels"  # levels | search


def capacity(
    levels: Sequence[Level], workload: str, verdict: Callable[[Level], Verdict] = lambda level: level.verdict
) -> Capacity:
    """Read the capacity from the closed levels of one workload.

    Parameters
    ----------
    levels : of one launch, any order.
    verdict : how a level is judged; by default against the SLA.
    """
    ladder = _closed(levels, workload)
    if not ladder:
        return Capacity(None, None, None, f"no closed level of workload {workload!r} was measured")
    verdicts = [verdict(level) for level in ladder]
    met = [i for i, v in enumerate(verdicts) if v.answer == "yes"]
    above = (met[-1] if met else -1) + 1
    value = int(ladder[met[-1]].load) if met else None
    monotone = not any(v.answer == "no" for v in verdicts[:above])
    if above == len(ladder):
        return Capacity(value, None, None, "the largest level taken meets it, so the capacity may be higher", monotone)
    bracket = ladder[above]
    start = "no level taken is shown to meet it; " if value is None else ""
    reason = f"{start}{bracket.id}: {verdicts[above].answer}, {verdicts[above].reason}"
    return Capacity(value, int(bracket.load), verdicts[above].answer, reason, monotone)


def of_launch(meta: Mapping[str, Any], levels: Sequence[Level], workload: str) -> Capacity:
    """Take the capacity from the launch's search for it (`meta["search"]`), else from its levels."""
    said = meta.get("search")
    if not said or said["kind"] != "closed" or said["workload"] != workload:
        return capacity(levels, workload)
    value, above = (None if said[key] is None else round(said[key]) for key in ("capacity", "next"))
    reason = f"by search, {len(said['path'])} probes: {said['reason']}"
    return Capacity(value, above, said["next_answer"], reason, capacity(levels, workload).monotone, "search")


def order(meta: Mapping[str, Any], planned: Sequence[str]) -> list[str]:
    """Ids of a launch's levels: the planned ones, then those that its search added, by load."""
    probed = {str(p["level"]) for p in (meta.get("search") or {"path": []})["path"]} - {*planned}
    return [*planned, *sorted(probed, key=lambda level: float(level.partition("-")[2]))]


def by_medians(levels: Sequence[Level], workload: str) -> Capacity:
    """Read the same figure from medians in place of p95. It is not the SLA and is labelled so wherever it is shown."""
    return capacity(levels, workload, lambda level: level.verdict_by_medians)


def reading_level(levels: Sequence[Level], workload: str, sessions: int) -> Level | None:
    """Pick the level at which the headline is read: the largest not above the SLA's sessions, else the smallest."""
    ladder = _closed(levels, workload)
    within = [x for x in ladder if x.load <= sessions]
    return within[-1] if within else next(iter(ladder), None)


def _closed(levels: Sequence[Level], workload: str) -> list[Level]:
    return sorted((x for x in levels if x.kind == "closed" and x.workload == workload), key=lambda x: x.load)
