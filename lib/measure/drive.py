"""Run the load client as a process of its own, watch that its server lives, and say where a taking's files are.

Rule: whatever happens, the client is ended; a server that died is told with its own last words.
"""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lib import paths
from lib.engines import cores
from lib.engines.base import Server
from lib.errors import MeasureError
from lib.measure.clientplan import Plan
from lib.measure.telemetry import Sampler

KEY_ENV = "FIRST_TOKEN_SLA_KEY"  # the server's key, handed to the client by environment only
CLIENT_START_S = 30.0  # interpreter, imports and connections
END_S = 10.0  # beyond its limits, for writing the last of its journal
LOOK_S = 1.0


def where(server: Server) -> dict[str, Any]:
    """What a client's plan needs to know of its server; the key itself stays in the environment."""
    return {
        "port": server.port,
        "key_env": KEY_ENV,
        "reuse": server.engine.keeps_connections,
        "cpus": tuple(cores.share()[1]),
    }


def plan_path(journal_path: Path) -> Path:
    """Name the client's plan: it lies beside its journal as long as the journal does."""
    return journal_path.with_suffix(".plan.json")


def remove(journal_path: Path) -> None:
    """Remove a journal that has been closed into rows, and its plan."""
    journal_path.unlink(missing_ok=True)
    plan_path(journal_path).unlink(missing_ok=True)


def client(
    plan: Plan, server: Server, sampler: Sampler | None = None, tick: Callable[[float], None] = lambda waited: None
) -> None:
    """Run a plan to its end.

    Parameters
    ----------
    sampler : told the client's process, to sample it too.
    tick : told the seconds gone, once a second.

    Raises
    ------
    EngineError : the server died.
    MeasureError : the client could not start, or did not end in time; its journal is kept.
    """
    described = plan_path(Path(plan.journal))
    plan.write(described)
    process = subprocess.Popen(
        [sys.executable, "-m", "lib.measure.client", str(described)],
        cwd=paths.ROOT,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if sampler:
            sampler.watch_client(process.pid)
        limit = CLIENT_START_S + (plan.issue_s or 0) + plan.drain_s + END_S
        waited = 0.0
        while True:
            try:
                process.wait(LOOK_S)
                break
            except subprocess.TimeoutExpired:
                waited += LOOK_S
                server.check_alive()
                tick(waited)
                if waited > limit:
                    process.send_signal(signal.SIGTERM)
                    raise MeasureError(
                        f"The load client did not end within {limit:.0f} s; its journal is kept."
                    ) from None
        _, said = process.communicate()
        server.check_alive()
        if process.returncode:
            raise MeasureError(f"The load client ended with status {process.returncode}: {said.strip()[-800:]}")
        if said.strip():
            print(said.strip(), flush=True)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
