"""What an engine is asked about its inside: LoRA adapters beside the model, and how much its KV cache holds.

An engine that serves adapters says how a request names one and how one is offered to it; the others keep the defaults
here, which refuse. Adapters are made by the recipe `make_adapters.py`, several in one artifact, with two that must be
refused beside them. Rule: an adapter is loaded under its own name and asked for by it; none is merged into the model.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lib import loads, paths
from lib.config import Launch
from lib.engines import build, talk
from lib.errors import ConfigError

if TYPE_CHECKING:
    from lib.engines.base import Server

COUNT = 8  # adapters in an artifact, as the recipe makes them
OVER_LIMIT, OTHER_BASE = "rank-128", "other-base"  # folders of those that must be refused
FORMAT = "lora"


class Inside:
    """What every engine answers; those that serve adapters or tell their cache's size override it."""

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

    def offer(self, server: "Server", name: str, folder: Path) -> tuple[bool, str]:
        """Offer an adapter to the engine: whether it was taken, and what was said.

        Raises
        ------
        OSError : the server could not be asked.
        """
        raise NotImplementedError

    def kv_cache(self, server: "Server") -> dict[str, Any] | None:
        """Say how many tokens the KV cache holds and one sequence may have, its bytes, and those of a stored value."""
        return None


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


def vllm_adapted(body: dict[str, Any], adapter: str) -> dict[str, Any]:
    """vLLM knows an adapter as a model of its own."""
    return body | {"model": adapter}


def vllm_offer(server: "Server", name: str, where: Path) -> tuple[bool, str]:
    """Load an adapter into a running vLLM (VLLM_ALLOW_RUNTIME_LORA_UPDATING)."""
    asked = {"lora_name": name, "lora_path": str(where)}
    status, text = talk.ask(server.port, "POST", "/v1/load_lora_adapter", server.key, asked, limit_s=120.0)
    return status == 200, f"HTTP {status}: {text[:300]}"


def vllm_kv_cache(
    server: "Server", context: int, reserved_bytes: int | None, value_bytes: float
) -> dict[str, Any] | None:
    """vLLM's cache by its own gauge: blocks times tokens of a block. Beside it what was reserved, None where blocks
    were counted instead, and the size of one stored value.
    """
    try:
        _, text = talk.ask(server.port, "GET", "/metrics", server.key)
    except OSError:
        return None
    for labels, _ in talk.prometheus(text).get("vllm:cache_config_info", ()):
        told = dict(re.findall(r'(\w+)="([^"]*)"', labels))
        blocks, size = told.get("num_gpu_blocks", ""), told.get("block_size", "")
        if blocks.isdigit() and size.isdigit():
            tokens = int(blocks) * int(size)
            return {
                "tokens": tokens, "context": context, "block": int(size), "bytes": reserved_bytes,
                "value_bytes": value_bytes, "source": "vllm:cache_config_info",
            }  # fmt: skip
    return None
