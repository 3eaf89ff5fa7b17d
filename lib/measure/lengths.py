"""How long requests and answers are: lengths from stated distributions.

What it is for: lengths in tokens, drawn from a seed, the same for every contender.
What it refuses: distributions that describe no lengths.
The rule it keeps: a length outside the stated bounds is never moved to the bound, it is drawn again, so that no bound
collects requests that nobody stated.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from lib.errors import ConfigError

Shape = Literal["constant", "uniform", "lognormal"]


@dataclass(frozen=True)
class Lengths:
    """A distribution of lengths in tokens.

    Parameters
    ----------
    mean : float
        Mean in tokens; for "lognormal" the mean before the bounds cut.
    spread : float
        "uniform": half-width as a share of the mean, 0.5 is +-50 %. "lognormal": standard deviation as a share of the
        mean. "constant": 0. A spread of 0 makes every shape constant.
    shape : {"constant", "uniform", "lognormal"}
    low, high : int, optional
        Bounds of "lognormal", both within; values outside are drawn again, not moved to the bound. Default: a quarter
        of the mean and four times the mean.

    Raises
    ------
    ConfigError
        A combination that describes no lengths.
    """

    mean: float
    spread: float = 0.0
    shape: Shape = "constant"
    low: int | None = None
    high: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in get_args(Shape):
            raise ConfigError(f"length shape {self.shape!r} is not known; use one of {', '.join(get_args(Shape))}.")
        if not (math.isfinite(self.mean) and self.mean >= 1):
            raise ConfigError(f"a mean length of {self.mean} tokens is no length; state 1 or more.")
        widest = {"constant": 0.0, "uniform": 1 - 1 / self.mean, "lognormal": math.inf}[self.shape]
        if not (0 <= self.spread <= widest and math.isfinite(self.spread)):
            raise ConfigError(
                f"a spread of {self.spread} does not fit {self.shape} lengths with mean {self.mean:g}: constant has 0, "
                "uniform leaves at least 1 token, lognormal is 0 or more and finite."
            )
        if self.shape != "lognormal" and (self.low is not None or self.high is not None):
            raise ConfigError(f"bounds {self.low} and {self.high} are for lognormal lengths, not for {self.shape}.")
        low, high = self.bounds
        if not 1 <= low <= self.mean <= high:
            raise ConfigError(f"bounds {low} and {high} must hold the mean {self.mean:g} between them, from 1 on.")

    @property
    def bounds(self) -> tuple[int, int]:
        """Shortest and longest length that can be drawn, in tokens."""
        if self.shape == "lognormal":
            low = max(1, round(self.mean / 4)) if self.low is None else self.low
            return low, math.ceil(self.mean * 4) if self.high is None else self.high
        return round(self.mean * (1 - self.spread)), round(self.mean * (1 + self.spread))

    def draw(self, count: int, seed: int) -> list[int]:
        """Lengths of `count` texts, in tokens; the same seed gives the same lengths."""
        low, high = self.bounds
        rng = np.random.default_rng(seed)
        if self.shape != "lognormal":
            return [int(length) for length in rng.integers(low, high, count, endpoint=True)]
        sigma = math.sqrt(math.log1p(self.spread**2))
        drawn: list[int] = []
        while len(drawn) < count:
            values = np.rint(rng.lognormal(math.log(self.mean) - sigma**2 / 2, sigma, count))
            drawn += [int(value) for value in values if low <= value <= high]
        return drawn[:count]
