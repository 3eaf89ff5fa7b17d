"""TensorRT-LLM 0.12.0 behind Triton's tensorrtllm_backend: quantize, build, fill the model repository, serve.

The image is tritonserver:24.08-trtllm-python-py3, which holds 0.12.0; quantization scripts and Triton's model templates
come from the backend's repository at the tag's commit. One tritonserver process a GPU under mpirun, as the backend's
own launcher starts them (it leaves them in the background, so it is not used). The stream has no token count and no end
mark, and tells errors inside; tokens are counted by the model's tokenizer. Output length is pinned by `max_tokens` with
`min_length` and no end token. The server takes no key: it must listen on loopback only.
"""

import json
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from lib import paths
from lib.config import Launch, Strict
from lib.engines import flags, talk
from lib.engines.base import Server
from lib.engines.gpu import QUIET, GpuEngine
from lib.engines.made import HERE, Step
from lib.engines.process import OWN_PYTHON
from lib.engines.proof import Precision, claim
from lib.errors import ConfigError

BACKEND = "https://github.com/triton-inference-server/tensorrtllm_backend.git"
COMMIT = "9a78477873574098c32467f0fd8a9d3b4c243d9b"         # tag v0.12.0; its submodule is TensorRT-LLM v0.12.0
SOURCES, CHECKPOINT, ENGINE, REPOSITORY = (
    "tensorrt-llm-0.12.0-sources", "tensorrt-llm-0.12.0-checkpoint", "tensorrt-llm-0.12.0-engine", "triton-repository")
TREE = f"{{{SOURCES}}}/backend"
EXAMPLES = f"{TREE}/tensorrt_llm/examples"
PATH = "/v2/models/ensemble/generate_stream"


class Settings(Strict):
    """Settings of one launch, under TensorRT-LLM's and its backend's own names. All must be decided."""

    tensor_parallel: int = Field(gt=0)
    replicas: Literal[1] = 1
    calib_dataset: str | None = None                        # FP8 only: name on the hub, or a folder
    calib_size: int | None = Field(default=None, gt=0)      # FP8 only: texts
    max_batch_size: int = Field(gt=0)                       # requests in one step
    max_input_len: int = Field(gt=0)                        # tokens
    max_seq_len: int = Field(gt=0)                          # prompt and answer of one request, tokens
    max_num_tokens: int = Field(gt=0)                       # tokens in one step
    gemm_plugin: Literal["auto", "disable"]
    use_fused_mlp: bool
    reduce_fusion: bool
    multiple_profiles: bool
    use_paged_context_fmha: bool
    use_fp8_context_fmha: bool
    chunked_prefill: bool                                   # the backend's enable_chunked_context
    prefix_cache: bool                                      # the backend's enable_kv_cache_reuse
    batch_scheduler_policy: Literal["max_utilization", "guaranteed_no_evict"]
    kv_cache_free_gpu_mem_fraction: float = Field(gt=0, lt=1)       # of what the engine leaves free
    pre_and_postprocessors: int = Field(gt=0)               # instances each: tokenizing must not be what is measured


class TrtllmTriton(GpuEngine):
    """TensorRT-LLM 0.12.0 behind Triton."""

    name = "tensorrt_llm"
    title = "TensorRT-LLM"
    family = "tensorrt-llm"
    wire = "triton-generate-stream"
    health = "/v2/health/ready"
    keyed = False
    settings = Settings
    precisions: ClassVar = {"fp16": Precision("bf16", ()), "fp8": Precision("bf16", ())}
    metrics: ClassVar = {
        "running": ('nv_trt_llm_request_metrics{request_type="scheduled"}',),
        "kv_cache_usage": ('nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used"} / '
                           'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max"}',),
    }
    absent_metrics: ClassVar = {
        "waiting": "TensorRT-LLM 0.12.0 exports active and scheduled requests, none that wait",
        "preemptions_total": "TensorRT-LLM 0.12.0 exports no count of paused requests",
        "prefix_cache_queries_total": "TensorRT-LLM 0.12.0 exports no lookups of its cache, which is off",
        "prefix_cache_hits_total": "TensorRT-LLM 0.12.0 exports no lookups of its cache, which is off",
        "prompt_tokens_total": "the Triton backend of 0.12.0 exports no token counts",
        "generation_tokens_total": "the Triton backend of 0.12.0 exports no token counts",
    }

    def check(self, launch: Launch) -> None:
        """Refuse what the builder or the backend refuses, before hours of building; see `Engine.check`."""
        super().check(launch)
        own: Settings = self.own(launch)
        where, fp8 = f"Launch {launch.name}, TensorRT-LLM {self.version_name}", launch.precision == "fp8"
        if (own.calib_dataset is None or own.calib_size is None) == fp8:
            raise ConfigError(f"{where}: calib_dataset and calib_size belong to FP8, and only there.")
        if own.chunked_prefill and not own.use_paged_context_fmha:
            raise ConfigError(f"{where}: chunked prefill needs an engine with use_paged_context_fmha.")
        if own.use_fp8_context_fmha and not fp8:
            raise ConfigError(f"{where}: use_fp8_context_fmha needs FP8 weights and KV cache.")
        if fp8 and own.use_paged_context_fmha and not own.use_fp8_context_fmha:
            raise ConfigError(f"{where}: with the paged kernel alone the builder leaves FP8 attention off; set "
                              "use_fp8_context_fmha too.")
        if own.max_input_len >= own.max_seq_len:
            raise ConfigError(f"{where}: max_input_len {own.max_input_len} leaves no room for an answer in "
                              f"max_seq_len {own.max_seq_len}.")

    def steps(self, launch: Launch) -> list[Step]:
        """Fetch the sources, make the checkpoint, build the engine, fill the model repository."""
        git, tag = ("git", "-C", f"{HERE}/backend"), f"v{self.version_name}"
        sources = (
            ("git", "clone", "--quiet", "--depth", "1", "--branch", tag, BACKEND, f"{HERE}/backend"),
            (*git, "checkout", "--quiet", "--detach", COMMIT),          # fails if the tag has moved
            (*git, "submodule", "update", "--quiet", "--init", "--depth", "1", "tensorrt_llm"),
        )
        return [
            Step(SOURCES, sources, outside=True, served=False, limit_s=1800),
            Step(CHECKPOINT, (tuple(self.checkpoint(launch)),), served=False, expected_s=1800),
            Step(ENGINE, (tuple(self.engine(launch)),), for_gpu=True, expected_s=1500),
            Step(REPOSITORY, tuple(tuple(argv) for argv in self.repository(launch)), outside=True, expected_s=5,
                 limit_s=300),
        ]

    def checkpoint(self, launch: Launch) -> list[str]:
        """Argument list that turns the weights into TensorRT-LLM's format: by ModelOpt for FP8, else a conversion.

        Quantizing loads the 16-bit model over all GPUs it sees, 210 GB at its peak: one process, never under mpirun.
        """
        own: Settings = self.own(launch)
        model = str(paths.ARTIFACTS / launch.artifact)
        python = self.executable(launch, "python3")
        if launch.precision == "fp8":
            return [python, f"{EXAMPLES}/quantization/quantize.py", "--model_dir", model, "--dtype", "float16",
                    "--qformat", "fp8", "--kv_cache_dtype", "fp8", "--calib_dataset", str(own.calib_dataset),
                    "--calib_size", str(own.calib_size), "--tp_size", str(own.tensor_parallel), "--output_dir", HERE]
        return [python, f"{EXAMPLES}/llama/convert_checkpoint.py", "--model_dir", model, "--dtype", "float16",
                "--tp_size", str(own.tensor_parallel), "--output_dir", HERE]

    def engine(self, launch: Launch) -> list[str]:
        """Argument list that builds the engine, one GPU a rank."""
        own: Settings = self.own(launch)
        return [
            self.executable(launch, "trtllm-build"), "--checkpoint_dir", f"{{{CHECKPOINT}}}", "--output_dir", HERE,
            "--workers", str(own.tensor_parallel), "--max_batch_size", str(own.max_batch_size),
            "--max_input_len", str(own.max_input_len), "--max_seq_len", str(own.max_seq_len),
            "--max_num_tokens", str(own.max_num_tokens), "--max_beam_width", "1",
            "--gpt_attention_plugin", "auto", "--gemm_plugin", own.gemm_plugin,
            "--use_paged_context_fmha", _able(own.use_paged_context_fmha),
            "--use_fp8_context_fmha", _able(own.use_fp8_context_fmha),
            "--multiple_profiles", _able(own.multiple_profiles), "--reduce_fusion", _able(own.reduce_fusion),
            *(["--use_fused_mlp"] if own.use_fused_mlp else []),        # a switch in 0.12, with a value from 0.13 on
        ]

    def repository(self, launch: Launch) -> list[list[str]]:
        """Argument lists that copy Triton's model templates and fill them; plain Python does."""
        copy = ["cp", "-r", f"{TREE}/all_models/inflight_batcher_llm/.", HERE]
        return [copy] + [
            ["python3", f"{TREE}/tools/fill_template.py", "-i", f"{HERE}/{name}/config.pbtxt",
             ",".join(f"{k}:{v}" for k, v in values.items())]
            for name, values in self.templates(launch).items()
        ]

    def templates(self, launch: Launch) -> dict[str, dict[str, object]]:
        """Values for each model's template."""
        own: Settings = self.own(launch)
        batch: dict[str, object] = {"triton_max_batch_size": own.max_batch_size}
        tokenizer: dict[str, object] = {"tokenizer_dir": str(paths.ARTIFACTS / launch.artifact), **batch}
        return {
            "preprocessing": tokenizer | {"preprocessing_instance_count": own.pre_and_postprocessors},
            # An end token that is ignored is still a token, and must show as one.
            "postprocessing": tokenizer | {"postprocessing_instance_count": own.pre_and_postprocessors,
                                           "skip_special_tokens": False},
            "tensorrt_llm_bls": batch | {"decoupled_mode": True, "bls_instance_count": 1, "accumulate_tokens": False},
            "ensemble": batch,
            "tensorrt_llm": {
                "triton_backend": "tensorrtllm", **batch, "decoupled_mode": True, "max_beam_width": 1,
                "engine_dir": f"{{{ENGINE}}}", "batching_strategy": "inflight_fused_batching",
                "batch_scheduler_policy": own.batch_scheduler_policy,
                "kv_cache_free_gpu_mem_fraction": f"{own.kv_cache_free_gpu_mem_fraction:g}",
                "enable_kv_cache_reuse": own.prefix_cache, "enable_chunked_context": own.chunked_prefill,
                "exclude_input_in_output": True, "max_queue_delay_microseconds": 0,
            },
        }

    def calls(self, launch: Launch) -> list[tuple[str, list[str]]]:
        """Programs and the option names they are given; see `GpuEngine.calls`."""
        server = self.command(launch, 0)
        convert = "quantize.py" if launch.precision == "fp8" else "convert_checkpoint.py"
        templates = [(f"template {name}", [*values]) for name, values in self.templates(launch).items()]
        return [
            (convert, flags.options(self.checkpoint(launch))), ("trtllm-build", flags.options(self.engine(launch))),
            ("fill_template.py", ["-i"]), *templates,
            ("mpirun", [name for name in flags.options(server) if name in ("-n", "--allow-run-as-root")]),
            ("tritonserver", [name for name in flags.options(server) if name not in ("-n", "--allow-run-as-root")]),
            ("generate_stream", [*self.body(launch, "", 1)[1]]),
        ]

    def command(self, launch: Launch, port: int) -> list[str]:
        """Call mpirun with one tritonserver a rank; only the first loads the models that speak to clients."""
        repository = self.made(launch)[-1]
        argv = [self.executable(launch, "mpirun"), "--allow-run-as-root"]
        for rank in range(self.own(launch).tensor_parallel):
            argv += [
                *([":"] if rank else []), "-n", "1", self.executable(launch, "tritonserver"),
                f"--model-repository={repository}", "--allow-grpc=false", "--http-address=127.0.0.1",
                f"--http-port={port}", f"--metrics-port={self.metrics_port(port)}",
                *(["--model-control-mode=explicit", "--load-model=tensorrt_llm"] if rank else []),
                "--disable-auto-complete-config", f"--backend-config=python,shm-region-prefix-name=prefix{rank}_",
            ]
        return argv

    def metrics_port(self, port: int) -> int:
        """Triton's metrics have a port of their own: the next one."""
        return port + 1

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Let no word out; Triton knows no key."""
        return QUIET | OWN_PYTHON

    def making(self) -> dict[str, str]:
        """Environment variables of the steps; large files of the sources' history are not needed."""
        return super().making() | {"GIT_LFS_SKIP_SMUDGE": "1"}

    def body(self, launch: Launch, prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
        """Build a generate_stream request. `bad_words` and `stop_words` are no options in this version."""
        return PATH, {
            "text_input": prompt, "max_tokens": output_tokens, "min_length": output_tokens, "end_id": -1,
            "stream": True, "bad_words": "", "stop_words": "", "top_k": 1, "temperature": 1.0,
        }

    def complete(self, server: Server, body: dict[str, Any], path: str, limit_s: float) -> dict[str, Any]:
        """Stream one completion; tokens are counted by the model's tokenizer. See `Engine.complete`."""
        status, text = talk.ask(server.port, "POST", path, None, body, limit_s)
        if status != 200:
            raise OSError(f"{path} answered {status}: {text[:300]}")
        words = [chunk["text_output"] for chunk in talk.streamed(text, path) if "text_output" in chunk]
        counted = {"prompt_tokens": self.prompt_tokens(server.launch, body["text_input"]),
                   "completion_tokens": len(words)}         # a response a token, also where its text is still empty
        return {"events": len(words), "usage": counted, "text": "".join(words)}

    def kv_cache(self, server: Server) -> dict[str, Any] | None:
        """Blocks times tokens of a block, by its own metrics."""
        try:
            _, text = talk.ask(self.metrics_port(server.port), "GET", self.metrics_path, None)
        except OSError:
            return None
        values, name = talk.prometheus(text), "nv_trt_llm_kv_cache_block_metrics"
        blocks, each = (talk.value(values, f'{name}{{kv_cache_block_type="{kind}"}}') for kind in ("max", "tokens_per"))
        if not blocks or not each:
            return None
        size = 1.0 if server.launch.precision == "fp8" else 2.0     # the cache is quantized with the weights
        return {"tokens": int(blocks * each), "context": self.own(server.launch).max_seq_len, "bytes": None,
                "value_bytes": size, "source": name}

    def claims(self, server: Server) -> list[dict[str, Any]]:
        """What the engine was built as, and what Triton was told."""
        launch, own = server.launch, self.own(server.launch)
        built = _json(self.made(launch)[2] / "config.json")
        pretrained, plugins = built["pretrained_config"], built["build_config"]["plugin_config"]
        quantized = pretrained.get("quantization") or {}
        told = talk.get_json(server.port, "/v2/models/tensorrt_llm/config", "")
        said = {name: value["string_value"] for name, value in told["parameters"].items()}
        fp8 = "FP8" if launch.precision == "fp8" else None
        on_disk, asked = "config.json of the engine", "GET /v2/models/tensorrt_llm/config"
        return [
            claim("version that built the engine", self.version_name, built["version"], on_disk),
            claim("quantization", str(fp8), str(quantized.get("quant_algo")), on_disk),
            claim("KV cache", str(fp8), str(quantized.get("kv_cache_quant_algo")), f"{on_disk} (None: float16)"),
            claim("GPUs of a replica", own.tensor_parallel, pretrained["mapping"]["tp_size"], on_disk),
            claim("requests in a step", own.max_batch_size, built["build_config"]["max_batch_size"], on_disk),
            claim("tokens in a step", own.max_num_tokens, built["build_config"]["max_num_tokens"], on_disk),
            claim("FP8 attention of prompts", own.use_fp8_context_fmha, plugins["use_fp8_context_fmha"], on_disk),
            claim("engine folder", self.made(launch)[2], said.get("gpt_model_path"), asked),
            claim("scheduler policy", own.batch_scheduler_policy, said.get("batch_scheduler_policy"), asked),
            claim("chunked prefill", own.chunked_prefill, said.get("enable_chunked_context"), asked),
            claim("prefix cache", own.prefix_cache, said.get("enable_kv_cache_reuse"), asked),
            claim("streams", True, told["model_transaction_policy"]["decoupled"], asked),
        ]

    def version(self, server: Server) -> str:
        """Return the engine's version and Triton's own."""
        triton = talk.get_json(server.port, "/v2", "")["version"]
        return f"TensorRT-LLM {_json(self.made(server.launch)[2] / 'config.json')['version']} (Triton {triton})"


def _able(on: bool) -> str:
    return "enable" if on else "disable"


def _json(path: Path) -> Any:
    return json.loads(path.read_text())
