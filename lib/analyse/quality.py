"""What precision costs in quality, from `<launch>.quality.json`: each contender against its own 16-bit reference.

Per token: perplexity, its ratio to the reference's, KL(reference || own) in nats, how often both would say the same
next word, and where they first part; what of it a quantized KV cache costs is `cachecost`'s. Per item: the share
answered rightly (the option of highest likelihood). Rules: intervals are bootstraps over texts or items, paired, but
for shares of right answers, which have Wilson's; where the reference itself cannot be told from guessing, the task set
is uninformative for this model and ranks nobody; a contender without a record is missing with its reason. Refused: a
record of another study, schema or kind (it is named as missing, the others stand).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib import config, records, stats
from lib.analyse import cachecost
from lib.analyse.facts import Number, from_estimate, number

SCHEMA = 1
ENDING = ".quality.json"
BITS4 = ("w4", "gguf-q4", "awq-int4")       # how formats of 4-bit weights begin
NUMBERS = {                                  # -> unit
    "perplexity": "perplexity", "perplexity_ratio": "ratio", "kl": "nats", "agreement": "share",
    "first_divergence": "tokens", "accuracy": "share", "accuracy_reference": "share", "accuracy_lost": "share",
    "weights": "MB",
}
PARTS = ("", "_low", "_high", "_reason")
WRITTEN = (*NUMBERS, *cachecost.NUMBERS)
COLUMNS = ("launch", "engine", "precision", "status", "reason", "reference", "estimator", "kv", "kv_beside",
           *(f"{name}{part}" for name in WRITTEN for part in PARTS), "note")
Said = Mapping[str, Any]


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """Read every quality record of a study: launch -> record, its `source` added; a damaged one says so."""
    found = {}
    for path in sorted(folder.glob(f"*{ENDING}")):
        name = path.name.removesuffix(ENDING)
        source = f"records/{folder.name}/{path.name}#{records.sha256(path)[:12]}"
        try:
            said = dict(json.loads(path.read_text()))
            if said["schema"] != SCHEMA or said["launch"] != name:
                raise ValueError(f"schema {said['schema']!r}, launch {said['launch']!r}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = f"{path.name} cannot be read ({error}); delete it and run `make report`"
            said = {"status": "damaged", "reason": why}
        found[name] = said | {"source": source}
    return found


def facts(said: Mapping[str, Said], study: config.Study, mark: str) -> dict[str, Any]:
    """Write down what a study's quality records say.

    Parameters
    ----------
    said : as `read` gives.
    mark : of a record's numbers.

    Returns
    -------
    reason (why there is nothing; None otherwise), asked, chance, note (what biases 4 bit), full, caches (rows of
    launches whose KV cache is quantized), and launches: per launch its numbers, or its status and reason.
    """
    asked, source = study.quality, f"config/{study.profile}/study.yaml"
    reason = None
    if asked is None:
        reason = "the profile states no texts to judge it on"
    elif study.kind != "measured":
        reason = "a rehearsal scores no weights"
    elif not said:
        reason = "no contender has been scored yet; `make report` does it"
    launches = {name: _launch(one, study, mark) for name, one in said.items()}
    scored = {name: one for name, one in said.items() if launches[name]["status"] == "measured"}
    for name, one in said.items():
        launches[name] |= cachecost.cost(one, scored, mark, launches[name]["reason"])
    return {
        "reason": reason,
        "asked": {unit: number(getattr(asked, name) if asked else None, unit, "assumed", source, reason=reason)
                  for name, unit in (("texts", "texts"), ("tokens", "tokens"), ("items", "questions"))},
        "chance": number(0.25, "share", "assumed", "four options a question"),
        "full": study.depth == "full",
        "note": study.model.note,
        "launches": launches,
        "caches": [{"launch": name, **one} for name, one in launches.items() if one["kv"]],
        "informative": any(one["informative"] for one in launches.values()),
    }


def frame(launches: Mapping[str, Said]) -> pd.DataFrame:
    """Lay the facts of launches out flat, one row each; see `COLUMNS`."""
    rows = []
    for name, one in launches.items():
        row = {"launch": name} | {key: one[key] for key in ("engine", "precision", "status", "reason", "estimator")}
        row |= {key: one[key] for key in ("reference", "kv", "kv_beside", "note")}
        for key in WRITTEN:
            row |= {f"{key}{part}": one[key][part.lstrip("_") or "value"] for part in PARTS}
        rows.append(row)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _launch(one: Said, study: config.Study, mark: str) -> dict[str, Any]:
    source, status = one["source"], one["status"]
    if status == "measured" and (one["study"] != study.name or one["kind"] != study.kind):
        status = "damaged"
        one = {**one, "reason": f"it is a record of study {one['study']!r} ({one['kind']}), not of {study.name!r}"}
    why = None if status == "measured" else str(one["reason"])
    base = {
        "engine": one.get("engine"), "precision": cachecost.named(one), "status": status, "reason": why,
        "estimator": one.get("estimator"), "reference": (one.get("reference") or {}).get("artifact"),
        "itself": bool(one.get("itself")), "source": source, "when_utc": one.get("when_utc"), "informative": False,
        "note": None, "same_as": one.get("same_as"), "by_kind": {},
    }
    if why is not None:
        return base | {name: number(None, unit, mark, source, reason=why) for name, unit in NUMBERS.items()}
    four = one["artifact"]["format"].startswith(BITS4)
    items = _items(one["items"], one["chance"], mark, source)
    return base | _texts(one["texts"], mark, source) | items | {
        "weights": number(one["artifact"]["bytes"] / 1e6, "MB", mark, source),
        "note": study.model.note if four and study.model.note else None,
    }


def _texts(texts: Sequence[Said], mark: str, source: str) -> dict[str, Any]:
    parts = np.array([[len(t["kl"]), -sum(t["logp"]), -sum(t["logp_reference"]), sum(t["kl"]), sum(t["agree"])]
                      for t in texts], dtype=float).reshape(len(texts), 5)

    def of(statistic: Any, unit: str) -> Number:
        return from_estimate(stats.bootstrap(parts, statistic), unit, 1.0, mark, source)

    return {
        "perplexity": of(lambda s: np.exp(s[:, 1] / s[:, 0]), "perplexity"),
        "perplexity_ratio": of(lambda s: np.exp((s[:, 1] - s[:, 2]) / s[:, 0]), "ratio"),
        "kl": of(lambda s: s[:, 3] / s[:, 0], "nats"),
        "agreement": of(lambda s: s[:, 4] / s[:, 0], "share"),
        "first_divergence": _first_divergence(texts, mark, source),
    }


def _first_divergence(texts: Sequence[Said], mark: str, source: str) -> Number:
    """Median over texts of the first token that differs; a text in which none does lies beyond all tokens."""
    tokens = max((len(t["kl"]) for t in texts), default=0)
    parted = np.array([t["agree"].index(0) + 1 if 0 in t["agree"] else np.inf for t in texts])
    places = np.unique(parted)

    def median(counts: Any) -> Any:
        upto, total = counts.cumsum(axis=1), counts.sum(axis=1)
        low, high = (places[np.argmax(upto > rank[:, None], axis=1)] for rank in ((total - 1) // 2, total // 2))
        return np.minimum((low + high) / 2, tokens + 1)     # what lies beyond the texts has no place

    e = stats.bootstrap((parted[:, None] == places).astype(float), median)
    beyond = f"in more than half of the texts they never part within {tokens} tokens"
    if e.value is None or e.value > tokens:
        return number(None, "tokens", mark, source, n=len(texts), reason=e.reason if e.value is None else beyond)
    high = None if e.high is None or e.high > tokens else e.high
    open_end = f"the upper limit lies beyond the {tokens} tokens of a text"
    return number(e.value, "tokens", mark, source, low=e.low, high=high, n=len(texts),
                  reason=e.reason or (open_end if high is None else None))


def _items(items: Sequence[Said], chance: float, mark: str, source: str) -> dict[str, Any]:
    none = "no question was asked"
    if not items:
        absent = number(None, "share", mark, source, reason=none)
        return {"accuracy": absent, "accuracy_reference": absent, "accuracy_lost": absent, "informative": False,
                "by_kind": {}}
    right = np.array([[_right(i, "logp"), _right(i, "logp_reference")] for i in items], dtype=float)
    n = len(items)

    def share(column: int, which: Any = slice(None)) -> Number:
        of = right[which, column]
        low, high = stats.wilson(int(of.sum()), len(of))
        return number(float(of.mean()), "share", mark, source, low=low, high=high, n=len(of))

    own, reference, kinds = share(0), share(1), dict.fromkeys(i["kind"] for i in items)
    informative = bool(reference["low"] > chance)
    lost = from_estimate(stats.bootstrap(np.column_stack([right, np.ones(n)]), lambda s: (s[:, 1] - s[:, 0]) / s[:, 2]),
                         "share", 1.0, mark, source)
    floor = (f"the 16-bit reference answers {reference['value']:.0%} of {n} questions, which cannot be told from "
             f"guessing ({chance:.0%}): at its floor the task set is uninformative")
    return {
        "accuracy": own, "accuracy_reference": reference, "informative": informative,
        "accuracy_lost": lost if informative else number(None, "share", mark, source, reason=floor),
        "by_kind": {kind: share(0, [i["kind"] == kind for i in items]) for kind in kinds},
    }


def _right(item: Said, which: str) -> bool:
    """Whether the right option has the highest likelihood, alone."""
    scores = item[which]
    best = max(scores)
    return bool(scores[item["answer"]] == best and scores.count(best) == 1)
