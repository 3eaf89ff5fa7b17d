"""Judge every claim of the article and lay the ledger out as a table.

Rule: no verdict is written in any file; all are computed here from data/claims.yaml and the numbers at hand, so a new
record changes them. A record of another engine version than the article's decides nothing alone: it is evidence.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from lib.analyse.cases import Case, Finding
from lib.analyse.evidence import DEPENDS, KINDS, UNTESTABLE, Verdict, World
from lib.analyse.rules import RULES

# What is measured of engines rather than of rows -> the rule that reads it.
READ_BY = {"engine_effect": "engine_choice", "documented": "documented", "lora": "lora", "start": "time_to_serve"}


def judge(claims: Mapping[str, Any], world: World) -> list[Verdict]:
    """One verdict per claim of data/claims.yaml, in its order."""
    rows = {row["id"]: row for row in claims["rows"]}
    verdicts = []
    for claim in claims["claims"]:
        case = Case(claim, rows, claims["sla"], claims["thresholds"], world)
        verdict, reason, evidence = _judged(case, claims["article"]["engines"])
        verdicts.append(Verdict(claim["id"], claim["text"], verdict, reason, tuple(evidence)))
    return verdicts


def _judged(case: Case, engines: Mapping[str, Any]) -> Finding:
    """Judge by the claim's rule; where records of other engine versions take part, by all else, with them beside it."""
    rule = RULES[case.claim["rule"]]
    found = rule(case)
    kept: dict[str, Mapping[str, Any]] = {}
    others: set[tuple[str, str]] = set()
    for name, measured in case.world.measured.items():
        other = {(e, v) for e, v in _versions(case, name, measured) if not _same(v, engines[e])}
        others |= other
        if not other:
            kept[name] = measured
    if not others:
        return found
    without = rule(replace(case, world=replace(case.world, measured=kept)))
    if without == found:
        return found
    verdict, reason, evidence = without
    named = " and ".join(f"{e} {v} instead of {engines[e]}" for e, v in sorted(others))
    reason = f"{reason} Records of this study were taken with {named} and do not decide alone; they say: {found[1]}"
    pieces = [piece for piece in found[2] if piece.kind == "measured"]
    return (DEPENDS if verdict == UNTESTABLE else verdict), reason, [*evidence, *pieces]


def _versions(case: Case, name: str, measured: Mapping[str, Any]) -> set[tuple[str, str]]:
    """Engines and versions that a measurement was taken with, as far as it says and the claim asks for it."""
    if READ_BY.get(name) == case.claim["rule"]:
        return set((measured.get(case.claim["id"], {}) if name == "documented" else measured).get("engines", ()))
    if name not in ([case.claim[key] for key in ("row", "other") if key in case.claim] or case.rows):
        return set()
    version = measured.get("versions", {}).get("engine")
    return {(case.rows[name]["engine"], str(version))} if version else set()


def _same(version: str, stated: Any) -> bool:
    """Whether a version, with or without its engine's name before it, is the stated one, whatever it was built for."""
    number = re.search(r"\d+(\.\w+)+", version)
    return number is not None and number[0] == str(stated)


def ledger(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """One dict per claim: claim, text, verdict, reason, evidence for and against by kind, counts first."""

    def told(verdict: Verdict, side: str) -> str:
        return "; ".join(
            f"{e.kind}: {e.says}" + (f" ({e.value:.3g} {e.unit})" if e.value is not None and e.unit == "ratio" else "")
            for e in verdict.evidence
            if e.side == side
        )

    return [
        {
            "claim": v.claim,
            "text": v.text,
            "verdict": v.verdict,
            "reason": v.reason,
            "for": told(v, "for"),
            "against": told(v, "against"),
            "kinds": ", ".join(k for k in KINDS if any(e.kind == k for e in v.evidence)),
        }
        for v in verdicts
    ]
