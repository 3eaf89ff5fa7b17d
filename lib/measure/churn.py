"""An adapter that is swapped while others are served: its loading, its first answer, and what the others feel of it.

A few clients ask one adapter all the time; every `EVERY_S` seconds another is taken out of the engine, loaded again
and asked. Both are plans of the load client with one start, so all stamps are of its clock. Kept are stamps, nothing
derived. Missing with its reason: an engine that has no request for it. Refused: another adapter's answer
from one just loaded, and one that does not come back, for the levels after this ask it. Kept as findings: loads that
the engine refuses meanwhile, and answers that fail.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from lib.engines import inside
from lib.engines.base import Server
from lib.errors import MeasureError, NoValue
from lib.measure import drive, exchange
from lib.measure.clientplan import CLOSED, OPEN, Plan, Request

NEIGHBOURS = 3  # clients that ask all the time
ANSWER = 12  # tokens of what they are answered
AT_MOST = 400  # requests of theirs: more than an engine answers in that time
BEGINS_S, EVERY_S = 0.8, 2.0  # when the first swap is due, and each after it
LASTS_S = BEGINS_S + EVERY_S * inside.SWAPS + 0.2

Said = dict[str, Any]


def take(
    server: Server, question: str, tokens: int, known: Mapping[str | None, str], folder: Path, limit_s: float
) -> Said:
    """Swap adapters under load, `inside.SWAPS` times.

    Parameters
    ----------
    question, tokens : what each adapter was asked alone, and how many tokens it gave.
    known : hash of what each then answered, the model's own under None.
    folder : for the clients' journals while they run.
    limit_s : of one request.

    Returns
    -------
    reason : why there is nothing; None otherwise. resident: the adapter that the neighbours ask. swaps: per swap its
    adapter, `unload` and `load` (sent_ns, end_ns, http_status, cause) and `first`, its first answer (sent_ns,
    event_ns, status, cause; equal: whether it is to the letter what the adapter answers alone). neighbours: each
    request's sent_ns, event_ns and status, which is `unfinished` where the end of all cut it.

    Raises
    ------
    MeasureError : an adapter that answers as another, or that does not come back.
    """
    resident, *others = [name for name in known if name]
    swapped = [others[place % len(others)] for place in range(inside.SWAPS)]
    try:
        requests = [_swap(server, place, name, question, tokens) for place, name in enumerate(swapped)]
    except NoValue as why:
        return {"reason": str(why)}
    path, body = server.body(question, ANSWER, resident)
    asked = Request("neighbour", path, json.dumps(body).encode(), planned_output_tokens=ANSWER)
    journal = folder / "churn.journal"
    common = drive.where(server) | {"timeout_s": limit_s}
    plans = [
        Plan(
            **common, requests=tuple(one for swap in requests for one in swap), journal=f"{journal}.0", load=OPEN,
            connections=2, drain_s=LASTS_S + limit_s,
        ),
        Plan(
            **common, requests=tuple(replace(asked, id=f"neighbour-{place}") for place in range(AT_MOST)),
            journal=f"{journal}.1", load=CLOSED, concurrency=NEIGHBOURS, ramp_s=0.3, issue_s=LASTS_S, drain_s=0.0,
        ),
    ]  # fmt: skip
    try:
        drive.client(plans, server)
        coming, staying = ([_seen(one, server) for one in exchange.read(plan)[0]] for plan in plans)
    finally:
        drive.remove(journal)
    each = len(requests[0])
    by_place = {one["index"]: one for one in coming}
    swaps = [
        _told(server, name, [by_place.get(each * place + part, {}) for part in range(each)], known)
        for place, name in enumerate(swapped)
    ]
    _all_back(server, swaps)
    return {
        "reason": None,
        "resident": resident,
        "swaps": swaps,
        "neighbours": [
            {key: one[key] for key in ("sent_ns", "event_ns", "status")} for one in staying if one["sent_ns"]
        ],
    }


def _swap(server: Server, place: int, name: str, question: str, tokens: int) -> list[Request]:
    """Take out, load again, ask: each when the one before it has ended well."""
    (out, which), (back, where) = server.engine.reloads(server, name, inside.folder(server.launch, name))
    path, body = server.body(question, tokens, name)
    ids = [f"{stage}-{place}" for stage in ("unload", "load", "first")]
    due = BEGINS_S + EVERY_S * place
    return [
        Request(ids[0], out, json.dumps(which).encode(), due_s=due, planned_output_tokens=1),
        Request(ids[1], back, json.dumps(where).encode(), after=ids[0], planned_output_tokens=1),
        Request(ids[2], path, json.dumps(body).encode(), after=ids[1], planned_output_tokens=tokens),
    ]


def _seen(one: exchange.Exchange, server: Server) -> Said:
    return exchange.exchange_row(one, one.answer(server.wire))


def _told(server: Server, name: str, stages: list[Said], known: Mapping[str | None, str]) -> Said:
    """Say what became of one swap; stages that were never sent have no times."""
    kept = ("sent_ns", "end_ns", "http_status", "cause")
    unload, load = ({key: one.get(key) for key in kept} for one in stages[:2])
    first: Said = {key: stages[2].get(key) for key in ("sent_ns", "status", "cause")}
    first["event_ns"] = stages[2].get("event_ns") or []
    first["equal"] = None
    if first["status"] == "complete":
        found = stages[2]["text_hash"]
        owner = next((other or "the model itself" for other, text in known.items() if text == found), None)
        if owner not in (None, name):
            raise MeasureError(
                f"{server.model} loaded {name} while others were served and answered for it as {owner} does alone: it "
                "mixes adapters up. Nothing was measured with them."
            )
        first["equal"] = owner == name
    return {"adapter": name, "unload": unload, "load": load, "first": first}


def _all_back(server: Server, swaps: list[Said]) -> None:
    """Load what was taken out and not loaded again."""
    for one in swaps:
        if one["unload"]["http_status"] == 200 and one["load"]["http_status"] != 200:
            name = one["adapter"]
            taken, said = server.engine.offer(server, name, inside.folder(server.launch, name))
            if not taken:
                raise MeasureError(
                    f"{server.model} took {name} out while others were served and does not load it again ({said}), so "
                    "no level can ask for it. Look at the server's log."
                )
