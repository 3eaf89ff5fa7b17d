"""Take the article's one ratio apart: engine at equal precision, precision within one engine, version, layout -
one table with its evidence.

Rule: a contrast holds as much equal as its sources allow; what is equal and what is not is said in `held`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from lib.analyse.world import engine_effects, published_ratios

LEVELS = (64, 96, 128)  # the loads of the article's rows


def _line(effect: str, contrast: str, kind: str, values: Sequence[float], held: str, source: str) -> dict[str, Any]:
    ordered = pd.Series(list(values), dtype=float)
    return {
        "effect": effect,
        "contrast": contrast,
        "kind": kind,
        "n": len(ordered),
        "low": float(ordered.min()),
        "median": float(ordered.median()),
        "high": float(ordered.max()),
        "held": held,
        "source": source,
    }


def _ratio(predictions: pd.DataFrame, by: str, top: str | int, base: str | int, keys: list[str]) -> list[float]:
    """Throughput at by == top over by == base, wherever `keys` agree and both exist."""
    found: dict[Any, dict[tuple[Any, ...], float]] = {top: {}, base: {}}
    for *key, value, speed in predictions[[*keys, by, "output_tok_s"]].itertuples(index=False, name=None):
        if value in found:
            found[value][tuple(key)] = speed
    return [speed / found[base][key] for key, speed in found[top].items() if key in found[base]]


def factorial(
    predictions: pd.DataFrame, references: Iterable[Mapping[str, Any]], measured: Iterable[Mapping[str, Any]] = ()
) -> pd.DataFrame:
    """One row per contrast and kind of evidence: lowest, median and highest ratio of output throughput, and how
    many ratios.

    `measured` rows, if any, carry effect, contrast, value, held, source and perhaps the interval's low and high of
    this study's own H100 records (`h100_records.measured_from`).
    """
    ok = predictions[(predictions["reason"] == "") & predictions["concurrency"].isin(LEVELS)]
    every = ok[ok["policy"] == "chunked"]
    plain = every[every["layout"] == "TP8"]
    measured_kernels = every[every["kernels"] == "measured"]
    ours, held = "data/predictions.csv", "layout TP8, workload, load"
    lines = []
    for precision, part in engine_effects(plain, LEVELS).groupby("precision"):
        lines.append(
            _line(
                "engine",
                f"TensorRT-LLM / vLLM, {precision}",
                "predicted",
                part["ratio"].to_list(),
                f"precision, {held}; not equal: versions"
                + (", attention (FP8 in TensorRT-LLM, BF16 in vLLM)" if precision == "fp8" else ""),
                ours,
            )
        )
    for engine, part in plain[plain["kernels"] == "measured"].groupby("engine"):
        values = _ratio(part, "precision", "fp8", "bf16", ["workload", "concurrency"])
        lines.append(
            _line(
                "precision",
                f"FP8 / 16 bit, {engine}",
                "predicted",
                values,
                f"engine, {held}; not equal: format of the KV cache",
                ours,
            )
        )
    band = [
        value
        for edge in ("vllm-int4-transferred", "vllm-int4-scaled")
        for value in _ratio(plain, "config", edge, "vllm-bf16", ["workload", "concurrency"])
    ]
    lines.append(
        _line(
            "precision",
            "INT4 / 16 bit, vllm (band)",
            "predicted",
            band,
            f"engine, {held}; INT4 kernels not measured on H100",
            ours,
        )
    )
    for config, part in plain[plain["kernels"] == "measured"].groupby("config"):
        values = _ratio(part, "concurrency", 128, 64, ["workload"])
        lines.append(
            _line(
                "load",
                f"128 / 64 in flight, {config}",
                "predicted",
                values,
                "engine, precision, layout TP8, workload",
                ours,
            )
        )
    for precision, part in measured_kernels.groupby("precision"):
        for layout in ("TP4x2", "TP2x4"):
            values = _ratio(part, "layout", layout, "TP8", ["config", "workload", "concurrency"])
            lines.append(
                _line(
                    "layout",
                    f"{layout} / TP8, {precision}",
                    "predicted",
                    values,
                    "engine, precision, workload, load",
                    ours,
                )
            )
    old = ok[(ok["config"] == "vllm-bf16") & (ok["layout"] == "TP8")]
    values = _ratio(old, "policy", "chunked", "prefill_first", ["workload", "concurrency"])
    lines.append(
        _line(
            "version",
            "chunked / prefill-first scheduling, vllm",
            "predicted",
            values,
            "kernels, layout, workload, load",
            ours,
        )
    )
    points = list(references)
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for ratio in published_ratios(points):
        contrast = {
            "engine": f"TensorRT-LLM / vLLM, {'bf16' if ratio['precision'] == 'fp16' else ratio['precision']}",
            "precision": f"FP8 / 16 bit, {ratio['engine']}",
            "version": f"newer / older, {ratio['engine']}",
        }.get(ratio["effect"], ratio["what"])
        groups.setdefault((ratio["effect"], contrast), []).append(ratio)
    for (effect, contrast), here in groups.items():
        equal, sources = sorted({r["held"] for r in here}), sorted({r["source"] for r in here})
        found = [r["value"] for r in here]
        lines.append(_line(effect, contrast, "published", found, "; or ".join(equal), "; ".join(sources)))
    lines += _published_layout(points)
    for row in measured:
        line = _line(row["effect"], row["contrast"], "measured", [row["value"]], row["held"], row["source"])
        lines.append(line | {end: row[end] for end in ("low", "high") if end in row})
    return pd.DataFrame(lines)


def _published_layout(points: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Throughput per GPU of small replicas over TP8, where published for the same lengths; engine versions differ."""
    per_gpu = [p for p in points if p["metric"] == "output_throughput_per_gpu"]
    whole = [p for p in points if p["metric"] == "output_throughput" and p["layout"] == "TP8"]
    ratios, sources = [], set()
    for small in per_gpu:
        for big in whole:
            if all(small[key] == big[key] for key in ("isl", "osl", "precision", "engine", "load")):
                ratios.append(small["value"] / (big["value"] / big["gpus"]))
                sources |= {small["source"], big["source"]}
    if not ratios:
        return []
    return [
        _line(
            "layout",
            "TP2x4 / TP8",
            "published",
            ratios,
            "lengths, precision and load; versions differ",
            "; ".join(sorted(sources)),
        )
    ]


def mixed_ratio(ratios: Sequence[float], claimed: float) -> dict[str, float]:
    """Return what predictions give for the ratio of the article's first and last rows, for the same work.

    `ratios` are those of `cases.same_work_ratios`: each within one workload and reading, at the rows' own loads, so
    engine, precision and load are mixed in them as in the claim. `unexplained` is claimed / the highest: above 1 is
    what no reading reaches. All NaN without ratios.
    """
    ordered = pd.Series(list(ratios), dtype=float)
    return {
        "low": float(ordered.min()),
        "median": float(ordered.median()),
        "high": float(ordered.max()),
        "claimed": claimed,
        "unexplained": claimed / float(ordered.max()),
    }
