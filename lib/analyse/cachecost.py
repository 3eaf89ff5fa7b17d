"""What a quantized KV cache costs in quality, and nothing else: beside the same weights with a cache of 16 bits.

Both were scored on the same texts against the same reference; the difference, text by text, is the cache's. Rules: only
a launch whose record says that its cache is quantized has such a cost; only the very same weights, scored by the same
library on the same texts, may stand beside it; where none do, the cost is missing with its reason. Pure.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lib import stats
from lib.analyse.facts import Number, from_estimate, number

NUMBERS = {"cache_kl": "nats", "cache_perplexity_more": "share", "cache_agreement_lost": "share"}  # -> unit
Said = Mapping[str, Any]


def kv(one: Said) -> str | None:
    """What the launch of a quality record quantizes its KV cache to; None where it does not, or was not scored."""
    return (one.get("artifact") or {}).get("kv")


def named(one: Said) -> str | None:
    """Precision of a quality record's launch, its cache among it where that is quantized: "q8_0, kv q8_0"."""
    precision, cache = one.get("precision"), kv(one)
    return f"{precision}, kv {cache}" if cache else precision


def sibling(one: Said, others: Mapping[str, Said]) -> str | None:
    """Name the launch, of those scored, of the same weights with a cache that is not quantized."""
    return next((name for name, other in others.items() if kv(other) is None and _alike(one, other)), None)


def cost(one: Said, scored: Mapping[str, Said], mark: str, reason: str | None = None) -> dict[str, Any]:
    """Return kv, kv_beside (the launch it is held against) and the `NUMBERS`: what the cache adds.

    Parameters
    ----------
    one : a quality record with its source.
    scored : those that may be read.
    reason : why this one may not.

    cache_kl: nats per token of KL from the 16-bit reference, more than without; cache_perplexity_more: share by which
    perplexity is higher; cache_agreement_lost: share of tokens, fewer of which the reference would have said too.
    """
    cache = kv(one)
    beside = sibling(one, scored) if cache and not reason else None
    found = {"kv": cache, "kv_beside": beside}
    if beside is None:
        lone = "no launch of the same weights with a KV cache of 16 bits was scored on the same texts"
        why = reason or (lone if cache else "its KV cache is not quantized")
        return found | {name: number(None, unit, mark, one["source"], reason=why) for name, unit in NUMBERS.items()}
    return found | _differences(one, scored[beside], mark)


def _alike(one: Said, other: Said) -> bool:
    """Whether two records are of the same weights, library and texts."""
    same = all(one["artifact"].get(part) == other["artifact"].get(part) for part in ("key", "dtype"))
    return (
        same
        and one.get("reference") == other.get("reference")
        and one.get("versions") == other.get("versions")
        and [text["logp_reference"] for text in one["texts"]] == [text["logp_reference"] for text in other["texts"]]
    )


def _differences(one: Said, other: Said, mark: str) -> dict[str, Number]:
    parts = np.array(
        [[len(t["kl"]), sum(t["kl"]) - sum(o["kl"]), sum(o["logp"]) - sum(t["logp"]), sum(o["agree"]) - sum(t["agree"])]
         for t, o in zip(one["texts"], other["texts"], strict=True)],
        dtype=float,
    ).reshape(len(one["texts"]), 4)  # fmt: skip
    of = {
        "cache_kl": lambda s: s[:, 1] / s[:, 0],
        "cache_perplexity_more": lambda s: np.expm1(s[:, 2] / s[:, 0]),
        "cache_agreement_lost": lambda s: s[:, 3] / s[:, 0],
    }
    source = f"{one['source']}; {other['source']}"
    return {
        name: from_estimate(stats.bootstrap(parts, of[name]), unit, 1.0, mark, source) for name, unit in NUMBERS.items()
    }
