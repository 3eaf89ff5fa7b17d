"""Find what a study has measured, and name what it has not. One damaged record never sinks the others: it is listed
as missing with its reason.

Refused, each with its reason: bytes that differ from their checksum, another schema, another study, another kind (a
rehearsal among measurements), a launch that the profile no longer has.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lib import config, records
from lib.analyse import takings
from lib.errors import RecordError


@dataclass(frozen=True)
class Missing:
    """A launch, or a part of one, that has no numbers."""

    launch: str
    status: str  # absent | failed | incomplete | damaged | not measured | set aside
    reason: str


@dataclass(frozen=True)
class Measured:
    """One launch with a record that may be read."""

    name: str
    record: records.Record
    digest: str  # hex SHA-256 of the record
    takings: list[takings.Taking]
    telemetry_reason: str | None  # why there is no telemetry
    variant: str = ""  # what tells it from others of its engine and precision that are set otherwise

    @property
    def precision(self) -> str:
        """The precision, and what tells the launch from others of it: "q8_0, cache off"."""
        return ", ".join(filter(None, (str(self.meta["precision"]), self.variant)))

    @property
    def meta(self) -> dict[str, Any]:
        """What holds for the whole launch."""
        return self.record.meta

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of the launch, as its record has them; none where it does not say."""
        return dict(self.meta.get("config", {}).get("launch", {}).get("settings") or {})

    @property
    def who(self) -> dict[str, Any]:
        """Launch, engine and precision, as every row about it begins."""
        return {"launch": self.name, "engine": self.meta["engine"], "precision": self.precision}

    @property
    def source(self) -> str:
        """Where its numbers come from: records/<study>/<file>#<first 12 digits of its SHA-256>."""
        return f"records/{self.meta['study']}/{self.record.path.name}#{self.digest[:12]}"


def collect(study: config.Study, folder: Path) -> tuple[list[Measured], list[Missing]]:
    """Read every launch of a study that can be read, in the order of their names.

    Parameters
    ----------
    study : decides the study's name, its kind and (where its profile is on disk) its launches.
    folder : records/<study>.
    """
    outcomes = {
        path.name.removesuffix(".outcome.json"): _outcome(path) for path in sorted(folder.glob("*.outcome.json"))
    }
    files = {p.stem: p for p in sorted(folder.glob("*.parquet")) if not p.name.endswith(".telemetry.parquet")}
    planned = config.launch_names(study.profile, study.depth)
    found, missing = [], []
    for name in sorted({*outcomes, *files, *planned}):
        status, reason = outcomes.get(name, ("not measured", "it was never run; `make report` takes what is missing"))
        if planned and name not in planned:
            missing.append(Missing(name, "not measured", f"study {study.name!r} has no launch {name!r} any more"))
        elif name not in files:
            gone = "its record is gone; `make report` measures it again" if status == "measured" else reason
            missing.append(Missing(name, "not measured" if status == "measured" else status, gone))
        else:
            try:
                one = _read(files[name], study)
            except RecordError as refusal:
                missing.append(Missing(name, "damaged", str(refusal)))
                continue
            found.append(one)
            early = one.meta.get("incomplete") or (reason if status == "failed" else None)
            if early:
                missing.append(Missing(name, "incomplete", f"{early} {_finished(one, study)}"))
    # GPU studies tell recipes apart by themselves: lib.analyse.asked.
    return found if study.hardware.gpus else _told_apart(found), missing


def _told_apart(found: Sequence[Measured]) -> list[Measured]:
    """Name launches of one engine and precision by the rest of their names, where their settings differ."""
    settings: dict[tuple[str, str], list[Any]] = {}
    for one in found:
        settings.setdefault((one.meta["engine"], one.meta["precision"]), []).append(one.settings)

    def variant(one: Measured) -> str:
        siblings = settings[one.meta["engine"], one.meta["precision"]]
        if all(sibling == siblings[0] for sibling in siblings):
            return ""
        return one.name.partition(one.meta["precision"])[2].strip("-").replace("-", " ")

    return [replace(one, variant=variant(one)) for one in found]


def qualifier(launches: Sequence[Measured]) -> str | None:
    """Say what must stand beside every number of a study's records, as "random weights: speed only"; None for most."""
    return "; ".join(sorted({str(said) for one in launches if (said := one.meta.get("qualifier"))})) or None


def telemetry_of(record: records.Record) -> pd.DataFrame:
    """Read what was sampled beside a record: run, repeat, level, t_ns, name, value.

    Raises
    ------
    RecordError : there is none, or it is damaged.
    """
    beside = record.path.with_name(f"{record.path.stem}.telemetry.parquet")
    frame: pd.DataFrame = records.read(beside).table.to_pandas()
    return frame


def _read(path: Path, study: config.Study) -> Measured:
    record = records.read_study([path], study.name)[0]
    if record.meta["kind"] != study.kind:
        raise RecordError(
            f"{path} is of kind {record.meta['kind']!r}, study {study.name!r} holds {study.kind!r} numbers; a "
            f"rehearsal never joins measurements. Move it away and run `make report` to measure this launch."
        )
    reason = None
    try:
        telemetry = telemetry_of(record)
    except RecordError as refusal:
        telemetry, reason = None, str(refusal)
    return Measured(path.stem, record, records.sha256(path), takings.of_record(record, telemetry), reason)


def _outcome(path: Path) -> tuple[str, str]:
    """Status and reason of a launch's outcome file; an unreadable one says so."""
    try:
        data = json.loads(path.read_text())
        return str(data["status"]), str(data["reason"] or "no reason was given")
    except (OSError, ValueError, KeyError, TypeError) as error:
        return "failed", f"{path.name} cannot be read ({error}); delete it and run `make report` again"


def _finished(one: Measured, study: config.Study) -> str:
    done = Counter(t.key[2] for t in one.takings)
    wanted = study.statistics.runs * study.statistics.repeats
    whole = sum(done[level.id] >= wanted for level in study.levels)
    return f"{whole} of {len(study.levels)} levels are whole; what was finished is shown, marked so."
