"""llama.cpp on a CPU, from the `xllamacpp` wheel: how it is started, what its log says, how to speak to it.

Output length is pinned by `ignore_eos` with `n_predict`; the prompt cache is off unless the launch wants it.
LoRA adapters are loaded at its start and each request chooses one by its place. Its threads are OpenMP's and would
spin while they wait, which starves a load client on the same cores: they are told to sleep.
"""

import json
import re
import time
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from lib import environments, paths
from lib.config import Launch, Strict
from lib.engines import cores, inside, talk
from lib.engines.base import Engine, Server
from lib.engines.process import OWN_PYTHON, Process, free_port
from lib.engines.proof import Precision, claim, first

SCRIPT = paths.ROOT / "lib" / "engines" / "recipes" / "serve_llama_cpp.py"
AVX2 = ("avx2", "fma", "f16c")


class Settings(Strict):
    """Settings of one llama.cpp launch."""

    slots: int = Field(default=16, gt=0)                # requests served at once; more wait
    slot_tokens: int = Field(default=512, gt=0)         # prompt and answer of one request
    threads: int | None = Field(default=None, gt=0)     # None: one per core that is the engine's
    prefix_cache: bool = False
    kv_type: Literal["f16", "q8_0"] = "f16"             # of keys and values; q8_0 halves the cache
    step_tokens: int | None = Field(default=None, gt=0)     # tokens in one step, so the chunk of a prompt; None: 2048
    adapters: str | None = None                         # artifact of LoRA adapters, served beside the model


class LlamaCpp(Engine):
    """llama.cpp."""

    name = "llama-cpp"
    title = "llama.cpp"
    wire = "llama-cpp"
    keeps_connections = False       # its HTTP library closes after every stream and says keep-alive all the same
    environment = "llama-cpp"
    settings = Settings
    precisions: ClassVar = {
        "f16": Precision("gguf-f16", AVX2),
        "q8_0": Precision("gguf-q8_0", AVX2),
        "q4_0": Precision("gguf-q4_0", AVX2),
    }
    metrics: ClassVar = {
        "running": ("llamacpp:requests_processing",),
        "waiting": ("llamacpp:requests_deferred",),
        # Tokens looked up in the cache: those computed and those found.
        "prefix_cache_queries_total": ("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
        "prefix_cache_hits_total": ("llamacpp:prompt_tokens_cached_total",),
        "prompt_tokens_total": ("llamacpp:prompt_tokens_total",),
        "generation_tokens_total": ("llamacpp:tokens_predicted_total",),
    }
    absent_metrics: ClassVar = {
        "kv_cache_usage": "this build of llama.cpp exports no gauge of its KV cache",
        "preemptions_total": "llama.cpp reserves a slot's whole context and never preempts",
    }

    def check(self, launch: Launch) -> None:
        """Refuse what cannot work; see `Engine.check`."""
        super().check(launch)
        inside.check(launch, None)

    def command(self, launch: Launch, port: int) -> list[str]:
        """Our small server script in the engine's interpreter."""
        own: Settings = self.own(launch)
        told = {
            "model": str(paths.ARTIFACTS / launch.artifact / "model.gguf"), "name": launch.name, "port": port,
            "slots": own.slots, "slot_tokens": own.slot_tokens, "threads": self._threads(own),
            "prefix_cache": own.prefix_cache, "kv_type": own.kv_type, "step_tokens": own.step_tokens,
            "adapters": [str(inside.folder(launch, name) / "adapter.gguf") for name in self.adapters(launch)],
        }
        return [str(environments.python(self.environment)), "-u", str(SCRIPT), json.dumps(told)]

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Hand over the key, and have threads sleep while they wait."""
        return {"FIRST_TOKEN_SLA_SERVER_KEY": key, "OMP_WAIT_POLICY": "PASSIVE", **OWN_PYTHON}

    def body(self, launch: Launch, prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
        """Build an OpenAI text completion with llama.cpp's own keys."""
        return "/v1/completions", {
            "model": launch.name, "prompt": prompt, "stream": True, "stream_options": {"include_usage": True},
            "n_predict": output_tokens, "ignore_eos": True, "temperature": 0.0, "seed": 0,
            "cache_prompt": self.own(launch).prefix_cache,
        }

    def adapted(self, launch: Launch, body: dict[str, Any], adapter: str) -> dict[str, Any]:
        """Ask for an adapter by its place; all others, and without this key all, are off."""
        if not self.own(launch).adapters:
            return super().adapted(launch, body, adapter)
        return body | {"lora": [{"id": int(adapter.rpartition("-")[2]) - 1, "scale": 1.0}]}

    def offer(self, server: Server, name: str, folder: Path) -> tuple[bool, str]:
        """Start a second server with this adapter alone: a running one takes none."""
        *called, told = self.command(server.launch, free_port())
        told = json.dumps(json.loads(told) | {"adapters": [str(folder / "adapter.gguf")], "slots": 1})
        log = server.process.log.with_name(f"{name}.offered")
        log.unlink(missing_ok=True)
        with Process([*called, told], self.variables(server.launch, server.key), log) as process:
            limit = time.monotonic() + server.launch.start_seconds
            while process.status is None and "listening at" not in process.text() and time.monotonic() < limit:
                time.sleep(0.1)
            taken = process.status is None and "listening at" in process.text()
            if taken:
                return True, "it starts; llama.cpp knows no highest rank"
            says = re.findall(r"(?m)^[\d.]+ E (?:\w+ +)?(.*(?:lora|adapter).*)$", process.text())
            return False, " / ".join(says) or process.tail()

    def kv_cache(self, server: Server) -> dict[str, Any] | None:
        """By its log: cells of a sequence times sequences."""
        own: Settings = self.own(server.launch)
        said = re.search(r"llama_kv_cache: size = +([\d.]+) MiB \( *(\d+) cells,.*?/ *(\d+) seqs",
                         server.process.text())
        if said is None:
            return None
        return {"tokens": int(said[2]) * int(said[3]), "context": own.slot_tokens, "bytes": float(said[1]) * (1 << 20),
                "value_bytes": {"f16": 2.0, "q8_0": 34 / 32}[own.kv_type], "source": "log: llama_kv_cache"}

    def claims(self, server: Server) -> list[dict[str, Any]]:
        """Model, weights, KV cache, context and threads."""
        own: Settings = self.own(server.launch)
        log = server.process.text()
        served = talk.get_json(server.port, "/v1/models", server.key)["data"][0]
        loaded = first(r"load_model: (?:local path|loading model) '([^']+)'", log)
        cache = re.search(r"llama_kv_cache: size = .*?K \((\w+)\).*?V \((\w+)\)", log)
        wanted = server.launch.precision.upper()
        listed = talk.get_json(server.port, "/lora-adapters", server.key) if own.adapters else []
        at_rest = (len(self.adapters(server.launch)), {0.0}), (len(listed), {float(one["scale"]) for one in listed})
        return [
            *([claim("adapters, and their scale unless a request asks", *at_rest, "GET /lora-adapters")]
              if own.adapters else []),
            claim("served model", server.launch.name, served["id"], "GET /v1/models"),
            claim("model file", paths.ARTIFACTS / server.launch.artifact / "model.gguf", loaded, "log: load_model"),
            claim("weights", wanted, served["meta"]["ftype"], "GET /v1/models, meta.ftype of the loaded file"),
            claim("weights as loaded", wanted, first(r"print_info: file type\s+= (\S+)", log), "log: print_info"),
            claim("KV cache", f"{own.kv_type}/{own.kv_type}", f"{cache[1]}/{cache[2]}" if cache else None,
                  "log: llama_kv_cache"),
            claim("context of a slot", own.slot_tokens, served["meta"]["n_ctx"], "GET /v1/models, meta.n_ctx"),
            claim("threads", self._threads(own), first(r"n_threads = (\d+)", log), "log: threadpool"),
        ]

    def version(self, server: Server) -> str:
        """Return the wheel's version; its build of llama.cpp carries no other."""
        return f"llama.cpp in {first(r'(xllamacpp [0-9][^ ]*)', server.process.text())}"

    def count(self, server: Server, text: str) -> int:
        """Tokens by the server's /tokenize."""
        asked = {"content": text, "add_special": False}
        return len(talk.get_json(server.port, "/tokenize", server.key, asked)["tokens"])

    def memory_bytes(self, launch: Launch) -> int:
        """Interpreter and buffers; 23,040 B of KV cache per token for the largest model here (30 layers, f16)."""
        own: Settings = self.own(launch)
        return 400_000_000 + own.slots * own.slot_tokens * 23_040

    @staticmethod
    def _threads(own: Settings) -> int:
        return own.threads or len(cores.share()[0])
