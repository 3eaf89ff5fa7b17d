"""LoRA adapters of a server, loaded, proven and timed before any level asks for one. With the load client's own clock.

Each adapter is loaded (timed), asked alone and again, asked in turn with the others, and asked at once with them. Every
answer is to one prompt, greedy, so that its hash says whose it is. Then what must be refused is offered: an adapter
that there is not, one of too high a rank, one for another base model. Last, some are swapped under load (`churn`).
Refused, for then nothing said of adapters would be true: an answer that is the model's own, two adapters that answer
alike, one adapter's answer given for another's, an answer in turn that nobody gives alone, and more such answers at
once than batching turns (`TURNED`).
Kept as findings: what the engine takes that it should not, fewer answers at once that nobody gives alone, and an
adapter's answer to a request for the model itself among requests for adapters.
"""

import json
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lib import paths
from lib.config import Study
from lib.engines import inside
from lib.engines.base import Server
from lib.errors import MeasureError
from lib.measure import churn, drive, exchange, schedule, workload
from lib.measure.clientplan import BURST, CLOSED, Plan, Request

PROMPT = 16  # tokens of the question: few, so that what a switch costs is not lost beside reading it
TOKENS = 12  # of an answer: enough to tell nine apart, few enough that batching seldom turns one
QUESTIONS = 3  # at most, until all answers differ: two short answers may be equal by chance
AGAIN = 1  # requests for an adapter right after its first
ROUNDS = 1  # times that all adapters are asked one after the other
TURNED = 0.5  # of the answers at once, at most, may be nobody's: beyond it, whose they are is proven of too few
ABSENT = "adapter-99"
SAID = 300  # characters kept of what an engine says to what it refuses

Answer = dict[str, Any]  # a row of the record: status, text_hash, sent_ns, event_ns


def check(
    study: Study, server: Server, tokenizer: Tokenizer, run: int, folder: Path, names: Sequence[str]
) -> dict[str, Any]:
    """Load, prove and time the adapters of a server.

    Parameters
    ----------
    folder : for the client's journal while it runs.
    names : adapters that the launch serves.

    Returns
    -------
    rank; load_s: seconds to load each, None where the engine loads them with the model; first_s and again_s: TTFT of
    the first request for each and of those right after; switch_s: TTFT of requests for another adapter than the one
    before; base_s: TTFT of the model itself; answers: hash of what each answers alone, the model's own under "";
    mixed: requests asked at once, `equal` to the answer alone, `other` than anyone's; turned: whom those of `other`
    were asked of; instead: adapters that then answered for the model itself; refused: what was offered, whether it
    was taken, what was said; churn: what `churn.take` saw, of the first start alone.

    Raises
    ------
    MeasureError : an adapter that was not loaded, or that did not answer as itself.
    """
    seed = schedule.seed_for(study.seed, "adapters", 0, run, "text")
    questions = workload.prompts(
        tokenizer, [(PROMPT, TOKENS)] * QUESTIONS, seed, role="probe",
        added_tokens=server.added_tokens, context_tokens=study.model.context,
    )  # fmt: skip

    def put(question: workload.Prompt, adapters: Sequence[str | None], at_once: int = 1) -> list[Answer]:
        requests = []
        for place, adapter in enumerate(adapters):
            path, body = server.body(question.text, TOKENS, *([adapter] if adapter else []))
            requests.append(Request(f"probe-{place}", path, json.dumps(body).encode(), planned_output_tokens=TOKENS))
        return _answers(server, tuple(requests), folder / "adapters.journal", at_once, study)

    limit = study.statistics.request_timeout_seconds
    loaded = _load(server, names)
    base = put(questions[0], [None] * (1 + AGAIN))
    alone = put(questions[0], [name for name in names for _ in range(1 + AGAIN)])
    question = questions[0]
    ask = partial(put, question)
    known = _known(server, base[:1] + alone[:: 1 + AGAIN], names)
    for other in questions[1:]:
        if len(set(known.values())) < len(known):
            question, ask = other, partial(put, other)
            known = _known(server, ask([None, *names]), names)
    _all_differ(server, known, names)
    turns = list(names) * ROUNDS
    cycled = ask(turns)
    together = [None, *names]
    mixed = ask(together, len(together))
    _none_strange(server, _prove(server, turns, cycled, known)[0])
    strange, instead = _prove(server, together, mixed, known)
    _few_strange(server, strange, len(together))
    firsts = alone[:: 1 + AGAIN]
    return {
        "rank": inside.rank(str(server.launch.settings["adapters"])),
        "load_s": loaded,
        "base_s": [_ttft_s(one) for one in base[1:]],
        "first_s": [_ttft_s(one) for one in firsts],
        "again_s": [_ttft_s(one) for place, one in enumerate(alone) if place % (1 + AGAIN)],
        "switch_s": [_ttft_s(one) for one in cycled] if len(names) > 1 else [],
        "answers": {name or "": text for name, text in known.items()},
        "mixed": {"requests": len(mixed), "equal": len(mixed) - len(strange + instead), "other": len(strange)},
        "turned": strange,
        "instead": instead,
        "refused": _refusals(server, ask, known) if run == 0 else [],
        "churn": churn.take(server, question.text, TOKENS, known, folder, limit) if run == 0 else None,
    }


def note(meta: dict[str, Any], found: dict[str, Any]) -> None:
    """Add what one start of the server showed to the record's `lora`: switch_s, one list per run, and all of it."""
    lora = meta.setdefault("lora", {"switch_s": [], "runs": []})
    lora["switch_s"].append(found["switch_s"])
    lora["runs"].append(found)


def _load(server: Server, names: Sequence[str]) -> list[float] | None:
    if not server.engine.loads_adapters:
        return None
    seconds = []
    for name in names:
        began = time.monotonic()
        taken, said = server.engine.offer(server, name, inside.folder(server.launch, name))
        seconds.append(time.monotonic() - began)
        if not taken:
            raise MeasureError(
                f"{server.model} did not take {name}: {said}. Its adapters must fit its model and its max_lora_rank; "
                f"remove artifacts/{server.launch.settings['adapters']} to have them made again."
            )
    return seconds


def _answers(server: Server, requests: tuple[Request, ...], journal: Path, at_once: int, study: Study) -> list[Answer]:
    """Send requests in order, so many at once, with the load client; rows in the same order."""
    limit = study.statistics.request_timeout_seconds
    plan = Plan(
        **drive.where(server), requests=requests, journal=str(journal), load=CLOSED, concurrency=at_once, ramp=BURST,
        drain_s=limit * len(requests), timeout_s=limit,
    )  # fmt: skip
    try:
        drive.client([plan], server)
        found = exchange.read(plan)[0]
        return [exchange.exchange_row(one, one.answer(server.wire)) for one in found]
    finally:
        drive.remove(journal)


def _known(server: Server, answers: list[Answer], names: Sequence[str]) -> dict[str | None, str]:
    """Hash of the model's own answer, the first, under None, and of each adapter's, which follow."""
    known: dict[str | None, str] = {}
    for name, one in zip([None, *names], answers, strict=True):
        if one["status"] != "complete":
            raise MeasureError(
                f"{server.model}: a request for {name or 'the model itself'} ended as {one['status']} "
                f"({one['cause']}). Look at the server's log."
            )
        known[name] = one["text_hash"]
    return known


def _all_differ(server: Server, known: dict[str | None, str], names: Sequence[str]) -> None:
    """Refuse an adapter whose answer is the model's own, and two that answer alike."""
    counts = Counter(known.values())
    ignored = [name for name in names if known[name] == known[None]]
    if ignored:
        raise MeasureError(
            f"{server.model} answers for {', '.join(ignored)} exactly as for the model itself: it ignores the adapter, "
            "or the adapter changes nothing. Nothing was measured with it. See how this engine's requests name an "
            "adapter, and that its launch serves them."
        )
    twins = [str(name) for name in names if counts[known[name]] > 1]
    if twins:
        raise MeasureError(
            f"{server.model} gives one answer for {', '.join(twins)}: either it mixes adapters up, or these are too "
            "weak to tell apart. Nothing was measured with them."
        )


def _prove(
    server: Server, asked: Sequence[str | None], answers: Sequence[Answer], known: dict[str | None, str]
) -> tuple[list[str], list[str]]:
    """Name whose answers are nobody's ("" for the model's own), and the adapters that answered for the model itself.

    No level asks the model and its adapters together, so the latter spoils no number; an adapter's answer that is
    another's would, and is refused.
    """
    owner = {text: name for name, text in known.items()}
    strange: list[str] = []
    instead: list[str] = []
    for name, one in zip(asked, answers, strict=True):
        found = one["text_hash"]
        if one["status"] != "complete":
            raise MeasureError(
                f"{server.model}: one of {len(asked)} requests for adapters in turn or at once, for {name or 'none'}, "
                f"ended as {one['status']} ({one['cause']}). Look at the server's log."
            )
        if found not in owner:
            strange.append(name or "")
        elif owner[found] != name and name:
            raise MeasureError(
                f"{server.model} was asked for {name} and answered as {owner[found] or 'the model itself'} does alone: "
                "it mixes adapters up. Nothing was measured with them."
            )
        elif owner[found] != name:
            instead.append(str(owner[found]))
    return strange, instead


def _none_strange(server: Server, strange: Sequence[str]) -> None:
    """Refuse an answer in turn that nobody gives alone: asked one at a time, no batch can have turned it."""
    if strange:
        raise MeasureError(
            f"{server.model} was asked for {', '.join(dict.fromkeys(strange))} in turn with the others, and answered "
            "as nobody does alone: a switch leaves something of another adapter behind, or its answers do not repeat. "
            "Nothing was measured with them."
        )


def _few_strange(server: Server, strange: Sequence[str], asked: int) -> None:
    """Refuse answers at once of which too many are nobody's."""
    if len(strange) > TURNED * asked:
        whose = ", ".join(name or "the model itself" for name in strange)
        raise MeasureError(
            f"{server.model} answered {len(strange)} of {asked} requests at once as nobody does alone (for {whose}): "
            "more than batching turns, so nothing proves which adapter answered. Nothing was measured with them."
        )


def _refusals(server: Server, ask: Any, known: dict[str | None, str]) -> list[dict[str, Any]]:
    """Offer what must be refused."""
    (one,) = ask([ABSENT])
    taken, said = _answered(one, known)
    found = [{"what": "a request for an adapter that there is not", "taken": taken, "said": said}]
    for name, what in (
        (inside.OVER_LIMIT, "an adapter of rank 128"),
        (inside.OTHER_BASE, "an adapter for another base model"),
    ):
        try:
            taken, said = server.engine.offer(server, name, inside.folder(server.launch, name))
        except OSError as error:
            taken, said = False, f"no answer ({error})"
        if taken and server.engine.loads_adapters:
            said += f"; asked for, it {_answered(ask([name])[0], known)[1]}"
        found.append({"what": what, "taken": taken, "said": said.replace(f"{paths.ROOT}/", "")[:SAID]})
    server.check_alive()
    return found


def _answered(one: Answer, known: dict[str | None, str]) -> tuple[bool, str]:
    """Whether a request for what should not be there was answered, and how."""
    if one["status"] != "complete":
        return False, f"{one['status']}: {one['cause']}"
    return True, "answered as the model itself" if one["text_hash"] == known[None] else "answered as nobody else does"


def _ttft_s(one: Answer) -> float:
    return float(one["event_ns"][0] - one["sent_ns"]) / 1e9
