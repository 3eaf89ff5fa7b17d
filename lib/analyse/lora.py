"""What LoRA adapters cost on each engine: requests spread over adapters against the model itself on the same server,
an adapter's loading, first request and switch, its swap while others are served (`swaps`), whose answers came, and
what the engine takes that it should not.

Rules: a ratio is against the level of the same server that asks the model itself, at the same concurrency; the rest is
what `lib.measure.adapters` found at each start of the server and left in the record's `lora`. Pure.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lib import stats
from lib.analyse import swaps
from lib.analyse.collect import Measured
from lib.analyse.facts import Number, from_estimate, number
from lib.analyse.floor import COMPARED
from lib.analyse.levels import SPECS, Level

TIMES = {
    "load_s": "the engine loads no adapter by itself: with the model, or at the first request for it",
    "base_s": "no request asked the model itself",
    "first_s": "no request was the first for its adapter",
    "again_s": "no request followed another for its adapter",
    "switch_s": "with one adapter there is no switch",
}


def facts(launches: Sequence[tuple[Measured, Sequence[Level]]], mark: str) -> list[dict[str, Any]]:
    """One mapping per launch that served adapters: its times in ms, its levels, its findings."""
    return [_launch(one, levels, mark) for one, levels in launches if (one.meta.get("lora") or {}).get("runs")]


def alike(launches: Sequence[tuple[Measured, Sequence[Level]]], mark: str) -> list[dict[str, Any]]:
    """Answers, the model's own among them, that two launches with adapters of one rank give alike to the same prompt.

    Two engines that agree to the letter serve the same adapters, whatever format each reads them in.
    """
    runs = [(one, lora["runs"][0]) for one, _ in launches if (lora := one.meta.get("lora") or {}).get("runs")]
    return [
        {
            "launches": [one.name, other.name],
            "rank": int(run["rank"]),
            "asked": number(len(run["answers"]), "answers", mark, one.source),
            "same": number(
                sum(text == its["answers"].get(name) for name, text in run["answers"].items()),
                "answers", mark, one.source,
            ),
        }
        for i, (one, run) in enumerate(runs)
        for other, its in runs[i + 1 :]
        if run["rank"] == its["rank"]
    ]  # fmt: skip


def _launch(one: Measured, levels: Sequence[Level], mark: str) -> dict[str, Any]:
    runs = one.meta["lora"]["runs"]
    mixed = {key: sum(int(run["mixed"][key]) for run in runs) for key in ("requests", "equal", "other")}
    return {
        **one.who,
        "rank": int(runs[0]["rank"]),
        "source": one.source,
        **{key.removesuffix("_s"): _median(runs, key, mark, one.source) for key in TIMES},
        "swaps": swaps.facts(runs, mark, one.source),
        "mixed": {key: number(value, "answers", mark, one.source) for key, value in mixed.items()},
        "turned": sorted({name for run in runs for name in run["turned"]}),
        "instead": sorted({name for run in runs for name in run["instead"]}),
        "refused": [found for run in runs for found in run["refused"]],
        "levels": [_level(level, levels, mark, one.source) for level in levels if level.kind == "closed-lora"],
    }


def _median(runs: Sequence[Mapping[str, Any]], key: str, mark: str, source: str) -> Number:
    """Median of a list of seconds that each start of the server gave, in ms."""
    given = [np.asarray(run[key], dtype=float) for run in runs if run.get(key)]
    if not given:
        return number(None, "ms", mark, source, reason=TIMES[key])
    return from_estimate(stats.median_interval(given), "ms", 1e3, mark, source)


def _level(level: Level, others: Sequence[Level], mark: str, source: str) -> dict[str, Any]:
    """Estimates of a level over adapters and their ratios to the level that asks the model itself."""
    said = next(one for one in level.takings if one.entry)
    adapters = {name for taking in level.takings for name in taking.columns["adapter"][taking.measured] if name}
    base = next(
        (x for x in others if x.kind == "closed" and x.load == level.load and x.workload == level.workload), None
    )
    found: dict[str, Any] = {
        "level": level.id,
        "concurrency": int(said.load),
        "adapters": number(len(adapters), "adapters", mark, source),
        "skewed": level.id.endswith("-zipf"),
        "worst": _worst(level, adapters, mark, source),
    }
    for metric in COMPARED:
        key, spec = metric.removesuffix("_s"), SPECS[metric]
        found[key] = from_estimate(level.estimates[metric], spec.unit, spec.scale, mark, source)
        found[f"{key}_ratio"] = _ratio(level, base, metric, mark, source)
    return found


def _worst(level: Level, adapters: set[str], mark: str, source: str) -> Number:
    """Longest median TTFT of an adapter within the level, in ms: an average over adapters would hide it."""
    medians = []
    for adapter in adapters:
        values = [t.every("ttft_s")[t.counted & (t.columns["adapter"] == adapter)] for t in level.takings]
        pooled = stats.finite(np.concatenate(values))
        medians += [float(np.median(pooled))] if len(pooled) else []
    reason = None if medians else "no request for an adapter was counted"
    return number(max(medians, default=float("nan")) * 1e3, "ms", mark, source, reason=reason)


def _ratio(level: Level, base: Level | None, metric: str, mark: str, source: str) -> Number:
    if base is None:
        why = f"the study takes no level of {level.load:g} at once that asks the model itself"
        return number(None, "ratio", mark, source, reason=why)
    found = stats.compare(level.per_run(metric), base.per_run(metric))
    if found is None:
        return number(None, "ratio", mark, source, reason="a ratio needs two takings of both levels")
    return number(found.ratio, "ratio", mark, source, low=found.low, high=found.high)
