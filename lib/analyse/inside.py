"""What records show of the engines' insides: adapters, sessions over a shared document, the KV cache, long prompts.

Each part is a list with one mapping per launch (or launch and level), empty where a study holds nothing of it. Rule:
what an engine reports and what follows from a formula or from stamps stand beside each other, each with its mark.
"""

from collections.abc import Sequence
from typing import Any

from lib import config, stats
from lib.analyse import intrusion, lora
from lib.analyse.assemble import UNKNOWN
from lib.analyse.collect import Measured
from lib.analyse.facts import from_estimate, number
from lib.analyse.levels import Level

FILLED = 0.8  # of a KV cache, wanted by a level: below it in all of a study, nothing is told of caches that fill

Launches = Sequence[tuple[Measured, Sequence[Level]]]


def facts(launches: Launches, study: config.Study, mark: str) -> dict[str, Any]:
    """Return lora, alike, sessions, kv_cache, crowded and intrusion; filled: the share from which a cache is full."""
    return {
        "lora": lora.facts(launches, mark),
        "alike": lora.alike(launches, mark),
        "sessions": _sessions(launches, study, mark),
        "kv_cache": [_capacity(one, study, mark) for one, _ in launches if one.meta.get("kv_cache")],
        "crowded": _crowded(launches, study, mark),
        "intrusion": intrusion.facts(launches, mark),
        "filled": FILLED,
    }


def joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Put what several studies show one after the other; of the caches that are alike in all, the first."""
    whole = {key: [row for part in parts for row in part[key]] for key in parts[0] if key != "filled"}
    alike: set[tuple[Any, ...]] = set()
    caches = []
    for row in whole["kv_cache"]:
        what = (row["engine"], *(row[key]["value"] for key in ("tokens", "context", "formula", "bytes_per_token")))
        caches += [] if what in alike else [row]
        alike.add(what)
    return whole | {"kv_cache": caches if len(parts) > 1 else whole["kv_cache"], "filled": FILLED}


def _sessions(launches: Launches, study: config.Study, mark: str) -> list[dict[str, Any]]:
    """First tokens by turn, and what the engine says of its prefix cache."""
    return [
        one.who | {"source": one.source} | {
            "level": level.id,
            "cache": bool(one.settings.get("prefix_cache")),
            "by_turn": [
                from_estimate(stats.median_interval(level.pooled("ttft_s", turn)), "ms", 1e3, mark, one.source)
                if turn < level.turns
                else number(None, "ms", mark, one.source, reason="no session came so far while the level lasted")
                for turn in range(study.workloads[level.workload].turns or level.turns)
            ],
            "hits": number(
                100 * level.mean("prefix_hit_share"), "%", mark, one.source,
                reason=None if level.mean("prefix_hit_share") == level.mean("prefix_hit_share") else UNKNOWN,
            ),
        }
        for one, levels in launches
        for level in levels
        if level.turns
    ]  # fmt: skip


def value_count(study: config.Study) -> int:
    """Values that the KV cache keeps of one token: keys and values, of all layers and heads.

    2 x layers x key-value heads x head dimension.
    """
    model = study.model
    return 2 * model.layers * model.kv_heads * model.head_dim


def _capacity(one: Measured, study: config.Study, mark: str) -> dict[str, Any]:
    """Tokens that the KV cache holds as the engine reports it, beside what its bytes would hold by the formula."""
    told = one.meta["kv_cache"]
    size, each = told.get("bytes"), value_count(study) * float(told.get("value_bytes") or float("nan"))
    formula = size / each if size else float("nan")
    why = None if formula == formula else "the launch counts its cache in blocks, not in bytes"
    return one.who | {"source": one.source} | {
        "tokens": number(told["tokens"], "tokens", mark, one.source),
        "context": number(told["context"], "tokens", mark, one.source),
        "formula": number(formula, "tokens", "bound", f"config/{study.profile}/study.yaml, model", reason=why),
        "bytes_per_token": number(each, "B", "bound", f"config/{study.profile}/study.yaml, model",
                                  reason=None if each == each else "the size of a stored value is unknown"),
    }  # fmt: skip


def _crowded(launches: Launches, study: config.Study, mark: str) -> list[dict[str, Any]]:
    """Closed levels against the KV cache: what they want of it, and what became of them; none where none is filled.

    A level wants its concurrency times the mean of prompt and answer, in tokens.
    """
    rows = []
    for one, levels in launches:
        told = one.meta.get("kv_cache") or {}
        for level in (x for x in levels if told and x.kind == "closed"):
            work = study.workloads[level.workload]
            wanted = level.load * (work.input_tokens.mean + work.output_tokens.mean)
            usage, lost = level.largest("kv_cache_usage_max"), level.mean("preemptions")
            rows.append(one.who | {"source": one.source} | {
                "level": level.id,
                "wanted": number(100 * wanted / told["tokens"], "%", "assumed", one.source),
                "whole": number(told["tokens"] / told["context"], "sequences", mark, one.source),
                "decoding": number(level.mean("decoding_mean"), "requests", mark, one.source,
                                   reason=None if level.mean("decoding_mean") == level.mean("decoding_mean")
                                   else "the target concurrency was never held"),
                "usage": number(100 * usage, "%", mark, one.source, reason=None if usage == usage else UNKNOWN),
                "preemptions": number(lost, "requests", mark, one.source, reason=None if lost == lost else UNKNOWN),
                **{key: from_estimate(level.estimates[f"{key}_s"], unit, scale, mark, one.source)
                   for key, unit, scale in (("output_tok", "tok/s", 1.0), ("ttft_p50", "ms", 1e3),
                                            ("tpot_p50", "ms", 1e3))},
            })  # fmt: skip
    return rows if any(row["wanted"]["value"] >= 100 * FILLED for row in rows) else []
