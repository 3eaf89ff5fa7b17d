import inspect
import math

import numpy as np
import pytest

from lib.errors import ConfigError
from lib.measure.schedule import arrivals_ns, burst_ns, ramp_ns, seed_for, think_ns, trace_ns

SECOND = 1_000_000_000
MANY = 40_000


def test_seed_depends_on_every_part_and_never_on_the_contender():
    base = seed_for(7, "c8", 0, 0, "text")
    others = {seed_for(8, "c8", 0, 0, "text"), seed_for(7, "c16", 0, 0, "text"), seed_for(7, "c8", 1, 0, "text"),
              seed_for(7, "c8", 0, 1, "text"), seed_for(7, "c8", 0, 0, "arrivals")}
    assert base == 7805881127900520793 and len(others | {base}) == 6  # fixed for good: records name their seed
    assert set(inspect.signature(seed_for).parameters) == {"study_seed", "level", "repeat", "run", "purpose"}


def test_constant_arrivals_known():
    assert arrivals_ns("constant", rate_rps=4, count=3, seed=0).tolist() == [0, SECOND // 4, SECOND // 2]
    assert arrivals_ns("constant", rate_rps=2, duration_s=1.5, seed=0).tolist() == [0, SECOND // 2, SECOND]


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_gamma_gaps_have_the_stated_mean_and_variation(shape):
    due = arrivals_ns("gamma", rate_rps=50, count=MANY, seed=1, burstiness=shape) / SECOND
    gaps = np.diff(due, prepend=0)
    variation = shape**-0.5
    assert np.mean(gaps) == pytest.approx(1 / 50, rel=4 * variation / math.sqrt(MANY))  # four standard errors
    assert np.std(gaps) / np.mean(gaps) == pytest.approx(variation, rel=0.05)


@pytest.mark.parametrize("shape", [0.25, 1.0, 4.0])
def test_counts_in_long_windows_are_dispersed_as_theory_says(shape):
    due = arrivals_ns("gamma", rate_rps=50, duration_s=4_000, seed=2, burstiness=shape) / SECOND
    counts = np.histogram(due, bins=2_000, range=(0, 4_000))[0]  # windows of 2 s, 100 arrivals each on average
    # The standard error of a variance over 2,000 windows is about sqrt(2 / 2000) = 3 %; a finite window costs a little.
    assert np.var(counts) / np.mean(counts) == pytest.approx(1 / shape, rel=0.15)


def test_poisson_is_memoryless_and_is_gamma_of_shape_one():
    due = arrivals_ns("poisson", rate_rps=10, count=MANY, seed=3)
    gaps = np.diff(due) / SECOND
    for factor in (0.5, 1, 2, 3):
        assert np.mean(gaps > factor / 10) == pytest.approx(math.exp(-factor), abs=0.01)
    assert np.corrcoef(gaps[:-1], gaps[1:])[0, 1] == pytest.approx(0, abs=0.02)
    assert due.tolist() == arrivals_ns("gamma", rate_rps=10, count=MANY, seed=3, burstiness=1).tolist()


@pytest.mark.parametrize("pattern", ["poisson", "constant", "gamma"])
def test_a_duration_holds_the_first_arrivals_of_the_same_seed_and_none_later(pattern):
    by_time = arrivals_ns(pattern, rate_rps=20, duration_s=30, seed=4)
    by_count = arrivals_ns(pattern, rate_rps=20, count=2_000, seed=4)
    assert by_time.tolist() == by_count[by_count < 30 * SECOND].tolist()
    assert by_time.dtype == np.int64 and (np.diff(by_time) >= 0).all() and by_time[0] >= 0


def test_a_very_short_duration_may_hold_no_arrival():
    assert arrivals_ns("poisson", rate_rps=0.001, duration_s=0.001, seed=4).tolist() == []


def test_same_seed_same_arrivals_another_seed_others():
    first, again, other = (arrivals_ns("poisson", rate_rps=5, count=50, seed=seed) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


def test_ramp_spreads_the_starts_and_burst_does_not():
    starts = ramp_ns(64, ramp_s=8, seed=5)
    slot = 8 * SECOND / 64
    assert starts[0] == 0 and starts[-1] < 8 * SECOND and len(starts) == 64
    assert np.diff(starts).min() >= 0.5 * slot - 1 and np.diff(starts).max() <= 1.5 * slot + 1
    assert np.diff(starts).std() > 0.1 * slot  # clients that start in step stay in step
    assert starts.tolist() == ramp_ns(64, ramp_s=8, seed=5).tolist() != ramp_ns(64, ramp_s=8, seed=6).tolist()
    assert burst_ns(3).tolist() == [0, 0, 0]
    assert ramp_ns(1, ramp_s=8, seed=5).tolist() == [0]


def test_trace_counts_from_its_first_arrival_and_can_be_sped_up():
    assert trace_ns([10, 10.5, 10.5, 12]).tolist() == [0, SECOND // 2, SECOND // 2, 2 * SECOND]
    assert trace_ns([10, 12], speed=4).tolist() == [0, SECOND // 2]


def test_think_times():
    assert think_ns(3, 0.5, "constant", seed=1).tolist() == [SECOND // 2] * 3
    assert think_ns(2, 0, "exponential", seed=1).tolist() == [0, 0]
    assert np.mean(think_ns(MANY, 2, "exponential", seed=1)) == pytest.approx(2 * SECOND, rel=0.02)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: arrivals_ns("uniform", rate_rps=1, count=1, seed=0), "uniform"),
        (lambda: arrivals_ns("poisson", rate_rps=0, count=1, seed=0), "rate 0"),
        (lambda: arrivals_ns("poisson", rate_rps=math.nan, count=1, seed=0), "nan"),
        (lambda: arrivals_ns("poisson", rate_rps=1, count=0, seed=0), "0 arrivals"),
        (lambda: arrivals_ns("poisson", rate_rps=1, duration_s=-1, seed=0), "duration -1"),
        (lambda: arrivals_ns("poisson", rate_rps=1, seed=0), "count or a duration"),
        (lambda: arrivals_ns("poisson", rate_rps=1, seed=0, count=1, duration_s=1), "count or a duration"),
        (lambda: arrivals_ns("poisson", rate_rps=1, seed=0, count=1, burstiness=2), "burstiness 2"),
        (lambda: arrivals_ns("gamma", rate_rps=1, seed=0, count=1, burstiness=0), "burstiness 0"),
        (lambda: ramp_ns(0, 1, 0), "0 clients"),
        (lambda: ramp_ns(4, 0, 0), "burst"),
        (lambda: burst_ns(0), "0 clients"),
        (lambda: trace_ns([]), "0 arrivals"),
        (lambda: trace_ns([0, math.inf]), "finite"),
        (lambda: trace_ns([0, 2, 1]), "arrival 3"),
        (lambda: trace_ns([0, 1], speed=0), "speed 0"),
        (lambda: think_ns(1, -1, "constant", 0), "-1"),
        (lambda: think_ns(1, 1, "normal", 0), "normal"),
    ],
)
def test_refusals_name_the_value(call, named):
    with pytest.raises(ConfigError, match=named) as refusal:
        call()
    assert "\n" not in str(refusal.value)
