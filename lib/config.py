"""What will be measured, checked at the door: a folder config/<profile>/ with `study.yaml` and one YAML file per launch
(engine x precision). Nothing else decides what a study does; every record carries the hash of what it was taken with.

Rule: an unknown key is refused with the nearest right one; a value is refused with its place and what is allowed.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, model_validator

from lib import depths, explain, launches, loads, paths
from lib.errors import ConfigError
from lib.launches import Launch as Launch
from lib.loads import Level as Level
from lib.loads import Search as Search
from lib.loads import Strict as Strict

Depth = Literal["default", "full", "rehearsal", "canary"]


Section = TypeVar("Section", bound=Strict)


class Hardware(Strict):
    """The machine the profile is written for."""

    name: str
    gpus: int = Field(ge=0)
    note: str = ""


class Price(Strict):
    """What an hour of the whole node costs."""

    usd_per_hour: float = Field(gt=0)
    client_usd_per_hour: float | None = Field(default=None, gt=0)  # the second node of `client: other-node`
    source: str
    date: str


class Model(Strict):
    """The model every launch of the profile serves."""

    name: str
    tokenizer: str  # artifact that holds tokenizer.json
    context: int = Field(gt=0)  # tokens
    layers: int = Field(gt=0)
    hidden: int = Field(gt=0)
    intermediate: int = Field(gt=0)
    heads: int = Field(gt=0)
    kv_heads: int = Field(gt=0)
    head_dim: int = Field(gt=0)
    vocab: int = Field(gt=0)
    tied_embeddings: bool
    licence: str
    note: str = ""


class Sla(Strict):
    """The promise to the user. Percentiles are over requests."""

    ttft_p95_ms: float = Field(gt=0)
    tpot_p95_ms: float = Field(gt=0)
    sessions: int = Field(gt=0)  # concurrent sessions that must be served
    failure_budget: float = Field(ge=0, lt=1)  # share of requests that may fail
    stated: str  # date it was written down
    reason: str


class Lengths(Strict):
    """Token lengths: mean, relative spread and shape of their distribution."""

    mean: int = Field(gt=0)
    spread: float = Field(default=0.0, ge=0, lt=1)  # +- share of the mean
    shape: Literal["constant", "uniform", "lognormal"] = "uniform"

    @property
    def longest(self) -> int:
        """The longest length that can be drawn, in tokens; a lognormal one is drawn again beyond four means."""
        return 4 * self.mean if self.shape == "lognormal" else round(self.mean * (1 + self.spread))


class Workload(Strict):
    """What a request looks like; with `turns`, what a session looks like."""

    input_tokens: Lengths  # of a session: its document, which every turn repeats
    output_tokens: Lengths
    turns: int | None = Field(default=None, gt=0)  # questions that one session asks
    question_tokens: Lengths | None = None  # of each of them
    prefix_cache: Literal["avoid", "wanted"] = "avoid"
    reads_like: str  # one line for the page

    @model_validator(mode="after")
    def _whole_session(self) -> "Workload":
        if (self.turns is None) != (self.question_tokens is None):
            raise ValueError("a session needs both `turns` and `question_tokens`, a single request neither")
        if self.turns and self.prefix_cache != "wanted":
            raise ValueError("the turns of a session repeat its document, so state `prefix_cache: wanted`")
        return self

    @property
    def longest(self) -> int:
        """The most tokens, input and output, that a request of this workload can have."""
        questions = self.question_tokens.longest if self.question_tokens else 0
        return self.input_tokens.longest + (self.turns or 1) * (questions + self.output_tokens.longest)


class Statistics(Strict):
    """How often, and with how much patience."""

    runs: int = Field(gt=0)  # starts of the server
    repeats: int = Field(gt=0)  # takings of every level within a run, order shuffled
    warmup_seconds: float = Field(gt=0)  # load at each concurrency before its first taking
    drain_seconds: float = Field(gt=0)  # grace for requests in flight when a level ends
    request_timeout_seconds: float = Field(gt=0)


class Quality(Strict):
    """What quality is judged on. It decides no timing, so a timing record's hash does not hold it; its own does."""

    texts: int = Field(ge=8)  # held-out texts; fewer support no interval
    tokens: int = Field(ge=16)  # of each
    items: int = Field(ge=0)  # questions with exact answers
    seed: int  # another than the load's: no text that is scored is ever sent to a server


class Study(Strict):
    """config/<profile>/study.yaml, with the depth applied."""

    title: str
    profile: str
    depth: Depth
    kind: Literal["measured", "rehearsal"] = "measured"
    hardware: Hardware
    price: Price | None
    model: Model
    sla: Sla
    workloads: dict[str, Workload]
    levels: tuple[Level, ...]
    statistics: Statistics
    headline_workload: str
    noise_floor_pair: tuple[str, str] | None = None  # two launches that are the same thing: the A/A pair
    search: Search | None = None
    seed: int
    quality: Quality | None = Field(default=None, exclude=True)
    order: tuple[str, ...] | None = Field(default=None, exclude=True)  # launches by what they teach; decides no number
    beside: tuple[str, ...] = Field(default=(), exclude=True)  # profiles taken with this one and told in its article

    @model_validator(mode="after")
    def _names(self) -> "Study":
        known = sorted(self.workloads)
        searched = [self.search.workload] if self.search else []
        for name in [self.headline_workload, *searched, *(level.workload for level in self.levels)]:
            if name not in self.workloads:
                raise ValueError(f"workload {name!r} is not defined; defined are {', '.join(known)}")
        for level in self.levels:
            of = self.workloads[level.workload]
            if (level.kind == "sessions") != (of.turns is not None):
                raise ValueError(
                    f"level {level.id} and workload {level.workload!r} do not fit: sessions, and nothing else, play a "
                    "workload that has `turns`"
                )
            if of.turns and of.longest > self.model.context:
                raise ValueError(
                    f"a session of workload {level.workload!r} can grow to {of.longest} tokens and the served context "
                    f"is {self.model.context}; state fewer turns or shorter parts"
                )
        if (self.kind == "rehearsal") != (self.depth == depths.REHEARSAL):
            raise ValueError("a rehearsal is asked for by `make rehearse`, never by `kind`")
        ids = [level.id for level in self.levels]
        if len(ids) != len(set(ids)):
            raise ValueError(f"two levels have the same load: {', '.join(ids)}")
        for level in self.levels:
            if self.search and level.family == self.search.kind and level.workload != self.search.workload:
                raise ValueError(f"the search and level {level.id} need the same workload, or its probes look like it")
        if self.quality and self.quality.tokens > self.model.context:
            raise ValueError(
                f"texts of {self.quality.tokens} tokens are longer than the served context of {self.model.context}"
            )
        return self

    @property
    def name(self) -> str:
        """Name of folders: cpu, or cpu-full for DEPTH=full."""
        return paths.study_name(self.profile, self.depth)


def profiles() -> list[str]:
    """Names of the profiles there are."""
    return sorted(path.parent.name for path in paths.CONFIG.glob("*/study.yaml"))


def load_study(profile: str, depth: str = "default") -> Study:
    """Read a profile's study.yaml; `depth: {full: ...}` overrides sections for DEPTH=full.

    Raises
    ------
    ConfigError : unknown profile or depth, YAML that does not parse, unknown keys, impossible values, a bad trace.
    """
    path = paths.CONFIG / profile / "study.yaml"
    if profile not in profiles():
        raise ConfigError(
            f"There is no profile {profile!r}{explain.nearest(profile, profiles())}. Profiles: {', '.join(profiles())}."
        )
    data = _yaml(path)
    overrides = data.pop("depth", None) or {}
    if not isinstance(overrides, dict) or depth not in ("default", *depths.IMPLIED, *overrides):
        raise ConfigError(
            f"{path}: depth {depth!r} is not defined{explain.nearest(depth, overrides)}. "
            f"Depths: default, {', '.join([*overrides, *depths.IMPLIED])}."
        )
    if depth in depths.IMPLIED and depth not in overrides:
        _validated(Study, data | {"profile": profile, "depth": "default"}, path)
        data = depths.IMPLIED[depth](data)
    elif depth != "default":
        if not isinstance(overrides[depth], dict):
            raise ConfigError(f"{path}: depth {depth!r} must be a mapping of sections to override.")
        data |= overrides[depth]
    data |= {"kind": "rehearsal"} if depth == depths.REHEARSAL else {}
    study = _validated(Study, data | {"profile": profile, "depth": depth}, path)
    levels = tuple(loads.pinned(level, path.parent, study.model.context) for level in study.levels)
    return study.model_copy(update={"levels": levels})


def load_launch(profile: str, name: str) -> Launch:
    """Read one launch file of a profile.

    Raises
    ------
    ConfigError : as for `load_study`.
    """
    known = launch_names(profile)
    if name not in known:
        raise ConfigError(
            f"Profile {profile!r} has no launch {name!r}{explain.nearest(name, known)}. Launches: {', '.join(known)}."
        )
    path = paths.CONFIG / profile / f"{name}.yaml"
    return _validated(Launch, _yaml(path) | {"name": name}, path)


def launch_names(profile: str, depth: str | None = None) -> list[str]:
    """Names of a profile's launches in order of their file names: all, or those that are taken at a depth."""
    return sorted(
        path.stem
        for path in (paths.CONFIG / profile).glob("*.yaml")
        if path.stem != "study" and (depth not in launches.LIGHT or not launches.only_full(path))
    )


def run_order(study: Study) -> list[str]:
    """Names of a study's launches in the order they run: `order` first, the others by name."""
    names = launch_names(study.profile, study.depth)
    return [name for name in study.order or () if name in names] + [n for n in names if n not in (study.order or ())]


def beside(study: Study) -> list[Study]:
    """Studies that are taken with this one, at its depth, and told in its article. A cut-down study has none.

    Raises
    ------
    ConfigError : as for `load_study`, and for one that has studies beside it in its turn.
    """
    found = [] if study.depth in depths.IMPLIED else [load_study(name, study.depth) for name in study.beside]
    if nested := [one.profile for one in found if one.beside]:
        raise ConfigError(
            f"config/{study.profile}/study.yaml: beside names {', '.join(nested)}, which has profiles beside it too; "
            "name those here instead."
        )
    return found


def config_hash(study: Study, launch: Launch) -> str:
    """First 16 hex digits of the SHA-256 over everything that decides a launch's numbers.

    Keys without a value do not count, so that a key added later (None by default) leaves records taken before it valid.
    """
    said = [section.model_dump(mode="json", exclude_none=True) for section in (study, launch)]
    text = json.dumps(said, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def validated(kind: type[Section], data: dict[str, Any], where: str) -> Section:
    """Check a mapping against a section, with messages as for a file. `where` names its place."""
    return _validated(kind, data, Path(where))


def _yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}".replace("\n", " ")) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} must be a mapping of keys to values, not {type(data).__name__}.")
    return data


def _validated(kind: type[Section], data: dict[str, Any], path: Path) -> Section:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(explain.explain(kind, e) for e in error.errors()) + ".") from error
