"""Time the layer of one tensor-parallel rank on one CUDA GPU with torch alone: what each kernel takes, without
all-reduce.

`python -m lib.measure.shard` writes records/shard/<GPU>.json; lib/analyse/shards.py holds it against the predictions
for that very GPU. Operators: QKV, attention over a filled KV cache, output, norm, gate and up, activation, down; 16
bit, FP8 and INT4 weight-only.

Refuses a machine without torch or, unless a device is named, without CUDA. A format that this torch cannot run on
this device is a row with its reason. Rules: random weights (speed only); CUDA graphs, so that no launch is timed;
copies of the weights beyond the L2 cache take turns, so that none is read from it; the kernels are torch's, which for
INT4 are no engine's; attention is 16 bit in every format.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.errors import MeasureError, tell
from lib.paths import RECORDS

try:
    import torch
    from torch.nn import functional
except ImportError:  # torch is in the engines' environments only
    torch = None

MARK = "measured (kernels, one GPU, no all-reduce)"
FORMATS = ("bf16", "fp8", "int4")
GROUP = 128  # weights per INT4 scale
BEYOND_CACHE = 256e6  # bytes of weights that take turns; larger than any L2
REPEATS = 20


@dataclass(frozen=True)
class Shard:
    """What one rank holds of one layer: sizes in elements."""

    hidden: int = 8192
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 128
    intermediate: int = 3584

    def linears(self) -> dict[str, tuple[int, int]]:
        """Operator -> (output, input) features."""
        attention = self.heads * self.head_dim
        return {
            "qkv": (attention + 2 * self.kv_heads * self.head_dim, self.hidden),
            "output": (self.hidden, attention),
            "gate_up": (2 * self.intermediate, self.hidden),
            "down": (self.hidden, self.intermediate),
        }


LLAMA_70B_TP8 = Shard()
Call = Callable[[], Any]


def _linear_bf16(out: int, inp: int, tokens: int, device: str) -> Call:
    weight = torch.randn(out, inp, dtype=torch.bfloat16, device=device)
    x = torch.randn(tokens, inp, dtype=torch.bfloat16, device=device)
    return lambda: functional.linear(x, weight)


def _linear_fp8(out: int, inp: int, tokens: int, device: str) -> Call:
    weight = torch.randn(out, inp, dtype=torch.bfloat16, device=device).to(torch.float8_e4m3fn)
    padded = -(-tokens // 16) * 16  # the kernel takes rows in sixteens
    x = torch.randn(padded, inp, dtype=torch.bfloat16, device=device).to(torch.float8_e4m3fn)
    one = torch.ones((), dtype=torch.float32, device=device)
    return lambda: torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _linear_int4(out: int, inp: int, tokens: int, device: str) -> Call:
    x = torch.randn(tokens, inp, dtype=torch.bfloat16, device=device)
    scales = torch.rand(inp // GROUP, out, 2, dtype=torch.bfloat16, device=device)
    if device == "cpu":
        values = torch.randint(0, 16, (out, inp), dtype=torch.int32)
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(values, 1)
        return lambda: torch.ops.aten._weight_int4pack_mm_for_cpu(x, packed, GROUP, scales)
    pairs = torch.randint(0, 256, (out, inp // 2), dtype=torch.uint8, device=device)
    packed = torch.ops.aten._convert_weight_to_int4pack(pairs, 8)
    return lambda: torch.ops.aten._weight_int4pack_mm(x, packed, GROUP, scales)


LINEAR = {"bf16": _linear_bf16, "fp8": _linear_fp8, "int4": _linear_int4}
KERNEL = {"bf16": "aten::linear", "fp8": "aten::_scaled_mm", "int4": "aten::_weight_int4pack_mm"}
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.52}


def _attention(shard: Shard, batch: int, new: int, context: int, device: str) -> Call:
    """Attention of `new` tokens of each of `batch` sequences over `context` tokens in the cache, those tokens
    included.
    """
    q = torch.randn(batch, shard.heads, new, shard.head_dim, dtype=torch.bfloat16, device=device)
    k = torch.randn(batch, shard.kv_heads, context, shard.head_dim, dtype=torch.bfloat16, device=device)
    v = torch.randn_like(k)
    causal = new > 1
    return lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def _norm(shard: Shard, tokens: int, device: str) -> Call:
    x = torch.randn(tokens, shard.hidden, dtype=torch.bfloat16, device=device)
    weight = torch.ones(shard.hidden, dtype=torch.bfloat16, device=device)
    return lambda: functional.rms_norm(x, (shard.hidden,), weight)


def _activation(shard: Shard, tokens: int, device: str) -> Call:
    x = torch.randn(tokens, 2 * shard.intermediate, dtype=torch.bfloat16, device=device)

    def call() -> Any:
        gate, up = x.chunk(2, dim=-1)
        return functional.silu(gate) * up

    return call


def _timed_us(calls: list[Call], device: str) -> float:
    """Median time of one call in microseconds; the calls take turns."""
    for call in calls:
        call()
    if device == "cpu":
        taken = []
        for _ in range(REPEATS):
            start = time.perf_counter_ns()
            for call in calls:
                call()
            taken.append((time.perf_counter_ns() - start) / 1e3 / len(calls))
        return statistics.median(taken)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    graph.replay()
    taken = []
    for _ in range(REPEATS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        taken.append(begin.elapsed_time(end) * 1e3 / len(calls))
    return statistics.median(taken)


def layer_rows(
    shard: Shard, precision: str, phase: str, batch: int, context: int, device: str, copies: int = 0
) -> Iterable[dict[str, Any]]:
    """One row per operator: phase "decode" is `batch` sequences over `context` tokens, "prefill" one prompt of
    `context` tokens.

    Times are microseconds of one call on one rank. A format that cannot run here gives rows without a time and with
    the reason.
    """
    tokens = batch if phase == "decode" else batch * context
    new = 1 if phase == "decode" else context
    base = {"precision": precision, "phase": phase, "batch": batch, "context": context}
    for name, (out, inp) in shard.linears().items():
        turns = copies or max(1, round(BEYOND_CACHE / (out * inp * WEIGHT_BYTES[precision])))
        row = {**base, "operator": name, "kernel": KERNEL[precision]}
        try:
            calls = [LINEAR[precision](out, inp, tokens, device) for _ in range(turns)]
            yield {**row, "us": _timed_us(calls, device), "reason": ""}
        except (RuntimeError, NotImplementedError, AttributeError) as refusal:
            yield {**row, "us": None, "reason": str(refusal).splitlines()[0]}
    cache_bytes = 4.0 * batch * context * shard.kv_heads * shard.head_dim
    turns = copies or max(1, min(16, round(BEYOND_CACHE / cache_bytes)))
    others = {
        "attention": (
            "aten::scaled_dot_product_attention",
            [_attention(shard, batch, new, context, device) for _ in range(turns)],
        ),
        "norm": ("aten::rms_norm", [_norm(shard, tokens, device)]),
        "activation": ("aten::silu, aten::mul", [_activation(shard, tokens, device)]),
    }
    for name, (kernel, calls) in others.items():
        yield {**base, "operator": name, "kernel": kernel, "us": _timed_us(calls, device), "reason": ""}


def probe(
    shard: Shard = LLAMA_70B_TP8,
    batches: Iterable[int] = (1, 16, 64, 128),
    contexts: Iterable[int] = (1024, 4096),
    prompts: Iterable[int] = (512, 1024, 4096),
    device: str = "cuda",
    copies: int = 0,
) -> dict[str, Any]:
    """Time all operators over the grid; the record as plain values."""
    if torch is None:
        raise MeasureError(
            "torch is not installed in this environment, and the shard probe times its kernels; run "
            "it where an engine's torch is."
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise MeasureError(
            "no CUDA GPU is visible, so there are no GPU kernels to time; run `make shard-probe` on a machine with one."
        )
    rows: list[dict[str, Any]] = []
    with torch.inference_mode():
        for precision in FORMATS:
            for context in contexts:
                for batch in batches:
                    rows += layer_rows(shard, precision, "decode", batch, context, device, copies)
            for length in prompts:
                rows += layer_rows(shard, precision, "prefill", 1, length, device, copies)
            print(f"shard probe: {precision} done", flush=True)
    gpu = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    return {
        "schema": 1,
        "mark": MARK,
        "gpu": gpu,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "shard": vars(shard),
        "weights": "random: speed only",
        "taken": time.strftime("%Y-%m-%d"),
        "rows": rows,
    }


def write(record: dict[str, Any], folder: Path = RECORDS / "shard") -> Path:
    """Keep a record under its GPU's name, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record['gpu'].replace(' ', '-')}.json"
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)
    return path


def main() -> None:
    """Probe this machine's GPU and keep the record."""
    print(f"kept {write(probe())}")


if __name__ == "__main__":
    tell(main)
