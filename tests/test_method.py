"""What the statistics promise, over simulated studies with the real number of runs and skewed, autocorrelated noise."""

import numpy as np
import pytest

from lib import stats

STUDIES = 1000


def latencies(rng, takings, requests, between, correlation=0.3, sigma=0.5):
    """Latencies of one level: lognormal, autocorrelated, with a shift per taking. Shape (takings, requests)."""
    noise = rng.normal(size=(takings, requests))
    for i in range(1, requests):
        noise[:, i] = correlation * noise[:, i - 1] + (1 - correlation**2) ** 0.5 * noise[:, i]
    return np.exp(sigma * noise + rng.normal(0, between, (takings, 1)))


@pytest.mark.parametrize("takings", [3, 5])
def test_two_measured_as_the_same_thing_differ_in_at_most_seven_of_a_hundred(takings):
    """A/A: the upper 95 % limit of the share of false alarms, for one comparison and for the family after Holm."""
    rng = np.random.default_rng(11)
    single = family = 0
    for _ in range(STUDIES):
        both = np.median(latencies(rng, 2 * takings * 4, 40, 0.05), axis=1).reshape(4, 2, takings)  # four levels
        p = [stats.compare(a, b).p_value for a, b in both]
        single += p[0] < 0.05
        family += min(stats.holm(p)) < 0.05
    assert stats.wilson(single, STUDIES)[1] <= 0.07 and stats.wilson(family, STUDIES)[1] <= 0.07


@pytest.mark.parametrize("p", [0.5, 0.9, 0.95, 0.99])
def test_every_percentile_is_numpys_on_the_same_data(p):
    rng = np.random.default_rng(5)
    for n in (1, 2, 20, 100, 999):
        values = rng.lognormal(size=n)
        parts = np.array_split(values, min(3, n))
        assert stats.percentile_interval(parts, p).value == np.quantile(values, p) == np.percentile(values, 100 * p)
