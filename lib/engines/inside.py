"""What an engine is asked about its inside: LoRA adapters beside the model, and how much its KV cache holds.

An engine that serves adapters says how a request names one and how one is offered to it; the others keep the defaults
here, which refuse. Adapters are made by the recipe `make_adapters.py`, several in one artifact, with two that must be
refused beside them. Rule: an adapter is loaded under its own name and asked for by it; none is merged into the model.
"""

from pathlib import Path
from typing import Any, ClassVar

from lib import loads, paths
from lib.config import Launch
from lib.engines import build, talk
from lib.engines.proof import first
from lib.errors import ConfigError, NoValue

COUNT = 8  # adapters in an artifact, as the recipe makes them
OVER_LIMIT, OTHER_BASE = "rank-128", "other-base"  # folders of those that must be refused
SWAPS = 4  # times that one is taken out and loaded again while others are served
FORMAT = "lora"
FIRST_BLOCK = 16  # tokens of a block in vLLM 0.6.2, where it only counts blocks


class Inside:
    """What every engine answers; those that serve adapters or tell their cache's size override it.

    A `server` is a running `lib.engines.base.Server`, whose engines build on this class.
    """

    loads_adapters: ClassVar[bool] = False  # whether it takes an adapter while it serves

    def adapters(self, launch: Launch) -> tuple[str, ...]:
        """Names of the adapters that a launch serves beside the model."""
        artifact = launch.settings.get("adapters")
        return tuple(loads.adapter_name(place) for place in range(COUNT)) if artifact else ()

    def adapted(self, launch: Launch, body: dict[str, Any], adapter: str) -> dict[str, Any]:
        """Return a request's body that asks for an adapter instead of the model itself.

        Raises
        ------
        ConfigError : this engine, or this launch, serves none.
        """
        raise ConfigError(
            f"Launch {launch.name} serves no LoRA adapter and a level asks for {adapter!r}: name an artifact of "
            "adapters in its settings (`adapters`), or take `adapters` out of the level in study.yaml."
        )

    def offer(self, server: Any, name: str, folder: Path) -> tuple[bool, str]:
        """Offer an adapter to the engine: whether it was taken, and what was said.

        Raises
        ------
        OSError : the server could not be asked.
        """
        raise NotImplementedError

    def reloads(self, server: Any, name: str, folder: Path) -> list[tuple[str, dict[str, Any]]]:
        """Return what takes an adapter out of a running engine and what loads it again: paths and bodies to post.

        Raises
        ------
        NoValue : it has no request for that.
        """
        raise NoValue(f"{server.engine.title} has no request that takes an adapter out while it serves")

    def kv_cache(self, server: Any) -> dict[str, Any] | None:
        """Say how many tokens the KV cache holds and one sequence may have, its bytes, and those of a stored value."""
        return None


class VllmAdapters(Inside):
    """vLLM's way with adapters, of every generation and build: each is a model of its own, loaded over its API."""

    loads_adapters = True

    def adapted(self, launch: Launch, body: dict[str, Any], adapter: str) -> dict[str, Any]:
        """Ask for an adapter by its name."""
        return body | {"model": adapter} if self.adapters(launch) else super().adapted(launch, body, adapter)

    def offer(self, server: Any, name: str, folder: Path) -> tuple[bool, str]:
        """Load an adapter while the server runs (VLLM_ALLOW_RUNTIME_LORA_UPDATING)."""
        path, asked = self.reloads(server, name, folder)[1]
        status, text = talk.ask(server.port, "POST", path, server.key, asked, limit_s=120.0)
        return status == 200, f"HTTP {status}: {text[:300]}"

    def reloads(self, server: Any, name: str, folder: Path) -> list[tuple[str, dict[str, Any]]]:
        """Take an adapter out and load it again; it gets a new number, so its files are read again."""
        loaded = {"lora_name": name, "lora_path": str(folder)}
        return [("/v1/unload_lora_adapter", {"lora_name": name}), ("/v1/load_lora_adapter", loaded)]


def folder(launch: Launch, name: str) -> Path:
    """Where an adapter of a launch lies."""
    return paths.ARTIFACTS / str(launch.settings["adapters"]) / name


def rank(artifact: str) -> int:
    """Rank of an artifact's adapters."""
    return int(str(build.recipe(artifact).scheme).removeprefix("r"))


def check(launch: Launch, highest_rank: int | None) -> None:
    """Refuse adapters that the launch cannot serve, before anything is made.

    Raises
    ------
    ConfigError : no artifact of adapters, or their rank is over the engine's limit.
    """
    artifact = launch.settings.get("adapters")
    if artifact is None:
        return
    made = build.recipe(str(artifact))
    if made.format != FORMAT:
        raise ConfigError(
            f"Launch {launch.name}: artifact {artifact!r} holds {made.format} weights and no adapters. "
            f"Adapters: {', '.join(build.holding(FORMAT))}."
        )
    if highest_rank is not None and rank(str(artifact)) > highest_rank:
        raise ConfigError(
            f"Launch {launch.name}: its adapters have rank {rank(str(artifact))} and max_lora_rank is {highest_rank}; "
            "the engine would refuse them. Raise max_lora_rank, or name adapters of a lower rank."
        )


def with_adapters(manifest: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Add the files of a launch's adapters, hashed again, to the manifest of what it serves.

    Raises
    ------
    EngineError : they are not built, or damaged.
    """
    artifact = launch.settings.get("adapters")
    if not artifact:
        return manifest
    files = [file | {"path": f"{artifact}/{file['path']}"} for file in build.verify(str(artifact))["files"]]
    return manifest | {"files": [*manifest["files"], *files]}


def vllm_options(artifact: str | None, at_once: int, highest_rank: int) -> list[str]:
    """Options with which vLLM serves adapters, so many different ones in a step; none where there is no artifact."""
    if not artifact:
        return []
    return ["--enable-lora", "--max-loras", str(at_once), "--max-lora-rank", str(highest_rank),
            # More than there are: what should be refused and is taken must push none out, nor must what is taken out
            # and loaded again, for vLLM forgets the name and keeps the weights.
            "--max-cpu-loras", str(max(at_once, COUNT) + 1 + SWAPS)]


def vllm_variables(artifact: str | None) -> dict[str, str]:
    """Environment variables with which vLLM takes adapters while it serves."""
    return {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1"} if artifact else {}


def vllm_kv_cache(
    log: str, context: int, reserved_bytes: int | None, value_bytes: float, replicas: int = 1
) -> dict[str, Any] | None:
    """Read what vLLM's KV cache holds from its log, all replicas together; None where the log does not say.

    Parameters
    ----------
    log : 0.6.2 counts blocks of 16 tokens, later versions tokens.
    reserved_bytes : what the cache was given; None where that is not known.
    value_bytes : size of one stored value.

    >>> vllm_kv_cache("INFO CPU KV cache size: 23,296 tokens, Maximum", 2048, None, 4.0)["tokens"]
    23296
    >>> vllm_kv_cache("# GPU blocks: 100, # CPU blocks: 5", 2048, None, 2.0, replicas=2)["tokens"]
    3200
    """
    tokens = first(r"KV cache size: ([\d,]+) tokens", log)
    blocks = first(r"# GPU blocks: (\d+)", log)
    if tokens is None and blocks is None:
        return None
    held = int(tokens.replace(",", "")) if tokens else int(str(blocks)) * FIRST_BLOCK
    return {"tokens": held * replicas, "context": context, "bytes": reserved_bytes, "value_bytes": value_bytes,
            "source": "log: KV cache size" if tokens else "log: GPU blocks"}
