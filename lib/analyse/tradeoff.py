"""Quality lost against what a lower precision gains: speed, memory, cost; and who is dominated.

Reads facts alone. One contender dominates another where it is at least as good on every axis that both have (nats lost
per token, output tokens per second, megabytes of weights, dollars per token) and better on one beyond both intervals.
Rules: quality and speed must both be known of both, or nothing is said; a value without an interval is exact, but
files of weights that differ by less than `HEADERS` count as equal; the A/A pair's second launch is left out.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from lib.analyse import quality
from lib.analyse.facts import number

# Axis -> whether more is better.
AXES = {"kl": False, "output_tok_s": True, "weights": False, "cost": False}
NEEDED = ("kl", "output_tok_s")
HEADERS = 0.02          # by so much files of the very same weights differ: headers, tokenizer, alignment
UNITS = quality.NUMBERS | {"output_tok_s": "tok/s", "cost": "USD per million output tokens"}
UNSCORED = "it was not scored"
PARTS = ("", "_low", "_high", "_reason")
WORDS = ("launch", "engine", "precision", "level", "reference", "note", "dominated_by", "judged")
COLUMNS = (*WORDS, *(f"{axis}{part}" for axis in (*AXES, "perplexity_ratio", "agreement") for part in PARTS))
Row = Mapping[str, Any]


def rows(written: Mapping[str, Any], mark: str) -> list[dict[str, Any]]:
    """One row per contender that was scored or measured, the most faithful first.

    Parameters
    ----------
    written : facts of the study; needs quality, headline and noise_floor.
    """
    scored = written["quality"]["launches"]
    headline = {row["launch"]: row for row in written["headline"]}
    pair = written["noise_floor"]["pair"]
    spare = pair[1] if pair else None
    why = {one["launch"]: f"{one['status']}: {one['reason']}" for one in written["missing"]}
    found = []
    for name in sorted({*scored, *headline} - {spare}):
        one, row = scored.get(name), headline.get(name)
        who = row or one or {}
        source = one["source"] if one else who["output_tok_s"]["source"]

        def absent(key: str, reason: str, source: str = source) -> Any:
            return number(None, UNITS[key], mark, source, reason=reason)

        slow = why.get(name, "its speed was not measured")
        found.append({
            "launch": name, "engine": who["engine"], "precision": who["precision"],
            "level": row["level"] if row else None, "reference": one["reference"] if one else None,
            "note": one["note"] if one else None, "itself": bool(one and one["itself"]),
            **{key: one[key] if one else absent(key, UNSCORED) for key in ("kl", "perplexity_ratio", "agreement")},
            "weights": one["weights"] if one and one["weights"]["value"] is not None
            else row["size"] if row else absent("weights", UNSCORED),
            "output_tok_s": row["output_tok_s"] if row else absent("output_tok_s", slow),
            "cost": row["cost"] if row else absent("cost", slow),
        })
    for row in found:
        row["judged"] = all(row[axis]["value"] is not None for axis in NEEDED)
        row["dominated_by"] = [other["launch"] for other in found if row["judged"] and dominates(other, row)]
    return sorted(found, key=lambda row: (row["kl"]["value"] is None, row["kl"]["value"] or 0.0, row["launch"]))


def dominates(a: Row, b: Row) -> bool:
    """Whether `a` dominates `b`.

    >>> a = {"kl": {"value": 0.1, "low": 0.09, "high": 0.11}, "output_tok_s": {"value": 9.0, "low": 8.0, "high": 10.0}}
    >>> b = {"kl": {"value": 0.3, "low": 0.28, "high": 0.32}, "output_tok_s": {"value": 5.0, "low": 4.0, "high": 6.0}}
    >>> dominates(a, b), dominates(b, a), dominates(a, a)
    (True, False, False)
    """
    if a is b or any(one[axis]["value"] is None for one in (a, b) for axis in NEEDED):
        return False
    both = [axis for axis in AXES if axis in a and axis in b
            and a[axis]["value"] is not None and b[axis]["value"] is not None]
    ahead = [_ahead(a[axis], b[axis], AXES[axis], HEADERS if axis == "weights" else 0.0) for axis in both]
    return all(sign >= 0 for sign, _ in ahead) and any(sign > 0 and apart for sign, apart in ahead)


def frame(found: Sequence[Row]) -> pd.DataFrame:
    """Lay rows out flat; see `COLUMNS`."""
    flat = []
    for row in found:
        line: dict[str, Any] = {name: row[name] for name in WORDS} | {"dominated_by": " ".join(row["dominated_by"])}
        for axis in (*AXES, "perplexity_ratio", "agreement"):
            line |= {f"{axis}{part}": row[axis][part.lstrip("_") or "value"] for part in PARTS}
        flat.append(line)
    return pd.DataFrame(flat, columns=list(COLUMNS))


def _ahead(a: Row, b: Row, more: bool, equal: float) -> tuple[int, bool]:
    """1, 0 or -1 for ahead, equal (as far as a share of the larger) or behind; whether their intervals leave a gap."""
    if abs(a["value"] - b["value"]) <= equal * max(a["value"], b["value"]):
        return 0, False
    better, worse = (a, b) if (a["value"] > b["value"]) == more else (b, a)
    sign = 1 if better is a else -1

    def edge(one: Row, key: str) -> float:
        return float(one["value"] if one.get(key) is None else one[key])

    apart = edge(better, "low") > edge(worse, "high") if more else edge(better, "high") < edge(worse, "low")
    return sign, apart
