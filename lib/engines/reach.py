"""Where a server listens, and for whom: for its own computer, unless its launch says that the client is elsewhere.

Refused: a client on another node for an engine that could not tell it from anybody else, or that listens on the
loopback alone. Rule: whoever can be reached from outside asks for a key.
"""

from pathlib import Path
from typing import Any

from lib.config import Launch
from lib.engines import computer, talk
from lib.engines.proof import claim
from lib.errors import ConfigError

DOOR = ("--middleware", "whole_key.Door")  # of vLLM; it says why
DOORS_PLACE = {"PYTHONPATH": str(Path(__file__).with_name("door"))}
UNASKED = "/invocations"  # where vLLM without the door answers completions to anybody
LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"


def address(launch: Launch) -> str:
    """Return the address that a launch's server listens at."""
    return EVERYWHERE if launch.client else LOOPBACK


def closed(engine: Any, port: int, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Prove that nobody else can use a server: it asks for its key, or listens on this computer's loopback alone.

    Raises
    ------
    OSError : it does not answer.
    """
    if not engine.keyed:
        return [claim("listens at", LOOPBACK, computer.listens_at(port), "/proc/net/tcp")]
    paths = [path, *([engine.unasked] if engine.unasked else [])]
    return [
        claim("status without the key", 401, talk.ask(port, "POST", one, None, body, limit_s=60.0)[0], f"POST {one}")
        for one in paths
    ]


def check(engine: Any, launch: Launch) -> None:
    """Refuse a client elsewhere where the engine (`lib.engines.base.Engine`) cannot have one.

    Raises
    ------
    ConfigError : says why, and the way out.
    """
    if launch.client is None or (engine.keyed and engine.reachable):
        return
    why = "here it listens on its own computer alone" if engine.keyed else "it asks for no key: anybody could use it"
    raise ConfigError(f"Launch {launch.name}: {engine.title} can have no client on another node, since {why}. "
                      "Leave `client` out; the client then runs beside the server.")
