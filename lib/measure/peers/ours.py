"""Our own load client, called the way its peers are called here.

Rule: the same requests, the same start (all slots at once) and the same cores as every peer.
"""

import json
import time
from pathlib import Path

from lib.errors import EngineError, MeasureError
from lib.measure import exchange, provenance
from lib.measure.clientplan import BURST, KEY_ENV, Plan, Request
from lib.measure.peers.target import Run, Target, span_ns
from lib.measure.workers import run_workers

NAME = "ours"
TITLE = "this study's client"
WIRE = "openai-completions"
KEPT = ("sent_ns", "event_ns", "end_ns", "output_tokens", "shared_reads", "status", "cause")


def version() -> str:
    """Commit it was taken with."""
    git = provenance.git()
    return f"{(git['commit'] or 'unknown')[:12]}{' with changes' if git['dirty'] else ''}"


def prepare() -> None:
    """Nothing: it runs in the study's own environment."""


def run(target: Target, folder: Path) -> Run:
    """Send every prompt once.

    Raises
    ------
    EngineError : the server died.
    MeasureError : nothing was answered.
    """
    requests = []
    for index, prompt in enumerate(target.prompts):
        path, body = target.body(prompt, target.output_tokens)
        requests.append(
            Request(f"ours-{index}", path, json.dumps(body).encode(), planned_output_tokens=target.output_tokens)
        )
    plan = Plan(
        port=target.port, requests=tuple(requests), journal=str(folder / "journal"), concurrency=target.concurrency,
        ramp=BURST, key_env=KEY_ENV if target.key else None, timeout_s=target.limit_s, drain_s=target.limit_s,
        reuse=target.reuse, cpus=target.cpus,
    )  # fmt: skip
    began = time.monotonic_ns()
    run_workers([plan], environment={KEY_ENV: target.key or ""}, alive=lambda: _alive(target))
    target.check()
    exchanges, outcome = exchange.read(plan)
    whole = [exchange.exchange_row(one, one.answer(WIRE)) for one in exchanges]
    rows = [{"id": one["request_id"], **{key: one[key] for key in KEPT}} for one in whole]
    if not any(one["status"] == "complete" for one in rows):
        causes = sorted({str(one["cause"]) for one in rows})
        raise MeasureError(f"None of {len(requests)} requests was answered ({', '.join(causes) or 'none was sent'}).")
    first, last = span_ns(rows)
    used = outcome.usage or {}
    usage = {
        "cpu_s": used.get("cpu_s"), "span_s": (last - first) / 1e9, "peak_mb": used.get("peak_mb"),
        "start_s": (first - began) / 1e9,
    }  # fmt: skip
    return Run(rows, usage=usage)


def _alive(target: Target) -> bool:
    try:
        target.check()
    except EngineError:
        return False
    return True
