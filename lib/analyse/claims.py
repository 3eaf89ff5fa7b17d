"""Judge every claim of the article and lay the ledger out as a table.

Rule: no verdict is written in any file; all are computed here from data/claims.yaml and the numbers at hand, so a new
record changes them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from lib.analyse.cases import Case
from lib.analyse.evidence import KINDS, Verdict, World
from lib.analyse.rules import RULES


def judge(claims: Mapping[str, Any], world: World) -> list[Verdict]:
    """One verdict per claim of data/claims.yaml, in its order."""
    rows = {row["id"]: row for row in claims["rows"]}
    verdicts = []
    for claim in claims["claims"]:
        verdict, reason, evidence = RULES[claim["rule"]](Case(claim, rows, claims["sla"], claims["thresholds"], world))
        verdicts.append(Verdict(claim["id"], claim["text"], verdict, reason, tuple(evidence)))
    return verdicts


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
