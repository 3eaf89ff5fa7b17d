"""How long requests and answers are: stated distributions, or the rows of a recorded trace.

What it is for: lengths in tokens, drawn from a seed, the same for every contender.
What it refuses: distributions that describe no lengths, trace rows that make no sense (with their line number).
The rule it keeps: a length outside the stated bounds is never moved to the bound, it is drawn again, so that no bound
collects requests that nobody stated.
"""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from lib.errors import ConfigError, MeasureError

Shape = Literal["constant", "uniform", "lognormal"]

TRACE_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")


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


@dataclass(frozen=True)
class TraceRow:
    """One request of a recorded trace: when it came, in seconds, and its lengths in tokens."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


def read_trace(path: Path) -> list[TraceRow]:
    """Read a recorded trace: a CSV with the header arrival_s,input_tokens,output_tokens, in order of arrival.

    Raises MeasureError with the line number for a wrong header, a field that is no number, a time below 0 or out of
    order, or a length below 1; and for a file that is missing or holds no row.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as why:
        raise MeasureError(f"{path}: the trace cannot be read ({why}); name an existing CSV file in UTF-8.") from why
    reader = csv.reader(lines, strict=True)
    rows: list[TraceRow] = []
    try:
        header = tuple(next(reader, ()))
        if header != TRACE_COLUMNS:
            raise ValueError(f"the header is {','.join(header)!r}, not {','.join(TRACE_COLUMNS)!r}")
        for fields in reader:
            rows.append(_trace_row(fields, rows[-1].arrival_s if rows else 0.0))
        if not rows:
            raise ValueError("there is no row below the header")
    except (ValueError, csv.Error) as why:
        line = max(reader.line_num, 1)
        raise MeasureError(f"{path}, line {line}: {why}; correct the trace or leave that row out.") from why
    return rows


def _trace_row(fields: Sequence[str], earliest_s: float) -> TraceRow:
    if len(fields) != len(TRACE_COLUMNS):
        raise ValueError(f"{len(fields)} fields where {len(TRACE_COLUMNS)} belong")
    arrival_s, input_tokens, output_tokens = float(fields[0]), int(fields[1]), int(fields[2])
    if not (math.isfinite(arrival_s) and arrival_s >= earliest_s):
        raise ValueError(f"arrival_s {arrival_s:g} is not a time at or after the one before it ({earliest_s:g})")
    if input_tokens < 1 or output_tokens < 1:
        raise ValueError(f"lengths {input_tokens} and {output_tokens} must both be 1 or more")
    return TraceRow(arrival_s, input_tokens, output_tokens)
