"""Decide when each request is due. Pure: no clock, no network, no engine, no text.

What it is for: arrival offsets of an open loop (Poisson, constant, gamma-bursty, recorded), start offsets and think
times of a closed loop. Every offset is an integer number of nanoseconds after the start of the level.
What it refuses: rates, counts and shapes that describe no schedule, with a ConfigError.
The rule it keeps: due times depend on the seed and on nothing that a server answers, or a slow server would lower its
own load. The seed comes from `seed_for`, which is never told which contender is being measured, so that all of them
meet the same schedule.

>>> arrivals_ns("constant", rate_rps=2.0, count=3, seed=0).tolist()
[0, 500000000, 1000000000]
"""

import math
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from lib.errors import ConfigError

Pattern = Literal["poisson", "constant", "gamma"]
ThinkShape = Literal["constant", "exponential"]
Offsets = NDArray[np.int64]

NS_PER_S = 1_000_000_000
JITTER = 0.5  # share of a slot by which a ramp start may move: clients that start in step stay in step


def seed_for(study_seed: int, level: str, repeat: int, run: int, purpose: str) -> int:
    """Seed of one purpose (lengths, text, arrivals) in one level, repeat and run: 63 bits, never negative.

    The contender is left out on purpose: all of them get the same prompts, lengths and due times.
    """
    name = f"{study_seed}|{level}|{repeat}|{run}|{purpose}"
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") >> 1


def arrivals_ns(
    pattern: Pattern,
    *,
    rate_rps: float,
    seed: int,
    count: int | None = None,
    duration_s: float | None = None,
    burstiness: float = 1.0,
) -> Offsets:
    """Due times of an open loop, in ns after the level's start, in order.

    Parameters
    ----------
    pattern : {"poisson", "constant", "gamma"}
        Gaps between arrivals: exponential, all equal (the first arrival at 0), or gamma distributed.
    rate_rps : float
        Mean arrivals per second.
    seed : int
        Non-negative; see `seed_for`. A constant pattern ignores it.
    count, duration_s : int or float
        Exactly one of them: how many arrivals, or all arrivals before that time in seconds.
    burstiness : float
        Shape of the gamma distribution, only for "gamma". The gaps' coefficient of variation is burstiness ** -0.5,
        and over long windows the variance of the count is 1 / burstiness times its mean: 1 is Poisson, below 1 comes
        in bursts, above 1 is more regular. (Asymptotic variance of a renewal process: Cox, Renewal Theory, 1962.)

    Returns
    -------
    int64 array, shape (count,)

    Raises
    ------
    ConfigError
        Unknown pattern; rate, duration or burstiness not above 0; not exactly one of count and duration.
    """
    if pattern not in get_args(Pattern):
        raise ConfigError(f"arrival pattern {pattern!r} is not known; use one of {', '.join(get_args(Pattern))}.")
    _positive(rate_rps, "arrival rate", "requests per second")
    _positive(burstiness, "burstiness", "the shape of the gamma distribution of the gaps")
    if pattern != "gamma" and burstiness != 1.0:
        raise ConfigError(f"burstiness {burstiness:g} means nothing for {pattern} arrivals; use gamma or leave it out.")
    shape = {"poisson": 1.0, "constant": math.inf, "gamma": burstiness}[pattern]
    if count is not None and duration_s is None:
        if count < 1:
            raise ConfigError(f"a level of {count} arrivals measures nothing; state 1 or more.")
        return _as_ns(_times_s(seed, shape, rate_rps, count))
    if duration_s is not None and count is None:
        _positive(duration_s, "duration", "seconds of arrivals")
        enough = math.ceil(duration_s * rate_rps) + 1
        while (times := _times_s(seed, shape, rate_rps, enough))[-1] < duration_s:
            enough *= 2
        return _as_ns(times[times < duration_s])
    raise ConfigError(f"arrivals need a count or a duration, not {count} and {duration_s}; state one of them.")


def trace_ns(arrivals_s: Sequence[float], speed: float = 1.0) -> Offsets:
    """Due times of a recorded trace: counted from its first arrival, `speed` times as fast as recorded.

    Raises ConfigError for an empty trace, a time that is not finite, times out of order, or a speed not above 0.
    """
    _positive(speed, "speed", "a factor on the trace's rate")
    times = np.asarray(arrivals_s, dtype=np.float64)
    if not times.size or not np.isfinite(times).all():
        raise ConfigError(f"a trace of {times.size} arrivals must hold one or more, all finite, in seconds.")
    if (np.diff(times) < 0).any():
        late = int(np.argmax(np.diff(times) < 0)) + 1
        raise ConfigError(
            f"arrival {late + 1} of the trace is due at {times[late]:g} s, before the one ahead of it "
            f"({times[late - 1]:g} s); sort the trace by arrival."
        )
    return _as_ns((times - times[0]) / speed)


def ramp_ns(clients: int, ramp_s: float, seed: int) -> Offsets:
    """Start offsets of a closed loop without a start burst: one client per slot of ramp_s / clients, jittered in it.

    A sensible ramp lasts about as long as one request does, so that the clients are spread over a request's life when
    the steady window opens. The first client starts at 0, and no two starts are nearer than half a slot.

    Returns
    -------
    int64 array, shape (clients,), ns, in order

    Raises
    ------
    ConfigError
        Fewer than one client, or a ramp not above 0 s (a start at once is `burst_ns`).
    """
    _clients(clients)
    _positive(ramp_s, "ramp", "seconds; a workload that starts all clients at once says burst")
    jitter = np.random.default_rng(seed).random(clients) * JITTER
    slots = np.arange(clients) + jitter
    return _as_ns((slots - slots[0]) * (ramp_s / clients))


def burst_ns(clients: int) -> Offsets:
    """Start offsets of a closed loop whose clients all start at 0: a workload by that name, never the default."""
    _clients(clients)
    return np.zeros(clients, dtype=np.int64)


def think_ns(count: int, mean_s: float, shape: ThinkShape, seed: int) -> Offsets:
    """Pauses of a client between an answer and its next request, in ns, shape (count,).

    Parameters
    ----------
    mean_s : float
        Mean pause in seconds; 0 for none.
    shape : {"constant", "exponential"}
        All equal, or exponential with that mean.
    """
    if shape not in get_args(ThinkShape):
        raise ConfigError(f"think time shape {shape!r} is not known; use one of {', '.join(get_args(ThinkShape))}.")
    if not (math.isfinite(mean_s) and mean_s >= 0):
        raise ConfigError(f"think time {mean_s} must be a number of seconds, 0 or more.")
    if shape == "constant":
        return _as_ns(np.full(count, mean_s))
    return _as_ns(np.random.default_rng(seed).exponential(mean_s, count))


def _times_s(seed: int, shape: float, rate_rps: float, count: int) -> NDArray[np.float64]:
    if shape == math.inf:
        return np.arange(count) / rate_rps
    return np.cumsum(np.random.default_rng(seed).gamma(shape, 1 / (shape * rate_rps), count))


def _as_ns(seconds: NDArray[np.float64]) -> Offsets:
    return np.rint(seconds * NS_PER_S).astype(np.int64)


def _positive(value: float, name: str, meaning: str) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{name} {value} must be above 0 ({meaning}).")


def _clients(clients: int) -> None:
    if clients < 1:
        raise ConfigError(f"a closed loop of {clients} clients measures nothing; state 1 or more.")
