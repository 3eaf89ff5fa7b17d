"""The engines there are, by the name and version a launch's config gives them."""

from lib.config import Launch
from lib.engines.base import Engine
from lib.engines.gpu import GpuEngine
from lib.engines.llama_cpp import LlamaCpp
from lib.engines.trtllm_serve import TrtllmServe
from lib.engines.trtllm_triton import TrtllmTriton
from lib.engines.vllm_cpu import VllmCpu
from lib.engines.vllm_cuda import VllmArticle, VllmCuda
from lib.errors import ConfigError

# An engine of which the study holds several versions stands once for each, as `name version`.
ENGINES: dict[str, Engine] = {engine.name: engine for engine in (LlamaCpp(), VllmCpu())}
VERSIONS: dict[tuple[str, str], GpuEngine] = {
    (engine.name, engine.version_name): engine
    for engine in (VllmArticle("0.6.2"), VllmCuda("0.24.0"), TrtllmTriton("0.12.0"), TrtllmServe("1.2.1"))
}


def engine(name: str, version: str | None = None) -> Engine:
    """Return the engine of a name, in a version where there are several.

    Raises
    ------
    ConfigError : there is none.
    """
    if name in ENGINES and version is None:
        return ENGINES[name]
    if version is not None and (name, version) in VERSIONS:
        return VERSIONS[name, version]
    known = ", ".join([*ENGINES, *(" ".join(both) for both in VERSIONS)])
    asked = f"{name} {version}" if version else name
    raise ConfigError(f"There is no engine {asked!r}. Engines: {known}; CONTRIBUTING.md says how to add one.")


def of(launch: Launch) -> Engine:
    """Return the engine of a launch.

    Raises
    ------
    ConfigError : there is none.
    """
    return engine(launch.engine, launch.version)
