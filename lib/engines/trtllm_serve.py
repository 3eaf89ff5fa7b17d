"""TensorRT-LLM 1.2.1 by its own server, `trtllm-serve`, on the PyTorch backend: weights, option file, replicas, claims.

Most options live in a YAML file that overrides the command line; it is made with the weights and hashed with them. FP8
weights are quantized by ModelOpt in the launch's own environment, because none of Llama-3 (3.0) is published in its
format. The engine has no router for dense models: replicas stand behind this study's own, which hands each
connection to the replica with the fewest. Output length is pinned by `ignore_eos`, `min_tokens` and `max_tokens`. A
request brings its LoRA adapter's name, number and folder along (NVIDIA/TensorRT-LLM, docs/source/features/lora.md
@050db34b); the engine reads it at the first. The server takes no key: it must listen on loopback only. Refused:
adapters beside FP8 weights, for which the fix came after 1.2's candidates (pull request 9808).
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import Field

from lib import paths
from lib.config import Launch, Strict
from lib.engines import flags, inside, talk
from lib.engines.base import Server
from lib.engines.gpu import QUIET, GpuEngine
from lib.engines.made import HERE, Step
from lib.engines.process import OWN_PYTHON
from lib.engines.proof import Precision, claim
from lib.errors import ConfigError

RECIPES = Path(__file__).with_name("recipes")
CHECKPOINT, OPTIONS = "modelopt-fp8-checkpoint", "trtllm-serve-options"
FILE = "options.yaml"
ADAPTED = ("attn_q", "attn_k", "attn_v", "attn_dense")      # its names of the matrices that our adapters change
OFFER_S = 120.0


class Settings(Strict):
    """Settings of one launch, under TensorRT-LLM's own names. All must be decided."""

    tensor_parallel: int = Field(gt=0)                      # GPUs of one replica
    replicas: int = Field(default=1, gt=0)
    calib_size: int | None = Field(default=None, gt=0)      # FP8 only: texts
    kv_cache_dtype: Literal["auto", "fp8"]
    max_batch_size: int = Field(gt=0)                       # requests in one step of a replica
    max_num_tokens: int = Field(gt=0)                       # tokens in one step
    max_seq_len: int = Field(gt=0)                          # prompt and answer of one request, tokens
    chunked_prefill: bool
    prefix_cache: bool                                      # kv_cache_config.enable_block_reuse
    free_gpu_memory_fraction: float = Field(gt=0, lt=1)     # of what the weights leave free
    scheduler_policy: Literal["GUARANTEED_NO_EVICT", "MAX_UTILIZATION"]
    cuda_graphs: bool
    stream_interval: int = Field(gt=0)                      # tokens per chunk
    overlap_scheduler: bool
    statistics: bool                                        # engine metrics, at a small cost
    adapters: str | None = None                             # artifact of LoRA adapters, served beside the model
    max_loras: int = Field(default=1, gt=0)                 # adapters on the GPUs at once
    max_lora_rank: int = Field(default=16, gt=0)


class TrtllmServe(GpuEngine):
    """TensorRT-LLM 1.2.1, `trtllm-serve`."""

    name = "tensorrt_llm"
    title = "TensorRT-LLM"
    family = "tensorrt-llm"
    wire = "trtllm-serve-completions"
    metrics_path = "/prometheus/metrics"    # /metrics is JSON, and reading it drains it
    keyed = False
    settings = Settings
    precisions: ClassVar = {"bf16": Precision("bf16", ()), "fp8": Precision("bf16", ())}
    # The name is of 1.2's collector; whether 1.2.1 still has it shows at the first start: absent, never 0.
    metrics: ClassVar = {"kv_cache_usage": ("mean trtllm_kv_cache_utilization",)}
    absent_metrics: ClassVar = {
        "running": "TensorRT-LLM 1.2 exports no gauge of running requests for Prometheus",
        "waiting": "TensorRT-LLM 1.2 exports no gauge of waiting requests for Prometheus",
        "preemptions_total": "TensorRT-LLM 1.2 exports no count of paused requests",
        "prefix_cache_queries_total": "TensorRT-LLM 1.2 exports a hit rate of its cache and no counts",
        "prefix_cache_hits_total": "TensorRT-LLM 1.2 exports a hit rate of its cache and no counts",
        "prompt_tokens_total": "TensorRT-LLM 1.2 exports no token counts",
        "generation_tokens_total": "TensorRT-LLM 1.2 exports no token counts",
    }

    def check(self, launch: Launch) -> None:
        """Refuse what the engine refuses after loading; see `Engine.check`."""
        super().check(launch)
        own: Settings = self.own(launch)
        where = f"Launch {launch.name}, TensorRT-LLM {self.version_name}"
        if (own.calib_size is None) == (launch.precision == "fp8"):
            raise ConfigError(f"{where}: calib_size belongs to FP8, and only there.")
        inside.check(launch, own.max_lora_rank)
        if own.adapters and launch.precision == "fp8":
            raise ConfigError(f"{where}: 16-bit adapters beside Llama-70B's FP8 weights failed until NVIDIA's pull "
                              "request 9808 of 2026-01, and whether this release holds it is not known. Serve adapters "
                              "at bf16.")
        if not own.chunked_prefill and own.max_num_tokens < own.max_seq_len:
            raise ConfigError(f"{where}: without chunked prefill a step must hold a whole prompt: max_num_tokens "
                              f"{own.max_num_tokens} is below max_seq_len {own.max_seq_len}.")

    def steps(self, launch: Launch) -> list[Step]:
        """Quantize, for FP8; then the option file."""
        options = Step(OPTIONS, files=((FILE, yaml.safe_dump(self.options(launch), sort_keys=True)),), expected_s=0)
        if launch.precision != "fp8":
            return [options]
        own: Settings = self.own(launch)
        quantize = (
            self.executable(launch, "python3"), str(RECIPES / "quantize_modelopt.py"),
            "--model", str(paths.ARTIFACTS / launch.artifact), "--texts", str(own.calib_size), "--out", HERE,
        )
        return [Step(CHECKPOINT, (quantize,), expected_s=2400), options]

    def options(self, launch: Launch) -> dict[str, Any]:
        """Return the option file's content; its keys are the LLM API's."""
        own: Settings = self.own(launch)
        return {
            "kv_cache_config": {"dtype": own.kv_cache_dtype, "enable_block_reuse": own.prefix_cache,
                                "free_gpu_memory_fraction": own.free_gpu_memory_fraction},
            "cuda_graph_config": {"enable_padding": True, "max_batch_size": own.max_batch_size}
            if own.cuda_graphs else None,
            "scheduler_config": {"capacity_scheduler_policy": own.scheduler_policy},
            "stream_interval": own.stream_interval,
            "disable_overlap_scheduler": not own.overlap_scheduler,
            "enable_iter_perf_stats": own.statistics,
            "return_perf_metrics": own.statistics,          # mounts /prometheus/metrics
        } | ({"lora_config": {
            "lora_target_modules": list(ADAPTED), "max_lora_rank": own.max_lora_rank, "max_loras": own.max_loras,
            # One more than there are: what should be refused and is taken must push none out.
            "max_cpu_loras": max(own.max_loras, inside.COUNT) + 1,
        }} if own.adapters else {})

    def model(self, launch: Launch) -> Path:
        """Folder of the weights that are served; its name is the model's for clients."""
        return self.made(launch)[0] if launch.precision == "fp8" else paths.ARTIFACTS / launch.artifact

    def server(self, launch: Launch, port: str) -> list[str]:
        """Argument list of one replica."""
        own: Settings = self.own(launch)
        return [
            self.executable(launch, "trtllm-serve"), str(self.model(launch)), "--backend", "pytorch",
            "--host", "127.0.0.1", "--port", port, "--tp_size", str(own.tensor_parallel), "--pp_size", "1",
            "--max_batch_size", str(own.max_batch_size), "--max_num_tokens", str(own.max_num_tokens),
            "--max_seq_len", str(own.max_seq_len), *(["--enable_chunked_prefill"] if own.chunked_prefill else []),
            "--extra_llm_api_options", str(self.made(launch)[-1] / FILE),
        ]

    def calls(self, launch: Launch) -> list[tuple[str, list[str]]]:
        """Programs and the option names they are given; see `GpuEngine.calls`."""
        options = self.options(launch)
        inner = [f"{key}.{name}" for key, value in options.items() if isinstance(value, dict) for name in value]
        return [("trtllm-serve", flags.options(self.server(launch, "0"))), ("llm-api", [*options, *inner])]

    def command(self, launch: Launch, port: int) -> list[str]:
        """Call the server, or several behind the study's router."""
        own: Settings = self.own(launch)
        if own.replicas == 1:
            return self.server(launch, str(port))
        return [self.executable(launch, "python3"), str(RECIPES / "replicas.py"), "--port", str(port),
                "--replicas", str(own.replicas), "--gpus", str(own.tensor_parallel), "--health", self.health, "--",
                *self.server(launch, "{port}")]

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Let no word out; the server knows no key."""
        return QUIET | OWN_PYTHON

    def body(self, launch: Launch, prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
        """Build an OpenAI text completion; a key that the server does not know would be refused."""
        return "/v1/completions", {
            "model": self.model(launch).name, "prompt": prompt, "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": False},
            "max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True, "temperature": 0.0,
            "skip_special_tokens": False,       # an end token that is ignored is still a token, and shows as one
        }

    def adapted(self, launch: Launch, body: dict[str, Any], adapter: str) -> dict[str, Any]:
        """Bring an adapter along: the engine keeps it under its number."""
        if not self.own(launch).adapters:
            return super().adapted(launch, body, adapter)
        number = adapter.rpartition("-")[2]
        return body | {"lora_request": {
            "lora_name": adapter, "lora_int_id": int(number) if number.isdigit() else 0,
            "lora_path": str(inside.folder(launch, adapter)),
        }}

    def offer(self, server: Server, name: str, folder: Path) -> tuple[bool, str]:
        """Ask with the adapter, once: there is no other way to bring one to the engine."""
        path, body = server.body("The", 4, name)
        try:
            talk.completion(server.port, path, server.key, body, OFFER_S)
        except OSError as refusal:
            return False, str(refusal)
        return True, "a request that brought it along was answered"

    def claims(self, server: Server) -> list[dict[str, Any]]:
        """Model, version and quantization; the option file is proven by its hash."""
        launch = server.launch
        served = talk.get_json(server.port, "/v1/models", "")["data"][0]["id"]
        told = talk.get_json(server.port, "/version", "")["version"]
        described = self.model(launch) / "hf_quant_config.json"
        said = json.loads(described.read_text())["quantization"] if described.exists() else {}
        fp8 = "FP8" if launch.precision == "fp8" else None
        cache = "FP8" if self.own(launch).kv_cache_dtype == "fp8" else None
        where = "hf_quant_config.json of the weights (None: not quantized)"
        return [
            claim("served model", self.model(launch).name, served, "GET /v1/models"),
            claim("version", self.version_name, told, "GET /version"),
            claim("quantization", str(fp8), str(said.get("quant_algo")), where),
            claim("KV cache", str(cache), str(said.get("kv_cache_quant_algo")), where),
        ]

    def version(self, server: Server) -> str:
        """As the server tells it."""
        return f"TensorRT-LLM {talk.get_json(server.port, '/version', '')['version']}"
