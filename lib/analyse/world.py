"""Gather the numbers that the claims are judged by: predicted readings of each row, bounds, published ratios,
measurements.

A reading is one way to fill in what the article leaves unstated: a workload, the scheduling, the layout, and whether
TTFT includes the start burst. A layout whose KV cache cannot hold the row's stated requests at once is no reading of
that row. Refuses a measurement beyond a bound: it is set aside as a finding and judges nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from lib.analyse import capacity, physics, published
from lib.analyse.evidence import World
from lib.analyse.h100_records import measured_from as measured_from
from lib.analyse.h100_records import without
from lib.analyse.predict import LAYOUTS, WORKLOADS, meta, records

CONTENDERS = {  # by engine and precision of a row
    ("vllm", "fp16"): ("vllm-bf16",),
    ("vllm", "fp8"): ("vllm-fp8",),
    ("vllm", "int4"): ("vllm-int4-transferred", "vllm-int4-scaled"),
    ("tensorrt_llm", "fp16"): ("tensorrt_llm-bf16",),
    ("tensorrt_llm", "fp8"): ("tensorrt_llm-fp8",),
    ("tensorrt_llm", "int4"): (),
}
KINDS = {"bf16": "fp16"}  # precisions of predictions and publications that rows of the article call otherwise
SAME = ("gpu", "gpus", "isl", "osl", "load", "metric")  # what two published points must share to be compared
SINGLE = [workload for workload in WORKLOADS if workload.turns == 1]


def bound_of(precision: str, layout: str, model: str, gpu: str) -> tuple[physics.Bound, int]:
    """Bound of one replica of a layout, and how many replicas the node holds."""
    tp, replicas = LAYOUTS[layout]
    return physics.bound(model, gpu, tp, precision), replicas


def bound_rows(claims: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One dict per row of the article's table and workload, each limit in the layout that allows most: TTFT, decode
    step at the row's load and time per token at any load (ms), throughput (tok/s), sessions that fit.
    """
    article, rows = claims["article"], []
    for row in claims["rows"]:
        limit = physics.node(article["model"], article["gpu"], article["gpus"], row["precision"])
        for w in SINGLE:
            rows.append(
                {
                    "row": row["id"],
                    "workload": w.name,
                    "isl": w.isl,
                    "osl": w.osl,
                    "concurrency": row["max_concurrent"],
                    "ttft_ms": limit.prefill_s(w.isl) * 1e3,
                    "itl_ms": limit.decode_step_s(row["max_concurrent"], w.isl + w.osl / 2) * 1e3,
                    "tpot_ms": limit.decode_step_s(1, w.isl) * 1e3,
                    "output_tok_s": limit.throughput_tok_s(w.isl, w.osl, row["max_concurrent"]),
                    "sessions": limit.sessions_that_fit(w.isl + w.osl),
                }
            )
    return rows


def shortest_gap_s(claims: Mapping[str, Any], row: Mapping[str, Any], output_tokens: int) -> float:
    """Bound of the mean inter-token latency (s) of a row at its stated requests at once: a step that gives each of them
    a token, in the best layout, with contexts of half an answer and no prompt, since the article states none.
    """
    article = claims["article"]
    limit = physics.node(article["model"], article["gpu"], article["gpus"], row["precision"])
    return limit.decode_step_s(row["max_concurrent"], output_tokens / 2)


def readings(claims: Mapping[str, Any], predictions: pd.DataFrame) -> list[dict[str, Any]]:
    """Predicted values of each row's contender at its stated concurrency, one dict per reading."""
    sla = claims["sla"]
    plain = predictions[(predictions["workload"].isin([w.name for w in SINGLE])) & (predictions["reason"] == "")]
    found = []
    for start, column in (("steady", "ttft_p95_s"), ("with start burst", "ttft_p95_burst_s")):
        capacities = capacity.under_sla(
            plain, sla["ttft_ms"] / 1e3, sla["inter_token_latency_ms"] / 1e3, ttft=f"{column}_high"
        )
        keys = ["config", "layout", "policy", "workload"]
        by = dict(zip(capacities[keys].itertuples(index=False, name=None), capacities["capacity"], strict=True))
        for row in claims["rows"]:
            configs = CONTENDERS[row["engine"], row["precision"]]
            here = plain[plain["config"].isin(configs) & (plain["concurrency"] == row["max_concurrent"])]
            for p in filter(_holds, records(here)):
                found.append(
                    {
                        "row": row["id"],
                        "workload": p["workload"],
                        "reading": f"{p['layout']}, {p['policy']}, {start}",
                        "config": p["config"],
                        "ttft_p95_ms": p[column] * 1e3,
                        "tpot_p95_ms": p["tpot_p95_s"] * 1e3,
                        "output_tok_s": p["output_tok_s"],
                        "capacity": float(by[p["config"], p["layout"], p["policy"], p["workload"]]),
                    }
                )
    return found


def _holds(prediction: Mapping[str, Any]) -> bool:
    """Whether the layout's KV cache holds all requests of the prediction's load at once."""
    tp, replicas = LAYOUTS[prediction["layout"]]
    tokens = meta()["kv_capacity_tokens"][f"{prediction['config']}-tp{tp}"] * replicas
    return bool(tokens >= prediction["concurrency"] * (prediction["isl"] + prediction["osl"]))


def published_ratios(references: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Ratios between published points of the same lengths, load and GPUs that differ in precision (fp8 / 16 bit), in
    engine (TensorRT-LLM / vLLM) or in version; `held` says what else is equal and what is not.

    Where a newer version of one engine stands under the same conditions, a pair with the older one mixes the engine
    with the version, and its effect is called "engine and version".
    """
    points = [r for r in references if r["metric"] in ("output_throughput", "request_throughput")]
    ratios: list[dict[str, Any]] = []
    for i, a in enumerate(points):
        for b in points[i + 1 :]:
            if any(a[key] != b[key] for key in SAME):
                continue
            engine, precision = a["engine"] == b["engine"], a["precision"] == b["precision"]
            version = a["engine_version"] == b["engine_version"]
            if engine and version and not precision and a["model"] == b["model"]:
                ratios.append(_ratio("precision", *((a, b) if a["precision"] == "fp8" else (b, a))))
            elif not engine and precision:
                effect = "engine and version" if _replaced(a, points) or _replaced(b, points) else "engine"
                ratios.append(_ratio(effect, *((a, b) if a["engine"] == "TensorRT-LLM" else (b, a))))
            elif engine and precision and not version and a["layout"] == b["layout"]:
                newer = _number(a["engine_version"]) > _number(b["engine_version"])
                ratios.append(_ratio("version", *((a, b) if newer else (b, a))))
    return ratios


def _ratio(effect: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> dict[str, Any]:
    words = {"precision": "engine, version", "version": "engine, precision"}.get(effect, "precision")
    model, layout = one["model"] == two["model"], one["layout"].split()[0] == two["layout"].split()[0]
    equal = [words, *["model"] * model, *["layout"] * layout, "lengths, load, GPUs"]
    unlike = [*[f"model {one['model']} / {two['model']}"] * (not model), *["layout"] * (not layout)]
    unlike += {"precision": ["format of the KV cache"], "version": []}.get(effect, ["versions, each engine's own"])
    return {
        "effect": effect,
        "precision": KINDS.get(one["precision"], one["precision"]),
        "engine": one["engine"],
        "value": one["value"] / two["value"],
        "isl": one["isl"],
        "osl": one["osl"],
        "load": one["load"],
        "what": f"{one['engine']} {one['engine_version']} {one['precision']} / "
        f"{two['engine']} {two['engine_version']} {two['precision']}",
        "held": ", ".join(equal) + (f"; not equal: {', '.join(unlike)}" if unlike else ""),
        "source": one["source"] if one["source"] == two["source"] else f"{one['source']}; {two['source']}",
    }


def _replaced(point: Mapping[str, Any], points: Iterable[Mapping[str, Any]]) -> bool:
    """Whether a newer version of the engine is published under the same conditions."""
    same = (*SAME, "engine", "precision", "model", "layout")
    newer = [p for p in points if _number(p["engine_version"]) > _number(point["engine_version"])]
    return any(all(p[key] == point[key] for key in same) for p in newer)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split("/")[0].split("."))


def engine_effects(predictions: pd.DataFrame, levels: Iterable[int] = (64, 96, 128)) -> pd.DataFrame:
    """Predicted throughput of TensorRT-LLM over vLLM at equal precision, layout, workload and load; column `ratio`.

    Layouts whose KV cache does not hold the load are left out: they would compare memory settings.
    """
    keys = ["precision", "layout", "workload", "concurrency"]
    use = predictions[
        (predictions["policy"] == "chunked")
        & (predictions["kernels"] == "measured")
        & predictions["concurrency"].isin(list(levels))
        & (predictions["reason"] == "")
    ]
    use = use[[_holds(p) for p in records(use)]]
    wide = use.pivot_table(index=keys, columns="engine", values="output_tok_s").dropna().reset_index()
    return wide.assign(ratio=wide["tensorrt_llm"] / wide["vllm"])


def set_aside(
    measured: Mapping[str, Mapping[str, Any]], bounds: Iterable[Mapping[str, Any]]
) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """(measurements that the bounds allow, one sentence per measurement set aside).

    A measurement that names a `workload` of the predictions is held against that workload's bound, any other against
    the most generous. It counts as beyond only with its whole interval. What rests on a launch set aside goes with it.
    """
    kept: dict[str, Mapping[str, Any]] = dict(measured)
    findings = []
    for row in {b["row"] for b in bounds}:
        found = dict(measured.get(row, {}))
        for name in ("output_tok_s", "ttft_p95_ms", "tpot_p95_ms"):  # a value without an interval is its own limit
            if name in found:
                found = {f"{name}_low": found[name], f"{name}_high": found[name]} | found
        of_row = [b for b in bounds if b["row"] == row]
        limits = [b for b in of_row if b["workload"] == found.get("workload")] or of_row
        most, least = max(b["output_tok_s"] for b in limits), min(b["ttft_ms"] for b in limits)
        gap, sessions = min(b["tpot_ms"] for b in limits), max(b["sessions"] for b in limits)
        beyond = [
            f"{what} {found[name]:,.1f} {unit}, beyond the bound of {bound:,.1f} {unit}"
            for what, name, unit, bound, is_beyond in (
                ("throughput", "output_tok_s", "tok/s", most, found.get("output_tok_s_low", -1) > most),
                ("TTFT", "ttft_p95_ms", "ms", least, found.get("ttft_p95_ms_high", least) < least),
                ("time per token", "tpot_p95_ms", "ms", gap, found.get("tpot_p95_ms_high", gap) < gap),
                ("capacity", "capacity", "sessions", sessions, found.get("capacity", 0) > sessions),
            )
            if is_beyond
        ]
        if beyond:
            findings.append(f"{row}: measured {'; '.join(beyond)}; set aside.")
            kept = without(kept, row)
    return kept, findings


def gather(
    claims: Mapping[str, Any], predictions: pd.DataFrame, measured: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[World, list[str]]:
    """Return the world of the claims with the measurements the bounds allow, and the findings about those they do
    not.
    """
    bounds = bound_rows(claims)
    kept, findings = set_aside(measured or {}, bounds)
    ratios = [r for r in published_ratios(published.references()) if r["effect"] in ("precision", "engine")]
    effects: dict[str, list[float]] = {}
    for effect in records(engine_effects(predictions)):
        effects.setdefault(KINDS.get(effect["precision"], effect["precision"]), []).append(effect["ratio"])
    return World(readings(claims, predictions), bounds, ratios, effects, kept), findings
