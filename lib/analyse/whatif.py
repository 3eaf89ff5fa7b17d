"""The study's question under any promise: who carries how many at once, on how many nodes, at what price.

`answer` compares, multiplies and divides the limits that `asked.block` lays out, and nothing else. The page's own
script does the same on the same block; a test holds the two against each other in a browser.

Rules: a level keeps a promise only by its upper limits, a contender a floor of quality only by its lower limit; nothing
is read between two levels. Refused: a work that the block lacks.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lib.analyse.arithmetic import usd_per_million_tokens
from lib.analyse.facts import weakest
from lib.errors import NoValue

Level = Mapping[str, Any]
Contender = Mapping[str, Any]
METRICS = ("ttft", "tpot")
WORST_FIRST = ("no", "undecided", "yes")
Verdict = tuple[str, str]  # yes, no or undecided; and why


@dataclass(frozen=True)
class Question:
    """What a reader asks. Times in ms; `usd_per_hour` of what the work prices: a GPU, or the whole computer; `floor` is
    the share of next tokens, in %, that have to be the 16-bit reference's.
    """

    work: str
    ttft_ms: float
    tpot_ms: float
    sessions: int
    usd_per_hour: float | None = None
    engines: frozenset[str] | None = None  # None: all
    precisions: frozenset[str] | None = None
    by: str = "p95"  # p50 is not the promise
    floor: float | None = None


@dataclass(frozen=True)
class Row:
    """What one contender answers. `out` and `cost` are (value, low, high) at the load that one node carries."""

    contender: Contender
    layout: str
    source: str
    carries: int | None  # at once on one node; None where no level is shown to
    answer: str  # yes | no | undecided: whether one node carries the sessions asked for
    why: str
    nodes: int | None
    out: tuple[float | None, ...] | None
    cost: tuple[float | None, ...] | None
    cost_mark: str
    doubts: str  # warnings about the level that the numbers are read at


@dataclass(frozen=True)
class Answer:
    """Rows, best first, and the names of levels that no other passing level beats in both output and first token."""

    rows: tuple[Row, ...]
    frontier: tuple[tuple[str, str, float], ...]  # key of the contender, layout, load


def stated(work: Mapping[str, Any]) -> Question:
    """Return the question that the study itself asks of a work."""
    s = work["stated"]
    return Question(work["key"], s["ttft_ms"], s["tpot_ms"], s["sessions"], s["usd_per_hour"])


def answer(of: Mapping[str, Any], question: Question) -> Answer:
    """Answer a question from a block.

    Raises
    ------
    NoValue : the block has no such work.
    """
    q, work = question, next((w for w in of["works"] if w["key"] == question.work), None)
    if work is None:
        known = ", ".join(w["key"] for w in of["works"])
        raise NoValue(f"There is no work {q.work!r} to ask about; there are {known}.")
    chosen = [
        c
        for c in work["contenders"]
        if (q.engines is None or c["engine"] in q.engines) and (q.precisions is None or c["precision"] in q.precisions)
    ]
    rows = [_row(c, work, q, of["budget"]) for c in chosen]
    ranked = sorted(rows, key=lambda r: (-(r.carries or 0), -((r.out or (0,))[0] or 0)))
    return Answer(tuple(ranked), _frontier(chosen, q, of["budget"]))


def judge(level: Level, q: Question, budget: float) -> Verdict:
    """Say whether a level keeps the promise of a question (yes, no or undecided), and why not; as levels.Verdict."""
    if not level["n"]:
        return "undecided", "no request was measured"
    if level["failed"] / level["n"] > budget:
        return "no", f"{level['failed']} of {level['n']} requests failed"
    doubts = []
    for metric, limit in zip(METRICS, (q.ttft_ms, q.tpot_ms), strict=True):
        wanted, median, name = level[metric][q.by], level[metric]["p50"], metric.upper()
        if any(e[1] is not None and e[1] > limit for e in (wanted, median)):
            return "no", f"{name} is above {plain(limit)} ms even at its lower limit"
        if wanted[2] is None:
            doubts.append(f"{name}: {wanted[3] or 'no upper limit'}")
        elif wanted[2] > limit:
            doubts.append(f"{name}: {plain(limit)} ms lies within its interval")
    if not level["reached"]:
        doubts.append("the load was not reached")
    return ("undecided", "; ".join(doubts)) if doubts else ("yes", "")


def faithful(contender: Contender, q: Question) -> Verdict:
    """Say whether a contender reaches the floor of quality that is asked for, and why not."""
    if q.floor is None:
        return "yes", ""
    _, low, high, reason = contender["quality"]
    if low is None or high is None:
        return "undecided", f"same next token: {reason or 'no interval'}"
    if high < q.floor:
        return "no", f"same next token is below {plain(q.floor)} % even at its upper limit"
    if low < q.floor:
        return "undecided", f"same next token: {plain(q.floor)} % lies within its interval"
    return "yes", ""


def both(quality: Verdict, speed: Verdict) -> Verdict:
    """Join two verdicts: the worse one counts, quality's where they are alike.

    >>> both(("undecided", "quality"), ("no", "speed")), both(("no", "quality"), ("no", "speed"))
    (('no', 'speed'), ('no', 'quality'))
    """
    return min(quality, speed, key=lambda verdict: WORST_FIRST.index(verdict[0]))


def plain(value: float) -> str:
    """Write a number as a script does: 180.0 -> 180, 22.5 -> 22.5."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _row(contender: Contender, work: Mapping[str, Any], q: Question, budget: float) -> Row:
    """Answer for a contender in its best layout: most at once, then most tokens; without any, the least refuted."""
    found = [(variant, *_carries(variant["levels"], q, budget)) for variant in contender["variants"]]
    variant, place, ends = max(
        found,
        key=lambda f: (
            f[0]["levels"][f[1]]["load"] if f[1] is not None else 0,
            (f[0]["levels"][f[1]]["out"][0] or 0) if f[1] is not None else 0,
            f[2][0] == "undecided" if f[2] else False,
        ),
    )
    levels, quality = variant["levels"], faithful(contender, q)
    at = levels[place] if place is not None and quality[0] == "yes" else None
    carries = int(at["load"]) if at else None
    verdict, why = both(quality, _on_one(levels, place, ends, q.sessions))
    out = tuple(at["out"]) if at and at["out"][0] else None
    cost = None
    if out and q.usd_per_hour:
        node = q.usd_per_hour * work["units"]
        each = [usd_per_million_tokens(node, x) if x else None for x in out]
        cost = (each[0], each[2], each[1])
    as_stated = q.usd_per_hour == work["stated"]["usd_per_hour"]
    mark = work["mark"]
    if mark != "rehearsed":
        mark = weakest([mark, work["price_mark"] if as_stated else "assumed"])
    nodes = math.ceil(q.sessions / carries) if carries else None
    doubts = str(at["doubts"]) if at else ""
    return Row(contender, variant["name"], variant["source"], carries, verdict, why, nodes, out, cost, mark, doubts)


def _carries(levels: Sequence[Level], q: Question, budget: float) -> tuple[int | None, Verdict | None]:
    """Place of the largest level that keeps the promise, and the verdict on the next above it."""
    verdicts = [judge(level, q, budget) for level in levels]
    met = [i for i, v in enumerate(verdicts) if v[0] == "yes"]
    above = met[-1] + 1 if met else 0
    return met[-1] if met else None, verdicts[above] if above < len(levels) else None


def _on_one(levels: Sequence[Level], place: int | None, ends: Verdict | None, sessions: int) -> Verdict:
    """Whether one node carries the sessions, and what decides it."""
    top = levels[place]["load"] if place is not None else 0
    if top >= sessions:
        return "yes", ""
    if ends is None:
        return "undecided", f"{plain(top)} at once is the highest level taken"
    above = levels[0 if place is None else place + 1]["load"]
    if place is not None and ends[0] == "no" and above > sessions:
        return "undecided", f"between {plain(top)} at once, which keeps it, and {plain(above)}, which does not"
    return ends[0], f"{plain(above)} at once: {ends[1]}"


def _frontier(chosen: Iterable[Contender], q: Question, budget: float) -> tuple[tuple[str, str, float], ...]:
    """Passing levels, most tokens first, that have a sooner median first token than all with more tokens."""
    points = [
        (level["out"][0], level["ttft"]["p50"][0], (c["key"], v["name"], level["load"]))
        for c in chosen
        if faithful(c, q)[0] == "yes"
        for v in c["variants"]
        for level in v["levels"]
        if level["out"][0] and level["ttft"]["p50"][0] and judge(level, q, budget)[0] == "yes"
    ]
    best, kept = math.inf, []
    for _, first, who in sorted(points, key=lambda p: (-p[0], p[1])):
        if first < best:
            best = first
            kept.append(who)
    return tuple(kept)
