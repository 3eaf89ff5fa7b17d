"""Hold a shard record (kernels of one rank, one GPU) against the predictions for the very GPU it ran on.

Per operator and per step; the all-reduce and the output head stay predicted, since one GPU cannot time the first and
the probe leaves out the second. A record of a GPU without predictions is refused, with the GPUs that have some.

Rule: measured and predicted values stand in columns of their own; torch's kernels are no engine's, so a ratio is a
check, not a correction.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lib.errors import RecordError
from lib.paths import DATA

LAYERS = 80
CALLS = {"norm": 2}  # calls of an operator in a layer, where not one
PREDICTED_ONLY = ("all-reduce", "head")
POINT = ["precision", "phase", "batch", "context"]
CONFIGS = {"bf16": "vllm-bf16", "fp8": "vllm-fp8", "int4": "vllm-int4-transferred"}


def operator_times(path: Path = DATA / "operator_times.csv") -> pd.DataFrame:
    """Predicted ms of each operator over all layers, by GPU, contender and point."""
    return pd.read_csv(path)


def gpu_of(device: str, known: list[str]) -> str:
    """Entry of data/hardware.yaml for a device name as the driver gives it; RecordError if there are no
    predictions for it.
    """
    for gpu in known:
        if gpu.split("-")[0].lower() in device.lower():
            return gpu
    raise RecordError(
        f"the shard record is of '{device}', for which there are no operator times; there are some "
        f"for {', '.join(known)}."
    )


def by_operator(record: Mapping[str, Any], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row per point and operator: measured_ms and predicted_ms of a whole step, their ratio, and the reason of
    a gap.
    """
    gpu = gpu_of(record["gpu"], sorted(predicted["gpu"].unique()))
    here = predicted[predicted["gpu"] == gpu]
    use = here[here["config"].isin(CONFIGS.values())].copy()
    use["precision"] = use["config"].map({config: precision for precision, config in CONFIGS.items()})
    measured = pd.DataFrame(list(record["rows"]))
    measured["measured_ms"] = measured["us"] * LAYERS * measured["operator"].map(CALLS).fillna(1) / 1e3
    keys = [*POINT, "operator"]
    both = (
        use[[*keys, "ms", "kernels"]]
        .rename(columns={"ms": "predicted_ms"})
        .merge(measured[[*keys, "kernel", "measured_ms", "reason"]], on=keys, how="outer")
    )
    both["ratio"] = both["measured_ms"] / both["predicted_ms"]
    return both.assign(gpu=gpu)


def by_step(operators: pd.DataFrame) -> pd.DataFrame:
    """One row per point: a step with the probe's kernels plus predicted all-reduce and head, beside the predicted
    step (ms).

    A point with an operator that could not be timed has no measured step.
    """
    rows = []
    for point, part in operators.groupby(POINT):
        probed = part[~part["operator"].isin(PREDICTED_ONLY)]
        kept = part[part["operator"].isin(PREDICTED_ONLY)]["predicted_ms"].sum()
        total = probed["measured_ms"].sum(skipna=False) + kept
        predicted = part["predicted_ms"].sum(skipna=False)
        rows.append(
            dict(zip(POINT, point, strict=True))
            | {"measured_ms": total, "predicted_ms": predicted, "ratio": total / predicted}
        )
    return pd.DataFrame(rows)
