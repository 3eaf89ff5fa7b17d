"""Records that this study has of the article's node: which they are, and what they say of the article's rows.

What they say of the engines themselves (signs of what documents claim, adapter switches, time to a running server) is
read by lib/analyse/h100_features.py, which names the parts of a record it comes from.

Rule: a record counts only for the article's model on the article's GPUs, all of them; a launch of other hardware, a
rehearsal and a p95 that rests on too few requests say nothing here. Refuses nothing: no record gives an empty answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lib.analyse import h100_features, shards

# Formats that a row's precision may be served in; 16-bit formats have the same bytes and rates.
FORMATS = {"fp16": ("fp16", "bf16", "f16"), "int4": ("int4", "awq", "int4-awq"), "fp8": ("fp8",)}

JUDGED = ("ttft_p50", "ttft_p95", "tpot_p50", "tpot_p95")  # what a level holds of its latencies


def on_article_hardware(claims: Mapping[str, Any], gpus: Sequence[Any], model: str) -> bool:
    """Whether records of this model on these GPUs (names, or dicts with a `name`) are of the article's own node."""
    article = claims["article"]
    names = [str(gpu.get("name", "") if isinstance(gpu, Mapping) else gpu) for gpu in gpus]
    return (
        len(names) == article["gpus"]
        and all(shards.is_gpu(name, article["gpu"]) for name in names)
        and model == article["model"]
    )


def measured_from(
    launches: Mapping[str, Mapping[str, Any]],
    claims: Mapping[str, Any],
    *,
    gpus: Sequence[Any],
    model: str,
    workload: str,
) -> dict[str, dict[str, Any]]:
    """Return this study's records of the article's own configuration, as `World.measured` wants them.

    Parameters
    ----------
    launches : facts["launches"] of a study, without those set aside.
    claims : `published.claims()`.
    gpus, model, workload : facts["machine"]["gpus"], facts["study"]["model"]["name"], facts["study"]
        ["headline_workload"].

    Returns
    -------
    Empty unless model, GPU and number of GPUs are the article's. By row id, for the launch of its engine and
    precision: ttft_p95_ms, tpot_p95_ms, output_tok_s (each with _low, _high) of the closed level at the row's stated
    requests at once, else the next below; capacity, output_tok_s_at_capacity, requests_s_at_capacity; ladder;
    level, load, workload, launch, source, versions. A p95 without enough requests is left out. Also "engine_effect" by
    precision and "contrasts" {"rows": list} for `factorial`, where two launches differ in one thing only, and the
    "documented", "lora" and "start" of `h100_features.of_launches`.
    """
    if not on_article_hardware(claims, gpus, model):
        return {}
    # Launches write an engine's name with a hyphen, the article's rows with an underscore.
    launches = {name: {**one, "engine": one["engine"].replace("-", "_")} for name, one in launches.items()}
    own = {name: launch for name, launch in launches.items() if _own_level(launch, workload, float("inf"))}
    found: dict[str, dict[str, Any]] = {}
    for row in claims["rows"]:
        for name, launch in own.items():
            if launch["engine"] != row["engine"] or launch["precision"] not in FORMATS[row["precision"]]:
                continue
            if row["id"] not in found and (level := _own_level(launch, workload, row["max_concurrent"])):
                found[row["id"]] = _own_values(name, launch, level, workload)
    found |= h100_features.of_launches(launches.values(), claims, FORMATS)
    return found | _of_contrasts(line for a in own for b in own if (line := _contrast(own[a], own[b], workload)))


def capacity_within(found: Mapping[str, Any], ttft_ms: float, itl_ms: float, percentile: int) -> dict[str, float]:
    """Return capacity, output_tok_s and requests_s of a measured row under any SLA: those of its largest level without
    a failure whose upper limits of both percentiles stay within; empty where none does or the percentile is not kept.
    """
    names = (f"ttft_p{percentile}_high", f"tpot_p{percentile}_high")
    held = [
        step
        for step in found.get("ladder", ())
        if all(step.get(n) is not None and step[n] <= limit for n, limit in zip(names, (ttft_ms, itl_ms), strict=True))
    ]
    return max(held, key=lambda step: step["capacity"]) if held else {}


def without(measured: Mapping[str, Mapping[str, Any]], row: str) -> dict[str, Mapping[str, Any]]:
    """Return the measurements without a row's, and without all else that rests on the same launch."""
    source = measured[row].get("source")
    kept = {name: found for name, found in measured.items() if name != row}
    if source is None:
        return kept
    kept = {name: found for name, found in kept.items() if source not in found.get("sources", ())}
    if "documented" in kept:
        kept["documented"] = {c: of for c, of in kept["documented"].items() if source not in of["sources"]}
    if "contrasts" not in kept:
        return kept
    lines = [line for line in kept["contrasts"]["rows"] if source not in line["source"].split("; ")]
    return {name: kept[name] for name in kept if name not in ("contrasts", "engine_effect")} | _of_contrasts(lines)


def _of_contrasts(lines: Iterable[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    rows = list(lines)
    engines = [line for line in rows if line["effect"] == "engine"]
    out: dict[str, dict[str, Any]] = {"contrasts": {"rows": rows}} if rows else {}
    if engines:
        effect: dict[str, Any] = {"engines": sorted({who for line in engines for who in line["engines"]})}
        for kind in {line["precision"] for line in engines}:
            of = [line for line in engines if line["precision"] == kind]
            effect[kind] = {"low": min(e["low"] for e in of), "high": max(e["high"] for e in of)}
        out["engine_effect"] = effect
    return out


def _own_level(launch: Mapping[str, Any], workload: str, load: float) -> str | None:
    """Id of the largest measured closed level of the workload at or below a load."""
    ids = {
        level["load"]["value"]: name
        for name, level in launch["levels"].items()
        if level["kind"] == "closed"
        and level["workload"] == workload
        and level["output_tok_s"]["mark"] == "measured"
        and level["output_tok_s"]["value"] is not None
        and level["load"]["value"] <= load
    }
    return ids[max(ids)] if ids else None


def _own_values(name: str, launch: Mapping[str, Any], level_id: str, workload: str) -> dict[str, Any]:
    level, capacity_fact = launch["levels"][level_id], launch["capacity"]
    out: dict[str, Any] = {"launch": name, "level": level_id, "load": level["load"]["value"], "workload": workload}
    out |= {"source": launch["source"], "versions": launch["versions"]}
    for key, named in (("ttft_p95", "ttft_p95_ms"), ("tpot_p95", "tpot_p95_ms"), ("output_tok_s", "output_tok_s")):
        number = level[key]
        if number["value"] is None or (key != "output_tok_s" and number["reason"]):
            continue
        out[named] = number["value"]
        out |= {f"{named}_{end}": number[end] for end in ("low", "high") if number[end] is not None}
    out["ladder"] = [
        {f"{key}_high": one[key]["high"] for key in JUDGED}
        | {"capacity": one["load"]["value"], **{key: one[key]["value"] for key in ("output_tok_s", "requests_s")}}
        for one in launch["levels"].values()
        if one["kind"] == "closed" and one["workload"] == workload and one["failures"]["value"] == 0
    ]
    if capacity_fact["value"] is not None:
        out["capacity"] = capacity_fact["value"]
        if there := _own_level(launch, workload, capacity_fact["value"]):
            at = launch["levels"][there]
            out |= {f"{key}_at_capacity": at[key]["value"] for key in ("output_tok_s", "requests_s")}
    return out


def _contrast(one: Mapping[str, Any], two: Mapping[str, Any], workload: str) -> dict[str, Any] | None:
    """Measured throughput of one launch over another at their largest common load, if they differ in engine or in
    precision alone; None otherwise, and for the reverse of a contrast.
    """
    bits = {name: kind for kind, names in FORMATS.items() for name in names}
    engines, kinds = (one["engine"], two["engine"]), (bits.get(one["precision"]), bits.get(two["precision"]))
    if engines == ("tensorrt_llm", "vllm") and kinds[0] == kinds[1] and kinds[0]:
        effect, contrast, held = "engine", f"TensorRT-LLM / vLLM, {one['precision']}", "precision"
    elif engines[0] == engines[1] and kinds[1] == "fp16" and kinds[0] in ("fp8", "int4"):
        named = {"fp8": "FP8", "int4": "INT4"}[str(kinds[0])]
        effect, contrast, held = "precision", f"{named} / 16 bit, {engines[0]}", "engine"
    else:
        return None
    level, load = None, float("inf")
    while (level := _own_level(one, workload, load)) and level not in two["levels"]:
        load = one["levels"][level]["load"]["value"] - 1
    if level is None:
        return None
    a, b = one["levels"][level]["output_tok_s"], two["levels"][level]["output_tok_s"]
    if not b["value"]:
        return None
    value = a["value"] / b["value"]
    return {
        "effect": effect,
        "contrast": contrast,
        "precision": kinds[0],
        "engines": [(x["engine"], str(x["versions"]["engine"])) for x in (one, two) if x["versions"].get("engine")],
        "value": value,
        "low": a["low"] / b["high"] if a["low"] and b["high"] else value,
        "high": a["high"] / b["low"] if a["high"] and b["low"] else value,
        "held": f"{held}, machine, workload, level {level}; versions and layout as recorded",
        "source": f"{one['source']}; {two['source']}",
    }
