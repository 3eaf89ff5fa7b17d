"""The way from client to server as facts: connect times and short round trips, pooled over all levels of a study.

Rule: a record from before it was measured has none, and says so. Refuses nothing.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lib import stats
from lib.analyse.collect import Measured
from lib.analyse.facts import from_estimate

PARTS = {"connect": "connect_ns", "round_trip": "round_trip_ns"}
PLACES = {
    "127.0.0.1": "on the server's own computer, over the loopback",
    "another node": "on another node of the cluster",
}


def facts(found: Sequence[Measured], mark: str) -> dict[str, Any]:
    """Write down where the client ran, and p50 and p99 of each part of the way in ms.

    Returns
    -------
    where : on which computer, in words; reason : why nothing is known, or None; connect and round_trip {p50, p99 :
        numbers}.
    """
    ways = [
        note["network"]
        for one in found
        for note in one.meta["takings"]
        if (note.get("network") or {}).get("round_trip_ns")
    ]
    hosts = sorted({str(way["host"]) for way in ways})
    apart = sorted({_computer(one.meta["client"]["machine"]) for one in found if one.meta.get("client")})
    source = "; ".join(sorted(one.source for one in found))
    reason = None if ways else "no record holds it; records taken from now on do"
    where = ", and ".join(PLACES.get(host, host) for host in hosts) + (f" ({'; '.join(apart)})" if apart else "")
    return {"where": where if ways else None, "reason": reason} | {
        part: _numbers([np.asarray(way[key], dtype=float) / 1e9 for way in ways], mark, source) if ways else None
        for part, key in PARTS.items()
    }


def _computer(machine: dict[str, Any]) -> str:
    return f"{machine['cpu']}, {machine['cores']} cores"


def _numbers(takings: list[stats.Floats], mark: str, source: str) -> dict[str, Any]:
    p99 = stats.percentile_interval(takings, 0.99)
    median = stats.median_interval(takings)
    return {"p50": from_estimate(median, "ms", 1e3, mark, source), "p99": from_estimate(p99, "ms", 1e3, mark, source)}
