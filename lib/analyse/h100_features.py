"""What records of the article's node show of the engines themselves: signs of what their documentation says, the time
an adapter switch takes, and the time from stored weights to a server that answers.

Read from the facts of launches (facts["launches"]), which hold these parts of a record:

    levels[...]["decoding"]   requests between first and last token, mean over the steady window (token stamps)
    levels[...]["joined"]     share of requests that begin their answer in the middle of another's (token stamps)
    kv_cache                  the record's `kv_cache` {"tokens": capacity of the KV cache as the engine reports it,
                              "context": most tokens of one sequence}, or None
    proof                     rows of what was proven at the start: what, found, ok
    switch                    TTFT of requests for another adapter, from the record's `lora` {"switch_s": [[s, ...]]}
    artifact.build, ready     seconds to make what is served, and from the server's start to its first answer

Rule: a sign is seen, not seen, or not looked for (None); a rehearsal shows nothing. Refuses nothing: what no record
holds is absent.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Launch = Mapping[str, Any]
Limits = Mapping[str, float]


def of_launches(
    launches: Iterable[Launch], claims: Mapping[str, Any], kinds: Mapping[str, Sequence[str]]
) -> dict[str, dict[str, Any]]:
    """Return "documented", "lora" and "start" of `World.measured`, each only where a record has something to say.

    Parameters
    ----------
    launches : launches on the article's own node, their facts.
    claims : `published.claims()`.
    kinds : precision of the article's rows -> formats that it may be served in.
    """
    given = [one for one in launches if one["ready"]["mark"] == "measured"]
    documented = {c["id"]: found for c in claims["claims"] if (found := _signs(given, c, claims["thresholds"]))}
    found = {"documented": documented, "lora": _switches(given), "start": _starts(given, kinds)}
    return {name: part for name, part in found.items() if part}


def _signs(launches: Iterable[Launch], claim: Mapping[str, Any], limits: Limits) -> dict[str, Any] | None:
    """Return each sign of a claim with whether any launch of its engine shows it; None if none was looked for."""
    engine = [one for one in launches if one["engine"] == claim.get("engine")]
    rows: list[dict[str, Any]] = []
    used: list[Launch] = []
    for sign in claim.get("signs", ()):
        of = [one for one in engine if sign.get("precision", one["precision"]) == one["precision"]]
        looked = [(one, seen) for one in of if (seen := LOOK[sign["sign"]](one, sign, limits)) is not None]
        telling = [one for one, seen in looked if seen] or [one for one, _ in looked]
        source = "; ".join(one["source"] for one in telling)
        seen = any(seen for _, seen in looked) if looked else None
        rows.append({"what": sign["what"], "seen": seen, "source": source})
        used += telling
    return {"signs": rows} | _from(used) if used else None


def _pages(launch: Launch, _: Mapping[str, Any], limits: Limits) -> bool | None:
    """Whether more sequences decoded at once than whole contexts fit into the KV cache; None where no load asked for
    more than that, or the scheduler had no slots for more.
    """
    cache = launch.get("kv_cache")
    if not cache:
        return None
    whole = cache["tokens"] / cache["context"]
    tried = [
        level["decoding"]["value"]
        for level in _closed(launch)
        if whole < min(level["load"]["value"], limits["scheduler_slots"]) and level["decoding"]["value"] is not None
    ]
    return max(tried) > whole if tried else None


def _joins(launch: Launch, _: Mapping[str, Any], limits: Limits) -> bool | None:
    """Whether at any level with two answers at once and more requests begin in the middle of others' answers; none
    does where a batch is filled first and answered as a whole.
    """
    shares = [
        level["joined"]["value"]
        for level in launch["levels"].values()
        if (level["decoding"]["value"] or 0) >= 2 and level["joined"]["value"] is not None
    ]
    return max(shares) >= limits["joined"] if shares else None


def _proof(launch: Launch, sign: Mapping[str, Any], _: Limits) -> bool | None:
    """Whether what was found at the start for a property holds the word that the sign asks for."""
    found = [row["found"] for row in launch["proof"] if row["what"] == sign["row"]]
    return any(str(sign["says"]).lower() in str(value).lower() for value in found) if found else None


LOOK: dict[str, Callable[[Launch, Mapping[str, Any], Limits], bool | None]] = {
    "pages": _pages,
    "joins": _joins,
    "proof": _proof,
}


def _closed(launch: Launch) -> list[Mapping[str, Any]]:
    return [level for level in launch["levels"].values() if level["kind"] == "closed"]


def _switches(launches: Iterable[Launch]) -> dict[str, Any]:
    """By engine the shortest adapter switch of its launches (a number in ms), with sources and versions."""
    best: dict[str, Launch] = {}
    for one in launches:
        value, known = one["switch"]["value"], best.get(one["engine"])
        if value is not None and (known is None or value < known["switch"]["value"]):
            best[one["engine"]] = one
    return {engine: one["switch"] for engine, one in best.items()} | _from(best.values()) if best else {}


def _starts(launches: Iterable[Launch], kinds: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """By precision and engine the fewest seconds from stored weights to an answer, with sources and versions."""
    bits = {name: kind for kind, names in kinds.items() for name in names}
    seconds: dict[str, dict[str, float]] = {}
    used = []
    for one in launches:
        build, ready, kind = one["artifact"]["build"]["value"], one["ready"]["value"], bits.get(one["precision"])
        if build is None or ready is None or kind is None:
            continue
        of = seconds.setdefault(kind, {})
        of[one["engine"]] = min(build + ready, of.get(one["engine"], float("inf")))
        used.append(one)
    return {"seconds": seconds} | _from(used) if seconds else {}


def _from(launches: Iterable[Launch]) -> dict[str, Any]:
    used = list(launches)
    return {
        "sources": sorted({one["source"] for one in used}),
        "engines": sorted({(o["engine"], str(o["versions"]["engine"])) for o in used if o["versions"].get("engine")}),
    }
