"""Write data/step_times.csv and data/operator_times.csv: step times of every contender on a grid, asked of the library
once and read by everyone.

`python -m lib.analyse.steptable` in the environment of envs/predict.txt makes the table again.

Refuses to write when two precisions of one engine have equal times: the library then ignored a key. States, per
contender, how far linear interpolation in the table is off the library at random steps.
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from lib.analyse.aic import CONTENDERS, GPU, MODEL, VERSION, Oracle, capacity, operators, oracle, own_estimate, require
from lib.analyse.steptimes import StepTimes, write
from lib.errors import ConfigError, tell
from lib.paths import DATA

# tiles of 64 and 128 tokens make cliffs in the kernels' times: both sides of each are in the grid
TILES = {*range(65, 4353, 64), *range(4353, 8705, 128)}
TOKENS = sorted({*range(1, 33), *range(32, 4353, 16), *range(4352, 8705, 64)} | TILES)
PROMPTS = (1, 128, 256, 512, 1024, 2048, 4096, 8192)
CACHED = (0, 1024, 2048, 4096, 8192, 16384)
EVEN_BATCHES = {1, 2, 4, 8, 16, 24, 32, *range(48, 161, 16), 192, 224, *range(256, 513, 64), 768, 1024, 1536, 2048}
BATCHES = sorted(EVEN_BATCHES | {9, 17, 33, 65, 129, 193, 257, 385})
CONTEXTS = (1, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
ATTENTION_AT = 128  # prompt tokens beside which the attention of decoding sequences is taken
SHORT = 128  # tokens of the short prompts that make up a chunk
SIZES = (8, 4, 2)  # GPUs of a replica
SYSTEMS = {"H100-SXM-80GB": "h100_sxm", "H200-SXM-141GB": "h200_sxm"}
# what lib/measure/shard.py times: (phase, sequences, tokens of context or prompt)
SHARD_POINTS = [("decode", batch, context) for context in (1024, 4096) for batch in (1, 16, 64, 128)]
SHARD_POINTS += [("prefill", 1, length) for length in (512, 1024, 4096)]


def rows(name: str, tp: int, ask: Oracle) -> Iterator[dict[str, Any]]:
    """Rows of the step-time table of one contender and size; the parts are defined in lib/analyse/steptimes.py."""

    def short(tokens: int) -> float:
        return ask(max(1, round(tokens / SHORT)), tokens, 0, 0, 0)

    def row(part: str, a: int, b: int, ms: float) -> dict[str, Any]:
        return {"config": name, "tp": tp, "part": part, "a": a, "b": b, "ms": round(ms, 4)}

    for tokens in TOKENS:
        yield row("chunk", tokens, 0, short(tokens))
    for new in PROMPTS:
        for cached in CACHED:
            yield row("context", new, cached, max(0.0, ask(1, new, cached, 0, 0) - short(new)))
    for batch in BATCHES:
        for context in CONTEXTS:
            beside = ask(1, ATTENTION_AT, 0, batch, context) - short(ATTENTION_AT + batch)
            yield row("attention", batch, context, max(0.0, beside))
            yield row("decode", batch, context, ask(0, 0, 0, batch, context))


def interpolation_error(ask: Oracle, table: list[dict[str, Any]], seed: int = 0, points: int = 200) -> dict[str, float]:
    """Median and largest relative error of the table against the library itself at random steps inside the
    workloads' range.
    """
    steps, draw, errors = StepTimes(table), np.random.default_rng(seed), []
    for _ in range(points):
        batch, context, new = int(draw.integers(1, 257)), int(draw.integers(128, 6000)), int(draw.integers(16, 4097))
        table_s = steps.mixed_s(new, steps.context(new, 0), batch, context)
        errors.append(table_s * 1e3 / ask(1, new, 0, batch, context) - 1)
        errors.append(steps.decode_s(batch, context) * 1e3 / ask(0, 0, 0, batch, context) - 1)
    size = np.abs(errors)
    return {
        "median": round(float(np.median(size)), 5),
        "p95": round(float(np.quantile(size, 0.95)), 5),
        "max": round(float(size.max()), 5),
    }


def main() -> None:
    """Write data/step_times.csv and its meta file."""
    require()
    table, errors, capacities = [], {}, {}
    for name in CONTENDERS:
        for tp in SIZES:
            ask = oracle(name, tp)
            part = list(rows(name, tp, ask))
            errors[f"{name}-tp{tp}"] = interpolation_error(ask, part)
            capacities[f"{name}-tp{tp}"] = capacity(name, tp)
            table += part
            print(f"{name} tp{tp}: {len(part)} steps, off the library by {errors[f'{name}-tp{tp}']['p95']:.1%} (p95)")
    chunks = {
        name: [row["ms"] for row in table if row["config"] == name and row["part"] == "chunk"] for name in CONTENDERS
    }
    for one, two in (("vllm-bf16", "vllm-fp8"), ("tensorrt_llm-bf16", "tensorrt_llm-fp8")):
        if chunks[one] == chunks[two]:
            raise ConfigError(
                f"{one} and {two} have equal step times: the library ignored the precision; nothing was written."
            )
    meta = {
        "library": "aiconfigurator-core",
        "library_version": VERSION,
        "model": MODEL,
        "gpu": GPU,
        "contenders": {
            name: {key: getattr(who, key) for key in ("engine", "version", "precision", "kernels")}
            for name, who in CONTENDERS.items()
        },
        "kv_capacity_tokens": capacities,
        "interpolation_error": errors,
        "own_estimate": [
            {
                "config": name,
                "isl": isl,
                "osl": osl,
                "concurrency": n,
                "output_tok_s": round(own_estimate(name, isl, osl, n), 2),
            }
            for name, who in CONTENDERS.items()
            if who.kernels == "measured"
            for isl, osl in ((128, 128), (1024, 128), (4096, 512))
            for n in (1, 16, 64, 128)
        ],
    }
    by_operator = [
        {"gpu": gpu, **row}
        for gpu, system in SYSTEMS.items()
        for name, who in CONTENDERS.items()
        if who.kernels != "scaled"
        for row in operators(name, system, SHARD_POINTS)
    ]
    write(DATA / "operator_times.csv", pd.DataFrame(by_operator).to_csv(index=False, lineterminator="\n"))
    made = {"made_by": "python -m lib.analyse.steptable", "library": meta["library"], "library_version": VERSION}
    write(DATA / "operator_times.meta.json", json.dumps(made | {"model": MODEL}, indent=1) + "\n")
    write(DATA / "step_times.csv", pd.DataFrame(table).to_csv(index=False, lineterminator="\n"))
    write(DATA / "step_times.meta.json", json.dumps(meta, indent=1) + "\n")


if __name__ == "__main__":
    tell(main)
