"""Score models beside one reference on the same texts and items, token by token, over the whole vocabulary.

    python logits_torch.py --asked FILE --reference JSON --own JSON [--own JSON ...] --out FILE

The library that loads the models is the script that is run (`logits_torch.py`, `logits_llama.py`); this module is what
both do with it. `asked` holds token ids: texts, documents and items (a document, a question, options). One process
scores all models of a reference, which is loaded and read once. Logits are never written: a text's are reduced to four
numbers a token at once. Refused: a text longer than a model's context, and logits that are not numbers; a model that is
refused says so in its place and the others go on. Runs in the quantize environment.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Scores = dict[str, list[float]]


class Model(Protocol):
    """What both libraries offer."""

    context: int
    versions: dict[str, str]

    def logits(self, tokens: list[int], keep: int, last: bool = False) -> np.ndarray:
        """Forget all but the first `keep` tokens, read these, and return float32 logits after each, or after the last.

        The result is (tokens x words).
        """

    def branches(self, rows: list[list[int]], keep: int) -> list[np.ndarray]:
        """Return the logits after each token of several continuations of the first `keep` tokens; none sees another."""


class Refused(Exception):
    """A model cannot be scored; the text says why."""


def distributions(logits: np.ndarray, what: str) -> np.ndarray:
    """Natural logarithms of next-token distributions, float64 (tokens x words), from logits of any shift.

    Raises
    ------
    Refused : a logit is not a number.
    """
    known = np.isfinite(logits).all(axis=1)
    if not known.all():
        after = int(np.argmin(known))
        raise Refused(f"{what}: the model gave no log-probability after token {after}: its logits are not numbers.")
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits


def fit(model: Model, tokens: int, what: str) -> None:
    """Refuse what is longer than a model's context."""
    if tokens > model.context:
        raise Refused(f"{what} has {tokens} tokens and the model's context holds {model.context}.")


def read(model: Model, tokens: list[int], what: str) -> np.ndarray:
    """Distributions after every token of a text but its last."""
    fit(model, len(tokens), what)
    return distributions(model.logits(tokens, 0)[:-1], what)


def compare(p: np.ndarray, q: np.ndarray, tokens: Sequence[int]) -> Scores:
    """Compare two models on one text: of every token but the first its log-probability under both, KL(reference||own)
    in nats, and whether both would have said the same next token.

    p, q : distributions of the reference and of one's own, logarithms (tokens - 1 x words).
    """
    said = (np.arange(len(tokens) - 1), np.array(tokens[1:]))
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    return {
        "logp": _rounded(q[said]), "logp_reference": _rounded(p[said]),
        "kl": _rounded(np.maximum(divergence, 0.0)),        # not below zero, but for rounding
        "agree": (p.argmax(axis=1) == q.argmax(axis=1)).astype(int).tolist(),
    }


def answers(model: Model, asked: dict[str, Any]) -> list[list[float]]:
    """Log-probability of each option of each item, summed over its tokens. A document is read once for all its items.

    Items of one document stand together.
    """
    scores: list[list[float]] = []
    now, start = None, 0
    for number, item in enumerate(asked["items"]):
        what, question, options = f"item {number}", item["question"], item["options"]
        if item["document"] != now:
            now = item["document"]
            start = len(asked["documents"][now])
            fit(model, start, what)
            model.logits(asked["documents"][now], 0, last=True)
        keep = start + len(question)
        fit(model, keep + max(map(len, options)) - 1, what)
        first = distributions(model.logits(question, start, last=True), what)
        more = model.branches([option[:-1] for option in options], keep)
        of_item = []
        for option, rows in zip(options, more, strict=True):
            after = np.concatenate([first, distributions(rows, what)]) if len(rows) else first
            of_item.append(float(f"{after[np.arange(len(option)), option].sum():.7g}"))
        scores.append(of_item)
    return scores


def score(
    reference: Model, models: list[Model], asked: dict[str, Any], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Score every model beside the reference; the reference itself may be among them and is then read once.

    Returns
    -------
    per model texts, items, versions and seconds, or why it was refused.

    Raises
    ------
    Refused : the reference itself.
    """
    out: list[dict[str, Any]] = [{"texts": [], "items": [], "seconds": {"texts": 0.0, "items": 0.0},
                                  "versions": model.versions, "refused": None} for model in models]
    tell(f"{len(asked['texts'])} texts, by {len(models)} models and their reference")
    for number, tokens in enumerate(asked["texts"]):
        what = f"text {number}"
        p = read(reference, tokens, what)
        for model, one in zip(models, out, strict=True):
            with _stage(one, "texts"):
                one["texts"].append(compare(p, p if model is reference else read(model, tokens, what), tokens))
    tell(f"{len(asked['items'])} questions, by the reference")
    base = answers(reference, asked)
    for number, (model, one) in enumerate(zip(models, out, strict=True)):
        tell(f"{len(asked['items'])} questions, by model {number + 1} of {len(models)}")
        with _stage(one, "items"):
            own = base if model is reference else answers(model, asked)
            one["items"] = [{"logp": q, "logp_reference": p} for q, p in zip(own, base, strict=True)]
    return out


@contextmanager
def _stage(one: dict[str, Any], stage: str) -> Iterator[None]:
    """Time a stage of one model and keep why it was refused; what follows a refusal is not kept by anybody."""
    began = time.monotonic()
    try:
        yield
    except Refused as why:
        one["refused"] = one["refused"] or str(why)
    one["seconds"][stage] = round(one["seconds"][stage] + time.monotonic() - began, 3)


def _rounded(values: np.ndarray) -> list[float]:
    return [float(f"{value:.7g}") for value in values]


def main(load: Callable[[dict[str, Any]], Model]) -> None:
    """Command line of a library's script."""
    parser = argparse.ArgumentParser()
    for name in ("asked", "reference", "out"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--own", action="append", required=True)
    told = parser.parse_args()

    def tell(stage: str) -> None:
        print(stage, flush=True)

    began = time.monotonic()
    tell("loading the models")
    try:
        loaded = {text: load(json.loads(text)) for text in dict.fromkeys([told.reference, *told.own])}
        after = time.monotonic()
        reference = loaded[told.reference]
        models = score(reference, [loaded[text] for text in told.own], json.loads(Path(told.asked).read_text()), tell)
    except Refused as why:
        sys.exit(f"refused: {why}")
    out = {"models": models, "versions_reference": reference.versions,
           "seconds": {"load": round(after - began, 2), "score": round(time.monotonic() - after, 2)}}
    beside = Path(f"{told.out}.tmp")
    beside.write_text(json.dumps(out, allow_nan=False))
    beside.replace(told.out)
