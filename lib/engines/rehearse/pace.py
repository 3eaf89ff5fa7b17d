"""How fast a stand-in is: data/predictions.csv, read as the time of one step by batch and by new prompt tokens.

Decoding takes the predicted time per output token at that many in flight (workload `headline`); prompts take the
predicted first-token time of one request alone, by their length. Their sum errs where both meet, which is good enough:
nothing rehearsed says anything about an engine; so a layout that nothing was predicted for keeps the pace of TP8.
Refused: a contender for which there is no prediction.
"""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lib import paths
from lib.errors import ConfigError

PRECISIONS = {"fp16": "bf16", "bf16": "bf16", "fp8": "fp8", "int4": "int4-transferred", "awq": "int4-transferred"}
FAMILIES = {"vllm": "vllm", "tensorrt": "tensorrt_llm", "trtllm": "tensorrt_llm"}


@dataclass(frozen=True)
class Pace:
    """Seconds of a step. `batches`, `decode` (n,): decoding alone; `tokens`, `prefill` (m,): prompts alone."""

    batches: tuple[float, ...]
    decode: tuple[float, ...]
    tokens: tuple[float, ...]
    prefill: tuple[float, ...]
    kv_tokens: int

    def step_s(self, new_tokens: int, decoding: int) -> float:
        """Seconds of a step with `new_tokens` of prompts and `decoding` sequences."""
        decode = _at(decoding, self.batches, self.decode)
        if not new_tokens:
            return decode
        return _at(new_tokens, self.tokens, self.prefill) + max(0.0, decode - self.decode[0])


def _at(x: float, axis: tuple[float, ...], values: tuple[float, ...]) -> float:
    """Linear interpolation, extended by the last slope."""
    if x <= axis[-1] or len(axis) < 2:
        return float(np.interp(x, axis, values))
    return values[-1] + (values[-1] - values[-2]) / (axis[-1] - axis[-2]) * (x - axis[-1])


def contender(engine: str, precision: str) -> str:
    """Name of a launch's contender among the predictions: vllm-fp8.

    Raises
    ------
    ConfigError : nothing was predicted for such a launch.
    """
    family = next((name for start, name in FAMILIES.items() if engine.startswith(start)), None)
    kind = PRECISIONS.get(precision.lower().partition("-")[0])
    if family is None or kind is None:
        raise ConfigError(
            f"There is no prediction whose pace a stand-in for {engine} at {precision} could keep. Predicted are "
            f"engines {', '.join(sorted(set(FAMILIES.values())))} at {', '.join(PRECISIONS)}."
        )
    return f"{family}-{kind}"


def read(config: str, layout: str = "TP8", folder: Path = paths.DATA) -> Pace:
    """Read the pace of a contender under a layout (TP8, TP4x2, TP2x4): of the whole node, all replicas as one.

    Raises
    ------
    ConfigError : no such prediction.
    """
    with (folder / "predictions.csv").open(newline="") as file:
        of = [row for row in csv.DictReader(file) if row["config"] == config]
    rows = [row for row in of if row["layout"] == layout] or [row for row in of if row["layout"] == "TP8"]
    rows = [row for row in rows if row["policy"] == "chunked" and row["tpot_mean_s"] and row["ttft_p50_s"]]
    decode = {float(r["concurrency"]): float(r["tpot_mean_s"]) for r in rows if r["workload"] == "headline"}
    prefill = {int(r["isl"]): float(r["ttft_p50_s"]) for r in rows if r["concurrency"] == "1" and "session" not in
               r["workload"]}  # fmt: skip
    if not decode or not prefill:
        raise ConfigError(f"data/predictions.csv has no pace of {config} as {layout}; `make predict` makes it anew.")
    batches, tokens = tuple(sorted(decode)), tuple(sorted(prefill))
    capacity = json.loads((folder / "step_times.meta.json").read_text())["kv_capacity_tokens"]
    kv_tokens = int(capacity.get(f"{config}-{layout.partition('x')[0].lower()}", 1_000_000))
    return Pace(batches, tuple(decode[b] for b in batches), (1.0, *tokens),
                (decode[batches[0]], *(prefill[t] for t in tokens)), kv_tokens)  # fmt: skip
