"""Run a level's load client, in as many processes as its load needs, beside a server that is watched, and say where a
taking's files are.

Rule: whatever happens, the clients are ended; a server that died is told with its own last words. Several processes
are used only where the client has cores of its own: on shared ones they would take from the engine. Each process
cools down by itself: at the end of a level it holds its share of the load until its own measured requests have ended.
Where a `node` is given, the clients run there.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from lib.engines import cores
from lib.engines.base import Server
from lib.errors import MeasureError
from lib.measure import workers
from lib.measure.clientnode import ClientNode
from lib.measure.clientplan import KEY_ENV, Plan, split
from lib.measure.journal import Progress
from lib.measure.telemetry import Sampler

CLIENT_START_S = 30.0  # interpreter, imports and connections
END_S = 10.0  # beyond its limits, for writing the last of its journal


def where(server: Server, node: ClientNode | None = None) -> dict[str, Any]:
    """What a client's plan needs to know of its server; the key itself stays in the environment."""
    told = {"port": server.port, "key_env": KEY_ENV, "reuse": server.engine.keeps_connections}
    return told | ({"host": node.host} if node else {"cpus": tuple(cores.share()[1])})


def processes(events_per_s: float, node: ClientNode | None = None) -> int:
    """How many client processes this many token events per second get."""
    engine, client = cores.share()
    own = int(node.machine["cores"]) if node else len(set(client) - set(engine))
    return workers.workers_needed(events_per_s, max(1, own))


def shared_out(plan: Plan, events_per_s: float, node: ClientNode | None = None) -> list[Plan]:
    """Share a plan over as many client processes as its token events per second need; one stays as it is."""
    count = processes(events_per_s, node)
    return split(plan, count) if count > 1 else [plan]


def begun(journal_path: Path) -> list[Plan]:
    """Plans of a level that was begun and not closed, one for each client process whose journal there is."""
    found = sorted(journal_path.parent.glob(f"{journal_path.name}*.plan.json"))
    return [plan for plan in map(Plan.read, found) if Path(plan.journal).exists()]


def remove(journal_path: Path) -> None:
    """Remove the journals of a level that has been closed into rows, and their plans."""
    for file in journal_path.parent.glob(f"{journal_path.name}*"):
        file.unlink()


def client(
    plans: Sequence[Plan],
    server: Server,
    sampler: Sampler | None = None,
    tick: Callable[[float], None] = lambda waited: None,
    node: ClientNode | None = None,
) -> None:
    """Run the plans of one level to their end.

    Parameters
    ----------
    sampler : told the clients' processes, to sample them too; those on another node it cannot see.
    tick : told the seconds gone.

    Raises
    ------
    EngineError : the server died.
    MeasureError : a client could not start, or did not end in time; the journals are kept.
    """
    limit = CLIENT_START_S + (plans[0].issue_s or 0) + plans[0].drain_s + END_S
    began = time.monotonic()

    def watch(_progress: Progress | None = None) -> None:
        server.check_alive()
        waited = time.monotonic() - began
        tick(waited)
        if waited > limit:
            raise MeasureError(f"The load client did not end within {limit:.0f} s; its journal is kept.")

    try:
        if node:
            node.run(list(plans), watch)
        else:
            workers.run_workers(plans, started=sampler.watch_client if sampler else None, watch=watch)
    except MeasureError:
        server.check_alive()  # what the client missed is better told by the server's own last words
        raise
    server.check_alive()
