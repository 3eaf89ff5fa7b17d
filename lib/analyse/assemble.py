"""Levels, capacity and comparisons written down as facts: what prose, page and figures may say, each number with its
unit, mark, interval, reason and source.

Rule: nothing is computed here that has not been computed below; this module only names, scales and marks.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lib import config, stats
from lib.analyse import arithmetic, warnings
from lib.analyse.bounds import Host, Limits
from lib.analyse.collect import Measured
from lib.analyse.facts import Number, from_estimate, number, weakest
from lib.analyse.floor import SIGNIFICANT, Compared, Floor
from lib.analyse.ladder import Capacity, by_medians, of_launch, reading_level
from lib.analyse.levels import SPECS, Level

UNKNOWN = "the engine reports no such metric"
NO_GPU = "no GPU told it"


def mark_of(study: config.Study) -> str:
    """Mark of a record's numbers: measured, or rehearsed where the whole study is a rehearsal."""
    return "measured" if study.kind == "measured" else "rehearsed"


def key_of(name: str) -> str:
    """Name of a metric in facts: without the tables' unit where the page shows another. ttft_p95_s -> ttft_p95."""
    return name.removesuffix("_s") if SPECS[name].label.startswith(("Time", "End")) else name


def study_facts(study: config.Study) -> dict[str, Any]:
    """Write down what was set before the first run."""
    source = f"config/{study.profile}/study.yaml"
    price = study.price
    return {
        "study": {
            "name": study.name,
            "title": study.title,
            "profile": study.profile,
            "depth": study.depth,
            "kind": study.kind,
            "hardware": study.hardware.model_dump(),
            "model": study.model.model_dump(),
            "headline_workload": study.headline_workload,
            "workloads": {name: w.model_dump() for name, w in study.workloads.items()},
            "levels": [level.id for level in study.levels],
            "price": number(
                price.usd_per_hour if price else None,
                "USD/h",
                "published",
                f"{price.source}, {price.date}" if price else source,
                reason=None if price else "the profile states no price",
            ),
        },
        "sla": {
            "ttft_p95": number(study.sla.ttft_p95_ms, "ms", "assumed", source),
            "tpot_p95": number(study.sla.tpot_p95_ms, "ms", "assumed", source),
            "sessions": number(study.sla.sessions, "requests", "assumed", source),
            "failure_budget": number(study.sla.failure_budget, "share", "assumed", source),
            "stated": study.sla.stated,
            "reason": study.sla.reason,
        },
    }


def host_facts(host: Host, mark: str) -> dict[str, Any]:
    """Write down the limits of this machine, as probed."""
    bandwidth = host.bandwidth_bytes_s / 1e9 if host.bandwidth_bytes_s is not None else None
    return {
        "bandwidth": number(bandwidth, "GB/s", mark, host.source, reason=host.reason),
        "flop_s": {kind: number(rate / 1e9, "GFLOP/s", mark, host.source) for kind, rate in host.flop_s.items()},
    }


def level_facts(level: Level, bound: Limits, one: Measured, mark: str) -> dict[str, Any]:
    """All numbers of one level of one launch."""
    n, source = level.total("requests"), one.source

    def plain(value: float, unit: str, why: str) -> Number:
        return number(value, unit, mark, source, n=n, reason=None if value == value else why)

    found: dict[str, Any] = {
        key_of(name): from_estimate(level.estimates[name], spec.unit, spec.scale, mark, source)
        for name, spec in SPECS.items()
    }
    return found | {
        "ttft_p50_by_turn": [
            from_estimate(stats.median_interval(level.pooled("ttft_s", turn)), "ms", 1e3, mark, source)
            for turn in range(level.turns)
        ],
        "kind": level.kind,
        "workload": level.workload,
        "load": number(level.load, "requests/s" if level.is_open else "requests", "assumed", source),
        "meets_sla": {"answer": level.verdict.answer, "reason": level.verdict.reason},
        "meets_by_medians": {"answer": level.verdict_by_medians.answer, "reason": level.verdict_by_medians.reason},
        "requests": number(n, "requests", mark, source),
        "failures": number(level.failures, "requests", mark, source, n=n),
        "takings": number(len(level.takings), "takings", mark, source),
        "steady": plain(level.mean("steady_s"), "s", "the target concurrency was never held"),
        "in_flight": plain(level.mean("in_flight_mean"), "requests", "the target concurrency was never held"),
        "decoding": plain(level.mean("decoding_mean"), "requests", "the target concurrency was never held"),
        "joined": plain(level.mean("joined_share"), "share", "no complete answer"),
        "tokens_per_event": plain(level.mean("tokens_per_event"), "tokens", "no complete answer"),
        "lag_p99": plain(level.largest("lag_p99_s") * 1e3, "ms", "no request was sent"),
        "client_cpu": plain(level.largest("client_cpu_share") * 100, "%", "not sampled"),
        "kv_cache_usage": plain(level.largest("kv_cache_usage_max") * 100, "%", UNKNOWN),
        "preemptions": plain(level.largest("preemptions"), "requests", UNKNOWN),
        "prefix_hits": plain(level.largest("prefix_hit_share") * 100, "%", UNKNOWN),
        "energy_per_token": plain(level.mean("gpu_energy_j_per_token"), "J", NO_GPU),
        "gpu_power": plain(level.mean("gpu_power_w"), "W", NO_GPU),
        "gpu_clock": plain(level.mean("gpu_clock_mhz"), "MHz", NO_GPU),
        "gpu_clock_spread": plain(level.largest("gpu_clock_spread_share") * 100, "%", NO_GPU),
        "gpu_throttled": plain(level.largest("gpu_throttled_share") * 100, "%", NO_GPU),
        "bound_tpot": number(
            bound.tpot_s * 1e3 if bound.tpot_s is not None else None, "ms", "bound", bound.source, reason=bound.reason
        ),
        "bound_output_tok_s": number(
            bound.output_tok_s,
            "tok/s",
            "bound",
            bound.source,
            reason=None if bound.output_tok_s is not None else bound.reason or "an open level has no bound of its own",
        ),
    }


def launch_facts(
    one: Measured, levels: Sequence[Level], bounds: Mapping[str, Limits], study: config.Study
) -> dict[str, Any]:
    """One launch: what ran, what it weighs, how long it took to be ready, and its levels."""
    meta, mark, artifact = one.meta, mark_of(study), one.meta.get("artifact") or {}
    ready = stats.mean_interval(
        [float(run["ready_seconds"]) for run in meta["runs"] if run.get("ready_seconds") is not None],
        "seconds until ready",
        positive=True,
    )
    # Random weights are made on the GPU: what lies on disk is a tokenizer.
    unsized = meta.get("qualifier") or "the record names no artifact"
    weight, took = None if meta.get("qualifier") else artifact.get("bytes"), artifact.get("seconds")
    return {
        "engine": meta["engine"],
        "precision": one.precision,
        "qualifier": meta.get("qualifier"),
        "source": one.source,
        "versions": meta["versions"],
        "git": meta["git"],
        "started_utc": meta["started_utc"],
        "ended_utc": meta["ended_utc"],
        "incomplete": meta.get("incomplete"),
        "proof": meta.get("proof", []),
        "config_hash": meta["config_hash"],
        "ready": from_estimate(ready, "s", 1.0, mark, one.source),
        "artifact": {
            "name": artifact.get("name"),
            "size": number(
                weight / 1e6 if weight is not None else None,
                "MB",
                mark,
                one.source,
                reason=None if weight is not None else unsized,
            ),
            "build": number(took, "s", mark, one.source, reason="its build time is unknown" if took is None else None),
        },
        "kv_cache": meta.get("kv_cache"),
        "switch": switch_facts(meta, mark, one.source),
        "levels": {level.id: level_facts(level, bounds[level.id], one, mark) for level in levels},
        "capacity": capacity_facts(
            of_launch(meta, levels, study.headline_workload), one, mark, "capacity under the SLA"
        ),
        "search": search_facts(one, mark),
        "capacity_by_medians": capacity_facts(
            by_medians(levels, study.headline_workload), one, mark, "median-based, not the SLA"
        ),
    }


def switch_facts(meta: Mapping[str, Any], mark: str, source: str) -> Number:
    """Write down the median TTFT of requests that ask for another LoRA adapter than the request before them, from the
    record's `lora` {"switch_s": seconds, one list a run}.
    """
    runs = [np.asarray(run, dtype=float) for run in (meta.get("lora") or {}).get("switch_s", [])]
    if not any(len(run) for run in runs):
        return number(None, "ms", mark, source, reason="the record times no switch of adapters")
    return from_estimate(stats.median_interval(runs), "ms", 1e3, mark, source)


def capacity_facts(found: Capacity, one: Measured, mark: str, label: str) -> dict[str, Any]:
    """Write a capacity down with its bracket, label and reason."""
    return number(found.value, "requests", mark, one.source, reason=found.reason) | {
        "next_level": found.next_level,
        "next_answer": found.next_answer,
        "monotone": found.monotone,
        "by": found.by,
        "label": label,
    }


def search_facts(one: Measured, mark: str) -> dict[str, Any] | None:
    """Write down what a launch's search for its capacity found, or None where none ran to its end."""
    said = one.meta.get("search")
    if not said:
        return None
    unit, source = "requests" if said["kind"] == "closed" else "requests/s", one.source
    return {
        "capacity": number(said["capacity"], unit, mark, source, reason=said["reason"]),
        "likely": number(said["likely"], unit, mark, source, reason=said["reason"]),
        "next": number(said["next"], unit, mark, source, reason=said["reason"]),
        "next_answer": said["next_answer"],
        "reason": said["reason"],
        "probes": number(len(said["path"]), "probes", mark, source),
        "seconds": number(said["seconds"], "s", mark, source),
    }


def headline_row(
    one: Measured, levels: Sequence[Level], facts: Mapping[str, Any], study: config.Study
) -> dict[str, Any]:
    """Build the article's own row for one launch, read at the SLA's sessions or the largest level below them."""
    planned = {level.id for level in study.levels}  # what a search adds differs between contenders
    level = reading_level(
        [level for level in levels if level.id in planned], study.headline_workload, study.sla.sessions
    )
    row = {
        **one.who,
        "level": level.id if level else None,
        "capacity": facts["capacity"],
        "capacity_by_medians": facts["capacity_by_medians"],
        "size": facts["artifact"]["size"],
    }
    absent = number(
        None,
        "",
        mark_of(study),
        one.source,
        reason=f"no closed level of workload {study.headline_workload!r} was measured",
    )
    for key in ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "output_tok_s"):
        row[key] = facts["levels"][level.id][key] if level else absent
    row["meets_sla"] = (
        facts["levels"][level.id]["meets_sla"] if level else {"answer": "undecided", "reason": absent["reason"]}
    )
    pair = study.noise_floor_pair
    row["repeat_of"] = pair[0] if pair and pair[1] == one.name else None
    return row | {"cost": cost(row["output_tok_s"], study)}


def cost(output_tok_s: Number, study: config.Study) -> Number:
    """USD per million output tokens: the price of the whole node over what it puts out in an hour."""
    price, unit = study.price, "USD per million output tokens"
    if price is None:
        return number(None, unit, "assumed", output_tok_s["source"], reason="the profile states no price")
    source = f"{output_tok_s['source']}; price: {price.source}, {price.date}"
    mark = weakest([output_tok_s["mark"], "published"]) if output_tok_s["mark"] != "rehearsed" else "rehearsed"
    each = {
        key: arithmetic.usd_per_million_tokens(price.usd_per_hour, x) if (x := output_tok_s[key]) and x > 0 else None
        for key in ("value", "low", "high")
    }
    reason = output_tok_s["reason"] or (None if each["value"] is not None else "no token was put out")
    return number(
        each["value"], unit, mark, source, low=each["high"], high=each["low"], n=output_tok_s["n"], reason=reason
    )


def floor_facts(floor: Floor, mark: str, source: str) -> dict[str, Any]:
    """Noise floor per metric in per cent."""
    return {
        "pair": list(floor.pair) if floor.pair else None,
        "levels": floor.levels,
        "reason": floor.reason,
        **{
            metric: number(
                100 * floor.spread[metric] if metric in floor.spread else None,
                "%",
                mark,
                source,
                reason=None if metric in floor.spread else floor.reason or "no value to compare",
            )
            for metric in ("ttft_p50_s", "tpot_p50_s", "output_tok_s")
        },
    }


def comparison_facts(c: Compared, mark: str, sources: Mapping[str, str]) -> dict[str, Any]:
    """One comparison; the ratio is a / b."""
    source = f"{sources[c.a]}; {sources[c.b]}"
    ratio = number(c.ratio, "ratio", mark, source, low=c.low, high=c.high)
    return {
        "a": c.a,
        "b": c.b,
        "metric": c.metric,
        "level": c.level,
        "ratio": ratio,
        "p_holm": number(c.p_holm, "probability", mark, source),
        "verdict": c.verdict,
        "why": c.why,
    }


def method_facts(study: config.Study, compared: int) -> dict[str, Any]:
    """How the numbers were made, in words and thresholds."""
    two = [np.array([1.0, 2.0])] * 2
    return {
        "median": stats.median_interval(two).method,
        "p95": stats.percentile_interval(two, 0.95).method,
        "mean": stats.mean_interval([1.0, 2.0], positive=True).method,
        "p95_needs": stats.needed(0.95),
        "confidence": stats.LEVEL,
        "comparisons": "Welch's t on logarithms of per-run values, corrected for their number by Holm's method",
        "compared": compared,
        "significant": SIGNIFICANT,
        "runs": study.statistics.runs,
        "repeats": study.statistics.repeats,
        "thresholds": {name.lower(): value for name, value in vars(warnings).items() if name.isupper()},
    }
