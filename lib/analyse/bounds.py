"""Hold every level against what its machine can do at most. A value beyond a bound is a finding, never an error.

Rules: a bound errs on the fast side (the best probe of all launches counts). A value counts as beyond only with its
whole interval. Beyond a spec-sheet bound the launch is set aside; a probed bound is itself a measurement, so a value
somewhat beyond it is flagged and one far beyond it set aside. Nothing else stops.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib import config, stats
from lib.analyse import physics, published, shards
from lib.analyse.collect import Measured
from lib.analyse.levels import Level
from lib.errors import RecordError, StudyError

# A probe of a few seconds on a shared machine may stay this far below what the machine can do, above all where a small
# model lives in the caches; beyond it the record is more likely wrong than the probe.
PROBE_FACTOR = 1.5
PROBE = "host probe"
FASTEST_FORMAT = "int8"


@dataclass(frozen=True)
class Limits:
    """What one level could reach at most; None with a reason where no bound is known."""

    tpot_s: float | None  # shortest time per token after the first
    output_tok_s: float | None  # largest throughput, closed loops only
    source: str
    reason: str | None = None


@dataclass(frozen=True)
class Ceiling:
    """What a launch stands under; None with a reason where it is unknown."""

    bound: physics.Bound | physics.Node | None
    source: str
    reason: str | None = None


@dataclass(frozen=True)
class Host:
    """The best any launch's probe reached on this machine."""

    bandwidth_bytes_s: float | None
    flop_s: Mapping[str, float]  # per number format
    source: str
    reason: str | None = None


def host_of(launches: Sequence[Measured]) -> Host:
    """Take the best of all launches' probes."""
    probed = [(one.meta["host_probe"], one.source) for one in launches if one.meta.get("host_probe")]
    if not probed:
        return Host(None, {}, PROBE, "no record holds a probe of this machine's bandwidth and matrix rate")
    kinds = sorted({kind for probe, _ in probed for kind in probe["flop_s"]})
    best = {
        kind: max((float(p["flop_s"][kind]), source) for p, source in probed if kind in p["flop_s"]) for kind in kinds
    }
    bandwidth, source = max((float(p["bandwidth_bytes_s"]), source) for p, source in probed)
    sources = sorted({source, *(s for _, s in best.values())})
    return Host(bandwidth, {kind: rate for kind, (rate, _) in best.items()}, "; ".join(sources))


def ceiling(one: Measured, study: config.Study, host: Host) -> Ceiling:
    """Find the physics a launch stands under: where the profile is for GPUs the specification of those found, in the
    layout that allows most; else the probe.
    """
    precision = str(one.meta["precision"])
    try:
        if study.hardware.gpus:
            return Ceiling(_node_bound(study, one.meta["machine"]["gpus"], precision), "data/hardware.yaml")
        if host.bandwidth_bytes_s is None:
            return Ceiling(None, PROBE, host.reason)
        # Engines may multiply in int8, several times faster than in float32: without that rate memory alone bounds.
        known = FASTEST_FORMAT in host.flop_s
        rate = max(host.flop_s.values()) if known else float("inf")
        probed = _host_bound(study.model, precision, host.bandwidth_bytes_s, rate)
        return Ceiling(probed, PROBE if known else f"{PROBE}, memory alone")
    except StudyError as refusal:
        return Ceiling(None, "data/models.yaml, data/hardware.yaml", str(refusal))


def limits(level: Level, under: Ceiling, study: config.Study) -> Limits:
    """Return the bound of one level, for the mean lengths of its complete answers."""
    if under.bound is None:
        return Limits(None, None, under.source, under.reason)
    inputs, outputs = _mean(level, "input_tokens"), _mean(level, "output_tokens")
    if not (inputs >= 1 and outputs >= 2):
        return Limits(None, None, under.source, "no complete answer of two tokens or more, so no bound applies")
    cached = inputs - 1 if study.workloads[level.workload].prefix_cache == "wanted" else 0.0
    most = None if level.is_open else under.bound.throughput_tok_s(inputs - cached, outputs, level.load, cached)
    return Limits(under.bound.decode_step_s(1, inputs), most, under.source)


def beyond(level: Level, bound: Limits) -> tuple[str | None, bool]:
    """Say what lies beyond its bound, and whether the launch must be set aside for it."""
    found, aside = [], False
    allowed = PROBE_FACTOR if bound.source.startswith(PROBE) else 1.0
    tpot, rate = level.estimates["tpot_p50_s"], level.estimates["output_tok_s"]
    if bound.tpot_s is not None and tpot.value is not None:
        slowest = tpot.high if tpot.high is not None else tpot.value
        if slowest < bound.tpot_s:
            found.append(f"median TPOT of {tpot.value * 1e3:.3g} ms, the bound is {bound.tpot_s * 1e3:.3g} ms")
            aside |= slowest * allowed < bound.tpot_s
    if bound.output_tok_s is not None and rate.value is not None:
        least = rate.low if rate.low is not None else rate.value
        if least > bound.output_tok_s:
            found.append(f"throughput of {rate.value:.4g} tok/s, the bound is {bound.output_tok_s:.4g} tok/s")
            aside |= least > bound.output_tok_s * allowed
    return ("; ".join(found) or None), bool(aside)


def _host_bound(model: config.Model, precision: str, bandwidth_bytes_s: float, flop_s: float) -> physics.Bound:
    """Bound of the model as the config describes it: what was served counts, not a name in data/models.yaml."""
    machine = physics.Machine(float("inf"), bandwidth_bytes_s, flop_s, flop_s, float("inf"))
    return physics.Bound(_shape(model), machine, _format(published.precision_entry(precision)), 1)


def _node_bound(study: config.Study, gpus: Sequence[Mapping[str, str]], precision: str) -> physics.Node:
    """Bound of the study's GPUs, as the record names them.

    Raises
    ------
    ConfigError, RecordError : GPUs of which no specification is known, or too few; a format without one.
    """
    count, names = study.hardware.gpus, [str(gpu["name"]) for gpu in gpus]
    if len(names) < count:
        raise RecordError(f"the record names {len(names)} GPUs and the profile is for {count}")
    known = next((gpu for gpu in published.gpu_names() if shards.is_gpu(names[0], gpu)), None)
    if known is None:
        raise RecordError(f"no specification of {names[0]} is in hardware.yaml; it has {published.gpu_names()}")
    entry = published.gpu_entry(known)
    # What follows a format's first word tells recipes apart, and what the weights are worth, but not their bytes.
    numbers = published.precision_entry(precision.partition("-")[0])
    if numbers["flops"] not in entry["flop_s"]:
        raise RecordError(f"no {numbers['flops']} rate of {names[0]} is known")
    rates = (entry["flop_s"][numbers["flops"]], entry["flop_s"]["bf16"], entry["link_bytes_s"])
    machine = physics.Machine(entry["memory_bytes"], entry["memory_bytes_s"], *rates)
    splits = [(physics.Bound(_shape(study.model), machine, _format(numbers), tp), count // tp)
              for tp in range(1, count + 1) if count % tp == 0]  # fmt: skip
    held = tuple(split for split in splits if split[0].kv_capacity_tokens() >= 1)
    if not held:
        raise RecordError(f"by the specification of {known} the weights do not fit on {count} of them")
    return physics.Node(held)


def _shape(model: config.Model) -> physics.Model:
    return physics.Model(**{name: getattr(model, name) for name in physics.Model.__dataclass_fields__})


def _format(entry: Mapping[str, Any]) -> physics.Format:
    return physics.Format(*(float(entry[key]) for key in ("weight_bytes", "kv_bytes", "head_bytes")))


def _mean(level: Level, column: str) -> float:
    """Mean over the counted requests of a level, NaN without any."""
    values = np.concatenate([stats.finite(t.columns[column][t.counted]) for t in level.takings])
    return float(values.mean()) if len(values) else float("nan")
