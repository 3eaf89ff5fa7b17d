"""The client's own error as facts, from records/<study>/calibration.json, and the levels whose numbers it could touch.

Rule: an error known of one computer says nothing about another, so a calibration made elsewhere is named and not used.
A level is doubted by the errors at its own load, those beside the engine's load where they are known.
Refused: a file that cannot be read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lib import records
from lib.analyse.facts import Number, number
from lib.analyse.levels import Level
from lib.analyse.warnings import Doubt

FILE = "calibration.json"
MAKE = "`make calibrate` measures it"
IDLE, LOADED = "idle", "engine load"
LEAST_MS, SHARE = 1.0, 0.02  # an instrument's p99 error up to the larger of these, the second of the median, is small
# What is judged: name, key of the error, the median it is held against. A gap is a token's time, as TPOT is.
JUDGED = (
    ("TTFT", "ttft_error_p99_ms", "ttft_p50_s"),
    ("TPOT", "tpot_error_p99_ms", "tpot_p50_s"),
    ("gaps between tokens", "gap_error_p99_ms", "tpot_p50_s"),
)


def read(path: Path) -> dict[str, Any] | None:
    """Read what `lib.measure.calibrate_study` wrote; None without it.

    Raises
    ------
    RecordError : the file is damaged.
    """
    needed = {"when_utc", "machine", "before", "engine_load", "loads", "capacity"}
    return records.read_json(path, needed, "make calibrate")


def too_large(error_ms: float, median_ms: float) -> bool:
    """Tell whether an instrument's p99 error exceeds the larger of 1 ms and 2 % of the measured median (both in ms).

    >>> too_large(0.9, 10), too_large(3.9, 200), too_large(1.1, 10), too_large(4.1, 200)
    (False, False, True, True)
    """
    return error_ms > max(LEAST_MS, SHARE * median_ms)


def doubts(level: Level, found: Mapping[str, Any] | None, machine: Mapping[str, Any]) -> list[Doubt]:
    """Doubts about a level whose numbers the instrument's error could touch, one per metric.

    Parameters
    ----------
    found : what `read` gives. machine : the one that took the level.
    """
    if found is None or not _same(found["machine"], machine):
        return []
    here = {load["condition"]: load for load in _planned(found) if load["load"] == level.id}
    if not here:
        return []
    condition = LOADED if LOADED in here else IDLE
    raised = []
    for name, key, median in JUDGED:
        error, value = here[condition].get(key), level.estimates[median].value
        if error is not None and value is not None and too_large(error, value * 1e3):
            beside = "beside the engine's load" if condition == LOADED else "idle"
            text = (
                f"the instrument's own p99 error of {name} at this load, {beside}, is {error:.3g} ms (above the larger "
                f"of {LEAST_MS:g} ms and {SHARE:.0%} of the median, {SHARE * value * 1e3:.3g} ms)"
            )
            step = "give the client a core of its own, or lower the load"
            raised.append(Doubt(f"{level.launch} {level.id}", text, step))
    return raised


def facts(found: Mapping[str, Any] | None, machine: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Write the calibration down.

    Parameters
    ----------
    found : what `read` gives.
    machine : the machine of the records.
    source : where it stands: records/<study>/calibration.json.

    Returns
    -------
    A number: the largest p99 error of TTFT at any load that the study plans, in ms, with
    gap : the same of gaps between tokens; when; engine_load : what stood in for the engine, in words;
    busy : share of the processors that others used just before;
    planned : level, streams, rate (tokens/s of each), and under `idle` and `loaded` ttft_p99, gap_p99, tpot_p99;
    others : the loads beyond the plan: streams, rate, events_s, ttft_p50, ttft_p99, gap_p99;
    capacity : events/s that one client process holds, with `broke`, what happened above it (None: nothing tried broke).
    """
    why = f"it was not measured; {MAKE}"
    if found is not None and not _same(found["machine"], machine):
        why = f"the one on file was measured on another computer ({found['machine'].get('cpu')}); {MAKE}"
        found = None
    if found is None or not _planned(found):
        missing = number(None, "ms", "measured", source, reason=why)
        none = number(None, "events/s", "measured", source, reason=why) | {"broke": None}
        empty: dict[str, Any] = {"when": None, "engine_load": None, "planned": [], "others": []}
        return missing | empty | {"gap": missing, "busy": missing, "capacity": none}
    rows = [_ms(load, source) for load in _planned(found)]
    worst = {key: max((row[key] for row in rows), key=lambda n: n["value"] or 0.0) for key in ("ttft_p99", "gap_p99")}
    largest: Number = worst["ttft_p99"]
    return largest | {
        "gap": worst["gap_p99"],
        "when": found["when_utc"],
        "engine_load": found["engine_load"],
        "busy": number(found["before"]["cpu_percent"], "%", "measured", source),
        "planned": _pairs(_planned(found), source),
        "others": [_load(load, source) | _ms(load, source) for load in found["loads"] if load["part"] != "planned"],
        "capacity": _capacity(found["capacity"], source),
    }


def _planned(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [load for load in found["loads"] if load["part"] == "planned"]


def _pairs(loads: Sequence[Mapping[str, Any]], source: str) -> list[dict[str, Any]]:
    """One row per level, its errors idle and beside the engine's load."""
    rows: dict[str, dict[str, Any]] = {}
    for load in loads:
        row = rows.setdefault(load["load"], {"level": load["load"], **_load(load, source)})
        row["loaded" if load["condition"] == LOADED else "idle"] = _ms(load, source)
    return list(rows.values())


def _load(load: Mapping[str, Any], source: str) -> dict[str, Number]:
    record = load.get("rate_from")
    return {
        "streams": number(load["streams"], "streams", "assumed", source),
        "rate": number(load["tokens_per_s"], "tok/s", "measured" if record else "assumed", record or source),
        "events_s": number(load["events_per_s"], "events/s", "measured", source, n=load["events"]),
    }


def _ms(load: Mapping[str, Any], source: str) -> dict[str, Number]:
    """Errors in ms; a percentile of few values is close to their largest, and n says how few."""
    n = load["complete"]

    def ms(key: str, n: int) -> Number:
        why = "answers of one token have no gap" if load[key] is None else None
        return number(load[key], "ms", "measured", source, n=n, reason=why)

    return {
        "ttft_p50": ms("ttft_error_p50_ms", n),
        "ttft_p99": ms("ttft_error_p99_ms", n),
        "tpot_p99": ms("tpot_error_p99_ms", n),
        "gap_p99": ms("gap_error_p99_ms", load["events"] - n),
    }


def _capacity(found: Mapping[str, Any] | None, source: str) -> dict[str, Any]:
    if found is None:
        missing = f"only the planned loads were tried; {MAKE}"
        return number(None, "events/s", "measured", source, reason=missing) | {"broke": None}
    broke = f"with {found['broke_streams']} streams {found['why']}" if found["why"] else None
    why = None if found["events_per_s"] is not None else f"not even the first load tried held: {broke}"
    return number(found["events_per_s"], "events/s", "measured", source, reason=why) | {"broke": broke}


def _same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return all(one.get(key) == two.get(key) for key in ("cpu", "cores"))
