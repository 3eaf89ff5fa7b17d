"""Ask NVIDIA's kernel measurements how long one step takes. The only module that touches the library
aiconfigurator-core.

`lib/analyse/steptable.py` writes its answers to data/step_times.csv; everything else reads the file.

Refuses another version of the library, and asserts its known traps: unknown keys are ignored silently (so the key set
is checked and two precisions must differ), one backend object answers for the first model only (so none is shared),
and 16 bit is spelt bfloat16.

INT4 has no measured kernels on H100, so it is a band: `int4-transferred` is the library's transfer from other
formats, `int4-scaled` the 16-bit step scaled by the INT4 / 16-bit ratio of matrix products measured on A100
(TensorRT-LLM 1.0.0, shapes nearest to one rank's). That ratio is applied to the whole step, attention and all-reduce
included, so this end overstates INT4's gain at few tokens and its loss at many. Neither end is a measurement.
"""

import importlib.metadata
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from lib.errors import ConfigError

os.environ.setdefault("HF_HUB_OFFLINE", "1")
try:
    import aiconfigurator_core as library
    from aiconfigurator_core.sdk import EngineHandle, RuntimeConfig, RustForwardPassPerfModel, estimate_kv_cache
    from aiconfigurator_core.sdk.backends.factory import get_backend
    from aiconfigurator_core.sdk.config_builders import build_model_config
    from aiconfigurator_core.sdk.engine import build_engine_spec_json
    from aiconfigurator_core.sdk.models import get_model
    from aiconfigurator_core.sdk.perf_database import get_database_view
except ImportError:  # the library is optional: the committed tables serve everyone else
    library = None

VERSION = "0.12.0"
MODEL = "meta-llama/Meta-Llama-3.1-70B"  # same layer shapes as Llama-3-70B, and bundled
SYSTEM, GPU = "h100_sxm", "H100-SXM-80GB"
KEYS = {
    "schema_version",
    "model_name",
    "system_name",
    "backend",
    "backend_version",
    "tp_size",
    "pp_size",
    "attention_dp_size",
    "weight_dtype",
    "kv_cache_dtype",
    "activation_dtype",
}


# the library's operators in the words of the shard probe
OPERATORS = {
    "qkv_gemm": "qkv",
    "attention": "attention",
    "proj_gemm": "output",
    "gate_ffn1_gemm": "gate_up",
    "act_gate": "activation",
    "ffn2_gemm": "down",
    "add_norm_1": "norm",
    "add_norm_2": "norm",
    "logits_gemm": "head",
    "ar_1": "all-reduce",
    "ar_2": "all-reduce",
}


@dataclass(frozen=True)
class Contender:
    """One engine and precision in the library's words."""

    engine: str
    backend: str
    version: str
    precision: str
    gemm: str
    kv: str
    attention: str
    kernels: str  # measured | transferred | scaled


CONTENDERS = {
    "vllm-bf16": Contender("vllm", "vllm", "0.24.0", "bf16", "bfloat16", "bfloat16", "bfloat16", "measured"),
    "vllm-fp8": Contender("vllm", "vllm", "0.24.0", "fp8", "fp8_static", "fp8", "bfloat16", "measured"),
    "vllm-int4-transferred": Contender(
        "vllm", "vllm", "0.24.0", "int4", "int4_wo", "bfloat16", "bfloat16", "transferred"
    ),
    "vllm-int4-scaled": Contender("vllm", "vllm", "0.24.0", "int4", "int4_wo", "bfloat16", "bfloat16", "scaled"),
    "tensorrt_llm-bf16": Contender(
        "tensorrt_llm", "trtllm", "1.3.0rc20", "bf16", "bfloat16", "bfloat16", "bfloat16", "measured"
    ),
    "tensorrt_llm-fp8": Contender("tensorrt_llm", "trtllm", "1.3.0rc20", "fp8", "fp8_static", "fp8", "fp8", "measured"),
}


def require() -> None:
    """Refuse to go on without the one version of the library whose traps are known."""
    if library is None:
        raise ConfigError(
            "the library aiconfigurator-core is not installed here; the committed "
            "data/step_times.csv serves every reader, "
            "and `make predict` installs the library of envs/predict.txt to make it again."
        )
    found = importlib.metadata.version("aiconfigurator-core")
    if found != VERSION:
        raise ConfigError(
            f"aiconfigurator-core {found} is installed, the predictions are for {VERSION} with its known traps; "
            "install envs/predict.txt."
        )


def _objects(who: Contender, tp: int, system: str = SYSTEM) -> tuple[Any, Any, Any]:
    """Fresh (model, database, backend): a shared backend would answer for its first model only."""
    mode = "HYBRID" if who.gemm == "int4_wo" else "SILICON"
    model = get_model(MODEL, build_model_config(tp, 1, 1, 1, 1, who.gemm, who.kv, who.attention), who.backend)
    return model, get_database_view(system, who.backend, who.version, database_mode=mode), get_backend(who.backend)


# f(prompts, new tokens, cached tokens, decoding sequences, mean context) -> ms
Oracle = Callable[[int, int, int, int, int], float]


def _native(who: Contender, tp: int) -> Oracle:
    config = {
        "schema_version": 1,
        "model_name": MODEL,
        "system_name": SYSTEM,
        "backend": who.backend,
        "backend_version": who.version,
        "tp_size": tp,
        "pp_size": 1,
        "attention_dp_size": 1,
        "weight_dtype": who.gemm,
        "kv_cache_dtype": who.kv,
        "activation_dtype": who.attention,
    }
    if set(config) != KEYS:
        raise ConfigError(
            f"keys {sorted(set(config) ^ KEYS)} are not the ones the library reads; it would ignore them silently."
        )
    model = RustForwardPassPerfModel.from_native(config)
    if model.diagnostics()["source"] != "aic":
        raise ConfigError(
            f"{who.engine} {who.precision}: the library answers from "
            f"'{model.diagnostics()['source']}', not from kernel data."
        )

    def step_ms(prompts: int, new: int, cached: int, batch: int, context: int) -> float:
        scheduled: dict[str, int] = {}
        if prompts:
            scheduled |= {"num_prefill_requests": prompts, "sum_prefill_tokens": new, "sum_prefill_kv_tokens": cached}
        if batch:
            scheduled |= {"num_decode_requests": batch, "sum_decode_kv_tokens": batch * context}
        return float(model.estimate_forward_pass_time_ms({"version": 1, "scheduled_requests": scheduled}))

    return step_ms


def _engine(who: Contender, tp: int, system: str = SYSTEM) -> Any:
    model, database, _ = _objects(who, tp, system)
    spec = build_engine_spec_json(
        model,
        model_path=MODEL,
        system=system,
        backend=who.backend,
        backend_version=who.version,
        kv_block_size=None,
        systems_path=None,
        nextn=0,
        database=database,
    )
    return EngineHandle(bytes(library.engine_spec_bincode_from_json(spec)))


def _transferred(who: Contender, tp: int) -> Oracle:
    engine = _engine(who, tp)

    def step_ms(prompts: int, new: int, cached: int, batch: int, context: int) -> float:
        if prompts and batch:
            return float(engine.mixed_step_latency(new, batch, context, 2))
        if batch:
            return float(engine.predict_decode_latency(batch, context, 2))
        length = max(1, new // prompts)
        return float(engine.predict_prefill_latency(prompts, length + cached // prompts, cached // prompts))

    return step_ms


def operators(name: str, system: str, points: Iterable[tuple[str, int, int]], tp: int = 8) -> Iterator[dict[str, Any]]:
    """Rows of one step by operator: `points` are (phase, batch, context); ms over all layers, and how the library
    knows.

    Two norms and two all-reduces of a layer are summed. Phase "prefill" is one prompt of `context` tokens per
    sequence.
    """
    engine = _engine(CONTENDERS[name], tp, system)
    for phase, batch, context in points:
        both = engine.run_static_per_op(batch_size=batch, beam_width=1, isl=context, osl=2, prefix=0, stride=1)
        sums: dict[str, list[Any]] = {}
        for operator, ms, _, known in both[0] if phase == "prefill" else both[1]:
            plain = OPERATORS.get(operator.split("_", 1)[1])
            if plain:
                total, ways = sums.get(plain, (0.0, set()))
                sums[plain] = [total + ms, ways | {known}]
        for operator, (ms, ways) in sums.items():
            known = "measured" if ways == {"silicon"} else "estimated"
            row = {"config": name, "phase": phase, "batch": batch, "context": context, "operator": operator}
            yield {**row, "ms": round(ms, 5), "kernels": known}


@lru_cache(maxsize=1)
def int4_ratio() -> tuple[Any, Any]:
    """(tokens, INT4 / 16-bit time of the matrix products of one layer) as measured on A100; smoothed over three
    neighbours.
    """
    file = Path(library.__file__).parent / "systems/data/a100_sxm/gemm/trtllm/1.0.0/gemm_perf.parquet"
    table = pd.read_parquet(file, columns=["gemm_dtype", "m", "n", "k", "latency"])
    sums = []
    for n, k in (
        (1536, 8192),
        (8192, 1024),
        (7168, 8192),
        (8192, 3584),
    ):  # QKV, output, gate and up, down of one rank of 8
        shape = table[(table["n"] == n) & (table["k"] == k)]
        sums.append(shape.pivot_table(index="m", columns="gemm_dtype", values="latency")[["bfloat16", "int4_wo"]])
    total = sum(sums[1:], sums[0]).dropna()
    ratio = (total["int4_wo"] / total["bfloat16"]).rolling(3, center=True, min_periods=1).median()
    return ratio.index.to_numpy(float), ratio.to_numpy(float)


def _scaled(tp: int) -> Oracle:
    base, (tokens, ratio) = _native(CONTENDERS["vllm-bf16"], tp), int4_ratio()

    def step_ms(prompts: int, new: int, cached: int, batch: int, context: int) -> float:
        return base(prompts, new, cached, batch, context) * float(np.interp(new + batch, tokens, ratio))

    return step_ms


def oracle(name: str, tp: int) -> Oracle:
    """Step time of one contender on `tp` GPUs: (prompts, new, cached, batch, context) in tokens -> ms."""
    who = CONTENDERS[name]
    if who.kernels == "scaled":
        return _scaled(tp)
    return _native(who, tp) if who.kernels == "measured" else _transferred(who, tp)


def capacity(name: str, tp: int, max_tokens: int = 8192, max_batch: int = 256) -> int:
    """Tokens of KV cache at the engines' default memory share, as the library counts them; 0 where the weights do
    not fit.
    """
    who = CONTENDERS[name]
    kind = "of_free" if who.backend == "trtllm" else "of_total"
    try:
        found = estimate_kv_cache(
            MODEL,
            SYSTEM,
            who.backend,
            who.version,
            max_num_tokens=max_tokens,
            max_batch_size=max_batch,
            tp_size=tp,
            gemm_quant_mode=who.gemm,
            kvcache_quant_mode=who.kv,
            memory_fraction_kind=kind,
            memory_fraction_value=0.9,
        )
    except (ValueError, RuntimeError):
        return 0
    return max(0, int(found["total_kv_size_tokens"]))


def own_estimate(name: str, isl: int, osl: int, concurrency: int, tp: int = 8) -> float:
    """Return the library's own mean output throughput (tok/s) for a closed loop with fixed lengths, one prompt's
    tokens a step.
    """
    model, database, backend = _objects(CONTENDERS[name], tp)
    summary = backend.run_agg(model, database, RuntimeConfig(isl=isl, osl=osl, batch_size=concurrency), ctx_tokens=isl)
    return float(summary.get_result_dict()["tokens/s"])
