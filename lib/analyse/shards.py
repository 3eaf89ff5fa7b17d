"""Hold a shard record (kernels of one rank, one GPU) against the predictions for the very GPU it ran on.

Per operator and per step. One GPU cannot time the all-reduce and the probe leaves out the output head: they are
predicted, and stand only in a sum that is called predicted. A record of a GPU without predictions is refused, with
the GPUs that have some; among several it leaves the others as they are.

Rule: measured and predicted values stand in columns of their own; torch's kernels are no engine's, so a ratio is a
check, not a correction.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lib.errors import RecordError, tell
from lib.paths import DATA, RECORDS

LAYERS = 80
OTHER_FORM = re.compile(r"PCIe|NVL|GH200", re.IGNORECASE)
CALLS = {"norm": 2}  # calls of an operator in a layer, where not one
PREDICTED_ONLY = ("all-reduce", "head")
POINT = ["precision", "phase", "batch", "context"]
CONFIGS = {"bf16": "vllm-bf16", "fp8": "vllm-fp8", "int4": "vllm-int4-transferred"}


def operator_times(path: Path = DATA / "operator_times.csv") -> pd.DataFrame:
    """Predicted ms of each operator over all layers, by GPU, contender and point."""
    return pd.read_csv(path)


def is_gpu(device: str, gpu: str) -> bool:
    """Whether a device name as the driver gives it is a GPU of data/hardware.yaml, all of which are SXM modules.

    The chip's name must stand alone (a GH200 is no H200), and PCIe and NVL cards, which are slower, are none.
    """
    chip = gpu.split("-")[0]
    return bool(re.search(rf"\b{chip}\b", device, re.IGNORECASE)) and not OTHER_FORM.search(device)


def gpu_of(device: str, known: list[str]) -> str:
    """Entry of data/hardware.yaml for a device name as the driver gives it; RecordError if there are no
    predictions for it.
    """
    for gpu in known:
        if is_gpu(device, gpu):
            return gpu
    raise RecordError(
        f"the shard record is of '{device}', for which there are no operator times; there are some "
        f"for {', '.join(known)}. PCIe and NVL cards and GH200 have other clocks and memory and are none of these."
    )


def by_operator(record: Mapping[str, Any], predicted: pd.DataFrame) -> pd.DataFrame:
    """One row per point and operator: measured_ms and predicted_ms of a whole step, their ratio, the reason of a gap,
    and the record's own mark.
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
    return both.assign(gpu=gpu, mark=record["mark"])


def by_step(operators: pd.DataFrame) -> pd.DataFrame:
    """One row per point, in ms: the probe's kernels of a step, measured and predicted, their ratio, and together_ms,
    a prediction: the measured kernels plus all-reduce and head as predicted.

    A point with an operator that could not be timed has no measured step.
    """
    rows = []
    for point, part in operators.groupby(POINT):
        probed = part[~part["operator"].isin(PREDICTED_ONLY)]
        kept = part[part["operator"].isin(PREDICTED_ONLY)]["predicted_ms"].sum()
        total = probed["measured_ms"].sum(skipna=False)
        predicted = probed["predicted_ms"].sum(skipna=False)
        times = {"measured_ms": total, "predicted_ms": predicted, "ratio": total / predicted}
        rows.append(dict(zip(POINT, point, strict=True)) | times | {"together_ms": total + kept})
    return pd.DataFrame(rows)


def compare(path: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Hold the shard record in a file against the committed predictions: (`by_operator`, `by_step`).

    RecordError for a file that is missing or no shard record, and for a GPU without predictions.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        operators = by_operator(record, operator_times())
    except (OSError, ValueError, KeyError, TypeError) as why:
        raise RecordError(
            f"{path.name} is no shard record ({why!r}); `make shard-probe` writes one into records/shard on a "
            "machine with a GPU."
        ) from why
    return operators, by_step(operators)


def every(folder: Path = RECORDS / "shard") -> tuple[dict[str, tuple[pd.DataFrame, pd.DataFrame]], dict[str, str]]:
    """Return `compare` of each record of the shard probe and the reason of each refusal, both by file name; empty
    where none was taken.
    """
    compared: dict[str, tuple[pd.DataFrame, pd.DataFrame]] = {}
    refused: dict[str, str] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            compared[path.name] = compare(path)
        except RecordError as why:
            refused[path.name] = str(why)
    return compared, refused


def main() -> None:
    """Print the comparison of the records named, or of all in records/shard."""
    refused: dict[str, str] = {}
    found = {path: compare(Path(path)) for path in sys.argv[1:]}
    if not found:
        found, refused = every()
    if not (found or refused):
        raise RecordError("records/shard holds no record; `make shard-probe` writes one on a machine with a GPU.")
    for name, (operators, steps) in found.items():
        print(f"{name}: {operators['mark'].iloc[0]} against predicted, ms")
        print(operators.to_string(index=False), steps.to_string(index=False), sep="\n\n")
    for name, why in refused.items():
        print(f"{name}: {why}")


if __name__ == "__main__":
    tell(main)
