"""A stand-in for TensorRT-LLM's servers: `trtllm-serve` (1.2) and Triton with the tensorrtllm backend (0.12.0).

Triton's generate_stream sends one text per token, no usage and no [DONE]; an error after the first response arrives
inside a stream that was answered 200. Its metrics stand on a port of their own. `trtllm-serve` speaks OpenAI's shapes
and reports iterations as JSON that a read drains. After the servers' sources and documents.
"""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lib.engines.rehearse import tools, trouble
from lib.engines.rehearse.adapters import Adapters, Prefixes
from lib.engines.rehearse.batch import ERROR, Batch, Limits, Sequence
from lib.engines.rehearse.failures import Failure
from lib.engines.rehearse.flags import Line
from lib.engines.rehearse.openai import WORD, Answers, Dialect
from lib.engines.rehearse.pace import Pace
from lib.engines.rehearse.serving import Handler, Reply, Request, serve
from lib.engines.rehearse.told import BOS, Told

BLOCK = 64  # tokens of a KV cache block
GENERATE = "/v2/models/ensemble/generate_stream"
CONFIG = "/v2/models/tensorrt_llm/config"
BLS = "/v2/models/tensorrt_llm_bls/generate_stream"


def main(
    name: str, line: Line, told: Told, pace: Pace, failure: Failure, count: Callable[[str], int]
) -> int:
    """Start the server that the command line names."""
    serving = name == "trtllm-serve"
    trouble.say(f"[TensorRT-LLM] TensorRT-LLM version: {told.version}")
    trouble.before_ready(failure, told.engine, told.speed)
    if serving:
        limits = Limits(int(line.one("--max_batch_size", "2048")), int(line.one("--max_num_tokens", "8192")),
                        chunked=line.on("--enable_chunked_prefill"))  # fmt: skip
        batch = Batch(pace, limits, told.speed, failure)
        asyncio.run(_trtllm_serve(line, told, batch, count))
    else:
        batch = Batch(pace, Limits(512, 8192), told.speed, failure)
        asyncio.run(_triton(line, batch, count))
    return 0


# -- trtllm-serve ----------------------------------------------------------------------------------
async def _trtllm_serve(line: Line, told: Told, batch: Batch, count: Callable[[str], int]) -> None:
    model = line.words[-1] if line.words else ""
    name = line.one("--served_model_name", model.rstrip("/").rpartition("/")[2])
    options = Path(line.one("--config", ""))
    given = yaml.safe_load(options.read_text()) if options.is_file() else {}
    adapters = Adapters((given.get("lora_config") or {}).get("max_lora_rank", 0))
    prefixes = Prefixes((given.get("kv_cache_config") or {}).get("enable_block_reuse", True))
    answers = Answers(Dialect(blank=" ", carries_adapters=True), batch, name, int(line.one("--max_seq_len", "8192")),
                      lambda text: count(text) + BOS, adapters, prefixes)  # fmt: skip
    read_at = 0

    async def handle(request: Request, reply: Reply) -> None:
        nonlocal read_at
        if request.path in ("/v1/completions", "/v1/chat/completions") and request.method == "POST":
            await answers.answer(request, reply)
        elif request.path == "/v1/models":
            reply.whole(200, {"object": "list", "data": [{"id": name, "object": "model", "created": 0,
                                                          "owned_by": "tensorrt_llm"}]})  # fmt: skip
        elif request.path == "/metrics":
            new = batch.generation_tokens_total > read_at
            read_at = batch.generation_tokens_total
            reply.whole(200, [_iteration(batch)] if new else [])
        elif request.path == "/prometheus/metrics":
            reply.whole(200, f"# TYPE trtllm_kv_cache_utilization gauge\ntrtllm_kv_cache_utilization {batch.kv_usage}\n"
                             "trtllm_request_success_total 0.0\n")  # fmt: skip
        elif request.path in ("/health", "/version"):
            reply.whole(200, "" if request.path == "/health" else {"version": told.version})
        else:
            reply.whole(404, {"detail": "Not Found"})

    await _for_ever(batch, (("127.0.0.1", int(line.one("--port", "8000")), handle, "uvicorn"),))


def _iteration(batch: Batch) -> dict[str, Any]:
    blocks = batch.pace.kv_tokens // BLOCK
    used = int(batch.kv_usage * blocks)
    return {"iter": batch.generation_tokens_total, "numActiveRequests": len(batch.running),
            "numQueuedRequests": len(batch.waiting),
            "kvCacheStats": {"maxNumBlocks": blocks, "usedNumBlocks": used, "freeNumBlocks": blocks - used,
                             "tokensPerBlock": BLOCK}}  # fmt: skip


# -- Triton ----------------------------------------------------------------------------------------
async def _triton(line: Line, batch: Batch, count: Callable[[str], int]) -> None:
    port, metrics_port = (
        int(line.one(f"--{a}", line.one(f"--{b}", default)))
        for a, b, default in (("http-port", "http_port", "8000"), ("metrics-port", "metrics_port", "8002"))
    )

    async def handle(request: Request, reply: Reply) -> None:
        if request.path in (GENERATE, BLS) and request.method == "POST":
            await _generate(request, reply, batch, count)
        elif request.path in ("/v2/health/ready", "/v2/health/live") or request.path.endswith("/ready"):
            reply.whole(200, "")
        elif request.path == CONFIG:
            reply.whole(200, _config(Path(line.one("--model-repository", "")) / "tensorrt_llm" / tools.TEMPLATE))
        elif request.path == "/v2":
            reply.whole(200, {"name": "triton", "version": "2.49.0", "extensions": ["generate"]})
        elif request.path.startswith("/v2/models/"):
            reply.whole(200, {"name": request.path.split("/")[3], "versions": ["1"], "platform": "ensemble",
                              "inputs": [], "outputs": []})  # fmt: skip
        else:
            reply.whole(404, {"error": "Not Found"})

    async def metrics(_request: Request, reply: Reply) -> None:
        reply.whole(200, _prometheus(batch))

    await _for_ever(batch, (("127.0.0.1", port, handle, "triton"), ("127.0.0.1", metrics_port, metrics, "triton")))


def _config(template: Path) -> dict[str, Any]:
    """What Triton says of the model that computes: the values its template was filled with."""
    values = json.loads(template.read_text()) if template.exists() else {}
    named = values | {"gpt_model_path": values.get("engine_dir", "")}
    return {"name": "tensorrt_llm", "parameters": {name: {"string_value": value} for name, value in named.items()},
            "model_transaction_policy": {"decoupled": values.get("decoupled_mode") == "True"}}  # fmt: skip


async def _generate(request: Request, reply: Reply, batch: Batch, count: Callable[[str], int]) -> None:
    asked = request.body or {}
    if "text_input" not in asked or "max_tokens" not in asked:
        reply.whole(400, {"error": "failed to parse the request JSON buffer: missing text_input or max_tokens"})
        return
    stream = _Responses(reply, bls=request.path == BLS)
    sequence = Sequence(count(str(asked["text_input"])) + BOS, int(asked["max_tokens"]), stream.send)
    stream.sequence = sequence
    batch.add(sequence)
    await sequence.ended.wait()


@dataclass
class _Responses:
    """One generate_stream on its way; with `bls` every response repeats the text so far."""

    reply: Reply
    bls: bool
    text: str = ""
    sequence: Sequence | None = None

    def send(self, tokens: int, ended: str) -> None:
        """Send what a step gave."""
        if self.reply.gone and self.sequence is not None:
            self.sequence.gone = True
            return
        if not self.reply.streaming:
            self.reply.begin("text/event-stream; charset=utf-8")
        if ended == ERROR:
            self.reply.event(json.dumps({"error": "in ensemble 'ensemble', Encountered error for requestId 1"}))
            return
        new = WORD * tokens
        self.text += new
        said = {"context_logits": 0.0, "cum_log_probs": 0.0, "generation_logits": 0.0, "model_name": "ensemble",
                "model_version": "1", "output_log_probs": 0.0, "sequence_end": False, "sequence_id": 0,
                "sequence_start": False, "text_output": self.text if self.bls else new}  # fmt: skip
        self.reply.event(json.dumps(said, separators=(",", ":")))


def _prometheus(batch: Batch) -> str:
    blocks = batch.pace.kv_tokens // BLOCK
    used = int(batch.kv_usage * blocks)
    requests = {"context": 0, "scheduled": len(batch.running), "max": batch.limits.sequences,
                "active": len(batch.running) + len(batch.waiting)}  # fmt: skip
    cache = {"tokens_per": BLOCK, "used": used, "free": blocks - used, "max": blocks}
    own = 'model="tensorrt_llm",version="1"'
    lines = ["# TYPE nv_trt_llm_request_metrics gauge"]
    lines += [f'nv_trt_llm_request_metrics{{{own},request_type="{k}"}} {v}' for k, v in requests.items()]
    lines += [f'nv_trt_llm_kv_cache_block_metrics{{{own},kv_cache_block_type="{k}"}} {v}' for k, v in cache.items()]
    lines.append(f'nv_trt_llm_inflight_batcher_metrics{{{own},inflight_batcher_specific_metric="generation_requests"}} '
                 f"{len(batch.running)}")  # fmt: skip
    return "\n".join(lines) + "\n"


async def _for_ever(batch: Batch, doors: tuple[tuple[str, int, Handler, str], ...]) -> None:
    servers = [await serve(*door) for door in doors]
    print("serving", flush=True)
    await asyncio.gather(batch.run(), *(server.serve_forever() for server in servers))
