"""Depths that every profile has without saying so: the same study cut down, by rules that are the same for all.

    rehearsal   every launch and every level, with stand-ins for engines, for seconds each: make rehearse
    canary      one level of one launch, before an expensive study is begun: make canary

They work on what study.yaml says, after it has been checked. A profile that defines one of them itself is taken at its
word. Rule: a cut-down study has a folder of its own, and a rehearsal is never of kind `measured`.
"""

from typing import Any

REHEARSAL, CANARY = "rehearsal", "canary"
REHEARSED_S = 3.0  # of a level: long enough for a steady window at the predicted pace
SEARCHED_S = 10.0  # of a search, where the profile has one
CANARY_S = 60.0


def rehearsal(data: dict[str, Any]) -> dict[str, Any]:
    """Every level for seconds, once."""
    levels = [_shorter(level, REHEARSED_S) for level in data["levels"]]
    return data | {"levels": levels, "statistics": _once(data["statistics"], 1.0)} | _search(data, SEARCHED_S)


def canary(data: dict[str, Any]) -> dict[str, Any]:
    """Pick the level that the promise is about, for a minute, once."""
    sessions, headline = data["sla"]["sessions"], data["headline_workload"]
    closed = [level for level in data["levels"] if level["kind"] == "closed" and level["workload"] == headline]
    nearest = sorted(closed or data["levels"], key=lambda level: abs(level.get("concurrency", 0) - sessions))[:1]
    levels = [_shorter(level, CANARY_S) for level in nearest]
    kept = {key: value for key, value in data.items() if key not in ("search", "noise_floor_pair")}
    return kept | {"levels": levels, "statistics": _once(data["statistics"], 10.0)}


def _shorter(level: dict[str, Any], seconds: float) -> dict[str, Any]:
    kept = {key: value for key, value in level.items() if key not in ("requests", "at_most_seconds")}
    return kept | {"seconds": min(float(level["seconds"]), seconds)}


def _search(data: dict[str, Any], seconds: float) -> dict[str, Any]:
    search = data.get("search")
    return {"search": search | {"at_most_seconds": min(float(search["at_most_seconds"]), seconds)}} if search else {}


def _once(statistics: dict[str, Any], warmup_s: float) -> dict[str, Any]:
    warmup = min(float(statistics["warmup_seconds"]), warmup_s)
    return statistics | {"runs": 1, "repeats": 1, "warmup_seconds": warmup}


IMPLIED = {REHEARSAL: rehearsal, CANARY: canary}
