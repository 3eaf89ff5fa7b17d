"""What `make crosscheck` left, as a table and as facts: each tool's numbers beside ours, and each against the truth.

Rule: numbers are made from every tool's raw stamps by one code, this study's definitions; beside them stands what the
tool itself reported. One computer's comparison says nothing about another, so one made elsewhere is named and not
used. Refused: a file that cannot be read.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lib import paths, records
from lib.analyse import crosscheck_rules as rules
from lib.analyse.crosscheck_rules import METRICS, UNITS, Side
from lib.analyse.facts import number
from lib.errors import RecordError, tell

FILE = "crosscheck.json"
SOURCE = f"records/{FILE}"
MAKE = "`make crosscheck` compares them"
OURS = "ours"
BIAS = {"ttft_p50_ms": "ttft_bias_ms", "tpot_p50_ms": "tpot_bias_ms"}
NEEDED = {"when_utc", "machine", "tools", "live", "truth", "absent", "cores_shared"}
ERRORS = ("ttft_error_p50_ms", "ttft_error_p99_ms", "gap_error_p99_ms", "load_reached_percent")


def read(path: Path) -> dict[str, Any] | None:
    """Read the record that `lib.measure.crosscheck` wrote; None without one.

    Raises
    ------
    RecordError : the file is damaged.
    """
    return records.read_json(path, NEEDED, "make crosscheck")


def compared(found: Mapping[str, Any]) -> pd.DataFrame:
    """One row per peer and metric: unit, ours, reported and converted values, their differences to ours in per cent,
    tolerance_percent (the larger of 2 and the A/A difference), aa_percent, why.
    """
    concurrency, shared = found["live"]["concurrency"], found["cores_shared"]
    sides = {name: _side(name, found) for name in found["tools"]}
    ours, rows = sides[OURS], []
    for name, peer in sides.items():
        if name == OURS or ours is None or peer is None:
            continue
        for metric in METRICS:
            verdict = rules.judge(name, metric, ours, peer, concurrency, shared)
            rows.append(
                {
                    "tool": found["tools"][name]["title"], "version": found["tools"][name]["version"],
                    "metric": metric, "unit": UNITS[metric], "ours": ours.figure(metric, concurrency),
                    "reported": peer.reported.get(metric), "converted": peer.figure(metric, concurrency),
                    "reported_difference_percent": None if verdict.reported is None else 100 * verdict.reported,
                    "difference_percent": None if verdict.converted is None else 100 * verdict.converted,
                    "aa_percent": 100 * rules.floor(ours, metric, concurrency),
                    "tolerance_percent": 100 * verdict.tolerance, "why": verdict.why,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def against_truth(found: Mapping[str, Any]) -> pd.DataFrame:
    """One row per load and tool: streams, tokens_per_s of each, requests, matched, errors in ms, share of the load
    reached, CPU seconds a second, peak memory in MB.
    """
    rows = []
    for load in found["truth"]:
        for name, tool in found["tools"].items():
            one = load["tools"].get(name)
            if one is None:
                continue
            cpu, span = one["cpu_s"], one["span_s"]
            rows.append(
                {
                    "tool": tool["title"], "streams": load["streams"], "tokens_per_s": load["tokens_per_s"],
                    "requests": one["requests"], "matched": one["matched"],
                    **{key: one[key] for key in ("ttft_bias_ms", "tpot_bias_ms", *ERRORS[:-1])},
                    "gap_error_p95_ms": one["gap_error_p95_ms"], "ttft_error_p95_ms": one["ttft_error_p95_ms"],
                    "load_reached_percent": one["load_reached_percent"],
                    "cores": None if cpu is None else cpu / span, "peak_mb": one["peak_mb"],
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def facts(found: Mapping[str, Any] | None, machine: Mapping[str, Any]) -> dict[str, Any]:
    """Write the comparison down.

    Parameters
    ----------
    found : what `read` gives.
    machine : the machine of the records.

    Returns
    -------
    reason (None, or why there is nothing to show), when, server, requests, concurrency, peers (one row per peer and
    metric: tool, metric, ours, converted, difference, tolerance, why), truth (one row per load and tool) and absent
    (tool, why).
    """
    why = f"they were not compared; {MAKE}"
    if found is not None and any(found["machine"].get(key) != machine.get(key) for key in ("cpu", "cores")):
        why = f"the comparison on file was made on another computer ({found['machine'].get('cpu')}); {MAKE}"
        found = None
    if found is None:
        return {"reason": why, "when": None, "peers": [], "truth": [], "absent": []}
    live, count = found["live"], found["live"]["requests"]

    def measured(value: Any, unit: str, n: int = count) -> dict[str, Any]:
        there = value is not None and not pd.isna(value)
        return number(value, unit, "measured", SOURCE, n=n, reason=None if there else "the tool gave none")

    return {
        "reason": None,
        "when": found["when_utc"],
        "server": live["server"],
        "requests": number(count, "requests", "assumed", SOURCE),
        "concurrency": number(live["concurrency"], "requests", "assumed", SOURCE),
        "peers": [
            {
                "tool": row["tool"], "version": row["version"], "metric": row["metric"].removesuffix("_ms"),
                "ours": measured(row["ours"], row["unit"]), "reported": measured(row["reported"], row["unit"]),
                "converted": measured(row["converted"], row["unit"]),
                "difference": measured(row["difference_percent"], "%"),
                "tolerance": measured(row["tolerance_percent"], "%"), "why": row["why"],
            }
            for row in compared(found).to_dict("records")
        ],
        "truth": [
            {
                "tool": row["tool"], "streams": number(row["streams"], "streams", "assumed", SOURCE),
                "rate": number(row["tokens_per_s"], "tok/s", "assumed", SOURCE),
                **{
                    key.removesuffix("_ms").removesuffix("_percent"): measured(
                        row[key], "%" if key.endswith("percent") else "ms", row["matched"]
                    )
                    for key in ERRORS
                },
            }
            for row in against_truth(found).to_dict("records")
        ],
        "absent": [{"tool": found["tools"][name]["title"], "why": why} for name, why in found["absent"].items()],
    }  # fmt: skip


def _side(name: str, found: Mapping[str, Any]) -> Side | None:
    """What the rules know of a tool; None for one that was never run on the live server."""
    runs = [run for run in found["live"]["runs"] if run["tool"] == name]
    if not runs:
        return None
    used = [run["usage"] for run in runs]
    known = [use["cpu_s"] / use["span_s"] for use in used if use.get("cpu_s") is not None and use.get("span_s")]
    by_load = sorted(found["truth"], key=lambda load: int(load["streams"]))
    small: dict[str, Any] = by_load[0]["tools"].get(name, {}) if by_load else {}
    return Side(
        [rules.columns(run["rows"]) for run in runs], runs[0]["reported"], sum(known) / len(known) if known else None,
        {metric: small.get(key) for metric, key in BIAS.items()},
    )  # fmt: skip


def main() -> None:
    """Print both tables and write the first as report/tables/crosscheck.csv, the second as crosscheck_truth.csv."""
    found = read(paths.RECORDS / FILE)
    if found is None:
        raise RecordError(f"There is no {SOURCE}; {MAKE}.")
    tables = {"crosscheck": compared(found), "crosscheck_truth": against_truth(found)}
    live = found["live"]
    print(f"{live['server']}, {live['requests']} requests, {live['concurrency']} at once, {found['when_utc']}\n")
    for name, table in tables.items():
        path = paths.REPORT / "tables" / f"{name}.csv"
        records.write_whole(path, table.to_csv(index=False).encode())
        table.round(3).to_string(sys.stdout, index=False)
        print("\n")
    for name, why in found["absent"].items():
        print(f"{found['tools'][name]['title']} is absent: {why}")


if __name__ == "__main__":
    tell(main)
