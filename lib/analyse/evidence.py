"""The words of the audit: verdicts, kinds of evidence, and the world of numbers that the rules may read.

Rule: plain frozen data. No verdict is made here and no number is computed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

VERDICTS = (
    "reproduced",
    "contradicted",
    "consistent",
    "implausible",
    "depends on unstated settings",
    "not testable here",
)
REPRODUCED, CONTRADICTED, CONSISTENT, IMPLAUSIBLE, DEPENDS, UNTESTABLE = VERDICTS
KINDS = ("measured", "predicted", "published", "bound", "assumed")


@dataclass(frozen=True)
class Evidence:
    """One piece of evidence: its kind, which side it is on, what it says, and where it is from."""

    kind: str
    side: str  # for | against
    says: str
    source: str
    value: float | None = None
    unit: str = ""


@dataclass(frozen=True)
class Verdict:
    """A claim, its verdict with the reason in one sentence, and the evidence."""

    claim: str
    text: str
    verdict: str
    reason: str
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class World:
    """All numbers the rules may read, gathered by lib/analyse/world.py.

    readings: one dict per row of the article's table and reading: row, workload, reading, ttft_p95_ms, tpot_p95_ms,
        output_tok_s, capacity
    bounds: one dict per row and workload: row, workload, ttft_ms, output_tok_s, sessions
    ratios: published ratios: effect ("precision" or "engine"), precision, value, source
    engine_effects: predicted throughput ratios of the engines, by the precision that both have (as rows name it)
    measured: by row id: ttft_p95_ms, tpot_p95_ms, output_tok_s, capacity (each also as _low and _high if known), load,
        versions; of the engines (each with "engines" [(engine, version)], from h100_records and h100_features):
        "engine_effect" {precision: {low, high}}, "contrasts" {rows}, "lora" {engine: number in ms}, "start"
        {"seconds": {precision: {engine: s}}}, "documented" {claim id: {"signs": [{what, seen, source}]}}
    """

    readings: Sequence[Mapping[str, Any]] = ()
    bounds: Sequence[Mapping[str, Any]] = ()
    ratios: Sequence[Mapping[str, Any]] = ()
    engine_effects: Mapping[str, Sequence[float]] = field(default_factory=dict)
    measured: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    predicted_by: str = "data/predictions.csv"
