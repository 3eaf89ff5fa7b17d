"""Where a server listens, and for whom: for its own computer, unless its launch says that the client is elsewhere.

Refused: a client on another node for an engine that could not tell it from anybody else, or that listens on the
loopback alone. Rule: whoever can be reached from outside asks for a key.
"""

from typing import Any

from lib.config import Launch
from lib.errors import ConfigError

LOOPBACK, EVERYWHERE = "127.0.0.1", "0.0.0.0"


def address(launch: Launch) -> str:
    """Return the address that a launch's server listens at."""
    return EVERYWHERE if launch.client else LOOPBACK


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
