"""Draw the work of a simulated run from a seed, and read its trace in the study's words.

Rule: the definitions are those of the measured tables (TTFT, TPOT per request, steady window); percentiles
interpolate linearly between order statistics, as everywhere in the study. Answers vary uniformly by a stated share
around their mean, because equal lengths keep a closed loop in step for ever and show convoys that no real traffic
has.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib import stats
from lib.analyse.simulate import Trace, Work
from lib.errors import NoValue

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Workload:
    """Tokens in and out per request; for sessions also turns, tokens a later turn adds to its prompt, and mean
    thinking time (s).
    """

    name: str
    isl: int
    osl: int
    spread: float = 0.5
    turns: int = 1
    turn_isl: int = 0
    think_s: float = 0.0


def _answers(workload: Workload, n: int, draw: np.random.Generator) -> NDArray[np.int64]:
    low, high = workload.osl * (1 - workload.spread), workload.osl * (1 + workload.spread)
    return np.maximum(2, np.rint(draw.uniform(low, high, n))).astype(np.int64)


def closed_loop(workload: Workload, clients: int, seed: int, per_client: int = 6, least: int = 300) -> Work:
    """`clients` users, each with one request in flight; sessions of `turns` with exponential thinking before every
    turn.
    """
    draw = np.random.default_rng(seed)
    sessions = max(per_client * clients, least // workload.turns)
    outputs = _answers(workload, sessions * workload.turns, draw)
    inputs = np.full((sessions, workload.turns), workload.isl, dtype=np.int64)
    if workload.turns > 1:
        grown = workload.turn_isl + outputs.reshape(sessions, -1)[:, :-1]
        inputs[:, 1:] += np.cumsum(grown, axis=1)
    think = draw.exponential(workload.think_s, outputs.size) if workload.think_s else None
    return Work(inputs.ravel(), outputs, clients=clients, think_s=think, turns=workload.turns)


def poisson(workload: Workload, rate_s: float, n: int, seed: int) -> Work:
    """`n` requests whose arrivals do not depend on answers: `rate_s` a second, exponential gaps."""
    draw = np.random.default_rng(seed)
    outputs = _answers(workload, n, draw)
    due = np.cumsum(draw.exponential(1 / rate_s, n))
    return Work(np.full(n, workload.isl, dtype=np.int64), outputs, due_s=due)


@dataclass(frozen=True)
class Samples:
    """Per-request values of the steady part of a run, and its throughput."""

    ttft_s: Floats
    tpot_s: Floats
    ttft_all_s: Floats
    output_tok_s: float
    in_flight: float


def steady(trace: Trace, work: Work) -> Samples:
    """Values of the steady window.

    Closed loop: the first two requests of each client (the start burst) and the last one (the drain) are left out; of
    sessions the first and the last of each client. Open loop: the first and last tenth. `ttft_all_s` keeps the burst.
    """
    n, group = work.outputs.size, work.clients * work.turns
    low, high = (n // 10, n - n // 10) if work.due_s is not None else (group * (1 if work.turns > 1 else 2), n - group)
    if high - low < 20:
        raise NoValue(
            f"a run of {n} requests by {work.clients} clients has no steady part of 20 requests; "
            "simulate more requests."
        )
    window = slice(low, high)
    ttft = trace.first_s - trace.sent_s
    several = np.maximum(trace.outputs - 1, 1)
    tpot = np.where(trace.outputs > 1, (trace.done_s - trace.first_s) / several, np.nan)
    start, end = float(trace.sent_s[low]), float(np.max(trace.sent_s[low:high]))
    if not end > start:
        raise NoValue("the steady part of the run has no length; simulate more requests.")
    begins, ends, tokens = trace.strides.T
    share = np.clip(np.minimum(ends, end) - np.maximum(begins, start), 0, None) / np.maximum(ends - begins, 1e-12)
    busy = np.clip(np.minimum(trace.done_s, end) - np.maximum(trace.sent_s, start), 0, None).sum()
    return Samples(
        ttft[window], tpot[window], ttft, float((share * tokens).sum() / (end - start)), float(busy / (end - start))
    )


def percentile(values: Floats, p: float) -> float:
    """Percentile `p` (a share) by the study's one estimator; NoValue for no values."""
    found = stats.percentile_interval([values], p).value
    if found is None:
        raise NoValue("no values to take a percentile of.")
    return found


def summary(runs: list[Samples]) -> dict[str, Any]:
    """Percentiles pooled over runs (s) and means (s, tok/s), each with its 95 % interval as `_low` and `_high`.

    The interval is that of the simulation's own chance, not of the step times it rests on.
    """
    estimates = {
        "ttft_p50_s": stats.percentile_interval([run.ttft_s for run in runs], 0.5),
        "ttft_p95_s": stats.percentile_interval([run.ttft_s for run in runs], 0.95),
        "ttft_p95_burst_s": stats.percentile_interval([run.ttft_all_s for run in runs], 0.95),
        "ttft_p99_s": stats.percentile_interval([run.ttft_s for run in runs], 0.99),
        "tpot_p50_s": stats.percentile_interval([run.tpot_s for run in runs], 0.5),
        "tpot_p95_s": stats.percentile_interval([run.tpot_s for run in runs], 0.95),
        "tpot_p99_s": stats.percentile_interval([run.tpot_s for run in runs], 0.99),
        "tpot_mean_s": stats.mean_interval([float(np.nanmean(run.tpot_s)) for run in runs]),
        "output_tok_s": stats.mean_interval([run.output_tok_s for run in runs]),
    }
    out: dict[str, Any] = {}
    for name, estimate in estimates.items():
        out |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return out | {
        "in_flight": float(np.mean([run.in_flight for run in runs])),
        "requests": int(sum(run.ttft_s.size for run in runs)),
    }
