"""Calibrate the instrument for a study, at the loads that its profile plans and beyond, and keep it beside its records.

    python -m lib.measure.calibrate_study PROFILE DEPTH          what `make calibrate` runs: all of the following
    python -m lib.measure.calibrate_study PROFILE DEPTH light    the planned loads alone, about a second each: what
                                                                 `make report` runs where no calibration is there

planned   each level of the profile: its streams or arrivals, its workload's mean output, and the token rate of the
          fastest launch on record at that level, or the one that the SLA asks for where there is none. Server and
          client get the cores that engine and client get in the study. Idle, and beside a stand-in for engine load.
          Clients do not think, sessions have one turn, and all open loops are Poisson at their mean rate.
scenario  a, b, c: the loads at which other clients were measured. Idle; server and client have a core each.
held      2,000 streams open at once in one process, idle.
beyond    scenario c with its streams doubled until a p99 error passes 1 ms or 2,000 streams are reached, idle; then the
          gap between the last that held and the first that did not is halved twice. This is the client's capacity.

Rule: nothing else is measured meanwhile (the measuring lock), and a calibration appears whole or not at all. Refused:
a study whose records another computer took; its instrument cannot be calibrated here.
"""

import json
import math
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from lib import config, metrics, paths, records, stats
from lib.config import Study
from lib.engines import cores
from lib.errors import MeasureError, RecordError, tell
from lib.measure import drive, engine_load, provenance
from lib.measure.calibrate import TTFT_MS, Load, calibrate
from lib.measure.session import alone
from lib.progress import Progress

FILE = "calibration.json"  # in records/<study>
SCENARIOS = (Load("a", 50, 50.0), Load("b", 128, 30.0), Load("c", 256, 100.0, answers=4))
HELD = Load("held", 2000, 10.0, output_tokens=16, answers=2, ramp_s=2.0)
FIRST, MOST, PACE = 512, 2000, 100.0  # streams and tokens/s of each, beyond scenario c
HALVINGS = 2
LIMIT_MS = 1.0  # p99 error up to which a load counts as held
PLANNED_S, LIGHT_S = 3.0, 1.0  # seconds at each planned load
OVERHEAD_S = 2.0  # of one load: two processes started, journals read
IDLE, LOADED = "idle", "engine load"

Found = dict[str, Any]


def planned(study: Study, seconds: float) -> list[tuple[Load, str | None]]:
    """Loads that the study's levels put on the instrument, of about `seconds`, each with the record of its rate."""
    loads: list[tuple[Load, str | None]] = []
    on_record = _paces(study)
    for level in study.levels:
        tokens = study.workloads[level.workload].output_tokens.mean
        pace, source = on_record.get(level.id) or (1e3 / study.sla.tpot_p95_ms, None)
        answer_s = TTFT_MS / 1e3 + (tokens - 1) / pace
        if level.concurrency:
            answers = max(math.ceil(2 / level.concurrency), math.ceil(seconds / answer_s))
            ramp_s = 0.0 if level.start == "burst" else seconds / 4
            loads.append((Load(level.id, level.concurrency, pace, tokens, answers, ramp_s=ramp_s), source))
        else:
            rate = level.rate_rps or 1.0
            at_once, count = max(1, math.ceil(rate * answer_s)), max(4, round(rate * seconds))
            loads.append((Load(level.id, at_once, pace, tokens, count, rate_rps=rate), source))
    return loads


def take(profile: str, depth: str = "default", light: bool = False) -> Found | None:
    """Calibrate for a study and keep what was found as records/<study>/calibration.json.

    Returns
    -------
    What is on disk now; None where `light` found records of another computer and therefore did nothing.

    Raises
    ------
    MeasureError : records of another computer; a load at which nothing could be measured.
    """
    study = config.load_study(profile, depth)
    target = paths.RECORDS / study.name / FILE
    elsewhere = _elsewhere(study)
    if elsewhere:
        said = f"The records of study {study.name!r} were taken on another computer ({elsewhere}): calibrate there."
        if not light:
            raise MeasureError(said)
        print(said)
        return None
    with alone(target.parent):
        if light and target.exists():
            found: Found = json.loads(target.read_text())
            return found
        found = _measure_all(study, light)
    records.write_whole(target, (json.dumps(found, indent=1) + "\n").encode())
    return found


def _measure_all(study: Study, light: bool) -> Found:
    loads = planned(study, LIGHT_S if light else PLANNED_S)
    total = 2 * sum(load.seconds + OVERHEAD_S for load, _ in loads)
    if not light:
        total += sum(load.seconds + OVERHEAD_S for load in (*SCENARIOS, HELD)) + 5 * 9.0
    engine, client = (tuple(some) for some in cores.share())
    mine, before = sorted(os.sched_getaffinity(0)), provenance.load()
    apart: dict[str, Any] = {"server_cpus": (mine[0],), "client_cpus": (mine[1],)} if len(mine) > 1 else {}
    done: list[Found] = []
    capacity: Found | None = None
    with Progress(f"{study.name}/calibration", total) as progress:
        spent = 0.0

        def measure(load: Load, part: str, condition: str = IDLE, **where: Any) -> Found:
            nonlocal spent
            progress.at(spent, f"{part} {load.name}, {load.streams} streams, {condition}")
            found = calibrate(load, **where) | {"part": part, "condition": condition}
            spent += load.seconds + OVERHEAD_S
            return found

        for condition in (IDLE, LOADED):
            with engine_load.busy(engine) if condition == LOADED else nullcontext():
                for load, source in loads:
                    processes = drive.processes(load.streams * load.tokens_per_s)
                    where: dict[str, Any] = {"server_cpus": engine, "client_cpus": client, "workers": processes}
                    done.append(measure(load, "planned", condition, **where) | {"rate_from": source})
            if condition == IDLE and not light:
                done += [measure(load, "scenario", **apart) for load in SCENARIOS]
                done.append(measure(HELD, "held", **apart))
                tried, capacity = climb(lambda load: measure(load, "beyond", **apart))
                done += tried
    return {
        "when_utc": provenance.utc(), "machine": provenance.machine(), "versions": provenance.versions(),
        "git": provenance.git(), "before": before, "light": light,
        "cores": {"engine": list(engine), "client": list(client)}, "engine_load": engine_load.WHAT,
        "loads": done, "capacity": capacity,
    }  # fmt: skip


def climb(measure: Callable[[Load], Found]) -> tuple[list[Found], Found]:
    """Find how many events per second one client process holds with both p99 errors within `LIMIT_MS`.

    A load that fails is tried once more, since one disturbance of the machine is not the client's limit.

    Returns
    -------
    all loads measured, and the capacity: streams, events_per_s (None where not even the first held), broke_streams and
    why (None where all that were tried held).
    """
    tried: list[Found] = []
    held: Found | None = None
    broke: tuple[int, str] | None = None

    def once(streams: int) -> tuple[Found | None, str | None]:
        try:
            found = measure(Load(f"c x {streams / 256:g}", streams, PACE, ramp_s=0.5))
        except MeasureError as error:
            return None, str(error)
        return found, trouble(found)

    def holds(streams: int) -> bool:
        nonlocal held, broke
        found, why = once(streams)
        if why:
            found, why = once(streams)
        if found:
            tried.append(found)
        if why:
            broke = streams, why
        else:
            held = found
        return why is None

    streams = FIRST
    while holds(streams) and streams < MOST:
        streams = min(2 * streams, MOST)
    for _ in range(HALVINGS):
        if held is not None and broke is not None:
            holds((held["streams"] + broke[0]) // 2)
    return tried, {
        "streams": held and held["streams"], "events_per_s": held and held["events_per_s"],
        "broke_streams": broke and broke[0], "why": broke and broke[1],
    }  # fmt: skip


def trouble(found: Found) -> str | None:
    """Why a load does not count as held, in words; None if it does."""
    late = found["server_late_us_p99"] / 1e3
    whose = f" (the server itself was late by {late:.3g} ms)" if late > LIMIT_MS else ""
    for key, name in (("ttft_error_p99_ms", "TTFT"), ("gap_error_p99_ms", "gaps between tokens")):
        if found[key] is not None and found[key] > LIMIT_MS:
            return f"the p99 error of {name} was {found[key]:.3g} ms{whose}"
    lost = found["requests"] - found["complete"]
    causes = ", ".join(found["causes"]) or "not sent in time"
    return f"{lost} of {found['requests']} requests did not complete ({causes})" if lost else None


def table(found: Found) -> str:
    """What was found, for a person at a terminal."""
    heads = ("load", "condition", "streams", "tok/s", "events/s", "TTFT p50", "p99", "gap p99", "TPOT p99", "reached %",
             "receive", "parse", "MB", "start s", "server late")  # fmt: skip
    keys = ("streams", "tokens_per_s", "events_per_s", "ttft_error_p50_ms", "ttft_error_p99_ms", "gap_error_p99_ms",
            "tpot_error_p99_ms", "load_reached_percent", "receive_cpu_ms", "parse_cpu_ms", "peak_mb",
            "start_s")  # fmt: skip
    rows = [heads]
    for load in found["loads"]:
        cells = ["-" if load[key] is None else f"{load[key]:.3g}" for key in keys]
        cells[2] = f"{load['events_per_s']:.0f}"
        rows.append((load["load"], load["condition"], *cells, f"{load['server_late_us_p99'] / 1e3:.3g}"))
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    lines.append("Errors and lateness in ms; receive and parse: CPU ms per 1,000 events; MB: peak of a client process.")
    if found["capacity"]:
        most = found["capacity"]
        held = "No load beyond c was held"
        if most["streams"]:
            held = f"One client process holds {most['events_per_s']:.0f} events/s of {most['streams']} streams"
        why = f"with {most['broke_streams']} streams {most['why']}" if most["why"] else "more was not tried"
        lines.append(f"{held}; {why}.")
    return "\n".join(lines)


def _paces(study: Study) -> dict[str, tuple[float, str]]:
    """Tokens/s of one stream at each level, of the fastest launch on record, and which record says so."""
    found: dict[str, tuple[float, str]] = {}
    for record in _on_record(study):
        c = records.columns(record.table)
        counted = metrics.complete(c) & (c["phase"] == "measured")
        for level in study.levels:
            tpot = stats.finite(metrics.tpot_s(c)[counted & (c["level"] == level.id)])
            pace = 1 / float(np.median(tpot)) if len(tpot) else 0.0
            if pace > found.get(level.id, (0.0, ""))[0]:
                found[level.id] = pace, f"records/{study.name}/{record.path.name}"
    return found


def _elsewhere(study: Study) -> str | None:
    """CPU of the computer that took the study's records, where that is not this one."""
    here = provenance.machine()
    for record in _on_record(study):
        there = record.meta["machine"]
        if any(there.get(key) != here[key] for key in ("cpu", "cores")):
            return f"{there.get('cpu')}, {there.get('cores')} cores"
    return None


def _on_record(study: Study) -> list[records.Record]:
    """Read the study's records that can be read."""
    found = []
    for path in sorted((paths.RECORDS / study.name).glob("*.parquet")):
        if not path.name.endswith(".telemetry.parquet"):
            try:
                found.append(records.read(path))
            except RecordError:
                continue  # the tables name it; here it has no say
    return found


def main() -> None:
    """Command line: profile, depth, and `light` for the planned loads alone."""
    profile, depth, *how = sys.argv[1:]
    found = take(profile, depth, light=how == ["light"])
    if found is not None and how != ["light"]:
        print(table(found))


if __name__ == "__main__":
    tell(main)
