"""A first look at one launch's record: what ran, and medians per level. No uncertainty here; the tables add it."""

from typing import Any

import numpy as np

from lib import metrics, paths, records
from lib.glance import Table

Outcome = dict[str, Any]


def proof(outcome: Outcome) -> Table:
    """What was proven of the server: expected, found, and where it was found."""
    if outcome["status"] != "measured":
        return _absent(outcome)
    meta = _record(outcome).meta
    rows = [
        (p["what"], p["expected"], p["found"], p["source"]) for p in meta["proof"] if not p["what"].startswith("sha256")
    ]
    hashed = sum(p["what"].startswith("sha256") for p in meta["proof"])
    return Table(
        ("what", "config says", "found", "where"),
        rows,
        f"{hashed} file(s) of weights hashed and equal to their manifest; {meta['versions']['engine']}.",
    )


def levels(outcome: Outcome) -> Table:
    """Medians over requests of every level; failures counted."""
    if outcome["status"] != "measured":
        return _absent(outcome)
    record = _record(outcome)
    c = records.columns(record.table)
    rows = []
    for level in dict.fromkeys(t["level"] for t in record.meta["takings"]):
        here = (c["level"] == level) & (c["phase"] == "measured")
        good = here & metrics.complete(c)
        rows.append(
            (
                level,
                int(here.sum()),
                int((here & ~good).sum()),
                _ms(metrics.ttft_s(c)[good]),
                _ms(metrics.tpot_s(c)[good]),
                _ms(metrics.lag_s(c)[here]),
            )
        )
    headings = ("level", "requests", "not complete", "TTFT p50, ms", "TPOT p50, ms", "client lag p50, ms")
    return Table(headings, rows, "Requests of all takings, without warm-up and cooldown; ramp included.")


def _record(outcome: Outcome) -> records.Record:
    return records.read(paths.record(outcome["study"], outcome["launch"]))


def _absent(outcome: Outcome) -> Table:
    return Table(("launch", "status", "reason"), [(outcome["launch"], outcome["status"], outcome["reason"])])


def _ms(seconds: metrics.Floats) -> str | None:
    values = seconds[np.isfinite(seconds)]
    return f"{np.median(values) * 1e3:.1f}" if len(values) else None
