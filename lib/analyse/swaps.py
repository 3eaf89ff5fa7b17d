"""An adapter that is loaded while others are served, from what `lib.measure.churn` left: its loading, its first answer,
and the gaps between its neighbours' tokens.

While one is loaded, from asking for it to the engine's answer, the gaps between the neighbours' tokens are held against
all their other gaps, as with long prompts (`intrusion`); one that overlaps a loading counts as within it, with its
whole length. Rules: the unit is a start of the server; a loading that the engine refused is counted and gives no time.
Pure.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib import metrics, stats
from lib.analyse import intrusion
from lib.analyse.facts import Number, from_estimate, number

NOT_TIMED = "its record times no adapter that is loaded while others are served; `make remeasure` takes it again"
OK = 200  # HTTP
TIMES = ("load", "first", "resident", "gap_within", "gap_else", "gap_longest")  # in ms
COUNTS = {"loaded": "adapters", "failed": "requests", "asked": "answers", "equal": "answers"}

Said = Mapping[str, Any]
Floats = NDArray[np.float64]


def facts(runs: Sequence[Said], mark: str, source: str) -> dict[str, Number]:
    """Write down what starts of one server showed.

    Parameters
    ----------
    runs : of the record's `lora`; those with a `churn` count.

    Returns
    -------
    load: an adapter's loading; first: TTFT of the request for it right after; resident: TTFT of the neighbours'
    requests meanwhile, that no loading touched; gap_within, gap_longest: between the neighbours' tokens during a
    loading; gap_else: otherwise. loaded: loadings; failed: loadings refused and answers that failed; asked,
    equal: first answers, and those to the letter as the adapter's alone.
    """
    given = [run["churn"] for run in runs if run.get("churn")]
    told = [one for one in given if one["reason"] is None]
    if not told:
        why = str(given[0]["reason"]) if given else NOT_TIMED
        units = dict.fromkeys(TIMES, "ms") | COUNTS
        return {key: number(None, unit, mark, source, reason=why) for key, unit in units.items()}
    gapped = [gaps(one) for one in told]

    def median(parts: Sequence[Any]) -> Number:
        arrays = [np.asarray(part, dtype=float) for part in parts]
        return from_estimate(stats.median_interval(arrays), "ms", 1e3, mark, source)

    longest = [float(within.max()) for within, _ in gapped if len(within)]
    firsts = [swap["first"] for one in told for swap in one["swaps"] if swap["first"]["sent_ns"]]
    counted = {
        "loaded": sum(len(_loads(one)) for one in told),
        "failed": sum(_failed(one) for one in told),
        "asked": len(firsts),
        "equal": sum(bool(first["equal"]) for first in firsts),
    }
    return {
        "load": median([[(end - sent) / metrics.NS for sent, end in _loads(one)] for one in told]),
        "first": median([_waits([swap["first"] for swap in one["swaps"]]) for one in told]),
        "resident": median([_waits(one["neighbours"], _loads(one)) for one in told]),
        "gap_within": median([within for within, _ in gapped]),
        "gap_else": median([outside for _, outside in gapped]),
        "gap_longest": number(
            max(longest, default=float("nan")) * 1e3, "ms", mark, source, n=sum(len(within) for within, _ in gapped),
            reason=None if longest else "nobody was receiving tokens while an adapter was loaded",
        ),
        **{key: number(counted[key], unit, mark, source) for key, unit in COUNTS.items()},
    }  # fmt: skip


def gaps(one: Said) -> tuple[Floats, Floats]:
    """Seconds between tokens of the neighbours' answers: those during a loading, and the others."""
    pairs = [pair for asked in one["neighbours"] for pair in pairwise(asked["event_ns"])]
    if not pairs:
        return np.zeros(0), np.zeros(0)
    begins, ends = np.array(pairs, dtype=float).T
    return intrusion.parted(begins, ends, _loads(one))


def _loads(one: Said) -> list[tuple[int, int]]:
    """When each loading that the engine did not refuse was asked for and answered, ns."""
    loads = [swap["load"] for swap in one["swaps"]]
    return [(load["sent_ns"], load["end_ns"]) for load in loads if load["http_status"] == OK]


def _waits(asked: Sequence[Said], apart: Sequence[tuple[int, int]] = ()) -> list[float]:
    """TTFT in seconds of requests whose wait touches none of the times in `apart`."""
    waits = [(one["sent_ns"], one["event_ns"][0]) for one in asked if one["event_ns"]]
    return [(b - a) / metrics.NS for a, b in waits if not any(a < end and b > begin for begin, end in apart)]


def _failed(one: Said) -> int:
    """Stages that the engine refused and answers that ended otherwise than they should; what was never sent is none."""
    refused = sum(
        swap[stage]["sent_ns"] is not None and swap[stage]["http_status"] != OK
        for swap in one["swaps"] for stage in ("unload", "load")
    )  # fmt: skip
    firsts = sum(s["first"]["sent_ns"] is not None and s["first"]["status"] != "complete" for s in one["swaps"])
    neighbours = sum(n["status"] not in ("complete", "unfinished") for n in one["neighbours"])
    return int(refused + firsts + neighbours)
