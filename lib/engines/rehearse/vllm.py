"""A stand-in for vLLM's OpenAI server, 0.6.2 and today's: its log, its endpoints, its refusals, its streams.

Log lines and metric names after the two generations' sources. Refused as there: an unknown option (status 2), an
adapter of too high a rank or for another model, and in 0.6.2 multi-step scheduling with chunked prefill, or with an FP8
cache that FlashAttention cannot hold.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from lib.engines.rehearse.adapters import Adapters, Prefixes
from lib.engines.rehearse.batch import Batch, Limits
from lib.engines.rehearse.flags import Line
from lib.engines.rehearse.openai import Answers, Dialect
from lib.engines.rehearse.serving import Reply, Request, serve
from lib.engines.rehearse.told import BOS, Told

FIRST = "0.6.2"
DIALECTS = {True: Dialect(strict=True, usage_by_default=True, chat_counts_chunk=True), False: Dialect()}
DTYPES = {"half": "float16", "float16": "float16", "bfloat16": "bfloat16", "float": "float32", "float32": "float32"}
BLOCK = 16  # tokens of a KV cache block
GAUGES = {
    True: ("num_requests_running", "num_requests_waiting", "num_requests_swapped", "gpu_cache_usage_perc"),
    False: ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
}


class StartRefused(Exception):
    """A server that ends before it is ready; the text is its last words."""


@dataclass(frozen=True)
class Settings:
    """What a command line asks for, with this generation's defaults."""

    model: str
    name: str
    host: str
    door: bool  # whether every path asks for the key
    port: int
    dtype: str
    context: int
    sequences: int
    batched_tokens: int
    steps: int
    streams_steps: bool
    chunked: bool
    prefix_cache: bool
    quantization: str
    cache: str
    weights: str
    tp: int
    eager: bool
    old: bool
    highest_rank: int  # of LoRA adapters; 0: it serves none
    kv_tokens: int | None  # None: as many as were predicted


def settings(line: Line, told: Told) -> Settings:
    """Read a checked command line.

    Raises
    ------
    StartRefused : a combination that this generation refuses.
    """
    old = told.version == FIRST
    model = line.one("--model", line.words[0] if line.words else "facebook/opt-125m")
    steps, context = int(line.one("--num-scheduler-steps", "1")), int(line.one("--max-model-len", "8192"))
    chunked = line.on("--enable-chunked-prefill") if old else not line.on("--no-enable-chunked-prefill")
    cache = line.one("--kv-cache-dtype", "auto")
    if old and steps > 1 and chunked:
        raise StartRefused(
            "ValueError: Chunked prefill is not supported with multi-step (--num-scheduler-steps > 1)"
        )
    if old and steps > 1 and cache.startswith("fp8") and os.environ.get("VLLM_ATTENTION_BACKEND") != "FLASHINFER":
        raise StartRefused("ValueError: Multi-Step not supported for attention backend: xformers")
    budget = line.one("--max-num-batched-tokens", "512" if old and chunked else str(max(context, 2048)) if old else
                      "8192")  # fmt: skip
    return Settings(
        model=model,
        name=line.one("--served-model-name", model),
        host=line.one("--host", "0.0.0.0"),
        port=int(line.one("--port", "8000")),
        dtype=DTYPES.get(line.one("--dtype", "auto"), "bfloat16"),
        context=context,
        sequences=int(line.one("--max-num-seqs", "256" if old else "1024")),
        batched_tokens=int(budget),
        steps=steps,
        streams_steps=line.on("--multi-step-stream-outputs"),
        chunked=chunked,
        prefix_cache=line.on("--enable-prefix-caching") if old else not line.on("--no-enable-prefix-caching"),
        quantization=line.one("--quantization", _found_in_weights(told)),
        cache=cache,
        weights=line.one("--load-format", "auto"),
        tp=int(line.one("--tensor-parallel-size", "1")),
        eager=line.on("--enforce-eager"),
        old=old,
        door=bool(line.one("--middleware", "")),
        highest_rank=int(line.one("--max-lora-rank", "16")) if line.on("--enable-lora") else 0,
        kv_tokens=int(line.one("--num-gpu-blocks-override", "0")) * BLOCK or None,
    )


def _found_in_weights(told: Told) -> str:
    """What the engine makes of a checkpoint that says how it was quantized."""
    if told.precision.endswith("w4a16"):
        return "compressed-tensors"
    kind = told.precision.partition("-")[0]
    return {"awq": "awq_marlin", "int4": "awq_marlin", "fp8": "compressed-tensors"}.get(kind, "None")


def opening(s: Settings, told: Told, kv_tokens: int) -> list[str]:
    """Return the lines that it prints while it starts."""
    common = (
        f"model='{s.model}', speculative_config=None, tokenizer='{s.model}', skip_tokenizer_init=False, "
        f"tokenizer_mode=auto, revision=None, tokenizer_revision=None, trust_remote_code=False, "
        f"dtype=torch.{s.dtype}, max_seq_len={s.context}, download_dir=None, load_format={s.weights}, "
        f"tensor_parallel_size={s.tp}, pipeline_parallel_size=1, disable_custom_all_reduce=False, "
        f"quantization={s.quantization}, enforce_eager={s.eager}, kv_cache_dtype={s.cache}, device_config=cuda, "
        f"seed=0, served_model_name={s.name}, "
    )
    if s.old:
        lines = [f"INFO 01-01 00:00:00 llm_engine.py:226] Initializing an LLM engine (v{told.version}) with config: "
                 f"{common}use_v2_block_manager={s.steps > 1}, num_scheduler_steps={s.steps}, "
                 f"multi_step_stream_outputs={s.streams_steps}, enable_prefix_caching={s.prefix_cache}, "
                 f"use_async_output_proc=True, use_cached_outputs=True, mm_processor_kwargs=None)"]  # fmt: skip
        if s.chunked:
            lines.append("INFO 01-01 00:00:00 config.py:1005] Chunked prefill is enabled with max_num_batched_tokens="
                         f"{s.batched_tokens}.")  # fmt: skip
        if s.quantization == "awq_marlin":
            lines.append("INFO 01-01 00:00:00 awq_marlin.py:90] The model is convertible to awq_marlin during runtime. "
                         "Using awq_marlin kernel.")  # fmt: skip
        return [*lines, f"INFO 01-01 00:00:01 distributed_gpu_executor.py:57] # GPU blocks: {kv_tokens // BLOCK}, "
                f"# CPU blocks: {(1 << 18) // BLOCK}"]  # fmt: skip
    return [
        f"INFO 01-01 00:00:00 [core.py:100] Initializing a V1 LLM engine (v{told.version}) with config: {common}"
        f"enable_prefix_caching={s.prefix_cache}, enable_chunked_prefill={s.chunked}",
        f"INFO 01-01 00:00:00 [scheduler.py:200] Chunked prefill is enabled with max_num_batched_tokens="
        f"{s.batched_tokens}.",
        f"INFO 01-01 00:00:01 [kv_cache_utils.py:1200] GPU KV cache size: {kv_tokens:,} tokens",
    ]


async def run(s: Settings, told: Told, batch: Batch, count: Callable[[str], int]) -> None:
    """Serve until the process is ended."""
    adapters = Adapters(s.highest_rank)
    answers = Answers(DIALECTS[s.old], batch, s.name, s.context, lambda text: count(text) + BOS, adapters,
                      Prefixes(s.prefix_cache))  # fmt: skip
    changeable = s.highest_rank and os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1"
    key = os.environ.get("VLLM_API_KEY")

    async def handle(request: Request, reply: Reply) -> None:
        asked = s.door or request.path.startswith("/v1")
        if key and asked and request.headers.get("authorization") != f"Bearer {key}":
            reply.whole(401, {"error": "Unauthorized"})
        elif request.path in ("/v1/completions", "/v1/chat/completions", "/invocations") and request.method == "POST":
            await answers.answer(request, reply)
        elif request.path == "/v1/models":
            reply.whole(200, {"object": "list", "data": [_model(s)]})
        elif request.path == "/v1/load_lora_adapter" and changeable and request.body is not None:
            name = str(request.body.get("lora_name"))
            refusal = adapters.load(name, str(request.body.get("lora_path")))
            said = f"Success: LoRA adapter '{name}' added successfully."
            reply.whole(400 if refusal else 200, {"error": {"message": refusal, "code": 400}} if refusal else said)
        elif request.path == "/v1/unload_lora_adapter" and changeable and request.body is not None:
            name = str(request.body.get("lora_name"))
            refusal = adapters.unload(name)
            said = f"Success: LoRA adapter '{name}' removed successfully."
            reply.whole(404 if refusal else 200, {"error": {"message": refusal, "code": 404}} if refusal else said)
        elif request.path == "/tokenize" and request.body is not None:
            extra = BOS if request.body.get("add_special_tokens", True) else 0
            tokens = count(str(request.body.get("prompt", ""))) + extra
            reply.whole(200, {"count": tokens, "max_model_len": s.context, "tokens": [0] * tokens})
        elif request.path == "/metrics":
            reply.whole(200, metrics(s, batch))
        elif request.path in ("/health", "/version"):
            reply.whole(200, "" if request.path == "/health" else {"version": told.version})
        else:
            reply.whole(404, {"detail": "Not Found"})

    server = await serve(s.host, s.port, handle, "uvicorn")
    print(f"INFO:     Uvicorn running on http://{s.host}:{s.port} (Press CTRL+C to quit)", flush=True)
    async with server:
        await asyncio.gather(server.serve_forever(), batch.run())


def limits(s: Settings) -> Limits:
    """What a step may hold."""
    return Limits(s.sequences, s.batched_tokens, 1 if s.streams_steps else s.steps, s.chunked, s.kv_tokens)


def metrics(s: Settings, batch: Batch) -> str:
    """Return the Prometheus page under this generation's names."""
    values = {
        "num_requests_running": len(batch.running),
        "num_requests_waiting": len(batch.waiting),
        "num_requests_swapped": 0,
        "gpu_cache_usage_perc": batch.kv_usage,
        "kv_cache_usage_perc": batch.kv_usage,
    }
    counters = {"prompt_tokens": batch.prompt_tokens_total, "generation_tokens": batch.generation_tokens_total,
                "num_preemptions": batch.preemptions}  # fmt: skip
    if not s.old:
        looked_up = batch.prompt_tokens_total if s.prefix_cache else 0
        counters |= {"prefix_cache_queries": looked_up, "prefix_cache_hits": batch.cached_tokens_total}
    label = f'{{model_name="{s.name}"}}' if s.old else f'{{engine="0",model_name="{s.name}"}}'
    lines = []
    for name in GAUGES[s.old]:
        lines += [f"# TYPE vllm:{name} gauge", f"vllm:{name}{label} {float(values[name])}"]
    for name, value in counters.items():
        lines += [f"# TYPE vllm:{name}_total counter", f"vllm:{name}_total{label} {float(value)}"]
    return "\n".join(lines) + "\n"


def _model(s: Settings) -> dict[str, object]:
    return {"id": s.name, "object": "model", "created": 0, "owned_by": "vllm", "root": s.model, "parent": None,
            "max_model_len": s.context, "permission": []}  # fmt: skip
