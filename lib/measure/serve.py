"""One start of one server and the takings measured on it. Each taking is closed to disk before the next begins.

A taking: prompts made, client processes started, telemetry beside them, journals parsed, rows written. Before the
first level of a run the server is asked what could spoil all of them (preflight); before a level's first taking in a
run it is warmed up at that very load. A taking that the server did not survive is taken
again; what it had finished stays readable as `<key>.N.interrupted.parquet`. A taking with a failed request is taken
once more before it is judged, and the first stays as `<key>.0.retaken.parquet`. After the last run's levels comes
the study's search, where it wants one, on the same server.
"""

import json
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from tokenizers import Tokenizer

from lib import records
from lib.config import Launch, Level, Study
from lib.engines import nvml
from lib.engines.base import Server
from lib.engines.budget import Budget
from lib.engines.rehearse import engine as rehearse
from lib.errors import EngineError, MeasureError, RecordError
from lib.measure import adapters, clientnode, drive, exchange, network, preflight, probes, provenance, takings, workload
from lib.measure.clientnode import ClientNode
from lib.measure.clientplan import KEY_ENV, Plan
from lib.measure.takings import Taking, note_path, rows_path, samples_path
from lib.measure.telemetry import Sampler
from lib.progress import Progress

CLIENT_S = 10.0  # interpreters, prompts and parsing around a taking
FEWEST = 8  # requests prepared for a warm-up per session
PLANNED = ("finished", "issue limit", "drain limit", "cooldown")  # ends of a level that are no accident


def expected_seconds(study: Study, taking: Taking) -> float:
    """Rough duration of a taking with its share of warm-ups, for progress and plan."""
    warm = study.statistics.warmup_seconds / study.statistics.repeats
    return takings.seconds(taking.level) + warm + 3.0


def longest_s(study: Study, taking: Taking) -> float:
    """The longest that a taking with its warm-up may last, once more where a request fails."""
    level, statistics = taking.level, study.statistics
    issuing = max(level.seconds, level.at_most_seconds if level.requests else 0.0) + takings.ramp_s(level)
    return statistics.warmup_seconds + 3 * statistics.drain_seconds + 2 * issuing + CLIENT_S


def one_run(
    study: Study, launch: Launch, partial: Path, run: int, missing: list[Taking], meta: dict[str, Any],
    progress: Progress, account: Budget,
) -> None:
    """Start the server, take what is missing on it, end it. Fills meta's proof, artifact, engine version and runs,
    and after the last run the search's result.

    Raises
    ------
    EngineError, MeasureError : the server died, could not be proven, or a level could not be measured.
    """
    note = {"run": run, "started_utc": provenance.utc(), **provenance.load()}
    spent = 0.0
    engine = rehearse.of(study, launch)

    def stage(text: str) -> None:
        progress.at(spent, f"run {run}: {text}")

    with ExitStack() as held:
        node = held.enter_context(clientnode.started(clientnode.step(study, launch)))  # before a GPU is kept waiting
        server = held.enter_context(engine.start(launch, log=partial / f"run-{run}.log", progress=stage))
        tokenizer = workload.load_tokenizer(rehearse.tokenizer_path(study))
        spent += launch.start_seconds / 3
        meta["proof"], meta["artifact"] = server.proof(), server.artifact
        meta["versions"]["engine"] = server.version
        os.environ[KEY_ENV] = server.key
        if node:
            node.ask("key", key=server.key)
        meta["client"] = {"where": clientnode.ELSEWHERE, "machine": node.machine} if node else None
        stage("asking what a level will ask")
        found = preflight.check(study, server, tokenizer, run)
        meta["runs"].append(note | {"ready_seconds": server.ready_seconds, "probe": found})
        meta["kv_cache"] = engine.kv_cache(server)
        if served := engine.adapters(launch):
            stage(f"loading and proving {len(served)} adapters")
            adapters.note(meta, adapters.check(study, server, tokenizer, run, partial, served))
        save(partial, meta)
        rates: dict[str, float] = {}

        def take(taking: Taking) -> None:
            account.reserve(longest_s(study, taking), f"level {taking.level.id} of {launch.name}")
            session = _Session(study, server, tokenizer, partial, progress, spent, node)
            if taking.level.id not in rates:
                rates[taking.level.id] = session.warm_up(taking)
            if session.take(taking, rates[taking.level.id]):
                session.take(taking, rates[taking.level.id])

        for taking in missing:
            stage(f"repeat {taking.repeat}, {taking.level.id}")
            take(taking)
            spent += expected_seconds(study, taking)
        if run == study.statistics.runs - 1 and probes.seconds_left(study, partial):
            before = spent
            hunt = probes.Hunt(study, partial)
            while (probe := hunt.next()) is not None:
                spent = before + hunt.seconds
                stage(f"search, {hunt.standing}: {probe.level.id}")
                try:
                    take(probe)
                except (EngineError, MeasureError) as error:
                    hunt.end(f"{probe.level.id} could not be measured: {error}")
                else:
                    hunt.tell(probe)
            meta["search"] = hunt.written()
            save(partial, meta)


def save(partial: Path, meta: dict[str, Any]) -> None:
    """Write what holds for the whole launch, as far as it is known."""
    records.write_whole(partial / "meta.json", json.dumps(meta).encode())


class _Session:
    """What the takings of one run share."""

    def __init__(
        self, study: Study, server: Server, tokenizer: Tokenizer, partial: Path, progress: Progress, spent: float,
        node: ClientNode | None,
    ):  # fmt: skip
        self.study, self.server, self.tokenizer, self.partial, self.node = study, server, tokenizer, partial, node
        self.begun = time.monotonic()
        self.count = lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
        self.tick = lambda waited: progress.at(spent + waited, progress.stage)

    def warm_up(self, taking: Taking) -> float:
        """Load the server as the level will, unmeasured; returns requests per second, to size the level."""
        level, statistics = taking.level, self.study.statistics
        sessions = level.concurrency or max(1, round(2 * (level.rate_rps or 1)))
        path = self.partial / f"{taking.key}.warm-up.journal"
        asked = self._ask(taking, FEWEST * sessions, warm=True)
        plan = takings.plan(
            self.study, taking, asked, drive.where(self.server, self.node), path, statistics.warmup_seconds, warm=True
        )
        drive.client([plan], self.server, tick=self.tick, node=self.node)
        answers = [(e, e.answer(self.server.wire, count=self.count)) for e in exchange.read(plan)[0]]
        drive.remove(path)
        ended = [e for e, a in answers if a.status == "complete"]
        if not ended:
            why = next((a.cause for _, a in answers if a.cause), "none was sent")
            raise MeasureError(
                f"Level {level.id}: no request of its warm-up was answered whole ({why}). Either the server is too "
                f"slow ({statistics.warmup_seconds + statistics.drain_seconds:g} s) or its requests do not fit: "
                "lower the load or the lengths in study.yaml, or raise the limits in the launch's settings."
            )
        span = max(e.end_ns or 0 for e in ended) - min(e.sent_ns or 0 for e in ended)
        return len(ended) / max(span / 1e9, 1e-3)

    def take(self, taking: Taking, rate: float) -> bool:
        """Measure one taking and close it to disk; returns whether it should be taken once more."""
        path = self.partial / f"{taking.key}.journal"
        issue_s = takings.seconds(taking.level, rate)
        count = takings.count(taking.level, rate, issue_s)
        asked = self._ask(taking, count, warm=False)
        plan = takings.plan(self.study, taking, asked, drive.where(self.server, self.node), path, issue_s)
        tokens = sum(prompt.output_tokens for prompt in asked.prompts) / len(asked.prompts)
        plans = drive.shared_out(plan, (taking.level.rate_rps or rate) * tokens, self.node)
        self._keep_interrupted(path, taking)
        way = (self.node.way if self.node else network.measured)(self.server.port, self.server.engine.health)
        try:
            samples = self._sampled(plans, way.get("clock_offset_ns", 0))
            exchanges, outcomes = exchange.merge(plans)
            early = [outcome.reason or "the client died" for outcome in outcomes if outcome.reason not in PLANNED]
            if early:
                raise MeasureError(
                    f"Level {taking.level.id} of run {taking.run} ended early: {early[0]}. "
                    f"What was finished is kept; the server's log is run-{taking.run}.log beside the record."
                )
        except (EngineError, MeasureError):
            self._keep_interrupted(path, taking)
            raise
        # When the level's clock began: an open loop's first request is due only some time later.
        start = min((e.due_ns - round((e.request.due_s or 0.0) * 1e9) for e in exchanges if e.due_ns), default=0)
        issue_end = start + round(issue_s * 1e9)
        label = {"run": taking.run, "repeat": taking.repeat, "level": taking.level.id}
        rows = [
            {
                **exchange.exchange_row(e, e.answer(self.server.wire, count=self.count)),
                **label,
                "phase": "measured" if e.due_ns < issue_end else "cooldown",
                "prompt_hash": asked.prompts[e.index].hash[:16],
                "planned_input_tokens": asked.prompts[e.index].input_tokens,
                "turn": asked.turns[e.index],
                "adapter": asked.adapters[e.index],
            }
            for e in exchanges
            if e.due_ns is not None  # a turn whose session ended before it was never asked
        ]
        # Requests that only ran out of time tell of an overload, and a second taking would tell the same.
        failed = sum(row["phase"] == "measured" and row["status"] not in ("complete", "unfinished") for row in rows)
        again = bool(failed) and not (self.partial / f"{taking.key}.0.retaken.json").exists()
        if again:
            _write(self.partial / f"{taking.key}.0.retaken.parquet", rows, records.REQUESTS)
            kept = label | {"failed": failed, "requests": len(rows)}
            records.write_whole(self.partial / f"{taking.key}.0.retaken.json", json.dumps(kept).encode())
        else:
            _write(rows_path(self.partial, taking), rows, records.REQUESTS)
            _write(samples_path(self.partial, taking), [label | s for s in samples], records.TELEMETRY)
            note = _note(taking, start, issue_end, rows, outcomes)
            note |= {"network": way, "took_s": time.monotonic() - self.begun}
            records.write_whole(note_path(self.partial, taking), json.dumps(note).encode())
        drive.remove(path)
        return again

    def _ask(self, taking: Taking, count: int, warm: bool) -> takings.Asked:
        self.server.check_alive()
        return takings.ask(self.study, taking, self.tokenizer, self.server.body, self.server.added_tokens, count, warm)

    def _sampled(self, plans: list[Plan], offset_ns: int) -> list[dict[str, Any]]:
        """Run the client with telemetry beside it, its times moved onto the client's clock."""
        with nvml.opened() as gpus:
            try:
                used = None if isinstance(gpus, str) else gpus.first(self.server.engine.gpus(self.server.launch))
                sampler = Sampler(self.server.gauges, self.server.pid, used)
            except psutil.Error:
                self.server.check_alive()
                raise
            sampler.start()
            try:
                drive.client(plans, self.server, sampler, self.tick, self.node)
            finally:
                samples = sampler.stop()
        return [{"t_ns": t + offset_ns, "name": name, "value": value} for t, name, value in samples]

    def _keep_interrupted(self, path: Path, taking: Taking) -> None:
        """Keep what an interrupted taking had finished, apart from what will be measured in its place."""
        with suppress(RecordError, MeasureError):  # a client killed before its first byte left nothing to keep
            plans = drive.begun(path)
            if not plans:
                return
            rows = list(exchange.rows(plans, self.server.wire, self.count))
            label = {"run": taking.run, "repeat": taking.repeat, "level": taking.level.id}
            number = len(list(self.partial.glob(f"{taking.key}.*.interrupted.parquet")))
            kept = self.partial / f"{taking.key}.{number}.interrupted.parquet"
            _write(kept, [row | label | {"phase": "measured"} for row in rows], records.REQUESTS)
            said = label | {"finished": sum(r["status"] == "complete" for r in rows), "requests": len(rows)}
            records.write_whole(kept.with_suffix(".json"), json.dumps(said).encode())
        drive.remove(path)


def _note(
    taking: Taking, start: int, issue_end: int, rows: list[dict[str, Any]], outcomes: list[exchange.Outcome]
) -> dict[str, Any]:
    """Gather a taking's own facts, as the record's metadata keeps them; CPU and memory are the busiest client's."""
    level: Level = taking.level
    used = [outcome.usage for outcome in outcomes if outcome.usage]
    return {
        "run": taking.run,
        "repeat": taking.repeat,
        "level": level.id,
        "kind": level.family,
        "concurrency": level.concurrency,
        "rate_rps": level.rate_rps,
        "workload": level.workload,
        "order": taking.order,
        "issue_start_ns": start,
        "issue_end_ns": issue_end,
        "end_ns": max((r["end_ns"] or 0 for r in rows), default=issue_end),
        "ended": "planned",
        "clock_steps": max(outcome.clock_steps for outcome in outcomes),
        "client_processes": len(outcomes),
        "client_cpu_s": max((usage["cpu_s"] for usage in used), default=None),
        "client_peak_rss_bytes": round(max(usage["peak_mb"] for usage in used) * 1e6) if used else None,
    }


def _write(path: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> None:
    records.write_whole(path, records.encoded(pa.Table.from_pylist(rows, schema=schema)))
