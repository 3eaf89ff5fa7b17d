"""vLLM on NVIDIA GPUs, 0.6.2 and 0.24.0: how it is started, what its log says, how to speak to it.

The two take different options for the same thing: multi-step scheduling went, prefix caching came on by default. Only
options of the version's own list (data/flags) are passed, and every setting that decides the result is passed, default
or not. Output length is pinned by `ignore_eos`, `min_tokens` and `max_tokens`. 0.24.0 loads LoRA adapters while
it serves, by name. Refused: combinations that the version itself refuses at its start, after the model has been loaded.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field

from lib import paths
from lib.config import Launch, Strict
from lib.engines import build, flags, inside, reach, talk
from lib.engines.base import Server
from lib.engines.gpu import QUIET, GpuEngine
from lib.engines.process import OWN_PYTHON
from lib.engines.proof import Precision, claim, first
from lib.errors import ConfigError


class Settings(Strict):
    """Settings of one launch, under vLLM's own names where it has them. What has no default must be decided."""

    tensor_parallel: int = Field(gt=0)                      # GPUs of one replica
    replicas: int = Field(default=1, gt=0)                  # whole models side by side, behind vLLM's own router
    dtype: Literal["float16", "bfloat16"]                   # of activations
    kv_cache_dtype: Literal["auto", "fp8"]                  # auto: as dtype
    max_model_len: int = Field(gt=0)                        # prompt and answer of one request, tokens
    max_num_seqs: int = Field(gt=0)                         # requests in one step
    max_num_batched_tokens: int = Field(gt=0)               # tokens in one step
    gpu_memory_utilization: float = Field(gt=0, lt=1)       # share of the whole GPU
    chunked_prefill: bool
    prefix_cache: bool
    cuda_graphs: bool
    num_scheduler_steps: int | None = Field(default=None, gt=0)     # 0.6.2 only: steps per look of the scheduler
    stream_every_step: bool | None = None                   # 0.6.2 only, with more than one step
    swap_space_gib: int | None = Field(default=None, ge=0)  # 0.6.2 only: host memory for preempted requests
    stream_interval: int | None = Field(default=None, gt=0)         # not 0.6.2: tokens per chunk
    async_scheduling: bool | None = None                    # not 0.6.2
    api_servers: int | None = Field(default=None, gt=0)     # not 0.6.2: processes that speak HTTP
    kv_blocks: int | None = Field(default=None, gt=1)       # not 0.6.2: of 16 tokens; None: all that memory holds
    adapters: str | None = None                             # not 0.6.2: artifact of LoRA adapters beside the model
    max_loras: int = Field(default=1, gt=0)                 # adapters in one step; the others wait their turn
    max_lora_rank: int = Field(default=16, gt=0)


OLD, NEW = ("num_scheduler_steps", "swap_space_gib"), ("stream_interval", "async_scheduling", "api_servers")
BLOCK = 16                  # tokens of a block of its KV cache, by default on these GPUs

RANDOM = "dummy"            # its word for weights that are made up while loading
TOLD = ("None", "compressed-tensors")       # what a checkpoint says of itself
COUNTED = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "preemptions_total": ("vllm:num_preemptions_total",),
    "prompt_tokens_total": ("vllm:prompt_tokens_total",),
    "generation_tokens_total": ("vllm:generation_tokens_total",),
}


class VllmCuda(inside.VllmAdapters, GpuEngine):
    """vLLM on NVIDIA GPUs, as of 0.24."""

    name = "vllm"
    title = "vLLM"
    family = "vllm"
    wire = "openai-completions"
    reachable = True
    unasked = reach.UNASKED
    scratch = "VLLM_RPC_BASE_PATH"          # its processes speak through sockets that it never removes
    settings = Settings
    lock = True
    precisions: ClassVar = {
        "fp16": Precision("bf16", ()),          # the same weights rounded to float16 while they are loaded
        "bf16": Precision("bf16", ()),
        "fp8": Precision("fp8-static", ()),
        "int4": Precision("awq-int4", ()),
        "int4-w4a16": Precision("w4a16-int4", ()),      # groups of 64, by compressed-tensors
        "fp8-random-weights": Precision("fp8-static, random", ()),
        "int4-random-weights": Precision("awq-int4, random", ()),
    }

    metrics: ClassVar = COUNTED | {
        "kv_cache_usage": ("mean vllm:kv_cache_usage_perc",),       # a share: several engines are averaged
        "prefix_cache_queries_total": ("vllm:prefix_cache_queries_total",),
        "prefix_cache_hits_total": ("vllm:prefix_cache_hits_total",),
    }
    absent_metrics: ClassVar = {}
    old: ClassVar[bool] = False

    def check(self, launch: Launch) -> None:
        """Refuse what the version refuses, before the model is loaded; see `Engine.check`."""
        super().check(launch)
        own: Settings = self.own(launch)
        missing = [name for name in (OLD if self.old else NEW) if getattr(own, name) is None]
        strange = [name for name in (NEW if self.old else (*OLD, "stream_every_step"))
                   if getattr(own, name) is not None]
        where = f"Launch {launch.name}, vLLM {self.version_name}"
        if missing or strange:
            says = [f"settings lack {', '.join(missing)}"] if missing else []
            says += [f"this version does not know {', '.join(strange)}"] if strange else []
            raise ConfigError(f"{where}: {'; '.join(says)}.")
        if self.old and (own.adapters or own.kv_blocks):
            raise ConfigError(f"{where}: this study uses `adapters` and `kv_blocks` with 0.24.0 alone; the article's "
                              "version serves adapters without chunked prefill only, and nobody has tried it here.")
        inside.check(launch, own.max_lora_rank)
        if own.adapters and (own.replicas > 1 or own.api_servers != 1):
            raise ConfigError(f"{where} loads an adapter into one server process alone: with `adapters` write "
                              "`replicas: 1` and `api_servers: 1`.")
        if own.kv_blocks and own.kv_blocks * BLOCK < own.max_model_len:
            raise ConfigError(f"{where}: {own.kv_blocks} blocks of {BLOCK} tokens cannot hold one request of "
                              f"max_model_len {own.max_model_len}; it would wait for ever. Raise kv_blocks.")
        if not self.old:
            if own.max_num_batched_tokens < own.max_model_len and not own.chunked_prefill:
                raise ConfigError(f"{where}: without chunked prefill a step must hold a whole prompt: "
                                  f"max_num_batched_tokens {own.max_num_batched_tokens} is below max_model_len "
                                  f"{own.max_model_len}.")
            return
        if own.replicas > 1:
            raise ConfigError(f"{where} has no router for replicas: write `replicas: 1`.")
        steps = own.num_scheduler_steps or 1
        if steps > 1 and own.chunked_prefill:
            raise ConfigError(f"{where}: chunked prefill is not supported with num_scheduler_steps {steps}; keep one.")
        if (steps > 1) != (own.stream_every_step is not None):
            raise ConfigError(f"{where}: stream_every_step belongs to num_scheduler_steps above 1, and must be decided "
                              "there: without it tokens come in groups and the first one waits for its group.")
        if own.kv_cache_dtype == "fp8":
            raise ConfigError(f"{where}: an FP8 KV cache leaves FlashAttention for a slow kernel unless FlashInfer is "
                              "installed, which the wheel does not bring. Write `kv_cache_dtype: auto`.")
        if not own.chunked_prefill and own.max_num_batched_tokens < own.max_model_len:
            raise ConfigError(f"{where}: without chunked prefill a step must hold a whole prompt: "
                              f"max_num_batched_tokens {own.max_num_batched_tokens} is below max_model_len "
                              f"{own.max_model_len}.")

    def calls(self, launch: Launch) -> list[tuple[str, list[str]]]:
        """Programs and the option names they are given; see `GpuEngine.calls`."""
        return [("vllm serve", flags.options(self.command(launch, 0)))]

    def command(self, launch: Launch, port: int) -> list[str]:
        """Call `vllm serve` with every setting that decides the result."""
        own: Settings = self.own(launch)
        argv = [
            self.executable(launch, "vllm"), "serve", str(paths.ARTIFACTS / launch.artifact),
            "--served-model-name", launch.name, *reach.DOOR, "--host", reach.address(launch), "--port", str(port),
            "--tensor-parallel-size", str(own.tensor_parallel), "--distributed-executor-backend", "mp",
            "--dtype", own.dtype, "--kv-cache-dtype", own.kv_cache_dtype,
            *(["--load-format", RANDOM] if build.recipe(launch.artifact).random else []),
            *(["--quantization", quantization] if (quantization := self._quantization(launch)) not in TOLD else []),
            "--max-model-len", str(own.max_model_len), "--max-num-seqs", str(own.max_num_seqs),
            "--max-num-batched-tokens", str(own.max_num_batched_tokens),
            "--gpu-memory-utilization", f"{own.gpu_memory_utilization:g}",
            *([] if own.cuda_graphs else ["--enforce-eager"]), "--seed", "0",
        ]
        return argv + (self._old_options(own) if self.old else self._new_options(own))

    def _quantization(self, launch: Launch) -> str:
        """Return its name as the engine logs it; AWQ on the Marlin kernel is called otherwise since 0.6.2."""
        awq = "awq_marlin" if self.old else "auto_awq"
        stored = {"int4": awq, "fp8": "fp8", "int4-w4a16": "compressed-tensors"}
        return stored.get(launch.precision.removesuffix("-random-weights"), "None")

    def _old_options(self, own: Settings) -> list[str]:
        return [
            # 0.6.2 takes a value after this option, and off is what it is without the next.
            "--enable-chunked-prefill", str(own.chunked_prefill),
            *(["--enable-prefix-caching"] if own.prefix_cache else []),
            "--num-scheduler-steps", str(own.num_scheduler_steps),
            *(["--multi-step-stream-outputs"] if own.stream_every_step else []),
            "--swap-space", str(own.swap_space_gib), "--disable-log-requests",
        ]

    def _new_options(self, own: Settings) -> list[str]:
        return [
            "--enable-chunked-prefill" if own.chunked_prefill else "--no-enable-chunked-prefill",
            "--enable-prefix-caching" if own.prefix_cache else "--no-enable-prefix-caching",
            "--async-scheduling" if own.async_scheduling else "--no-async-scheduling",
            "--stream-interval", str(own.stream_interval), "--data-parallel-size", str(own.replicas),
            "--api-server-count", str(own.api_servers),
            *(["--num-gpu-blocks-override", str(own.kv_blocks)] if own.kv_blocks else []),
            *inside.vllm_options(own.adapters, own.max_loras, own.max_lora_rank),
            "--generation-config", "vllm",      # the model's own sampling defaults must not creep in
        ]

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Hand over the key; let no word out."""
        allowed = inside.vllm_variables(self.own(launch).adapters)
        return {"VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1", **allowed, **QUIET, **OWN_PYTHON, **reach.DOORS_PLACE}

    def body(self, launch: Launch, prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
        """Build an OpenAI text completion with vLLM's own keys."""
        # 0.6.2 sends a running usage with every chunk unless it is told not to; the key is refused by no version.
        return "/v1/completions", {
            "model": launch.name, "prompt": prompt, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": False},
            "max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0, "seed": 0,
            "skip_special_tokens": False,       # an end token that is ignored is still a token, and shows as one
        }

    def kv_cache(self, server: Server) -> dict[str, Any] | None:
        """By its log."""
        own: Settings = self.own(server.launch)
        size = 1.0 if own.kv_cache_dtype == "fp8" else 2.0
        return inside.vllm_kv_cache(server.process.text(), own.max_model_len, None, size, own.replicas)

    def claims(self, server: Server) -> list[dict[str, Any]]:
        """Model, version, layout, dtype, quantization, KV cache, prefix cache, graphs, steps."""
        launch, own = server.launch, self.own(server.launch)
        line = first(r"Initializing an? (?:V1 )?LLM engine \(v\S+\) with config: (.*)", server.process.text()) or ""
        said = "log: engine config"
        served = talk.get_json(server.port, "/v1/models", server.key)["data"][0]
        told = talk.get_json(server.port, "/version", server.key)["version"].partition("+")[0]     # a build's own tag
        rows = [
            claim("served model", launch.name, served["id"], "GET /v1/models"),
            claim("model folder", paths.ARTIFACTS / launch.artifact, served["root"], "GET /v1/models, root"),
            claim("context", own.max_model_len, served["max_model_len"], "GET /v1/models, max_model_len"),
            claim("version", self.version_name, told, "GET /version"),
            claim("GPUs of a replica", own.tensor_parallel, first(r"\btensor_parallel_size=(\d+)", line), said),
            claim("dtype", own.dtype, first(r"\bdtype=torch\.(\w+)", line), said),
            claim("quantization", self._quantization(launch), first(r"\bquantization=([\w-]+)", line), said),
            claim("KV cache", own.kv_cache_dtype, first(r"\bkv_cache_dtype=(\w+)", line), f"{said} (auto: the dtype)"),
            claim("prefix cache", own.prefix_cache, first(r"\benable_prefix_caching=(\w+)", line), said),
            claim("eager", not own.cuda_graphs, first(r"\benforce_eager=(\w+)", line), said),
        ]
        if build.recipe(launch.artifact).random:
            rows.append(claim("weights", RANDOM, first(r"\bload_format=(\w+)", line), f"{said}, load_format"))
        if self.old:
            rows += [
                claim("scheduler steps", own.num_scheduler_steps, first(r"\bnum_scheduler_steps=(\d+)", line), said),
                claim("streams every step", bool(own.stream_every_step),
                      first(r"\bmulti_step_stream_outputs=(\w+)", line), said),
            ]
        else:
            rows.append(claim("chunked prefill", own.chunked_prefill,
                              first(r"\benable_chunked_prefill=(\w+)", line), said))
        return rows

    def version(self, server: Server) -> str:
        """As the server tells it."""
        return f"vLLM {talk.get_json(server.port, '/version', server.key)['version']}"


class VllmArticle(VllmCuda):
    """vLLM on NVIDIA GPUs, 0.6.2: other options, other names of metrics."""

    metrics: ClassVar = COUNTED | {"kv_cache_usage": ("mean vllm:gpu_cache_usage_perc",)}
    absent_metrics: ClassVar = dict.fromkeys(
        ("prefix_cache_queries_total", "prefix_cache_hits_total"),
        "vLLM 0.6.2 exports hit rates of its prefix cache, which is off, and no counts",
    )
    old = True
