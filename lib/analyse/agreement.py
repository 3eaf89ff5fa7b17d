"""Hold the simulator against points that others published: data/prediction_errors.csv, one line a point, good or
bad.

Each published point is simulated with its own lengths, layout and load, on step times of the nearest engine there is
a table for. Versions, and sometimes the model, differ; the line says so. A point that cannot be simulated stays in
the file with its reason.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse import physics, published
from lib.analyse.predict import engine, meta, records
from lib.analyse.simulate import Engine, Work, simulate
from lib.analyse.steptimes import write
from lib.analyse.traffic import Workload, closed_loop, percentile, poisson, steady
from lib.errors import ConfigError, NoValue, tell
from lib.paths import DATA

ENGINES = {"vLLM": "vllm", "TensorRT-LLM": "tensorrt_llm"}
OFFLINE_SEQS = 2048  # sequences an offline run may hold at once, memory permitting
AT_ONCE_SEQS = 256  # vLLM 0.6.0's default, as in the runs whose requests come all at once
AT_ONCE_REQUESTS = 500
SERVER_REQUESTS = 10_000  # many times the requests in flight, or a growing batch would pass for a steady one
SERVER_LIMITS = {
    "server p99 TTFT 2000 ms TPOT 200 ms": (2.0, 0.2),
    "interactive p99 TTFT 450 ms TPOT 40 ms": (0.45, 0.04),
}  # s


def _offline(server: Engine, workload: Workload) -> float:
    fits = int(0.95 * server.kv_tokens // (workload.isl + workload.osl))
    clients = max(1, min(OFFLINE_SEQS, fits))
    work = closed_loop(workload, clients, seed=1, per_client=5)
    return steady(simulate(server, work), work).output_tok_s


def _at_once(server: Engine, workload: Workload) -> float:
    work = closed_loop(workload, AT_ONCE_REQUESTS, seed=1, per_client=1, least=AT_ONCE_REQUESTS)
    all_due = Work(work.inputs, work.outputs, due_s=np.zeros(work.outputs.size))
    return float(work.outputs.size / simulate(server, all_due).done_s.max())


def _meets(server: Engine, workload: Workload, rate_s: float, ttft_s: float, tpot_s: float) -> bool:
    work = poisson(workload, rate_s, SERVER_REQUESTS, seed=1)
    samples = steady(simulate(server, work), work)
    return percentile(samples.ttft_s, 0.99) <= ttft_s and percentile(samples.tpot_s, 0.99) <= tpot_s


def largest_rate(server: Engine, workload: Workload, ttft_s: float, tpot_s: float, most_s: float = 64.0) -> float:
    """Return requests per second of one replica up to which p99 TTFT and p99 TPOT (s) stay within limits, by
    bisection to 1 %.
    """
    low, high = 0.0, most_s
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _meets(server, workload, middle, ttft_s, tpot_s) else (low, middle)
    return low


def simulated(point: Mapping[str, Any]) -> float:
    """Return the published point's metric by simulation, in the point's unit; ConfigError or NoValue where it cannot be
    simulated.
    """
    precision = {"fp16": "bf16"}.get(point["precision"], point["precision"])
    layout = point["layout"].split()[0]
    tp = int(layout.removeprefix("TP"))
    replicas = int(point["gpus"]) // tp
    workload = Workload(point["id"], point["isl"], point["osl"])
    config, load = f"{ENGINES[point['engine']]}-{precision}", point["load"]
    if load.startswith("offline"):
        total = _offline(engine(config, tp, max_seqs=OFFLINE_SEQS), workload) * replicas
        return total / int(point["gpus"]) if point["unit"] == "tok/s/GPU" else total
    if load == "all at once":
        return _at_once(engine(config, tp, max_seqs=AT_ONCE_SEQS), workload) * replicas
    if load.startswith("closed loop"):
        clients = int(load.split()[-1])
        work = closed_loop(
            Workload(point["id"], point["isl"], round(0.9 * point["osl"]), spread=0.11),
            clients,
            seed=1,
            per_client=5,
            least=60,
        )
        return 1e3 * float(np.nanmean(steady(simulate(engine(config, tp), work), work).tpot_s))
    server = engine(config, tp, max_seqs=1024)
    if load in SERVER_LIMITS:
        return largest_rate(server, workload, *SERVER_LIMITS[load]) * replicas * int(point["osl"])
    raise NoValue(f"a load of '{load}' states no rate of its own; its throughput is in another row.")


def against_published(references: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """One row per published point: the simulated value, its ratio to the published one, versions of both, or the
    reason of a gap.
    """
    rows = []
    for point in references:
        who = meta()["contenders"].get(
            f"{ENGINES[point['engine']]}-{ {'fp16': 'bf16'}.get(point['precision'], point['precision']) }", {}
        )
        row = {
            "id": point["id"],
            "metric": point["metric"],
            "unit": point["unit"],
            "published": point["value"],
            "predicted": np.nan,
            "ratio": np.nan,
            "published_version": point["engine_version"],
            "predicted_version": who.get("version", ""),
            "model": point["model"],
            "reason": "",
        }
        try:
            value = simulated(point)
            row |= {"predicted": value, "ratio": value / point["value"]}
        except (NoValue, ConfigError) as refusal:
            row["reason"] = str(refusal)
        rows.append(row)
    return pd.DataFrame(rows)


def against_library() -> pd.DataFrame:
    """Return the simulator's throughput over the library's own estimate (fixed lengths, one prompt a step), at TP8."""
    rows = []
    for point in meta()["own_estimate"]:
        work = closed_loop(Workload("own", point["isl"], point["osl"]), point["concurrency"], seed=1, per_client=9)
        speed = steady(simulate(engine(point["config"], 8), work), work).output_tok_s
        rows.append({**point, "simulated_tok_s": speed, "ratio": speed / point["output_tok_s"]})
    return pd.DataFrame(rows)


def load() -> pd.DataFrame:
    """Return the committed comparison with published points."""
    return pd.read_csv(DATA / "prediction_errors.csv", dtype={"reason": str}).fillna({"reason": ""})


def _shape(name: str) -> str:
    return "meta-llama/Llama-2-70b-hf" if name.startswith("Llama-2") else "meta-llama/Meta-Llama-3-70B-Instruct"


def bound_of(point: Mapping[str, Any]) -> float:
    """Limit of a published point's metric in its unit, in any layout: most throughput, shortest time."""
    limit = physics.node(_shape(point["model"]), point["gpu"], point["gpus"], point["precision"])
    isl, osl = point["isl"], point["osl"]
    if point["metric"] == "tpot":
        return 1e3 * limit.decode_step_s(1, isl)
    if point["metric"] == "ttft_p99":
        return 1e3 * limit.prefill_s(isl)
    most = limit.throughput_tok_s(isl, osl, limit.kv_capacity_tokens() / (isl + osl / 2))
    per = {"output_throughput_per_gpu": point["gpus"], "request_throughput": osl}.get(point["metric"], 1)
    return most / float(per)


def per_point(references: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return every published point with its prediction, error and bound: the committed comparison joined with
    data/references.csv by id.
    """
    about = {point["id"]: point for point in references}
    shown = ("who", "engine", "precision", "gpus", "layout", "isl", "osl", "load", "basis", "source")
    return [
        {**row, **{name: about[row["id"]][name] for name in shown}, "bound": bound_of(about[row["id"]])}
        for row in records(load())
        if row["id"] in about
    ]


def spreads(points: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return lowest, median and highest predicted / published ratio and the number of points: by metric, and for the
    engine versions nearest the article's.
    """
    table = pd.DataFrame(list(points)).dropna(subset="ratio")
    groups = {
        "output_throughput": table["metric"].str.startswith("output_throughput"),
        "request_throughput": table["metric"] == "request_throughput",
        "tpot": table["metric"] == "tpot",
        "tensorrt_llm_0_12": (table["engine"] == "TensorRT-LLM") & (table["published_version"] == "0.12.0"),
        "vllm_0_6": (table["engine"] == "vLLM") & table["published_version"].str.startswith("0.6."),
    }
    out = {}
    for name, chosen in groups.items():
        ratios = table.loc[chosen, "ratio"]
        if len(ratios):
            out[name] = {"points": len(ratios), "low": ratios.min(), "median": ratios.median(), "high": ratios.max()}
    return out


def main() -> None:
    """Write data/prediction_errors.csv and data/prediction_errors.meta.json."""
    frame, own = against_published(published.references()), against_library()
    ratios = frame["ratio"].dropna()
    about = {
        "made_by": "python -m lib.analyse.agreement",
        "points": len(frame),
        "simulated": len(ratios),
        "median_ratio": round(float(ratios.median()), 3),
        "lowest_ratio": round(float(ratios.min()), 3),
        "highest_ratio": round(float(ratios.max()), 3),
        "library_median_ratio": round(float(own["ratio"].median()), 3),
        "library_lowest_ratio": round(float(own["ratio"].min()), 3),
        "library_highest_ratio": round(float(own["ratio"].max()), 3),
    }
    write(DATA / "prediction_errors.csv", frame.to_csv(index=False, float_format="%.5g", lineterminator="\n"))
    write(DATA / "prediction_errors.meta.json", json.dumps(about, indent=1) + "\n")
    print(
        f"predictions against {len(ratios)} published points: ratio {ratios.min():.2f} to "
        f"{ratios.max():.2f}, median {ratios.median():.2f}"
    )


if __name__ == "__main__":
    tell(main)
