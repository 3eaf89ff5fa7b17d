"""The engines there are, by the name a launch's config gives them."""

from lib.engines.base import Engine
from lib.engines.llama_cpp import LlamaCpp
from lib.engines.vllm_cpu import VllmCpu
from lib.errors import ConfigError

ENGINES: dict[str, Engine] = {engine.name: engine for engine in (LlamaCpp(), VllmCpu())}


def engine(name: str) -> Engine:
    """Return the engine of a name.

    Raises
    ------
    ConfigError : there is none.
    """
    if name not in ENGINES:
        known = ", ".join(ENGINES)
        raise ConfigError(f"There is no engine {name!r}. Engines: {known}; CONTRIBUTING.md says how to add one.")
    return ENGINES[name]
