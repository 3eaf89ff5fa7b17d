"""What precision costs in quality: every contender's next-token distributions beside its 16-bit reference's.

    records/<study>/<launch>.quality.json       per text and token, per item and option: log-probabilities; nothing
                                                derived. Who loads what, versions, machine, date, seed, key.

What it is for: texts and items (`evaluation`) go through `engines.scoring`, one record per launch of the profile.
What it refuses: a text longer than the served context, before anything runs. Rules: a record with this very key
(weights, library, method, texts) is left alone, so an interrupted study goes on where it stopped; timing records play
no part. What cannot be scored has a record that says why; what failed is told at the end, and the others go on.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lib import config, paths, records
from lib.config import Launch, Quality, Study
from lib.engines import build, registry, scoring
from lib.errors import EngineError, MeasureError, NoValue
from lib.glance import Table
from lib.measure import finance_tasks, provenance, session, workload
from lib.progress import Progress

SCHEMA = 1
TOKENS_S = 120.0            # tokens scored in a second by two models on two cores, for the plan
Said = dict[str, Any]
Tell = Callable[[str], None]


def take_all(profile: str, depth: str) -> list[Said]:
    """Score every launch of a profile that has no record yet.

    Returns
    -------
    the record of each, in the order of the run; none where the profile states no `quality`, and none in a rehearsal.

    Raises
    ------
    StudyError : somebody's scoring failed; the others are scored all the same.
    """
    study = config.load_study(profile, depth)
    if study.quality is None or study.kind != "measured":
        return []
    launches = [config.load_launch(profile, name) for name in config.run_order(study)]
    said: list[Said] = []
    failed: list[str] = []
    asked: dict[str, Any] = {}
    title = f"{study.name}/quality"
    with session.alone(paths.RECORDS / study.name), Progress(title, float(len(launches))) as progress:
        for number, launch in enumerate(launches):
            def tell(stage: str, at: int = number, name: str = launch.name) -> None:
                progress.at(float(at), f"{name}: {stage}")

            try:
                said.append(_take(study, study.quality, launch, asked, said, tell))
            except EngineError as trouble:
                failed.append(str(trouble))
                said.append(_write(study, launch, _about(study, launch) | {"status": "failed", "reason": failed[-1]}))
    if failed:
        raise EngineError(" ".join(failed))
    return said


def glance(said: list[Said]) -> Table:
    """Show what was scored, by what, and how long it took."""
    rows = [
        (one["launch"], one["status"], one.get("estimator") or one["reason"],
         (one.get("reference") or {}).get("artifact"),
         f"{sum(one['seconds'].values()):.0f} s" if "seconds" in one else None)
        for one in said
    ]
    return Table(("launch", "status", "by", "reference", "took"), rows)


def evaluation(study: Study, quality: Quality) -> dict[str, Any]:
    """Texts and items as token ids, the same for every contender, and where they come from.

    Raises
    ------
    MeasureError : a text longer than the served context, or no tokenizer.
    """
    tokenizer = workload.load_tokenizer(paths.ARTIFACTS / study.model.tokenizer / "tokenizer.json")
    added = workload.special_tokens(tokenizer)
    asked = [(quality.tokens, 1)] * quality.texts
    limit = study.model.context + 1     # nothing is generated
    texts = workload.prompts(tokenizer, asked, quality.seed, role="probe", added_tokens=added, context_tokens=limit)
    items = finance_tasks.items(quality.items, quality.seed)
    documents = list(dict.fromkeys(item.document for item in items))

    def ids(text: str, begins: bool) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=begins).ids)

    asked_items = [
        {"document": documents.index(item.document), "question": ids(item.question, False),
         "options": [ids(option, False) for option in item.options]}
        for item in items
    ]
    of = [ids(document, True) for document in documents]
    longest = max((len(of[i["document"]]) + len(i["question"]) + max(map(len, i["options"])) for i in asked_items),
                  default=0)
    if longest > study.model.context:
        raise MeasureError(f"An item of the task set has {longest} tokens and the served context is "
                           f"{study.model.context}; serve the model with a longer one, or set quality.items to 0.")
    return {
        "texts": [ids(text.text, True) for text in texts], "documents": of, "items": asked_items,
        "kinds": [item.kind for item in items], "answers": [item.answer for item in items],
        "longest": max([longest, *(text.input_tokens for text in texts)]),
    }


def _take(
    study: Study, quality: Quality, launch: Launch, asked: dict[str, Any], said: Sequence[Said], tell: Tell
) -> Said:
    registry.of(launch).check(launch)
    about = _about(study, launch)
    try:
        own, reference = scoring.of(launch)
    except NoValue as reason:
        return _write(study, launch, about | {"status": "missing", "reason": str(reason)})
    for artifact in dict.fromkeys((study.model.tokenizer, own.artifact, reference.artifact)):
        build.build(artifact, tell)
    if not asked:
        asked |= evaluation(study, quality)
    ask = {name: asked[name] for name in ("texts", "documents", "items")}
    wanted = scoring.key(own, reference, ask)
    known = _known(study, launch, wanted)
    if known:
        return known
    for other in said:      # the same weights in the same format, as of the second launch of the A/A pair
        if other.get("key") == wanted:
            return _write(study, launch, other | about | {"same_as": other["launch"]})
    path = paths.quality(study.name, launch.name)
    context = -(-asked["longest"] // 256) * 256         # llama.cpp rounds its context up to that
    load = provenance.load()
    found = scoring.score(own, reference, ask, context, path.with_name(f"{launch.name}.quality.log"), tell)
    _check(found, asked)
    items = [{"kind": kind, "answer": answer, **scores}
             for kind, answer, scores in zip(asked["kinds"], asked["answers"], found["items"], strict=True)]
    return _write(study, launch, about | {
        "status": "measured", "reason": None, "key": wanted, "estimator": own.how,
        "artifact": _described(own), "reference": _described(reference),
        "itself": own == reference,
        "versions": found["versions"], "versions_reference": found["versions_reference"],
        "machine": provenance.machine(), "git": provenance.git(), "load": load, "when_utc": provenance.utc(),
        "seconds": found["seconds"], "texts": found["texts"], "items": items,
    })


def _described(one: scoring.Scored) -> dict[str, Any]:
    made = build.manifest(one.artifact)
    return {"artifact": one.artifact, "dtype": one.dtype} | {name: made[name] for name in ("key", "format", "bytes")}


def _about(study: Study, launch: Launch) -> Said:
    quality = study.quality.model_dump() if study.quality else {}
    text = json.dumps([quality, launch.model_dump(mode="json", exclude_none=True)], sort_keys=True)
    return {"schema": SCHEMA, "kind": study.kind, "study": study.name, "launch": launch.name, "engine": launch.engine,
            "precision": launch.precision, "quality": quality, "chance": finance_tasks.CHANCE,
            "config_hash": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _known(study: Study, launch: Launch, wanted: str) -> Said | None:
    """Return the record with this key; put one with another key aside."""
    path = paths.quality(study.name, launch.name)
    try:
        found = dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
    if found.get("key") == wanted and found.get("status") == "measured":
        return found
    if found.get("status") == "measured":
        aside = path.parent / "superseded" / f"{found.get('key')}.{found.get('when_utc')}.{path.name}"
        aside.parent.mkdir(exist_ok=True)
        path.rename(aside)
    return None


def _check(found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Refuse scores that miss a token or an option.

    Raises
    ------
    EngineError : says which.
    """
    for number, (tokens, scores) in enumerate(zip(asked["texts"], found["texts"], strict=True)):
        for name in ("logp", "logp_reference", "kl", "agree"):
            if len(scores[name]) != len(tokens) - 1:
                raise EngineError(f"Text {number} has {len(tokens) - 1} tokens to score and {len(scores[name])} values "
                                  f"of {name!r}: log-probabilities are missing, so nothing is kept.")
    if [len(i["logp"]) for i in found["items"]] != [len(i["options"]) for i in asked["items"]]:
        raise EngineError("An item misses the log-probability of an option, so nothing is kept.")


def _write(study: Study, launch: Launch, said: Said) -> Said:
    path = paths.quality(study.name, launch.name)
    text = json.dumps(said, allow_nan=False, sort_keys=True)
    if not (path.exists() and path.read_text() == text):
        records.write_whole(path, text.encode())
    return said


def expected_s(study: Study) -> float:
    """Seconds that scoring one launch takes, for the plan."""
    quality = study.quality
    return 0.0 if quality is None else 8.0 + (quality.texts * quality.tokens + quality.items * 90) / TOKENS_S
