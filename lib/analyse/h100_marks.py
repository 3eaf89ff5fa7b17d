"""How the H100 facts write a number down: value, unit, mark and source under keys that a template can walk.

Rule: a computed number takes the weakest mark of its inputs; a limit of the SLA as stated weakens nothing. Refuses
nothing: a value that does not exist is None with its reason.
"""

import re
from typing import Any

import numpy as np

PREDICTED = "data/predictions.csv"
NONE_KEEPS = "no system keeps the SLA there"
PHYSICS = "lib/analyse/physics.py over data/hardware.yaml"


def key(text: str) -> str:
    """Return a word that a template can use as an attribute: `vllm-fp16` -> `vllm_fp16`."""
    return re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_")


def fact(value: Any, unit: str, mark: str, source: str, reason: str = "") -> dict[str, Any]:
    """One marked number; a missing or infinite one becomes None with its reason."""
    if isinstance(value, (int, float, np.number)) and not np.isfinite(value):
        value = None
    plain = value.item() if isinstance(value, np.generic) else value
    out = {"value": plain, "unit": unit, "mark": mark, "source": source}
    return out if plain is not None else {**out, "reason": reason or "no value exists"}
