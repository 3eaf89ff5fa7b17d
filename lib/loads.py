"""One load as study.yaml states it: its kind, how many or how often, and the recorded trace it may replay.

    closed     `concurrency` clients, each asks again when it has its answer; `think_seconds` pauses before it does,
               `start: burst` lets all of them begin at once instead of over a ramp; `adapters` spreads the requests
               over so many LoRA adapters, evenly or, with `popularity: zipf`, by Zipf's law (the k-th asked 1/k as
               often as the first)
    sessions   `concurrency` conversations at once, turn by turn, each new one when one has ended; the workload has
               `turns` and `question_tokens`; `think_seconds` and `start` as for closed
    poisson    `rate_rps` requests per second on average, independent of each other
    constant   `rate_rps`, one like clockwork
    gamma      `rate_rps`, gaps of the coefficient of variation `cv`: 1 is poisson, above it they come in bursts
    trace      arrivals and lengths of a CSV file beside study.yaml: arrival_s, input_tokens, output_tokens

Refused: a key of another kind, a trace that makes no sense (file, line and value are named) or that is not the one
whose hash was stated. Rule: a level's id says all that sets its load apart from another's.
"""

import csv
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from lib.errors import ConfigError

OPEN = ("poisson", "constant", "gamma", "trace")  # requests come when they are due, whatever the server does
THINKING = ("closed-think", "sessions")  # families in which a client pauses, so that requests in flight vary
# Families in which they do not, so that the throughput is the server's own.
SATURATED = ("closed", "closed-burst", "closed-lora")
TRACE_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")

OF_A_LOOP = ("think_seconds", "think_shape", "start", "requests")
OF_ADAPTERS = ("adapters", "popularity")
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # kind -> keys it needs, keys it may have
    "closed": (("concurrency",), (*OF_A_LOOP, *OF_ADAPTERS)),
    "sessions": (("concurrency",), OF_A_LOOP),
    "poisson": (("rate_rps",), ()),
    "constant": (("rate_rps",), ()),
    "gamma": (("rate_rps", "cv"), ()),
    "trace": (("trace",), ("trace_sha256",)),
}


class Strict(BaseModel):
    """A frozen section that refuses keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Level(Strict):
    """One load: how many at once, or when requests come."""

    kind: Literal["closed", "sessions", "poisson", "constant", "gamma", "trace"]
    workload: str
    concurrency: int | None = Field(default=None, gt=0)
    rate_rps: float | None = Field(default=None, gt=0)  # of a trace: its own mean, filled in by `pinned`
    cv: float | None = Field(default=None, gt=0)  # of the gaps; vLLM's burstiness is 1 / cv**2
    think_seconds: float | None = Field(default=None, gt=0)  # mean pause between an answer and the next request
    think_shape: Literal["exponential", "constant"] | None = None  # of the pauses, exponential where nothing is said
    start: Literal["ramp", "burst"] | None = None  # of a closed loop, a ramp where nothing is said
    adapters: int | None = Field(default=None, gt=0)  # LoRA adapters that the requests are spread over; none: the model
    popularity: Literal["uniform", "zipf"] | None = None  # of the adapters, uniform where nothing is said
    trace: str | None = None  # CSV file, relative to the profile's folder
    trace_sha256: str | None = None  # of its bytes, filled in by `pinned`; one that is stated must agree
    seconds: float = Field(gt=0)  # new requests are issued for this long after the ramp,
    requests: int = Field(default=0, ge=0)  # longer where a slow server would get fewer than these,
    at_most_seconds: float = Field(default=60.0, gt=0)  # but never longer than this
    tag: str | None = Field(default=None, pattern="^[a-z]+$")  # tells levels of one load apart that differ in workload

    @field_validator("trace")
    @classmethod
    def _plain(cls, trace: str | None) -> str | None:
        if trace is not None and (Path(trace).is_absolute() or not re.fullmatch(r"[\w.-]+", Path(trace).stem)):
            raise ValueError(
                "a trace is named relative to the profile's folder, by letters, digits, '-', '_' and '.': its name "
                "becomes part of the level's"
            )
        return trace

    @model_validator(mode="after")
    def _one_load(self) -> "Level":
        needs, may = KEYS[self.kind]
        said = [name for name in type(self).model_fields if name in ALL_KEYS and getattr(self, name)]
        known = " and ".join(f"`{key}`" for key in needs) + (f", may have {', '.join(may)}" if may else "")
        for key in needs:
            if key not in said:
                raise ValueError(f"a {self.kind} level needs {known}; `{key}` is missing")
        for key in said:
            if key not in needs + may:
                raise ValueError(f"a {self.kind} level needs {known}, and takes no `{key}`")
        if self.think_shape and not self.think_seconds:
            raise ValueError("`think_shape` is the shape of pauses, and there is no `think_seconds`")
        if self.popularity and (self.adapters or 0) < 2:
            raise ValueError("`popularity` says which adapter is asked how often; state `adapters: 2` or more")
        if self.adapters and (self.think_seconds or self.start == "burst"):
            raise ValueError("adapters are spread over clients that begin one after the other and do not pause")
        return self

    @property
    def id(self) -> str:
        """Name in records and tables: closed-8, closed-8-think-2, sessions-4, poisson-1.5, gamma-1-cv2, trace-day."""
        if self.trace is not None:
            return f"trace-{Path(self.trace).stem}"
        parts = [self.kind, str(self.concurrency) if self.concurrency else f"{self.rate_rps:g}"]
        parts += [f"cv{self.cv:g}"] if self.cv else []
        parts += ["think", f"{self.think_seconds:g}"] if self.think_seconds else []
        parts += ["constant"] if self.think_shape == "constant" else []
        parts += ["burst"] if self.start == "burst" else []
        parts += ["lora", str(self.adapters)] if self.adapters else []
        parts += ["zipf"] if self.popularity == "zipf" else []
        parts += ["on", self.tag] if self.tag else []
        return "-".join(parts)

    @property
    def family(self) -> str:
        """Kind in records and tables: only plain closed levels are rungs of the ladder that capacity is read from."""
        if self.kind != "closed":
            return self.kind
        if self.adapters:
            return "closed-lora"
        return "closed-think" if self.think_seconds else "closed-burst" if self.start == "burst" else "closed"


class Search(Strict):
    """A search, after a launch's levels, for the largest load that meets the SLA."""

    kind: Literal["closed", "poisson"]
    workload: str
    lowest: float = Field(gt=0)  # requests at once, or per second
    highest: float = Field(gt=0)
    at_most_seconds: float = Field(gt=0)  # of measuring, per launch

    @model_validator(mode="after")
    def _range(self) -> "Search":
        if self.highest <= self.lowest:
            raise ValueError(f"a search from {self.lowest:g} to {self.highest:g} has nowhere to go")
        if self.kind == "closed" and (self.lowest % 1 or self.highest % 1):
            raise ValueError("a closed search needs whole numbers for `lowest` and `highest`")
        return self


def adapter_name(place: int) -> str:
    """Name under which the adapter at a place, from 0, is made, served and asked for."""
    return f"adapter-{place + 1}"


ALL_KEYS = {key for needs, may in KEYS.values() for key in needs + may}


@dataclass(frozen=True)
class TraceRow:
    """One request of a recorded trace: when it came, in seconds, and its lengths in tokens."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


def pinned(level: Level, folder: Path, context_tokens: int) -> Level:
    """Read a level's trace, if it has one: the level with the trace's hash and mean rate (requests per second).

    Raises ConfigError as `read_trace` does, and for a row that exceeds the served context.
    """
    if level.trace is None:
        return level
    path = folder / level.trace
    rows = read_trace(path, level.trace_sha256)
    for line, row in enumerate(rows, start=2):
        if row.input_tokens + row.output_tokens > context_tokens:
            raise ConfigError(
                f"{path}, line {line}: lengths {row.input_tokens} and {row.output_tokens} exceed the served context of "
                f"{context_tokens} tokens; leave that row out, or serve the model with a longer context."
            )
    played = sum(row.arrival_s - rows[0].arrival_s < level.seconds for row in rows)
    update = {"trace_sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rate_rps": played / level.seconds}
    return level.model_copy(update=update)


def read_trace(path: Path, sha256: str | None = None) -> list[TraceRow]:
    """Read a recorded trace: a CSV with the header arrival_s,input_tokens,output_tokens, in order of arrival.

    Raises ConfigError with the line number for a wrong header, a field that is no number, a time below 0 or out of
    order, or a length below 1; and for a file that is missing, holds no row or has another hash than `sha256`.
    """
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as why:
        raise ConfigError(f"{path}: the trace cannot be read ({why}); name an existing CSV file in UTF-8.") from why
    found = hashlib.sha256(data).hexdigest()
    if sha256 is not None and found != sha256:
        raise ConfigError(
            f"{path} has SHA-256 {found[:16]}..., the level was stated with {sha256[:16]}...: the trace was changed. "
            "Restore it, or take the hash out of study.yaml and measure anew."
        )
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
        raise ConfigError(f"{path}, line {line}: {why}; correct the trace or leave that row out.") from why
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
