import numpy as np
import pytest

from lib.errors import ConfigError
from lib.measure.lengths import Lengths


def test_constant_and_uniform_hold_what_they_state():
    for shape in ("constant", "uniform", "lognormal"):
        assert Lengths(128, 0, shape).draw(3, seed=1) == [128, 128, 128]
    drawn = Lengths(100, 0.5, "uniform").draw(20_000, seed=1)
    assert min(drawn) == 50 and max(drawn) == 150
    assert np.mean(drawn) == pytest.approx(100, abs=1)
    assert np.std(drawn) == pytest.approx(np.sqrt((101**2 - 1) / 12), rel=0.02)  # of 101 equally likely integers


def test_lognormal_has_the_stated_mean_and_spread_and_keeps_its_bounds():
    drawn = np.array(Lengths(200, 0.5, "lognormal", low=1, high=100_000).draw(40_000, seed=2))
    assert drawn.mean() == pytest.approx(200, rel=0.02) and drawn.std() == pytest.approx(100, rel=0.05)
    cut = np.array(Lengths(200, 0.5, "lognormal", low=150, high=260).draw(5_000, seed=2))
    assert cut.min() >= 150 and cut.max() <= 260
    assert np.mean(cut == 260) < 0.02 and np.mean(cut == 150) < 0.03  # drawn again, not piled up at the bounds
    assert Lengths(200, 0.5, "lognormal").bounds == (50, 800)


def test_same_seed_same_lengths_another_seed_others():
    spec = Lengths(100, 0.5, "uniform")
    assert spec.draw(50, seed=1) == spec.draw(50, seed=1) != spec.draw(50, seed=2)
    for shape in ("uniform", "lognormal"):  # how many are drawn must not change the first ones
        assert Lengths(100, 0.9, shape).draw(7, seed=1) == Lengths(100, 0.9, shape).draw(5_000, seed=1)[:7]


@pytest.mark.parametrize(
    "fields",
    [
        {"mean": 0}, {"mean": float("nan")}, {"mean": 10, "shape": "normal"}, {"mean": 10, "spread": 0.1},
        {"mean": 10, "spread": 1.0, "shape": "uniform"},
        {"mean": 10, "spread": -0.1, "shape": "uniform"}, {"mean": 10, "spread": 0.5, "shape": "uniform", "low": 3},
        {"mean": 10, "spread": 0.5, "shape": "lognormal", "low": 11},
        {"mean": 10, "spread": 0.5, "shape": "lognormal", "low": 0},
        {"mean": 10, "spread": float("inf"), "shape": "lognormal"},
    ],
)
def test_impossible_distributions_are_refused(fields):
    with pytest.raises(ConfigError):
        Lengths(**fields)
