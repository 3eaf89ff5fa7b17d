"""What precision costs in quality: every contender's next-token distributions beside its 16-bit reference's.

    records/<study>/<launch>.quality.json       per text and token, per item and option: log-probabilities; nothing
                                                derived. Who loads what, versions, machine, date, seed, key.

What it is for: texts and items (`evaluation`) go through `engines.scoring`, one record per launch of the profile.
What it refuses: a text longer than the served context, before anything runs. Rules: a record with this very key
(weights, KV cache, library, method, texts) is left alone, so an interrupted study goes on where it stopped; timing
records play no part. What cannot be scored has a record that says why; what failed is told at the end, and the others
go on.
"""

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from lib import config, paths, records
from lib.config import Launch, Quality, Study
from lib.engines import build, computer, registry, scoring
from lib.errors import EngineError, MeasureError, NoValue
from lib.glance import Table
from lib.measure import finance_tasks, provenance, session, workload
from lib.progress import Progress

SCHEMA = 1
AT_ONCE = 2                 # groups: much of a scoring script is one thread
TOKENS_S = 200.0            # tokens that a small model reads in a second on two cores, for the plan
Said = dict[str, Any]
Tell = Callable[[str], None]
Pair = tuple[scoring.Scored, scoring.Scored]    # what is served, its reference


def take_all(profile: str, depth: str) -> list[Said]:
    """Score every launch of a study that has no record yet, and at any depth those of its profile whose KV cache is
    quantized: scoring needs no server, and the light version says nothing else of what such a cache costs.

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
    order = config.run_order(study)
    left_out = [config.load_launch(profile, name) for name in config.launch_names(profile) if name not in order]
    launches = [config.load_launch(profile, name) for name in order] + [one for one in left_out if scoring.cache(one)]
    with session.alone(paths.RECORDS / study.name), Progress(f"{study.name}/quality") as progress:
        return _take(study, study.quality, launches, lambda stage: progress.at(0.0, stage))


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

    asked_items: list[dict[str, Any]] = [
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


def _take(study: Study, quality: Quality, launches: Sequence[Launch], tell: Tell) -> list[Said]:
    said: dict[str, Said] = {}
    pairs: dict[str, Pair] = {}
    for launch in launches:
        registry.of(launch).check(launch)
        try:
            pairs[launch.name] = scoring.of(launch)
        except NoValue as why:
            said[launch.name] = _write(study, launch, {"status": "missing", "reason": str(why)})
    if not pairs:
        return list(said.values())
    for artifact in dict.fromkeys([study.model.tokenizer, *(one.artifact for pair in pairs.values() for one in pair)]):
        build.build(artifact, tell)
    asked = evaluation(study, quality)
    keys = {name: scoring.key(*pair, _ask(asked)) for name, pair in pairs.items()}
    said |= {name: known for name, key in keys.items() if (known := _known(study, name, key))}
    known = {one["key"]: one for one in said.values() if "key" in one}
    todo = {key: pairs[name] for name, key in keys.items() if key not in known}
    for scored in chain([known], _several(study, _groups(todo), asked, tell)):
        for launch in launches:
            key = keys.get(launch.name)
            if key in scored and launch.name not in said:
                # Launches may share weights and format, as the two of the A/A pair do.
                first = next(name for name, other in keys.items() if other == key)
                same = {"same_as": first if first != launch.name else None}
                said[launch.name] = _write(study, launch, scored[key] | same)
    failed = [one["reason"] for one in said.values() if one["status"] == "failed"]
    if failed:
        raise EngineError(" ".join(dict.fromkeys(failed)))
    return [said[launch.name] for launch in launches]


def _groups(todo: Mapping[str, Pair]) -> list[dict[str, Pair]]:
    """Put contenders of one reference together, as far as the memory holds them: key -> what it serves, reference."""
    groups = []
    for reference in dict.fromkeys(pair[1] for pair in todo.values()):
        group = {key: pair for key, pair in todo.items() if pair[1] == reference}
        together = scoring.needs_bytes([model for pair in group.values() for model in pair])
        fits = together <= computer.free_memory_bytes()
        groups += [group] if fits else [{key: pair} for key, pair in group.items()]
    return groups


def _several(
    study: Study, groups: Sequence[Mapping[str, Pair]], asked: Mapping[str, Any], tell: Tell
) -> Iterator[dict[str, Said]]:
    """Score groups, two at once where the memory holds them all."""
    models = [model for group in groups for pair in group.values() for model in pair]
    needed = scoring.needs_bytes(models) + (AT_ONCE - 1) * scoring.BASE_BYTES
    cores, stopped = len(os.sched_getaffinity(0)), threading.Event()
    at_once = max(1, min(AT_ONCE, cores, len(groups)) if needed <= computer.free_memory_bytes() else 1)

    def told(stage: str) -> None:
        if stopped.is_set():
            raise EngineError("stopped")
        tell(stage)

    with ThreadPoolExecutor(at_once) as pool:
        try:
            yield from pool.map(lambda group: _score(study, group, asked, told, cores // at_once), groups)
        except BaseException:       # Ctrl-C: the scripts under way end with us
            stopped.set()
            raise


def _score(
    study: Study, group: Mapping[str, Pair], asked: Mapping[str, Any], tell: Tell, threads: int
) -> dict[str, Said]:
    """Score a group; what it is that failed stands in its place: key -> record without its launch."""
    owns, reference = [own for own, _ in group.values()], next(iter(group.values()))[1]
    log = paths.RECORDS / study.name / f"{reference.artifact}.quality.log"
    context = -(-asked["longest"] // 256) * 256         # llama.cpp rounds its context up to that
    load = provenance.load()
    try:
        found = scoring.score(reference, owns, _ask(asked), context, log, tell, threads)
    except EngineError as trouble:
        return {key: {"status": "failed", "reason": str(trouble)} for key in group}
    common = {"status": "measured", "reason": None, "reference": _described(reference), "git": provenance.git(),
              "machine": provenance.machine(), "load": load, "when_utc": provenance.utc(),
              "versions_reference": found["versions_reference"], "seconds_together": found["seconds"]}
    said = {}
    for key, own, scores in zip(group, owns, found["models"], strict=True):
        why = scores["refused"] or _lacking(scores, asked)
        if why:
            said[key] = {"status": "failed", "reason": f"{own.artifact} could not be scored: {why}"}
            continue
        items = [{"kind": kind, "answer": answer, **item}
                 for kind, answer, item in zip(asked["kinds"], asked["answers"], scores["items"], strict=True)]
        said[key] = common | {
            "key": key, "estimator": own.how, "artifact": _described(own), "itself": own == reference,
            "versions": scores["versions"], "seconds": scores["seconds"], "texts": scores["texts"], "items": items,
        }
    return said


def _ask(asked: Mapping[str, Any]) -> dict[str, Any]:
    return {part: asked[part] for part in ("texts", "documents", "items")}


def _described(one: scoring.Scored) -> dict[str, Any]:
    made = build.manifest(one.artifact)
    cache = {"kv": one.kv} if one.kv else {}
    return {"artifact": one.artifact, "dtype": one.dtype, **cache, **{k: made[k] for k in ("key", "format", "bytes")}}


def _about(study: Study, launch: Launch) -> Said:
    quality = study.quality.model_dump() if study.quality else {}
    text = json.dumps([quality, launch.model_dump(mode="json", exclude_none=True)], sort_keys=True)
    return {"schema": SCHEMA, "kind": study.kind, "study": study.name, "launch": launch.name, "engine": launch.engine,
            "precision": launch.precision, "quality": quality, "chance": finance_tasks.CHANCE,
            "config_hash": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _known(study: Study, launch: str, key: str) -> Said | None:
    """Return the record with this key; put one with another key aside."""
    path = paths.quality(study.name, launch)
    try:
        found = dict(json.loads(path.read_text()))
    except (OSError, ValueError):
        return None
    if found.get("status") != "measured":
        return None
    if found.get("key") == key:
        return found
    aside = path.parent / "superseded" / f"{found.get('key')}.{found.get('when_utc')}.{path.name}"
    aside.parent.mkdir(exist_ok=True)
    path.rename(aside)
    return None


def _lacking(found: Mapping[str, Any], asked: Mapping[str, Any]) -> str | None:
    """Say what scores miss: a token or an option."""
    for number, (tokens, scores) in enumerate(zip(asked["texts"], found["texts"], strict=True)):
        for name in ("logp", "logp_reference", "kl", "agree"):
            if len(scores[name]) != len(tokens) - 1:
                return (f"Text {number} has {len(tokens) - 1} tokens to score and {len(scores[name])} values "
                        f"of {name!r}: log-probabilities are missing, so nothing is kept.")
    if [len(i["logp"]) for i in found["items"]] != [len(i["options"]) for i in asked["items"]]:
        return "An item misses the log-probability of an option, so nothing is kept."
    return None


def _write(study: Study, launch: Launch, said: Said) -> Said:
    said = said | _about(study, launch)
    path = paths.quality(study.name, launch.name)
    text = json.dumps(said, allow_nan=False, sort_keys=True)
    if not (path.exists() and path.read_text() == text):
        records.write_whole(path, text.encode())
    return said


def expected_s(study: Study) -> float:
    """Seconds that scoring one launch takes, for the plan."""
    quality = study.quality
    return 0.0 if quality is None else 3.0 + (quality.texts * quality.tokens + quality.items * 90) / TOKENS_S
