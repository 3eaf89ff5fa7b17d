"""What a reader should doubt, next to the number, each with the next step. Every threshold stands here with its reason.

Rule: a doubt names the launch and level, the value that raised it and what to do; it never changes a number.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lib import config, stats
from lib.analyse import energy
from lib.analyse.collect import Measured
from lib.analyse.levels import REACHED, Level
from lib.analyse.timeline import agreement
from lib.metrics import Columns

ABOVE_PERCENTILE = 10  # requests above p95: with fewer the upper limit is one of the very largest values
UNLIKE = 0.10  # first taking, halves, spread of takings: pyperf calls a benchmark unstable from 10 %
LAG_S = 0.005  # the client's p99 lateness: a fifth of the article's 25 ms per token
OTHERS_CPU = 0.25  # of one core: an idle system's own services take some hundredths
CLIENT_CPU = 0.80  # of one core: above it a waiting client adds its own queue to every stamp
PREFIX_HITS = 0.01  # more than chance: prompts that should be distinct share blocks
TOKENS_PER_EVENT = 1.1  # above it the gaps between events are not those between tokens
SHARED_READS = 0.05  # of token events; what comes in one read has one stamp, the gaps within it read 0
GAUGE_DISTANCE = 0.10  # mean distance of the running gauge from the rebuilt batch, over requests in flight
HALF = 5  # requests in each half of a taking: with fewer one slow request makes a drift
GAUGE_SAMPLES = 5  # with fewer a single late sample decides
CLOCK_SPREAD = 0.05  # of a GPU's top clock: what the noise floor of the day should not exceed

Check = tuple[bool, str, str]  # whether it holds, what is doubtful, what to do


@dataclass(frozen=True)
class Doubt:
    """One warning."""

    where: str  # launch, or launch and level
    text: str
    next: str

    def __str__(self) -> str:
        """One line for a table."""
        return f"{self.text} ({self.next})"


def of_level(level: Level, study: config.Study, settings: Mapping[str, Any] | None = None) -> list[Doubt]:
    """Doubts about one level of one launch, the gravest first.

    Parameters
    ----------
    settings : the launch's, where they are known: what it leaves out on purpose raises no doubt.
    """
    off = (settings or {}).get("prefix_cache") is False
    checks = [*_course(level, study), *_instrument(level), *_engine(level, study, off), *_gpus(level),
              *_stability(level), *_sample(level)]  # fmt: skip
    return [Doubt(f"{level.launch} {level.id}", text, step) for raised, text, step in checks if raised]


def of_launch(one: Measured, study: config.Study) -> list[Doubt]:
    """Doubts about a whole launch: its stamps, its code, its config."""
    clock, then = one.meta.get("clock", {}), one.meta.get("config", {}).get("study", {})
    user = int(clock.get("stamp_sources", {}).get("user", 0))
    changed = _changed(_stated(then), _stated(study.model_dump(mode="json")))
    checks: list[Check] = [
        (user > 0, f"{user} answers carry user-space instead of kernel stamps",
         "their times include the client's own wake-up; see the calibration"),
        (bool(clock.get("steps")), f"the wall clock was stepped {clock.get('steps')} times while measuring",
         "stop time synchronisation while measuring"),
        (bool(one.meta["git"].get("dirty")), "measured with uncommitted changes in the code",
         "commit and measure again before publishing"),
        (one.telemetry_reason is not None, f"no engine metrics: {one.telemetry_reason}",
         "cache use, preemptions and hits are unknown for this launch"),
        (bool(changed), f"measured with another config: {', '.join(changed)} changed since",
         "run `make remeasure` to bring record and config together"),
    ]  # fmt: skip
    return [Doubt(one.name, text, step) for raised, text, step in checks if raised]


def of_study(launches: Sequence[Measured]) -> list[Doubt]:
    """Doubts about launches side by side: what should be the same and is not."""
    metas = [one.meta for one in launches]
    machines = {str([m["machine"].get(k) for k in ("cpu", "cores", "gpus")]) for m in metas}
    commits = {str(m["git"].get("commit")) for m in metas}
    clients = {(m.get("client") or {}).get("where") for m in metas}
    found = [
        Doubt("all launches", f"measured with {len(kinds)} different {what}", "measure again what should be compared")
        for what, kinds in (
            ("machines", machines), ("versions of this code", commits), ("places of the client", clients),
        )
        if len(kinds) > 1
    ]
    for engine in sorted({m["engine"] for m in metas}):
        versions = sorted({str(m["versions"].get("engine")) for m in metas if m["engine"] == engine})
        if len(versions) > 1:
            text = f"measured in mixed versions: {', '.join(versions)}"
            found.append(Doubt(engine, text, "measure its launches again with one version"))
    return found


def drift(level: Level, metric: str) -> float:
    """Change of a metric's median from the first half of a taking to the second, as a share; the median over takings.

    Halves are by the time sent; a taking with fewer than `HALF` values in one says nothing. NaN without values.
    """
    changes = []
    for taking in level.takings:
        rows = np.flatnonzero(taking.counted)
        rows = rows[np.argsort(taking.columns["sent_ns"][rows], kind="stable")]
        first, second = (stats.finite(taking.every(metric)[half]) for half in np.array_split(rows, 2))
        if min(len(first), len(second)) >= HALF:
            changes.append(np.median(second) / np.median(first) - 1)
    return float(np.median(changes)) if changes else float("nan")


def _course(level: Level, study: config.Study) -> list[Check]:
    """Whether the level went as planned."""
    planned = level.id in {one.id for one in study.levels}  # a search takes its levels as often as it needs them
    wanted, taken = study.statistics.runs * study.statistics.repeats if planned else 1, len(level.takings)
    wrong, miscounted = level.total("wrong_length"), sum(_miscounted(t.columns) for t in level.takings)
    early = Counter(str(t.entry["ended"]) for t in level.takings if t.entry["ended"] != "planned")
    return [
        (level.failures > 0,
         f"{level.failures} of {level.total('requests')} requests did not complete: {_causes(level)}",
         "see their causes in the record; take the level once more before judging it"),
        *((True, f"{n} of {taken} takings ended early: {why}", "measure the level again") for why, n in early.items()),
        (taken < wanted, f"{taken} of {wanted} planned takings are there", "run `make report` to take the rest"),
        (level.short is not None, f"{level.short} (below {REACHED:.0%})",
         "lengthen the level, or give the client a core of its own"),
        (wrong > 0, f"{wrong} answers are of another length than asked", "check how the engine pins the output length"),
        (miscounted > 0, f"the server counted other input lengths than planned for {miscounted} requests",
         "check its tokenizer and what it adds to a prompt"),
    ]  # fmt: skip


def _instrument(level: Level) -> list[Check]:
    """Whether the client itself was in the way."""
    lag, cpu, shared = level.largest("lag_p99_s"), level.largest("client_cpu_share"), level.mean("shared_reads_share")
    others = max((float(x.mean()) / 100 for t in level.takings if len(x := t.gauge("other_cpu_percent"))), default=0.0)
    return [
        (others > OTHERS_CPU, f"other programs used {others:.2g} of this computer's cores (above {OTHERS_CPU:g})",
         "end them and measure the level again"),
        (lag > LAG_S, f"the client sent late: p99 lag {lag * 1e3:.3g} ms (above {LAG_S * 1e3:g} ms)",
         "free a core for the client, or lower the load"),
        (cpu > CLIENT_CPU, f"the client used {cpu:.0%} of a core (above {CLIENT_CPU:.0%})",
         "give it more worker processes"),
        (shared > SHARED_READS, f"{shared:.0%} of token events came in one read with the one before",
         "read gaps between tokens with care; TTFT and TPOT are not touched"),
    ]  # fmt: skip


def _engine(level: Level, study: config.Study, cache_off: bool) -> list[Check]:
    """Whether the engine did what the workload assumes."""
    hits, per_event, preempted = (level.largest(c) for c in ("prefix_hit_share", "tokens_per_event", "preemptions"))
    agreed = [a.distance for t in level.takings if (a := agreement(t)) is not None and a.samples >= GAUGE_SAMPLES]
    off = max(agreed, default=0.0)
    fewest = min((row["tokens_per_event"] for row in level.rows), default=1.0)
    return [
        (study.workloads[level.workload].prefix_cache == "avoid" and hits > PREFIX_HITS,
         f"{hits:.1%} of prefix-cache queries hit, prompts should share nothing", "check the prompts' first tokens"),
        (study.workloads[level.workload].prefix_cache == "wanted" and hits <= PREFIX_HITS and not cache_off,
         f"{hits:.1%} of prefix-cache queries hit, and this workload repeats its prompts",
         "set `prefix_cache: true` in the launch's settings"),
        (per_event > TOKENS_PER_EVENT, f"{per_event:.3g} tokens per stream event",
         "use TPOT; gaps between events are no token gaps"),
        (fewest < 1 / TOKENS_PER_EVENT, f"the server counts {fewest:.3g} tokens per stream event, and each holds one",
         "do not trust its counts; TPOT and throughput rest on them"),
        (preempted > 0, f"the engine preempted {preempted:.0f} requests in a taking: its KV cache was full",
         "lower the load, or give the cache more memory"),
        (off > GAUGE_DISTANCE, f"the engine's running gauge is {off:.0%} off the batch rebuilt from token stamps",
         "trust the stamps; see batch size over time"),
    ]  # fmt: skip


def _gpus(level: Level) -> list[Check]:
    """Whether the GPUs were left alone by heat and power."""
    hot: dict[int, float] = {}
    for taking in level.takings:
        for number, share in energy.throttled(taking.telemetry, taking.window).items():
            hot[number] = max(share, hot.get(number, 0.0))
    which = ", ".join(f"GPU {number} in {share:.0%} of samples" for number, share in sorted(hot.items()))
    spread = level.largest("gpu_clock_spread_share")
    return [
        (bool(hot), f"throttled by heat or the board: {which}",
         "see `make doctor`; cool the node or take another, and measure the level again"),
        (not hot and spread > CLOCK_SPREAD, f"GPU clocks spread by {spread:.0%} (above {CLOCK_SPREAD:.0%})",
         "lock the clocks (nvidia-smi -lgc, as root) where the site allows it, or state it"),
    ]  # fmt: skip


def _stability(level: Level) -> list[Check]:
    """Whether takings, and halves of takings, tell the same story."""
    checks: list[Check] = []
    # Arrivals and pauses decide the throughput of the other levels, so it says nothing about the server's stability.
    rates = (("output_tok_s", "throughput"),) if level.saturated else ()
    for column, name in (("ttft_p50_s", "TTFT"), ("tpot_p50_s", "TPOT"), *rates):
        values = np.array([row[column] for row in level.rows], dtype=float)
        values = values[np.isfinite(values) & (values > 0)]
        if len(values) >= 3:
            apart, spread = values[0] / np.median(values[1:]) - 1, values.std(ddof=1) / values.mean()
            unlike = bool(abs(apart) > UNLIKE)
            checks += [
                (unlike, f"first taking unlike the rest: {name} {apart:+.0%}",
                 "lengthen the warm-up and measure again"),
                (not unlike and bool(spread > UNLIKE), f"takings differ: {name} spreads by {spread:.0%}",
                 "quiet the machine, or take more repeats"),
            ]  # fmt: skip
    # All sessions of a taking begin with the turn that reads a whole document, so their TTFT falls by design.
    for metric, name in (("ttft_s", "TTFT"), ("tpot_s", "TPOT"))[level.turns > 0 :]:
        change = drift(level, metric)
        text = f"{name} drifts within the level: second half {change:+.0%} against the first"
        checks.append((abs(change) > UNLIKE, text, "lengthen the warm-up or the level until it is steady"))
    return checks


def _sample(level: Level) -> list[Check]:
    """Whether enough requests carry each percentile; where none is supported its own reason says so."""
    p95 = {name: level.estimates[f"{name.lower()}_p95_s"] for name in ("TTFT", "TPOT")}
    few = {name: e.n for name, e in p95.items() if e.high is not None and int(e.n * 0.05) < ABOVE_PERCENTILE}
    least = min(few.values(), default=0)
    text = f"p95 of {' and '.join(few)} rests on {int(least * 0.05)} requests above it"
    return [(bool(few), text, f"take {ABOVE_PERCENTILE * 20} requests or more, now {least}")]


def _miscounted(c: Columns) -> int:
    """Requests whose input has another length in the server's count than the prompt was written with."""
    return int((np.isfinite(c["input_tokens"]) & (c["input_tokens"] != c["planned_input_tokens"])).sum())


def _causes(level: Level) -> str:
    counts: Counter[str] = Counter()
    for taking in level.takings:
        c = taking.columns
        bad = taking.measured & (c["status"] != "complete")
        counts.update(str(cause or status) for cause, status in zip(c["cause"][bad], c["status"][bad], strict=True))
    return ", ".join(f"{n} x {cause}" for cause, n in counts.most_common(3))


def _stated(value: Any) -> Any:
    """Leave out keys without a value, as the config's hash does: one that came later changes nothing."""
    if isinstance(value, dict):
        return {key: _stated(inner) for key, inner in value.items() if inner is not None}
    return [_stated(inner) for inner in value] if isinstance(value, list) else value


def _changed(then: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of the sections of study.yaml that differ."""
    return sorted(key for key in {*then, *now} if then.get(key) != now.get(key))
