"""The limits of every level as plain data, for the explorers: what can be asked, and what there is to answer with.

A work is one kind of request on one machine: each workload of this study, and each of the committed predictions for
the article's hardware. Rules: nothing is estimated here; the second launch of the same thing is no contender; measured
and predicted levels never share a work. Refused: nothing of its own.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any

from lib.analyse import predict
from lib.analyse.levels import REACHED

METRICS = ("ttft", "tpot")
DIGITS = 9  # as in the tables
POLICY = "chunked"  # today's default of both engines; the other is predicted for vLLM alone
UNSCORED = "no quality was measured of this model"


def block(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Lay out every level that can be asked about.

    Parameters
    ----------
    facts : what facts.json holds.

    Returns
    -------
    works : list; each has its machine, mark, promise, price, ranges of the controls and contenders, and what its floor
        of quality is about. A contender has `quality`, the share of next tokens that are its 16-bit reference's, as
        [value, low, high, reason] in %, and variants (layouts), a variant its levels by rising load, and a level for
        TTFT and TPOT its p50 and p95 as [value, low, high, reason] in ms, `out` as [value, low, high] in tok/s, n,
        failed, reached, and `doubts`, the warnings about it.
    """
    works = _measured(facts)
    if "counts" in facts["h100"]:
        works += _predicted(facts["h100"])
    return {"budget": facts["sla"]["failure_budget"]["value"], "works": works}


def doubts(
    facts: Mapping[str, Any], launch: str, level: str | None, engine: str | None = None
) -> list[Mapping[str, Any]]:
    """Return the warnings about a launch as a whole or one of its levels; of a study beside, with its engine."""
    places = {launch, f"{launch} {level}", "all launches", engine or facts["launches"][launch]["engine"]}
    return [warning for warning in facts["warnings"] if warning["where"] in places]


def _measured(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return works of this study: every workload with a closed level."""
    study, sla, launches = facts["study"], facts["sla"], facts["launches"]
    again = {row["launch"] for row in facts["headline"] if row["repeat_of"]}
    price, gpus = study["price"], int(study["hardware"]["gpus"])
    # Launches of one engine and precision that differ in an option are told apart by their names.
    alike = Counter((of["engine"], of["precision"]) for launch, of in launches.items() if launch not in again)
    works = []
    for name, workload in study["workloads"].items():
        contenders = []
        for launch, of in launches.items():
            levels = [
                _level(x) | {"doubts": "; ".join(w["text"] for w in doubts(facts, launch, level))}
                for level, x in of["levels"].items()
                if x["kind"] == "closed" and x["workload"] == name
            ]
            if levels and launch not in again:
                ordered = sorted(levels, key=lambda x: x["load"])
                variant = {"name": "", "source": of["source"], "levels": ordered}
                who = of["engine"], of["precision"]
                named = _named(*who, launch if alike[who] > 1 else "")
                contenders.append(named | {"quality": _quality(facts["quality"], launch), "variants": [variant]})
        if not contenders:
            continue
        usd = price["value"] / (gpus or 1) if price["value"] is not None else None
        promise = {
            "ttft_ms": sla["ttft_p95"]["value"],
            "tpot_ms": sla["tpot_p95"]["value"],
            "sessions": int(sla["sessions"]["value"]),
            "usd_per_hour": usd,
            "floor": None,
        }
        works.append(
            {
                "key": name,
                "title": name,
                **_floor(facts["quality"], contenders),
                "machine": study["hardware"]["name"],
                "model": study["model"]["name"],
                "says": workload["reads_like"],
                "mark": "measured" if study["kind"] == "measured" else "rehearsed",
                "units": gpus or 1,
                "unit": "GPU" if gpus else "computer",
                "price_mark": price["mark"],
                "price_source": price["reason"] or price["source"],
                "stated": promise,
                "contenders": contenders,
                "ranges": _ranges(contenders, promise),
            }
        )
    return works


def _quality(said: Mapping[str, Any], launch: str) -> list[Any]:
    """How often a contender's next token is its 16-bit reference's, in %, with limits, or why it is not known."""
    scored = said["launches"].get(launch)
    if scored is None or scored["agreement"]["value"] is None:
        why = said["reason"] or (scored["reason"] if scored else None) or "it was not scored"
        return [None, None, None, why]
    shares = (scored["agreement"][part] for part in ("value", "low", "high"))
    return [*(_short(None if share is None else 100 * share) for share in shares), None]


def _floor(said: Mapping[str, Any], contenders: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Whether a floor of quality can be asked for, and what stands beside it."""
    if all(c["quality"][0] is None for c in contenders):
        why = said["reason"] or "no contender was scored"
        return {"scored": False, "about_floor": f"There is no floor of quality to set: {why}."}
    note = f" About 4 bit: {said['note']}." if said["note"] else ""
    return {
        "scored": True,
        "about_floor": "How often a contender goes on with the same token as the 16-bit model it comes from. It passes "
        f"where the lower limit reaches the floor. The study states none.{note}",
    }


def _named(engine: str, precision: str, recipe: str) -> dict[str, str]:
    engine = engine.replace("_", "-")
    return {"key": f"{engine} {precision} {recipe}".strip(), "engine": engine, "precision": precision, "recipe": recipe}


def _level(x: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "load": x["load"]["value"],
        "n": int(x["requests"]["value"]),
        "failed": int(x["failures"]["value"]),
        "reached": (x["in_flight"]["value"] or 0) >= REACHED * x["load"]["value"],
        "out": [_short(x["output_tok_s"][part]) for part in ("value", "low", "high")],
        **{metric: {p: _estimate(x[f"{metric}_{p}"]) for p in ("p50", "p95")} for metric in METRICS},
    }


def _estimate(number: Mapping[str, Any]) -> list[Any]:
    return [*(_short(number[part]) for part in ("value", "low", "high")), number["reason"]]


def _predicted(h100: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return works of the article's hardware: every workload of the committed predictions, in every layout."""
    sla, price, frame = h100["sla"], h100["prices"]["scenario"], predict.load()
    rows = [row for row in predict.records(frame) if row["policy"] == POLICY]
    promise = {
        "ttft_ms": float(sla["ttft"]["value"]),
        "tpot_ms": float(sla["itl"]["value"]),
        "sessions": int(sla["load"]["value"]),
        "usd_per_hour": price["value"],
        "floor": None,
    }
    works = []
    for name in dict.fromkeys(row["workload"] for row in rows):
        contenders = []
        of_work = sorted((r for r in rows if r["workload"] == name), key=lambda r: (r["config"], r["layout"]))
        for _, of in groupby(of_work, key=lambda r: r["config"]):
            variants, first = [], None
            for layout, levels in groupby(of, key=lambda r: r["layout"]):
                ordered = sorted(levels, key=lambda r: r["concurrency"])
                first = first or ordered[0]
                source = f"data/predictions.csv, {h100['predictions']['library']}"
                variants.append({"name": layout, "source": source, "levels": [_forecast(r) for r in ordered]})
            assert first is not None
            recipe = first["kernels"] if first["kernels"] != "measured" else ""
            named = _named(first["engine"], first["precision"], recipe)
            contenders.append(named | {"quality": [None, None, None, UNSCORED], "variants": variants})
        shape = of_work[0]
        works.append(
            {
                "key": f"h100 {name}",
                "title": name,
                **_floor({"reason": UNSCORED}, contenders),
                "machine": "8 x H100",
                "model": "Llama-3-70B",
                "says": f"{name}, {shape['isl']} tokens in and {shape['osl']} out in the mean",
                "mark": "predicted",
                "units": 8,
                "unit": "GPU",
                "price_mark": price["mark"],
                "price_source": f"{price['source']} in data/prices.csv",
                "stated": promise,
                "contenders": contenders,
                "ranges": _ranges(contenders, promise),
            }
        )
    return works


def _forecast(row: Mapping[str, Any]) -> dict[str, Any]:
    why = row["reason"] or None

    def estimate(stem: str, scale: float) -> list[float | None]:
        return [_short(row[f"{stem}{part}"] * scale) for part in ("", "_low", "_high")]

    return {
        "load": float(row["concurrency"]),
        "n": int(row["requests"]) if row["requests"] == row["requests"] else 0,
        "failed": 0,
        "reached": True,
        "doubts": "",
        "out": estimate("output_tok_s", 1.0),
        **{m: {p: [*estimate(f"{m}_{p}_s", 1e3), why] for p in ("p50", "p95")} for m in METRICS},
    }


def _ranges(contenders: Iterable[Mapping[str, Any]], promise: Mapping[str, Any]) -> dict[str, list[float]]:
    """Ends of the sliders: whole decades around every value and the promise."""
    levels = [level for c in contenders for v in c["variants"] for level in v["levels"]]
    spans = {}
    for metric in METRICS:
        seen = [x for level in levels for p in ("p50", "p95") if (x := level[metric][p][0])]
        seen.append(promise[f"{metric}_ms"])
        spans[f"{metric}_ms"] = [10.0 ** math.floor(math.log10(min(seen))), 10.0 ** math.ceil(math.log10(max(seen)))]
    return spans | {"sessions": [1.0, 10_000.0], "usd_per_hour": [0.01, 100.0]}


def _short(value: float | None) -> float | None:
    return float(f"{value:.{DIGITS}g}") if value is not None and math.isfinite(value) else None
