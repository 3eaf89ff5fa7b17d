"""Score two models on the same texts and items, token by token, over the whole vocabulary, in one process.

    python score.py --asked FILE --own JSON --reference JSON --out FILE

`asked` holds token ids: texts, documents and items (a document, a question, options). A model is
{"kind": "torch", "folder", "dtype", "threads"} or {"kind": "llama", "file", "library", "context", "threads"}; where
both are the same it is loaded once. Logits are never written: a text's are reduced to four numbers a token at once.
Refused: a text longer than a model's context, and logits that are not numbers. Runs in the quantize environment.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from logits_llama import Llama
from logits_torch import Torch


class Model(Protocol):
    """What both libraries offer."""

    context: int
    versions: dict[str, str]

    def logits(self, tokens: list[int], keep: int) -> np.ndarray:
        """Forget all but the first `keep` tokens, read these, and return float32 logits after each (tokens x words)."""


def load(told: dict[str, Any]) -> Model:
    """Load a model as told."""
    return Torch(told) if told["kind"] == "torch" else Llama(told)


def log_probabilities(model: Model, tokens: list[int], keep: int, what: str, last: int = 0) -> np.ndarray:
    """Natural logarithms of the next token's distribution after each token, or the `last` ones, float64 (x words)."""
    if keep + len(tokens) > model.context:
        sys.exit(f"{what} has {keep + len(tokens)} tokens and the model's context holds {model.context}.")
    logits = model.logits(tokens, keep)[-last:].astype(np.float64)
    if not np.isfinite(logits).all():
        where = keep + len(tokens) - len(logits) + int(np.argmin(np.isfinite(logits).all(axis=1)))
        sys.exit(f"{what}: the model gave no log-probability after token {where}: its logits are not numbers.")
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def text(own: Model, reference: Model, tokens: list[int], what: str) -> dict[str, list[float]]:
    """Compare two models on one text: of every token but the first its log-probability under both, KL(reference||own)
    in nats, and whether both would have said the same next token.
    """
    p = log_probabilities(reference, tokens, 0, what)[:-1]
    q = p if own is reference else log_probabilities(own, tokens, 0, what)[:-1]
    said = (np.arange(len(tokens) - 1), np.array(tokens[1:]))
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    return {
        "logp": _rounded(q[said]), "logp_reference": _rounded(p[said]),
        "kl": _rounded(np.maximum(divergence, 0.0)),        # not below zero, but for rounding
        "agree": (p.argmax(axis=1) == q.argmax(axis=1)).astype(int).tolist(),
    }


def items(model: Model, asked: dict[str, Any], tell: Any) -> list[list[float]]:
    """Log-probability of each option of each item, summed over its tokens. A document is read once for all its items.

    Items of one document stand together.
    """
    scores: list[list[float]] = []
    now, start = None, 0
    for number, item in enumerate(asked["items"]):
        what = f"item {number}"
        if item["document"] != now:
            now = item["document"]
            document = asked["documents"][now]
            log_probabilities(model, document, 0, what, last=1)
            start = len(document)
        after = log_probabilities(model, item["question"], start, what, last=1)[0]
        keep = start + len(item["question"])
        of_item = []
        for option in item["options"]:
            rows = [after]
            if len(option) > 1:
                rows += list(log_probabilities(model, option[:-1], keep, what))
            of_item.append(round(float(sum(row[token] for row, token in zip(rows, option, strict=True))), 6))
        scores.append(of_item)
        tell(f"item {number + 1} of {len(asked['items'])}")
    return scores


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser()
    for name in ("asked", "own", "reference", "out"):
        parser.add_argument(f"--{name}", required=True)
    told = parser.parse_args()
    asked = json.loads(Path(told.asked).read_text())
    began = time.monotonic()

    def tell(stage: str) -> None:
        print(stage, flush=True)

    tell("loading the models")
    reference = load(json.loads(told.reference))
    own = reference if told.own == told.reference else load(json.loads(told.own))
    loaded = time.monotonic()
    texts = []
    for number, tokens in enumerate(asked["texts"]):
        tell(f"text {number + 1} of {len(asked['texts'])}")
        texts.append(text(own, reference, tokens, f"text {number}"))
    read = time.monotonic()
    of_reference = items(reference, asked, tell)
    of_own = of_reference if own is reference else items(own, asked, tell)
    out = {
        "texts": texts, "items": [{"logp": q, "logp_reference": p} for q, p in zip(of_own, of_reference, strict=True)],
        "versions": own.versions, "versions_reference": reference.versions,
        "seconds": {"load": round(loaded - began, 2), "texts": round(read - loaded, 2),
                    "items": round(time.monotonic() - read, 2)},
    }
    beside = Path(f"{told.out}.tmp")
    beside.write_text(json.dumps(out, allow_nan=False))
    beside.replace(told.out)


if __name__ == "__main__":
    main()
