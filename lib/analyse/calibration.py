"""The client's own error as facts, from what `make calibrate` left in records/calibration.json.

Rule: an error known of one computer says nothing about another, so a calibration made elsewhere is named and not used.
Refused: a file that cannot be read.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lib.analyse.facts import Number, number
from lib.errors import RecordError

FILE = "calibration.json"
SOURCE = f"records/{FILE}"
MAKE = "`make calibrate` measures it"


def read(path: Path) -> dict[str, Any] | None:
    """Read the calibration: {"when_utc", "machine", "loads": [what `lib.measure.calibrate` found]}; None without one.

    Raises
    ------
    RecordError : the file is damaged.
    """
    if not path.exists():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text())
        if not {"when_utc", "machine", "loads"} <= set(found):
            raise ValueError("it lacks when_utc, machine or loads")
    except (OSError, ValueError, TypeError) as error:
        raise RecordError(f"{path} cannot be read ({error}). Delete it and run `make calibrate`.") from error
    return found


def facts(found: Mapping[str, Any] | None, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Write the calibration down.

    Parameters
    ----------
    found : what `read` gives.
    machine : the machine of the records.

    Returns
    -------
    A number: the largest p99 error of TTFT over all loads, in ms, with `gap` (the same of gaps between tokens), `when`
    and `loads`: streams, rate (tokens/s of each), ttft_p50, ttft_p99, gap_p99 of each load.
    """
    why = f"it was not measured; {MAKE}"
    if found is not None and not _same(found["machine"], machine):
        why = f"the one on file was measured on another computer ({found['machine'].get('cpu')}); {MAKE}"
        found = None
    if found is None or not found["loads"]:
        missing = number(None, "ms", "measured", SOURCE, reason=why)
        return missing | {"gap": missing, "when": None, "loads": []}
    loads = [_load(load) for load in found["loads"]]
    worst = {key: max((load[key] for load in loads), key=lambda n: n["value"]) for key in ("ttft_p99", "gap_p99")}
    most: dict[str, Any] = worst["ttft_p99"]
    return most | {"gap": worst["gap_p99"], "when": found["when_utc"], "loads": loads}


def _load(load: Mapping[str, Any]) -> dict[str, Any]:
    def ms(key: str) -> Number:
        return number(load[key], "ms", "measured", SOURCE, n=load["complete"])

    return {
        "streams": number(load["streams"], "streams", "assumed", SOURCE),
        "rate": number(load["tokens_per_s"], "tok/s", "assumed", SOURCE),
        "ttft_p50": ms("ttft_error_p50_ms"),
        "ttft_p99": ms("ttft_error_p99_ms"),
        "gap_p99": ms("gap_error_p99_ms"),
    }


def _same(one: Mapping[str, Any], two: Mapping[str, Any]) -> bool:
    return all(one.get(key) == two.get(key) for key in ("cpu", "cores"))
