"""Predict every contender, layout, workload and load on 8 x H100 by simulating queueing over the step-time table:
data/predictions.csv.

`python -m lib.analyse.predict` makes the file again from data/step_times.csv in a few minutes; everything else reads
the file (`load`). No kernel of the article's versions is in the table: a prediction is for the versions its row
names, and says so.

Refuses nothing silently: a layout whose KV cache cannot hold one request is a row without values and with its reason.
"""

import functools
import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse.simulate import Engine, simulate
from lib.analyse.steptimes import StepTimes, write
from lib.analyse.traffic import Samples, Workload, closed_loop, steady, summary
from lib.errors import ConfigError, tell
from lib.paths import DATA

WORKLOADS = (
    Workload("headline", 128, 128),
    Workload("news flash", 512, 128),
    Workload("filing excerpt", 1024, 128),
    Workload("earnings call", 2048, 256),
    Workload("document analysis", 4096, 512),
    Workload("analyst session", 2048, 128, turns=6, turn_isl=128, think_s=5.0),
)
LEVELS = (1, 4, 8, 16, 32, 50, 64, 96, 128, 256)
LAYOUTS = {"TP8": (8, 1), "TP4x2": (4, 2), "TP2x4": (2, 4)}  # name: (GPUs a replica, replicas)
SEEDS = (1, 2, 3, 4, 5)
ADMISSION = {"vllm": "prompt", "tensorrt_llm": "reserve"}  # each engine's default


@dataclass(frozen=True)
class Point:
    """One row of the file: a contender in a layout under a workload at a load."""

    config: str
    layout: str
    policy: str
    workload: Workload
    concurrency: int


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as plain dicts."""
    return [{str(name): value for name, value in row.items()} for row in frame.to_dict("records")]


@functools.lru_cache(maxsize=1)
def meta() -> dict[str, Any]:
    """Return what the step-time table was made from: library, versions, KV capacities (tokens), interpolation
    errors.
    """
    return dict(json.loads((DATA / "step_times.meta.json").read_text(encoding="utf-8")))


@functools.lru_cache(maxsize=1)
def _table() -> dict[tuple[str, int], list[dict[str, Any]]]:
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in records(pd.read_csv(DATA / "step_times.csv")):
        rows.setdefault((row["config"], row["tp"]), []).append(row)
    return rows


@functools.lru_cache(maxsize=32)
def step_times(config: str, tp: int, max_batch: int = 512) -> StepTimes:
    """Step times of one contender at one tensor-parallel size; ConfigError with what exists otherwise."""
    if (config, tp) not in _table():
        known = sorted({name for name, _ in _table()})
        raise ConfigError(
            f"no step times for '{config}' on {tp} GPUs; the table has {', '.join(known)} on "
            f"{', '.join(str(n) for n in sorted({t for _, t in _table()}))} GPUs."
        )
    return StepTimes(_table()[config, tp], max_batch=max_batch)


def engine(
    config: str,
    tp: int,
    policy: str = "chunked",
    prefix_cache: bool = False,
    max_seqs: int = 256,
    token_budget: int = 8192,
) -> Engine:
    """One replica of a contender with its default admission and the KV capacity of its tensor-parallel size."""
    steps = step_times(config, tp, max(512, max_seqs))
    return Engine(
        steps,
        meta()["kv_capacity_tokens"][f"{config}-tp{tp}"],
        max_seqs,
        token_budget,
        policy,
        ADMISSION[meta()["contenders"][config]["engine"]],
        prefix_cache,
    )


def replica_loads(concurrency: int, replicas: int) -> list[int]:
    """Clients of each replica when `concurrency` are dealt out evenly; replicas without a client do not appear."""
    each, rest = divmod(concurrency, replicas)
    return [load for load in [each + 1] * rest + [each] * (replicas - rest) if load]


def _pooled(samples: list[Samples]) -> Samples:
    return Samples(
        np.concatenate([s.ttft_s for s in samples]),
        np.concatenate([s.tpot_s for s in samples]),
        np.concatenate([s.ttft_all_s for s in samples]),
        sum(s.output_tok_s for s in samples),
        sum(s.in_flight for s in samples),
    )


def run_point(point: Point) -> dict[str, Any]:
    """Simulate one point over all seeds; a row of the file."""
    tp, replicas = LAYOUTS[point.layout]
    who, workload = meta()["contenders"][point.config], point.workload
    row: dict[str, Any] = {
        "config": point.config,
        "engine": who["engine"],
        "engine_version": who["version"],
        "precision": who["precision"],
        "kernels": who["kernels"],
        "layout": point.layout,
        "policy": point.policy,
        "workload": workload.name,
        "isl": workload.isl,
        "osl": workload.osl,
        "concurrency": point.concurrency,
        "reason": "",
    }
    server = engine(point.config, tp, point.policy, workload.turns > 1)
    loads, runs, preemptions = replica_loads(point.concurrency, replicas), [], 0
    try:
        for seed in SEEDS:
            parts: dict[int, Samples] = {}
            for load in set(loads):
                work = closed_loop(workload, load, seed * 1000 + load, per_client=3 if workload.turns > 1 else 9)
                trace = simulate(server, work)
                parts[load] = steady(trace, work)
                preemptions += trace.preemptions * loads.count(load)
            runs.append(_pooled([parts[load] for load in loads]))
    except ConfigError as refusal:
        return {**row, "reason": str(refusal)}
    return {**row, **summary(runs), "preemptions": preemptions}


def grid() -> list[Point]:
    """All points: every contender, layout, workload and level chunked; vLLM at TP8 also with its old prefill-first
    scheduling.
    """
    names = list(meta()["contenders"])
    points = [
        Point(name, layout, "chunked", workload, level)
        for name in names
        for layout in LAYOUTS
        for workload in WORKLOADS
        for level in LEVELS
    ]
    return points + [
        Point(name, "TP8", "prefill_first", workload, level)
        for name in names
        if name.startswith("vllm")
        for workload in WORKLOADS[:5]
        for level in LEVELS
    ]


def run(points: Iterable[Point], processes: int | None = None) -> pd.DataFrame:
    """Rows of all points, in their order, on all cores; says how far it is on lines of its own."""
    todo, rows = list(points), []
    with ProcessPoolExecutor(processes or os.cpu_count()) as pool:
        for row in pool.map(run_point, todo, chunksize=8):
            rows.append(row)
            if len(rows) % 200 == 0 or len(rows) == len(todo):
                print(f"predictions: {len(rows)} of {len(todo)} points", flush=True)
    return pd.DataFrame(rows)


def load(path: Path = DATA / "predictions.csv") -> pd.DataFrame:
    """Return the committed predictions: one row a point, seconds and tok/s; `reason` says why a row has no values."""
    if not path.exists():
        raise ConfigError(
            f"{path.name} is missing; it belongs to the repository: restore it, or make it again with `make predict`."
        )
    return _parsed(path, path.stat().st_mtime_ns).copy()


@functools.lru_cache(maxsize=4)
def _parsed(path: Path, written_ns: int) -> pd.DataFrame:
    return pd.read_csv(path, dtype={"reason": str}).fillna({"reason": ""})


def main() -> None:
    """Write data/predictions.csv and its meta file."""
    frame = run(grid())
    write(DATA / "predictions.csv", frame.to_csv(index=False, float_format="%.5g", lineterminator="\n"))
    about = {
        "made_by": "python -m lib.analyse.predict",
        "from": "step_times.csv",
        "library": meta()["library"],
        "library_version": meta()["library_version"],
        "model": meta()["model"],
        "gpu": meta()["gpu"],
        "gpus": 8,
        "seeds": list(SEEDS),
        "levels": list(LEVELS),
        "layouts": list(LAYOUTS),
        "token_budget": 8192,
        "max_seqs": 256,
        "answer_spread": 0.5,
        "workloads": [vars(workload) for workload in WORKLOADS],
        "points": len(frame),
        "without_values": int((frame["reason"] != "").sum()),
    }
    write(DATA / "predictions.meta.json", json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    tell(main)
