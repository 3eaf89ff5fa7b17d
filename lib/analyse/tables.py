"""From a study's records to its tables and facts.json: the one entrance to the reading half's numbers.

`build` writes takings.csv, levels.csv, headline.csv, comparisons.csv, quality.csv, tradeoff.csv and facts.json into one
folder, each whole or not at all, the same bytes from the same records. Refused: a study without a single record that
may be read; every other refusal is named in facts["missing"] and the rest goes on. No clock is read, nothing is drawn.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pandas as pd

from lib import config, paths, records
from lib.analyse import (
    assemble,
    beside,
    bounds,
    calibration,
    crosscheck,
    facts,
    floor,
    frames,
    h100,
    inside,
    ladder,
    levels,
    published,
    quality,
    tradeoff,
    warnings,
    way,
    world,
)
from lib.analyse.collect import Measured, Missing, collect, qualifier
from lib.analyse.timeline import Agreement, batch_over_time, requests, timeline, ttft_samples
from lib.errors import RecordError

__all__ = ["Agreement", "batch_over_time", "build", "for_profile", "requests", "show", "timeline", "ttft_samples"]

REHEARSAL = "REHEARSAL"  # in every row of a rehearsal's tables

# What a reader sees of a table in a notebook; the file has every column.
SEEN = {
    "takings": "launch run repeat level requests complete ttft_p50_s tpot_p50_s output_tok_s lag_p99_s ended",
    "levels": "launch level ttft_p50_s ttft_p50_s_low ttft_p50_s_high ttft_p95_s ttft_p95_s_high tpot_p50_s tpot_p95_s "
    "tpot_p95_s_high output_tok_s failures meets_sla warnings",
    "headline": "launch level ttft_p50 ttft_p95 ttft_p95_high output_tok_s output_tok_s_low output_tok_s_high capacity "
    "capacity_next capacity_next_answer capacity_by_medians cost",
    "comparisons": "a b metric level ratio low high p_holm noise_floor verdict",
    "quality": "launch reference perplexity perplexity_ratio kl kl_low kl_high agreement first_divergence accuracy "
    "accuracy_reference accuracy_lost note reason",
    "tradeoff": "launch kl kl_low kl_high output_tok_s weights cost dominated_by judged note",
}


@dataclass(frozen=True)
class Judged:
    """One launch with its levels, what bounds them, and what to doubt."""

    one: Measured
    levels: list[levels.Level]
    limits: dict[str, bounds.Limits]
    doubts: list[warnings.Doubt]
    aside: str | None  # why it is set aside


@dataclass(frozen=True)
class Taken:
    """All of a study that may be read, judged, and what of it is missing."""

    found: list[Measured]
    judged: list[Judged]
    host: bounds.Host
    missing: list[Missing]

    @property
    def kept(self) -> list[Judged]:
        """Launches whose numbers are shown."""
        return [j for j in self.judged if j.levels and not j.aside]

    def inside(self, study: config.Study) -> dict[str, Any]:
        """What the records show of the engines' insides."""
        return inside.facts([(j.one, j.levels) for j in self.kept], study, assemble.mark_of(study))


def for_profile(profile: str, depth: str = "default") -> dict[str, Any]:
    """Make the tables and facts of a profile where they belong; see `build`."""
    study = config.load_study(profile, depth)
    folder = paths.RECORDS / study.name
    found = calibration.read(folder / calibration.FILE)
    peers = crosscheck.read(paths.RECORDS / crosscheck.FILE)
    scored = quality.read(folder)
    others = [(other, paths.RECORDS / other.name) for other in config.beside(study)]
    out = paths.tables(study.name)
    return build(study, folder, out, calibrated=found, crosschecked=peers, scored=scored, others=others)


def show(table: str, profile: str, depth: str = "default") -> pd.DataFrame:
    """Return the main columns of a table on disk, by its name in `SEEN`.

    A percentile that its sample does not support reads "unsupported"; the file keeps the value with its reason.

    Raises
    ------
    RecordError : the table is not made yet.
    """
    path = paths.tables(paths.study_name(profile, depth)) / f"{table}.csv"
    if not path.exists():
        raise RecordError(f"There is no table {path.name} in {path.parent}; `make report` makes it.")
    frame = pd.read_csv(path)
    for column in SEEN[table].split():
        if (why := f"{column}_reason") in frame and (few := frame[why].map(facts.unsupported)).any():
            frame[column] = frame[column].astype(object).mask(few, "unsupported")
    return frame[[*SEEN[table].split(), *(name for name in ("qualifier", "mark") if name in frame)]]


def build(
    study: config.Study,
    folder: Path,
    out: Path,
    *,
    calibrated: Mapping[str, Any] | None = None,
    crosschecked: Mapping[str, Any] | None = None,
    scored: Mapping[str, Any] | None = None,
    about_h100: Mapping[str, Any] | None = None,
    others: Sequence[tuple[config.Study, Path]] = (),
) -> dict[str, Any]:
    """Make a study's tables and facts.

    Parameters
    ----------
    study : the profile as it stands.
    folder : records/<study>.
    out : report/tables/<study>; made if needed.
    calibrated : what `make calibrate` left; without it the facts say that the client's own error is unknown.
    crosschecked : what `make crosscheck` left; without it the facts say that the tools were not compared.
    scored : quality records, as `quality.read` gives them; without them the facts say that nobody was scored.
    about_h100 : facts about the article's hardware, by default those of `h100.h100_facts` with this study's records
        of the article's own configuration.
    others : studies told beside this one, each with the folder of its records: what they show of the engines' insides
        and of quantized KV caches joins the facts, with their doubts and what they miss.

    Returns
    -------
    What facts.json holds.

    Raises
    ------
    RecordError : nothing was measured, or the folder cannot be written.
    """
    taken = _taken(study, folder, calibrated)
    found, judged, missing = taken.found, taken.judged, taken.missing
    if not any(one.takings for one in found):
        whys = " ".join(f"{m.launch}: {m.reason}" for m in missing) or "There is none, or none that holds a request."
        raise RecordError(
            f"Study {study.name!r} has no record to read in {folder}. {whys} `make report` takes what is missing."
        )
    kept = taken.kept
    told = [(other, _taken(other, where, calibration.read(where / calibration.FILE))) for other, where in others]
    ladders = {j.one.name: j.levels for j in kept}
    noise = floor.noise_floor(study.noise_floor_pair, ladders)
    compared = floor.compare_all(ladders, noise)
    doubts = warnings.of_study(found + [one for _, of in told for one in of.found])
    doubts += [doubt for j in judged for doubt in j.doubts]
    for other, of in told:
        doubts += [doubt for j in of.judged for doubt in j.doubts]
        missing += [replace(m, launch=f"{other.name}: {m.launch}") for m in of.missing]
    written = _facts(study, judged, noise, compared) | {
        "host": assemble.host_facts(taken.host, assemble.mark_of(study)),
        "warnings": [vars(doubt) for doubt in doubts],
        "missing": [vars(m) for m in sorted(missing, key=lambda m: (m.launch, m.status))],
        "calibration": calibration.facts(
            calibrated, judged[0].one.meta["machine"], f"records/{study.name}/{calibration.FILE}"
        ),
        "network": way.facts(found, assemble.mark_of(study)),
        "crosscheck": crosscheck.facts(crosschecked, judged[0].one.meta["machine"]),
        "inside": _inside([(study, taken), *told]),
        "beside": [beside.facts(other, [j.one for j in of.kept]) for other, of in told],
    }
    written["study"]["qualifier"] = qualifier(found)
    said = {one.name: one.meta.get("qualifier") for one in found}
    weighed = {name: one for name, one in (scored or {}).items() if not said.get(name)}  # never of random weights
    written["quality"] = quality.facts(weighed, study, assemble.mark_of(study))
    for other, where in others:
        beside_it = quality.facts(quality.read(where), other, assemble.mark_of(other))
        written["quality"]["caches"] += beside_it["caches"]
    judged_rows = [row for row in written["headline"] if not said.get(row["launch"])]
    written["tradeoff"] = tradeoff.rows(written | {"headline": judged_rows}, assemble.mark_of(study))
    written["h100"] = h100.h100_facts(of_article(written)) if about_h100 is None else dict(about_h100)
    shown = [(j.one, level) for j in kept for level in j.levels]
    columns = [field.name for field in fields(floor.Compared)]
    made = {
        "takings": frames.takings(shown),
        "levels": frames.levels(shown, doubts),
        "headline": frames.headline(written["headline"]),
        "comparisons": pd.DataFrame([vars(c) for c in compared], columns=columns),
        "quality": quality.frame(written["quality"]["launches"]),
        "tradeoff": tradeoff.frame(written["tradeoff"]),
    }
    for name, frame in made.items():
        frame = frames.qualified(frame, {launch: text for launch, text in said.items() if text})
        _write(out / f"{name}.csv", frame if study.kind == "measured" else frame.assign(mark=REHEARSAL))
    text = json.dumps(written, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    records.write_whole(out / "facts.json", (text + "\n").encode())
    return written


def of_article(facts: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Pick a study's records of the article's configuration, none on any other machine; `facts` as `build` gives."""
    study = facts["study"]
    return world.measured_from(
        facts["launches"],
        published.claims(),
        gpus=facts["machine"]["gpus"],
        model=study["model"]["name"],
        workload=study["headline_workload"],
    )


def _inside(told: Sequence[tuple[config.Study, Taken]]) -> dict[str, Any]:
    """What a study and those beside it show of the engines' insides, and how light a version this is."""
    parts = [of.inside(study) for study, of in told]
    light = [row for (study, _), part in zip(told, parts, strict=True) for row in beside.light(study, part)]
    return inside.joined(parts) | {"light": light}


def _taken(study: config.Study, folder: Path, calibrated: Mapping[str, Any] | None) -> Taken:
    """Read and judge every launch of a study."""
    found, missing = collect(study, folder)
    host = bounds.host_of(found)
    judged = [_judge(one, study, host, calibrated) for one in found]
    missing += [Missing(j.one.name, "set aside", j.aside) for j in judged if j.aside]
    empty = "its record holds no request of a level of this study"
    missing += [Missing(j.one.name, "incomplete", empty) for j in judged if not j.levels]
    return Taken(found, judged, host, missing)


def _judge(
    one: Measured, study: config.Study, host: bounds.Host, calibrated: Mapping[str, Any] | None
) -> Judged:
    of = levels.group(one.takings, ladder.order(one.meta, [level.id for level in study.levels]), study.sla)
    under = bounds.ceiling(one, study, host)
    limits = {level.id: bounds.limits(level, under, study) for level in of}
    doubts, asides = warnings.of_launch(one, study), []
    for level in of:
        what, grave = bounds.beyond(level, limits[level.id])
        if what and grave and study.kind == "measured":  # a rehearsal's numbers are invented, and may be hurried
            asides.append(f"{level.id}: {what}")
        if what:
            step = "the launch is set aside: find out which is wrong" if grave else "probe again on a quiet machine"
            doubts.append(warnings.Doubt(f"{one.name} {level.id}", f"beats its bound: {what}", step))
        doubts += warnings.of_level(level, study, one.settings)
        doubts += calibration.doubts(level, calibrated, (one.meta.get("client") or one.meta)["machine"])
    top = ladder.capacity(of, study.headline_workload)
    if not top.monotone:
        text = f"level closed-{top.value} meets the SLA though a lower one does not"
        doubts.append(warnings.Doubt(one.name, text, "take both levels again"))
    more = f", and {len(asides) - 1} more of its levels" if len(asides) > 1 else ""
    aside = f"it beats a bound, so the record or the bound is wrong: {asides[-1]}{more}" if asides else None
    return Judged(one, of, limits, doubts, aside)


def _facts(
    study: config.Study, judged: Sequence[Judged], noise: floor.Floor, compared: Sequence[floor.Compared]
) -> dict[str, Any]:
    mark, sources = assemble.mark_of(study), {j.one.name: j.one.source for j in judged}
    launches = {j.one.name: assemble.launch_facts(j.one, j.levels, j.limits, study) for j in judged if j.levels}
    kept = [j for j in judged if j.levels and not j.aside]
    pair = "; ".join(sources[name] for name in noise.pair or () if name in sources)
    return assemble.study_facts(study) | {
        "machine": judged[0].one.meta["machine"],
        "launches": {j.one.name: launches[j.one.name] for j in kept},
        "set_aside": {j.one.name: launches[j.one.name] | {"reason": j.aside} for j in judged if j.aside},
        "headline": [assemble.headline_row(j.one, j.levels, launches[j.one.name], study) for j in kept],
        "noise_floor": assemble.floor_facts(noise, mark, pair),
        "comparisons": [assemble.comparison_facts(c, mark, sources) for c in compared],
        "method": assemble.method_facts(study, len(compared)),
    }


def _write(path: Path, frame: pd.DataFrame) -> None:
    records.write_whole(path, frame.to_csv(index=False, float_format="%.9g", lineterminator="\n").encode())
