"""One start of one server and the takings measured on it. Each taking is closed to disk before the next begins.

A taking: prompts made, client process started, telemetry beside it, journal parsed, rows written. Before a level's
first taking in a run the server is warmed up at that very load. An interrupted taking is taken again; what it had
finished stays readable as `<key>.interrupted.parquet`.
"""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from tokenizers import Tokenizer

from lib import paths, records
from lib.config import Launch, Level, Study
from lib.engines import registry
from lib.engines.base import Server
from lib.errors import MeasureError, RecordError
from lib.measure import exchange, provenance, takings, workload
from lib.measure.clientplan import Plan
from lib.measure.takings import Taking
from lib.measure.telemetry import Sampler
from lib.progress import Progress

KEY_ENV = "FIRST_TOKEN_SLA_KEY"     # the server's key, handed to the client by environment only
CLIENT_START_S = 30.0               # interpreter, imports and connections
FEWEST = 8                          # requests prepared for a warm-up per session


def rows_path(partial: Path, taking: Taking) -> Path:
    """Where a finished taking's rows are."""
    return partial / f"{taking.key}.parquet"


def samples_path(partial: Path, taking: Taking) -> Path:
    """Where a finished taking's telemetry is."""
    return partial / f"{taking.key}.telemetry.parquet"


def note_path(partial: Path, taking: Taking) -> Path:
    """Where a finished taking's own facts are; written last, so that it marks the taking as done."""
    return partial / f"{taking.key}.json"


def done(partial: Path, taking: Taking) -> bool:
    """Whether a taking is finished and on disk."""
    return note_path(partial, taking).exists()


def expected_seconds(study: Study, taking: Taking) -> float:
    """Rough duration of a taking with its share of warm-ups, for progress and plan."""
    warm = study.statistics.warmup_seconds / study.statistics.repeats
    return takings.seconds(taking.level) + warm + 3.0


def one_run(
    study: Study, launch: Launch, partial: Path, missing: list[Taking], meta: dict[str, Any], progress: Progress
) -> dict[str, Any]:
    """Start the server, take what is missing on it, end it. Fills meta's proof, artifact and engine version.

    Returns
    -------
    note of the run: run, ready_seconds, started_utc, load_average and more.

    Raises
    ------
    EngineError, MeasureError : the server died, could not be proven, or a level could not be measured.
    """
    run = missing[0].run
    tokenizer = workload.load_tokenizer(paths.ARTIFACTS / study.model.tokenizer / "tokenizer.json")
    note = {"run": run, "started_utc": provenance.utc(), **provenance.load()}
    spent = 0.0
    engine = registry.engine(launch.engine)
    ready = lambda stage: progress.at(spent, f"run {run}: {stage}")     # noqa: E731
    with engine.start(launch, log=partial / f"run-{run}.log", progress=ready) as server:
        spent += launch.start_seconds / 3
        note["ready_seconds"] = server.ready_seconds
        meta["proof"], meta["artifact"] = server.proof(), server.artifact
        meta["versions"]["engine"] = server.version
        os.environ[KEY_ENV] = server.key
        rates: dict[str, float] = {}
        for taking in missing:
            progress.at(spent, f"run {run}, repeat {taking.repeat}: {taking.level.id}")
            if taking.level.id not in rates:
                rates[taking.level.id] = _warm_up(study, taking, server, tokenizer, partial)
            _take(study, taking, server, tokenizer, partial, rates[taking.level.id])
            spent += expected_seconds(study, taking)
    return note


def _warm_up(study: Study, taking: Taking, server: Server, tokenizer: Tokenizer, partial: Path) -> float:
    """Load the server as the level will, unmeasured; returns requests per second, to size what the level prepares."""
    level = taking.level
    sessions = level.concurrency or max(1, round(2 * (level.rate_rps or 1)))
    path = partial / f"{taking.key}.warm-up.journal"
    asked = takings.ask(study, taking, tokenizer, server.body, server.added_tokens, FEWEST * sessions, warm=True)
    plan = takings.plan(study, taking, asked, _where(server), path, study.statistics.warmup_seconds, warm=True)
    _client(plan, server, None)
    exchanges, _ = exchange.read(plan)
    ended = [e for e in exchanges if e.end_ns and e.sent_ns]
    path.unlink()
    _plan_path(path).unlink()
    if not ended:
        raise MeasureError(
            f"Level {level.id}: no request ended within {study.statistics.warmup_seconds + study.statistics.drain_seconds:g} s "
            "of warm-up. The server is too slow for this level; lower the load or raise warmup_seconds in study.yaml."
        )
    span = max(e.end_ns or 0 for e in ended) - min(e.sent_ns or 0 for e in ended)
    return len(ended) / max(span / 1e9, 1e-3)


def _take(study: Study, taking: Taking, server: Server, tokenizer: Tokenizer, partial: Path, rate: float) -> None:
    """Measure one taking and close it to disk."""
    path = partial / f"{taking.key}.journal"
    sessions = taking.level.concurrency or 1
    issue_s = takings.seconds(taking.level, rate)
    count = round(2 * rate * (issue_s + 2)) + 4 * sessions + FEWEST
    asked = takings.ask(study, taking, tokenizer, server.body, server.added_tokens, count, warm=False)
    plan = takings.plan(study, taking, asked, _where(server), path, issue_s)
    if path.exists():
        _keep_interrupted(path, taking, server.wire, partial)
    sampler = Sampler(server.gauges, server.pid)
    sampler.start()
    try:
        usage = _client(plan, server, sampler)
    finally:
        samples = sampler.stop()
    exchanges, outcome = exchange.read(plan)
    rows = []
    start = min((e.due_ns for e in exchanges if e.due_ns), default=0)
    issue_end = start + round(issue_s * 1e9)
    for e in exchanges:
        prompt = asked.prompts[e.index]
        rows.append({
            **exchange.exchange_row(e, e.answer(server.wire)),
            "run": taking.run, "repeat": taking.repeat, "level": taking.level.id,
            "phase": "measured" if e.due_ns is None or e.due_ns < issue_end else "cooldown",
            "prompt_hash": prompt.hash[:16], "planned_input_tokens": prompt.input_tokens,
        })
    if not rows:
        raise MeasureError(f"Level {taking.level.id}: the client sent nothing ({outcome.reason}). See {partial}/run-{taking.run}.log.")
    note = _note(taking, start, issue_end, rows, outcome, usage)
    label = {"run": taking.run, "repeat": taking.repeat, "level": taking.level.id}
    _write(rows_path(partial, taking), rows, records.REQUESTS)
    _write(samples_path(partial, taking), [label | {"t_ns": t, "name": n, "value": v} for t, n, v in samples], records.TELEMETRY)
    records.write_whole(note_path(partial, taking), json.dumps(note).encode())
    path.unlink()
    _plan_path(path).unlink()
    if outcome.reason in ("server gone", None):
        raise MeasureError(f"Level {taking.level.id} of run {taking.run} ended early: {outcome.reason or 'the client died'}. "
                           f"What was finished is kept; the server's log is run-{taking.run}.log beside the record.")


def _note(
    taking: Taking, start: int, issue_end: int, rows: list[dict[str, Any]], outcome: exchange.Outcome, usage: dict[str, Any]
) -> dict[str, Any]:
    """A taking's own facts, as the record's metadata keeps them."""
    level: Level = taking.level
    return {
        "run": taking.run, "repeat": taking.repeat, "level": level.id, "kind": level.kind,
        "concurrency": level.concurrency, "rate_rps": level.rate_rps, "workload": level.workload, "order": taking.order,
        "issue_start_ns": start, "issue_end_ns": issue_end, "end_ns": max(r["end_ns"] or 0 for r in rows),
        "ended": "planned" if outcome.reason in ("finished", "issue limit", "drain limit", "cooldown") else str(outcome.reason),
        "clock_steps": outcome.clock_steps, **usage,
    }


def _keep_interrupted(path: Path, taking: Taking, wire: str, partial: Path) -> None:
    """Keep what an interrupted taking had finished, apart from what will be measured now."""
    with suppress(RecordError, MeasureError):       # a client killed before its first byte left nothing to keep
        rows = list(exchange.rows([Plan.read(_plan_path(path))], wire))
        label = {"run": taking.run, "repeat": taking.repeat, "level": taking.level.id}
        number = len(list(partial.glob(f"{taking.key}.*.interrupted.parquet")))
        _write(partial / f"{taking.key}.{number}.interrupted.parquet", [r | label | {"phase": "measured"} for r in rows], records.REQUESTS)
        kept = label | {"finished": sum(r["status"] == "complete" for r in rows), "requests": len(rows)}
        records.write_whole(partial / f"{taking.key}.{number}.interrupted.json", json.dumps(kept).encode())
    path.unlink()


def _where(server: Server) -> dict[str, Any]:
    """What the client needs to know of the server; the key itself stays in the environment."""
    return {"port": server.port, "key_env": KEY_ENV, "reuse": server.engine.keeps_connections}


def _plan_path(journal_path: Path) -> Path:
    """The client's plan lies beside its journal as long as the journal does."""
    return journal_path.with_suffix(".plan.json")


def _client(plan: Plan, server: Server, sampler: Sampler | None) -> dict[str, Any]:
    """Run the load client as its own process; watch that the server lives; return the client's CPU and memory."""
    plan_path = _plan_path(Path(plan.journal))
    plan.write(plan_path)
    before = os.times()
    client = subprocess.Popen(
        [sys.executable, "-m", "lib.measure.client", str(plan_path)], cwd=paths.ROOT, stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )
    try:
        if sampler:
            sampler.watch_client(client.pid)
        limit = CLIENT_START_S + (plan.issue_s or 0) + plan.drain_s + 10
        waited = 0.0
        while True:
            try:
                client.wait(1.0)
                break
            except subprocess.TimeoutExpired:
                waited += 1.0
                server.check_alive()
                if waited > limit:
                    client.send_signal(signal.SIGTERM)
                    raise MeasureError(f"The load client did not end within {limit:.0f} s; its journal is kept.") from None
        _, complaint = client.communicate()
        if client.returncode:
            raise MeasureError(f"The load client ended with status {client.returncode}: {complaint.strip()[-800:]}")
    finally:
        if client.poll() is None:
            client.kill()
            client.wait()
    after = os.times()
    return {"client_cpu_s": after.children_user + after.children_system - before.children_user - before.children_system}


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink, compression="zstd")
    records.write_whole(path, sink.getvalue().to_pybytes())

