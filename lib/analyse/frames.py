"""The study's tables as frames: takings, levels, headline. Seconds, shares and counts; empty where nothing exists.

Rules: a frame only lays out what has been computed; every row keeps its launch, engine and precision; a table without
a row still has its columns.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from lib import records
from lib.analyse import energy
from lib.analyse.collect import Measured
from lib.analyse.levels import SPECS, Level
from lib.analyse.warnings import Doubt

WHO = ("launch", "engine", "precision")
TAKINGS = (
    *WHO, "run", "repeat", "level", "kind", "load", "workload", "steady_s", "in_flight_mean", "requests",
    *records.STATUSES, "ttft_p50_s", "ttft_p95_s", "tpot_p50_s", "tpot_p95_s", "e2e_p50_s", "output_tok_s",
    "requests_s", "goodput_s", "lag_p99_s", "kv_cache_usage_max", "preemptions", "prefix_hit_share", "client_cpu_share",
    "tokens_per_event", "shared_reads_share", "ttft_p50_with_ramp_s", "clients", "ended", "decoding_mean",
    "joined_share", *energy.COLUMNS,
)  # fmt: skip
LEVELS = (
    *WHO, "level", "kind", "load", "workload",
    *(f"{name}{part}" for name in SPECS for part in ("", "_low", "_high", "_reason")),
    "n", "takings", "failures", "in_flight_mean", "tokens_per_event", "kv_cache_usage_max", *energy.COLUMNS,
    "meets_sla", "meets_sla_reason", "meets_by_medians", "warnings",
)  # fmt: skip
HEADLINE = (
    *WHO, "level",
    *(f"{name}{part}" for name in ("capacity", "capacity_by_medians")
      for part in ("", "_next", "_next_answer", "_reason")),
    *(f"{name}{part}" for name in ("size", "ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95", "output_tok_s")
      for part in ("", "_low", "_high", "_reason")),
    "meets_sla", "meets_sla_reason", "repeat_of", *(f"cost{part}" for part in ("", "_low", "_high", "_reason")),
)  # fmt: skip

Shown = Sequence[tuple[Measured, Level]]


def takings(shown: Shown) -> pd.DataFrame:
    """One row per launch, run, repeat and level: see `takings.summary` for the columns."""
    return pd.DataFrame([one.who | row for one, level in shown for row in level.rows], columns=list(TAKINGS))


def levels(shown: Shown, doubts: Iterable[Doubt]) -> pd.DataFrame:
    """One row per launch and level: each estimate with _low, _high and _reason, counts, verdicts and warnings."""
    rows = []
    for one, level in shown:
        row = one.who | {"level": level.id, "kind": level.kind, "load": level.load, "workload": level.workload}
        for name, e in level.estimates.items():
            row |= {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high, f"{name}_reason": e.reason}
        said = "; ".join(str(d) for d in doubts if d.where == f"{one.name} {level.id}")
        rows.append(row | {
            "n": level.total("requests"), "takings": len(level.takings), "failures": level.failures,
            "in_flight_mean": level.mean("in_flight_mean"), "tokens_per_event": level.mean("tokens_per_event"),
            "kv_cache_usage_max": level.largest("kv_cache_usage_max"),
            **{column: level.mean(column) for column in energy.COLUMNS},
            "meets_sla": level.verdict.answer, "meets_sla_reason": level.verdict.reason,
            "meets_by_medians": level.verdict_by_medians.answer, "warnings": said,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=list(LEVELS))


def headline(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Lay the headline of facts.json out flat: value, _low, _high and _reason of each number, in the facts' units."""
    flat = []
    for row in rows:
        line: dict[str, Any] = {}
        for key, value in row.items():
            if not isinstance(value, dict):
                line[key] = value
            elif "answer" in value:
                line |= {key: value["answer"], f"{key}_reason": value["reason"]}
            elif "next_level" in value:
                line |= {key: value["value"], f"{key}_next": value["next_level"],
                         f"{key}_next_answer": value["next_answer"], f"{key}_reason": value["reason"]}  # fmt: skip
            else:
                line |= {key: value["value"], f"{key}_low": value["low"], f"{key}_high": value["high"],
                         f"{key}_reason": value["reason"]}  # fmt: skip
        flat.append(line)
    return pd.DataFrame(flat, columns=list(HEADLINE))


def qualified(frame: pd.DataFrame, said: Mapping[str, str]) -> pd.DataFrame:
    """Add a column `qualifier` where a row's launch, or one of the two that it compares, has one in `said`."""
    if not said:
        return frame
    names = [column for column in ("launch", "a", "b") if column in frame]
    rows = frame[names].itertuples(index=False, name=None)
    return frame.assign(qualifier=["; ".join(sorted({said[n] for n in row if n in said})) for row in rows])
