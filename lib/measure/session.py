"""Take one launch: from its config to its record. The only module that knows engines, client and records together.

Rules: a record taken with this very config is left alone; an interrupted launch goes on with the takings it misses;
a taking is on disk, whole, before the next begins; one computer never measures two things at once. What ends a launch
early loses nothing: finished takings close into a record that says so, and `take` raises the reason.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lib import config, paths, records
from lib.config import Launch, Study
from lib.engines import budget, build, doctor, prepare
from lib.engines.rehearse import engine as rehearse
from lib.errors import EngineError, MeasureError, StudyError
from lib.measure import clientnode, hostprobe, probes, provenance, rehearsal, serve, takings
from lib.progress import Progress

MIN_FREE_BYTES = 1 << 30  # journals of a level are far smaller; a disk this full fails for other reasons first


def take(profile: str, depth: str, name: str) -> dict[str, Any]:
    """Measure one launch, or what is missing of it.

    Parameters
    ----------
    profile, depth, name : which study and which launch; text, as papermill hands them over.

    Returns
    -------
    outcome : launch, study, status ("measured" or "absent"), reason, when_utc; also in `<launch>.outcome.json`.

    Raises
    ------
    StudyError : the launch was tried and ended early. Its finished takings are in its record.
    """
    study, launch = config.load_study(profile, depth), config.load_launch(profile, name)
    engine = rehearse.of(study, launch)
    engine.check(launch)
    target = paths.record(study.name, name)
    with alone(target.parent):
        if already_taken(target, config.config_hash(study, launch)):
            return _outcome(study, launch, "measured", None)
        _clear(target, config.config_hash(study, launch))
        for end in ("parquet", "telemetry.parquet", "outcome.json"):  # what a killed process was writing
            for half in target.parent.glob(f".{name}.{end}*.tmp"):
                half.unlink()
        if absent := engine.absent(launch):
            return _outcome(study, launch, "absent", absent)
        reason = engine.unavailable(launch)
        try:
            if reason:  # memory or disk: the user can help it, so it is told as a failure
                raise EngineError(reason)
            _enough_disk(target.parent)
            clientnode.step(study, launch)  # no other node: told before anything is built
            _take_missing(study, launch, target)
        except StudyError as trouble:
            _outcome(study, launch, "failed", str(trouble))  # the article names it; the other launches go on
            if str(trouble).startswith((name, f"Launch {name}")):
                raise
            raise type(trouble)(f"{name}: {trouble}") from trouble
    return _outcome(study, launch, "measured", None)


def _take_missing(study: Study, launch: Launch, target: Path) -> None:
    """Measure what the partial folder misses, then close it into the record."""
    partial = _partial(study, launch)
    todo = [
        [t for t in takings.order(study, run) if not takings.done(partial, t)] for run in range(study.statistics.runs)
    ]
    search_s = probes.seconds_left(study, partial)
    total = sum(serve.expected_seconds(study, t) for run in todo for t in run)
    total += sum(launch.start_seconds / 3 for run in todo if run) + search_s
    meta_path = partial / "meta.json"
    trouble: StudyError | None = None
    with Progress(f"{study.name}/{launch.name}", total) as progress:
        meta = json.loads(meta_path.read_text()) if meta_path.exists() else _meta(study, launch)
        serve.save(partial, meta)  # whose takings these are is on disk before the first of them
        progress.at(0.0, "making what is missing")
        with budget.spending(study, launch) as account:
            _make(study, launch, progress, account)
            for run, missing in enumerate(todo):
                if not missing and not (search_s and run == study.statistics.runs - 1):
                    continue
                try:
                    account.reserve(launch.start_seconds, f"starting {launch.name}")
                    serve.one_run(study, launch, partial, run, missing, meta, progress, account)
                except (EngineError, MeasureError) as error:
                    trouble = error
                    break
    _close(study, launch, partial, target, meta, str(trouble) if trouble else None)
    if trouble:
        raise trouble


def _make(study: Study, launch: Launch, progress: Progress, account: budget.Budget) -> None:
    """Make what the launch needs before it can start."""

    def tell(stage: str) -> None:
        account.keep_paying(stage)
        progress.at(0.0, stage)

    if study.kind == "rehearsal":
        rehearsal.prepare(study, launch, tell)
    else:
        prepare.launch(study.model.tokenizer, launch, tell)


def settled(study: Study, launch: Launch) -> bool:
    """Whether a launch needs nothing more: its whole record is there, or it is absent with a reason. Reads only."""
    target = paths.record(study.name, launch.name)
    try:
        status = json.loads(target.with_suffix(".outcome.json").read_text())["status"]
    except (OSError, ValueError, KeyError):
        return False
    return bool(
        status == "absent" or (status == "measured" and already_taken(target, config.config_hash(study, launch)))
    )


def close_early(study: Study, launch: Launch, reason: str) -> int:
    """Close what an ended measurement finished into the launch's record, for a caller that outlived it.

    Returns
    -------
    how many takings were finished; the others stay to be taken.
    """
    partial, target = paths.partial(study.name, launch.name), paths.record(study.name, launch.name)
    done = _finished(study, partial)
    if (partial / "meta.json").exists():
        _close(study, launch, partial, target, json.loads((partial / "meta.json").read_text()), reason)
    _outcome(study, launch, "failed", reason)
    return len(done)


def _meta(study: Study, launch: Launch) -> dict[str, Any]:
    """What holds for the whole launch; taken once, before its first run."""
    return {
        "kind": study.kind,
        "study": study.name,
        "profile": study.profile,
        "depth": study.depth,
        "launch": launch.name,
        "engine": launch.engine,
        "precision": launch.precision,
        "qualifier": build.qualifier(launch.artifact),
        "config": {"study": study.model_dump(mode="json"), "launch": launch.model_dump(mode="json")},
        "config_hash": config.config_hash(study, launch),
        "machine": provenance.machine(),
        "versions": provenance.versions(),
        "git": provenance.git(),
        "host_probe": hostprobe.probe(),
        "clock": provenance.clock(),
        "doctor": doctor.recorded(study, launch) if study.hardware.gpus and study.kind == "measured" else [],
        "started_utc": provenance.utc(),
        "proof": [],
        "artifact": None,
        "runs": [],
    }


def _finished(study: Study, partial: Path) -> list[takings.Taking]:
    """Takings of a launch that are finished and on disk: its levels' as they were taken, then its search's."""
    planned = [t for run in range(study.statistics.runs) for t in takings.order(study, run)]
    return [t for t in [*planned, *probes.listed(partial)] if takings.done(partial, t)]


def _close(
    study: Study, launch: Launch, partial: Path, target: Path, meta: dict[str, Any], trouble: str | None
) -> None:
    """Join the finished takings into one record and, when nothing is missing, remove the partial folder."""
    finished = _finished(study, partial)
    if not finished:
        return
    notes = [json.loads(takings.note_path(partial, t).read_text()) for t in finished]
    # A taking from before a column was added has none; its values are null.
    taken = [pq.read_table(takings.rows_path(partial, t)) for t in finished]
    rows = pa.concat_tables([records.REQUESTS.empty_table(), *taken], promote_options="default")
    samples = pa.concat_tables([pq.read_table(takings.samples_path(partial, t)) for t in finished])
    sources = rows["stamp_source"].value_counts().to_pylist()
    meta = meta | {
        "takings": notes,
        "ended_utc": provenance.utc(),
        "incomplete": trouble,
        "interrupted": [json.loads(p.read_text()) for p in sorted(partial.glob("*.interrupted.json"))],
        "retaken": [json.loads(p.read_text()) for p in sorted(partial.glob("*.retaken.json"))],
        "clock": meta["clock"]
        | {
            "stamp_sources": {entry["values"]: entry["counts"] for entry in sources},
            "steps": sum(note["clock_steps"] for note in notes),
        },
    }
    records.write(target.with_suffix(".telemetry.parquet"), samples, {k: meta[k] for k in ("kind", "study", "launch")})
    records.write(target, rows, meta)
    for log in partial.glob("*.log"):
        shutil.copy2(log, target.with_name(f"{launch.name}.{log.name}"))
    if trouble is None:
        shutil.rmtree(partial)


def _partial(study: Study, launch: Launch) -> Path:
    """The folder of takings in progress; one that belongs to another config is put aside, never mixed in."""
    partial = paths.partial(study.name, launch.name)
    partial.mkdir(parents=True, exist_ok=True)
    meta = partial / "meta.json"
    if meta.exists():
        taken_with = json.loads(meta.read_text())["config_hash"]
        if taken_with != config.config_hash(study, launch):
            put_aside(partial, taken_with)
            partial.mkdir()
    return partial


def already_taken(target: Path, wanted: str) -> bool:
    """Whether the whole record of a config is there. Reads only."""
    if not target.exists():
        return False
    meta = records.read(target).meta
    return bool(meta["config_hash"] == wanted and meta["incomplete"] is None)


def _clear(target: Path, wanted: str) -> None:
    """Put a record of another config aside, to make room for this one's."""
    if target.exists():
        taken_with = records.read(target).meta["config_hash"]
        if taken_with != wanted:
            put_aside(target, taken_with)


def put_aside(path: Path, label: str) -> None:
    """Move a record (with what lies beside it) or a partial folder into `superseded/`; nothing measured is deleted."""
    folder = path.parent / "superseded"
    folder.mkdir(exist_ok=True)
    stem = path.name.removesuffix(".parquet")
    of_one = re.compile(
        re.escape(stem)
        + r"\.(parquet|parquet\.sha256|telemetry\.parquet|telemetry\.parquet\.sha256|outcome\.json|run-\d+\.log)"
    )
    for item in [path] if path.is_dir() else sorted(p for p in path.parent.iterdir() if of_one.fullmatch(p.name)):
        place = folder / f"{label}.{item.name}"
        number = 1
        while place.exists():
            place, number = folder / f"{label}.{number}.{item.name}", number + 1
        item.rename(place)


def _outcome(study: Study, launch: Launch, status: str, reason: str | None) -> dict[str, Any]:
    outcome = {
        "launch": launch.name,
        "study": study.name,
        "status": status,
        "reason": reason,
        "when_utc": provenance.utc(),
    }
    path = paths.record(study.name, launch.name).with_suffix(".outcome.json")
    if path.exists():
        before = json.loads(path.read_text())
        if {**before, "when_utc": ""} == {**outcome, "when_utc": ""}:
            return dict(before)
    records.write_whole(path, json.dumps(outcome, indent=1).encode())
    return outcome


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the computer's measuring lock; wait while something else is being measured.

    Raises
    ------
    MeasureError : the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f".measuring-{_here()}.lock").open("a")
        (folder / ".writable").touch()
        (folder / ".writable").unlink()
    except OSError as error:
        raise MeasureError(
            f"{folder} cannot be written ({error.strerror}), and a record must be kept: "
            "make it writable, or clone elsewhere."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another launch is being measured on this computer; waiting for it to end.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _here() -> str:
    """Name this computer among those that may share the folder of records: its node under Slurm, else this boot."""
    return os.environ.get("STUDY_NODE") or Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]


def _enough_disk(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < MIN_FREE_BYTES:
        raise MeasureError(
            f"{folder} has {free / 1e6:.0f} MB free and a launch may need "
            f"{MIN_FREE_BYTES / 1e6:.0f} MB while it is taken: "
            "free some space and run the same command again."
        )
