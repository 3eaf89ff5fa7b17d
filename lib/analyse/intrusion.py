"""What reading a long prompt does to requests that are receiving tokens, from the client's stamps alone.

A prompt is long where it has at least `LONG` times the tokens of the median prompt of its taking. While it is read,
from its being sent to its first token, the gaps between its neighbours' tokens are held against all their other gaps.
A gap that overlaps that time counts as within it, with its whole length. Rule: the unit is a taking. Pure.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib import metrics, stats
from lib.analyse.collect import Measured
from lib.analyse.facts import from_estimate, number
from lib.analyse.levels import Level
from lib.analyse.takings import Taking

LONG = 4.0
NO_LONG = "no prompt of this level is much longer than the others"


def facts(launches: Sequence[tuple[Measured, Sequence[Level]]], mark: str) -> list[dict[str, Any]]:
    """One mapping per launch and level that asked long prompts among short ones."""
    return [
        _level(one, level, mark)
        for one, levels in launches
        for level in levels
        if any(long_prompts(taking).any() for taking in level.takings)
    ]


def long_prompts(taking: Taking) -> NDArray[np.bool_]:
    """Rows of a taking whose prompt is long. Shape: (requests,)."""
    planned = taking.columns["planned_input_tokens"]
    middle = np.median(planned) if len(planned) else np.nan
    return np.asarray(planned >= LONG * middle)


def gaps(taking: Taking) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds between neighbouring tokens of the other requests: those while a long prompt is read, and the rest."""
    c, long = taking.columns, long_prompts(taking)
    stamps, offsets = c["event_ns"], c["event_offsets"]
    if len(stamps) < 2:
        return np.zeros(0), np.zeros(0)
    owner = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    real = (owner[1:] == owner[:-1]) & ~long[owner[1:]]
    begins, ends = stamps[:-1][real].astype(float), stamps[1:][real].astype(float)
    read = zip(c["sent_ns"][long], c["first_event_ns"][long], strict=True)
    return parted(begins, ends, [(sent, first) for sent, first in read if np.isfinite(sent) and np.isfinite(first)])


def parted(
    begins: NDArray[np.float64], ends: NDArray[np.float64], spans: Iterable[tuple[float, float]]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Seconds of the gaps that overlap a span, with their whole length, and of the rest. Everything given is in ns."""
    within = np.zeros(len(begins), dtype=bool)
    for first, last in spans:
        within |= (ends > first) & (begins < last)
    seconds = (ends - begins) / metrics.NS
    return seconds[within], seconds[~within]


def waits(taking: Taking) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """TTFT in seconds of short requests: those sent while a long prompt is read, and the rest."""
    c, long = taking.columns, long_prompts(taking)
    sent, within = c["sent_ns"], np.zeros(len(long), dtype=bool)
    for begin, end in zip(sent[long], c["first_event_ns"][long], strict=True):
        within |= (sent > begin) & (sent < end)
    first = taking.every("ttft_s")
    asked = taking.measured & metrics.complete(c) & ~long
    return stats.finite(first[asked & within]), stats.finite(first[asked & ~within])


def _level(one: Measured, level: Level, mark: str) -> dict[str, Any]:
    gapped = [gaps(taking) for taking in level.takings]
    waited = [waits(taking) for taking in level.takings]
    read = [stats.finite(t.every("ttft_s")[long_prompts(t) & metrics.complete(t.columns)]) for t in level.takings]
    longest = [float(inside.max()) for inside, _ in gapped if len(inside)]

    def median(parts: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
        return from_estimate(stats.median_interval(list(parts)), "ms", 1e3, mark, one.source)

    return {
        **one.who,
        "level": level.id,
        "step_tokens": one.settings.get("max_num_batched_tokens") or one.settings.get("step_tokens"),
        "chunked": one.settings.get("chunked_prefill", True),
        "gap_within": median([inside for inside, _ in gapped]),
        "gap_else": median([outside for _, outside in gapped]),
        "gap_longest": number(
            max(longest, default=float("nan")) * 1e3, "ms", mark, one.source, n=sum(len(i) for i, _ in gapped),
            reason=None if longest else "nobody was receiving tokens while a long prompt was read",
        ),
        "wait_within": median([inside for inside, _ in waited]),
        "wait_else": median([outside for _, outside in waited]),
        "long_ttft": median(read),
    }  # fmt: skip
