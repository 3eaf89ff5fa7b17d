"""Known answers, agreement with numpy, and coverage on simulated studies with the real number of takings."""

import numpy as np
import pytest

from lib import stats


def test_rank_interval_known_answers():
    assert stats.rank_interval(100, 0.95) == (90, 100)
    assert stats.rank_interval(200, 0.95) == (184, 197)
    assert stats.rank_interval(400, 0.95) == (371, 389)
    assert stats.rank_interval(1000, 0.95) == (936, 964)


def test_smallest_supported_sample():
    assert (stats.needed(0.95), stats.needed(0.99)) == (72, 368)
    assert stats.rank_interval(71, 0.95) is None and stats.rank_interval(72, 0.95) == (64, 72)


def test_percentile_is_numpys():
    values = np.random.default_rng(1).lognormal(size=300)
    assert stats.percentile_interval([values[:100], values[100:]], 0.95).value == np.quantile(values, 0.95)


def test_unsupported_percentile_says_so_and_keeps_its_value():
    e = stats.percentile_interval([np.arange(1.0, 11.0)], 0.95)
    assert (round(e.value, 9), e.low, e.high) == (9.55, None, None)
    assert e.reason == "p95 needs 72 requests, there are 10"


def test_nothing_is_missing_not_zero():
    for e in (
        stats.percentile_interval([], 0.95),
        stats.mean_interval([]),
        stats.median_interval([np.array([np.nan])]),
    ):
        assert e.value is None and e.reason


def test_mean_interval_is_students():
    e = stats.mean_interval([1.0, 2.0, 3.0])
    assert e.value == 2.0 and e.high == pytest.approx(2 + 4.302653 * 1 / 3**0.5, rel=1e-6)


def test_positive_quantities_have_positive_limits():
    e = stats.mean_interval([1.0, 4.0], positive=True)
    assert e.value == 2.0 and 0 < e.low < 2.0 < e.high
    assert e.high == pytest.approx(2 * np.exp(12.7062 * np.log(2)), rel=1e-3)
    assert stats.mean_interval([0.0, 1.0], positive=True).value == 0.5


def test_one_taking_has_no_interval():
    e = stats.mean_interval([5.0])
    assert (e.value, e.low, e.high, e.takings) == (5.0, None, None, 1)


def test_spread_between_takings_widens():
    rng = np.random.default_rng(2)
    same = [rng.lognormal(sigma=0.2, size=100) for _ in range(3)]
    moved = [t * shift for t, shift in zip(same, (0.8, 1.0, 1.25), strict=True)]
    narrow, wide = stats.percentile_interval(same, 0.95), stats.percentile_interval(moved, 0.95)
    assert wide.high / wide.low > 1.5 * narrow.high / narrow.low


def test_holm_known_answer():
    assert stats.holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]
    assert stats.holm([]) == []


def test_compare_finds_a_real_difference_and_spares_an_equal_pair():
    a, b = [1.00, 1.01, 0.99], [2.00, 2.02, 1.98]
    different, equal = stats.compare(b, a), stats.compare(a, [1.005, 0.995, 1.0])
    assert different.ratio == pytest.approx(2.0, rel=0.01) and different.low > 1.9 and different.p_value < 0.001
    assert equal.low < 1 < equal.high and equal.p_value > 0.5


def test_compare_needs_two_takings_each():
    assert stats.compare([1.0], [1.0, 2.0]) is None


def test_wilson_known_answer():
    low, high = stats.wilson(8, 10)
    assert (round(low, 3), round(high, 3)) == (0.49, 0.943)
    assert stats.wilson(0, 0) == (0.0, 1.0)


def simulated_study(rng, takings, requests, between, correlation):
    """Lognormal latencies, skewed and autocorrelated, with a shift per taking."""
    study = []
    for shift in rng.normal(0, between, takings):
        noise = rng.normal(size=requests)
        for i in range(1, requests):
            noise[i] = correlation * noise[i - 1] + (1 - correlation**2) ** 0.5 * noise[i]
        study.append(np.exp(0.5 * noise + shift))
    return study


@pytest.mark.parametrize(("takings", "requests"), [(3, 40), (5, 40)])
@pytest.mark.parametrize("between", [0.0, 0.1])
def test_intervals_cover_the_truth(takings, requests, between):
    rng = np.random.default_rng(takings * 100 + int(between * 10))
    truth_p95 = np.exp(1.6448536 * (0.25 + between**2) ** 0.5)
    truth_median = 1.0  # of the logarithms: the takings' shifts are symmetric there
    p95 = median = 0
    for _ in range(500):
        study = simulated_study(rng, takings, requests, between, correlation=0.3)
        e, m = stats.percentile_interval(study, 0.95), stats.median_interval(study)
        p95 += e.low <= truth_p95 <= e.high
        median += m.low <= truth_median <= m.high
    assert 0.93 <= p95 / 500 <= 0.98, p95 / 500
    assert 0.93 <= median / 500 <= 0.98, median / 500


def test_false_alarms_of_the_comparison():
    rng = np.random.default_rng(7)
    alarms = sum(
        stats.compare(rng.lognormal(sigma=0.05, size=3), rng.lognormal(sigma=0.05, size=3)).p_value < 0.05
        for _ in range(1000)
    )
    assert stats.wilson(alarms, 1000)[1] <= 0.07
