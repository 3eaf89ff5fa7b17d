"""Studies with known numbers, written to disk in the true schema, for the tests of everything that reads records.

A server is described by a `Server`: its TTFT and TPOT at one request in flight, how they grow with the load, and
what goes wrong. With `jitter` 0 every request has exactly `ttft_at(load)` and `tpot_at(load)`. Nothing is random but
the seeded jitter and the seeded arrivals of open-loop levels, so the same call writes the same bytes.
"""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lib import config, records

NS = 1_000_000_000
START_NS = 1_000 * NS
GAP_NS = 2 * NS                 # pause between takings
RAMP_NS = NS // 20              # between the starts of two clients


@dataclass(frozen=True)
class Server:
    """One launch whose numbers are known."""

    name: str = "vllm-bf16"
    engine: str = "vllm-cpu"
    precision: str = "bf16"
    ttft_ms: float = 50.0               # at one request in flight
    tpot_ms: float = 10.0
    ttft_growth: float = 0.10           # share added per further request in flight
    tpot_growth: float = 0.05
    jitter: float = 0.02                # relative, uniform +-
    taking_spread: tuple[float, ...] = (1.0, 1.01, 0.99, 1.005, 0.995)      # factor of each taking, in turn
    output_tokens: int = 32
    tokens_per_event: int = 1
    failed: int = 0                     # measured requests per taking that end so
    truncated: int = 0
    empty: int = 0
    wrong_length: int = 0
    unfinished: int = 0
    lag_ms: float = 0.05
    drift: float = 0.0                  # share by which TTFT and TPOT grow from a taking's start to its end
    shared_share: float = 0.0           # share of token events that came in one read with the event before
    stamp_source: str = "kernel"
    prefix_hits: float = 0.0            # share of prefix-cache queries that hit
    kv_per_request: float = 0.03        # share of the KV cache that one request holds
    gauge_factor: float = 1.0           # what the engine's running gauge says, over the truth
    client_cpu_share: float = 0.20      # of one core
    others_cpu: float = 0.03            # cores that other programs use
    throttled: bool = False             # the second of two GPUs slows down for heat
    preemptions: int = 0                # per taking
    dirty: bool = False
    engine_version: str = "vllm 0.32.0"
    incomplete: str | None = None
    kind: str = "measured"
    bandwidth_bytes_s: float = 100e9    # of the host probe
    flop_s: float = 2e12
    artifact_bytes: int = 270_000_000
    ready_seconds: float = 30.0
    seed: int = 1
    extra: dict[str, Any] = field(default_factory=dict)     # replaces keys of meta

    def ttft_at(self, load: float) -> float:
        """Seconds."""
        return self.ttft_ms / 1e3 * (1 + self.ttft_growth * (load - 1))

    def tpot_at(self, load: float) -> float:
        """Seconds."""
        return self.tpot_ms / 1e3 * (1 + self.tpot_growth * (load - 1))


def study(levels: tuple[int, ...] = (1, 2, 4, 8), rates: tuple[float, ...] = (), seconds: float = 12.0,
          repeats: int = 3, runs: int = 1, ttft_p95_ms: float = 75.0, tpot_p95_ms: float = 15.0,
          more: tuple[dict[str, Any], ...] = (), **changes: Any) -> config.Study:
    """Build a study as load_study gives it; `more` are further levels, `changes` replace whole sections."""
    closed = [{"kind": "closed", "workload": "news", "concurrency": c, "seconds": seconds} for c in levels]
    opened = [{"kind": "poisson", "workload": "news", "rate_rps": r, "seconds": seconds} for r in rates]
    data: dict[str, Any] = {
        "title": "A study with known numbers", "profile": "synthetic", "depth": "default",
        "hardware": {"name": "two cores of nothing", "gpus": 0},
        "price": {"usd_per_hour": 0.10, "source": "example price list", "date": "2025-01-01"},
        "model": {"name": "SmolLM2-135M-Instruct", "tokenizer": "toy", "context": 2048, "layers": 30,
                  "hidden": 576, "intermediate": 1536, "heads": 9, "kv_heads": 3, "head_dim": 64, "vocab": 49152,
                  "tied_embeddings": True, "licence": "none"},
        "sla": {"ttft_p95_ms": ttft_p95_ms, "tpot_p95_ms": tpot_p95_ms, "sessions": 4, "failure_budget": 0.0,
                "stated": "2025-01-01", "reason": "chosen so that 2 in flight meet it and 8 do not"},
        "workloads": {"news": {"input_tokens": {"mean": 128, "shape": "constant"},
                               "output_tokens": {"mean": 32, "shape": "constant"}, "reads_like": "a short news item"}},
        "levels": closed + opened + [{"workload": "news", "seconds": seconds} | level for level in more],
        "statistics": {"runs": runs, "repeats": repeats, "warmup_seconds": 1.0, "drain_seconds": 10.0,
                       "request_timeout_seconds": 60.0},
        "headline_workload": "news", "noise_floor_pair": ["vllm-bf16", "vllm-bf16-again"], "seed": 7,
    }
    return config.Study.model_validate(data | changes)


SERVERS = (
    Server(),
    Server(name="vllm-bf16-again", seed=2, taking_spread=(1.004, 0.996, 1.012, 0.99, 1.0)),
    Server(name="vllm-int8", precision="int8", ttft_ms=45.0, tpot_ms=8.0, seed=3, artifact_bytes=150_000_000),
    Server(name="llamacpp-q4_0", engine="llama-cpp", precision="q4_0", ttft_ms=90.0, tpot_ms=6.0, seed=4, failed=1,
           wrong_length=1, engine_version="llama.cpp b9000", artifact_bytes=90_000_000, kv_per_request=0.05),
)


def write_study(folder: Path, of: config.Study | None = None, servers: tuple[Server, ...] = SERVERS,
                absent: dict[str, str] | None = None) -> config.Study:
    """Write records, telemetry and outcomes of a whole study into `folder` (what records/<study>/ is)."""
    of = of or study()
    for server in servers:
        write_launch(folder, of, server)
    for name, reason in (absent or {}).items():
        outcome(folder, name, "absent", reason)
    return of


def outcome(folder: Path, launch: str, status: str, reason: str | None) -> None:
    """Write how a launch ended."""
    text = json.dumps({"launch": launch, "status": status, "reason": reason, "when_utc": "2025-01-01T00:00:00Z"})
    records.write_whole(folder / f"{launch}.outcome.json", text.encode())


def write_launch(folder: Path, of: config.Study, server: Server) -> Path:
    """Write one launch: its record, its telemetry and its outcome. Returns the record's path."""
    rows: list[dict[str, Any]] = []
    samples: list[dict[str, Any]] = []
    takings: list[dict[str, Any]] = []
    rng = np.random.default_rng(server.seed)
    now = START_NS
    for run in range(of.statistics.runs):
        order = 0
        for repeat in range(of.statistics.repeats):
            for level in of.levels:
                factor = server.taking_spread[(run * of.statistics.repeats + repeat) % len(server.taking_spread)]
                new, taking = _taking(of, server, level, run, repeat, now, factor, rng)
                _spoil(new, server)
                rows += new
                samples += _telemetry(server, level, run, repeat, new, taking)
                takings.append(taking | {"order": order})
                now, order = taking["end_ns"] + GAP_NS, order + 1
    path = folder / f"{server.name}.parquet"
    meta = _meta(of, server, rows, takings) | server.extra
    records.write(path, pa.Table.from_pylist(rows, records.REQUESTS), meta)
    records.write(folder / f"{server.name}.telemetry.parquet", pa.Table.from_pylist(samples, records.TELEMETRY), meta)
    outcome(folder, server.name, "failed" if server.incomplete else "measured", server.incomplete)
    return path


def _taking(of: config.Study, server: Server, level: config.Level, run: int, repeat: int, start: int, factor: float,
            rng: np.random.Generator) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Requests of one taking and its entry in meta["takings"]."""
    issue_end = start + int(level.seconds * NS)
    lag = int(server.lag_ms * 1e6)
    load = float(level.concurrency or 1)
    rows: list[dict[str, Any]] = []

    def add(due: int, phase: str, client: int | None = None) -> int:
        later = 1 + server.drift * (due - start) / (level.seconds * NS)
        wobble = 1 + server.jitter * rng.uniform(-1, 1, 2)
        ttft = int(server.ttft_at(load) * factor * later * wobble[0] * NS)
        tpot = server.tpot_at(load) * factor * later * wobble[1] * NS
        tokens = server.output_tokens
        last = np.arange(tokens)[server.tokens_per_event - 1::server.tokens_per_event]    # last token of each event
        stamps = due + lag + ttft + np.round(last * tpot)
        stamps[0], stamps[-1] = due + lag + ttft, due + lag + ttft + round((tokens - 1) * tpot)
        rows.append(_row(server, level, run, repeat, len(rows), phase, due, lag, stamps.astype(np.int64)))
        turns = of.workloads[level.workload].turns
        turn = sum(r["connection"] == client for r in rows[:-1]) % turns if turns else None
        adapter = f"adapter-{len(rows) % level.adapters + 1}" if level.adapters else None
        rows[-1] |= {"connection": client, "turn": turn, "adapter": adapter}
        return int(rows[-1]["end_ns"]) + pause

    pause = int((level.think_seconds or 0.0) * NS)
    if level.concurrency is not None:
        free = [start if level.start == "burst" else start + i * RAMP_NS for i in range(level.concurrency)]
        while min(free) < issue_end:
            client = free.index(min(free))
            free[client] = add(free[client], "measured", client)
        last = max(r["end_ns"] for r in rows)
        while min(free) < last:
            client = free.index(min(free))
            free[client] = add(free[client], "cooldown", client)
    else:
        assert level.rate_rps is not None
        due = start + int(rng.exponential(1 / level.rate_rps) * NS)
        while due < issue_end:
            add(due, "measured")
            due += int(rng.exponential(1 / level.rate_rps) * NS)
    end = max([r["end_ns"] for r in rows], default=issue_end)
    taking = {"run": run, "repeat": repeat, "level": level.id, "kind": level.family, "concurrency": level.concurrency,
              "rate_rps": level.rate_rps, "workload": level.workload, "issue_start_ns": start,
              "issue_end_ns": issue_end, "end_ns": end, "client_cpu_s": server.client_cpu_share * (end - start) / NS,
              "client_peak_rss_bytes": 80_000_000, "ended": "planned"}
    return rows, taking


def _row(server: Server, level: config.Level, run: int, repeat: int, index: int, phase: str, due: int, lag: int,
         stamps: Any) -> dict[str, Any]:
    end = int(stamps[-1]) + 100_000
    name = f"{server.name}-{run}-{repeat}-{level.id}-{index}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:16]
    shared = round(server.shared_share * len(stamps))
    return {"run": run, "repeat": repeat, "level": level.id, "index": index, "phase": phase, "request_id": name,
            "prompt_hash": digest, "planned_input_tokens": 128, "planned_output_tokens": server.output_tokens,
            "due_ns": due, "sent_ns": due + lag, "connect_ns": 50_000, "first_byte_ns": int(stamps[0]),
            "role_ns": None, "visible_ns": int(stamps[0]), "done_ns": end, "end_ns": end, "event_ns": stamps.tolist(),
            "event_lag_ns_max": 20_000, "reads": len(stamps) - shared + 1, "shared_reads": shared,
            "bytes": 200 * len(stamps), "input_tokens": 128, "output_tokens": server.output_tokens,
            "output_tokens_source": "server", "status": "complete", "cause": None, "http_status": 200,
            "finish_reason": "length", "text_hash": digest, "stamp_source": server.stamp_source}


def _spoil(rows: list[dict[str, Any]], server: Server) -> None:
    """Let some measured requests of a taking end badly, spread over the taking."""
    wanted = [s for s in records.STATUSES[1:] for _ in range(getattr(server, s))]
    measured = [r for r in rows if r["phase"] == "measured"]
    for i, status in enumerate(wanted):
        row = measured[(2 * i + 1) * len(measured) // (2 * len(wanted))]
        half = row["event_ns"][: len(row["event_ns"]) // 2]
        row |= {"status": status, "cause": f"made {status} for a test", "text_hash": None}
        if status in ("failed", "empty"):
            row |= {"event_ns": [], "visible_ns": None, "output_tokens": None, "shared_reads": 0,
                    "http_status": 500 if status == "failed" else 200, "finish_reason": None}
        elif status == "truncated":
            row |= {"event_ns": half, "output_tokens": None, "done_ns": None, "finish_reason": None}
        elif status == "wrong_length":
            row |= {"event_ns": half, "output_tokens": len(half), "finish_reason": "stop"}
        else:
            row |= {"event_ns": half, "output_tokens": None, "end_ns": None, "done_ns": None, "finish_reason": None}


def _telemetry(server: Server, level: config.Level, run: int, repeat: int, rows: list[dict[str, Any]],
               taking: dict[str, Any]) -> list[dict[str, Any]]:
    """One sample a second of what the engine would say, with the true number of requests in flight."""
    times = np.arange(taking["issue_start_ns"] + NS // 2, taking["end_ns"], NS)
    sent = np.array([r["sent_ns"] for r in rows])
    ends = np.array([r["end_ns"] or taking["end_ns"] for r in rows])
    samples = []
    for i, t in enumerate(times):
        running = float(((sent <= t) & (t < ends)).sum())
        share = i / max(1, len(times) - 1)
        values = {"running": running * server.gauge_factor, "waiting": 0.0,
                  "kv_cache_usage": min(1.0, running * server.kv_per_request),
                  "preemptions_total": float(round(server.preemptions * share)),
                  "prefix_cache_queries_total": 10_000.0 * share,
                  "prefix_cache_hits_total": 10_000.0 * share * server.prefix_hits,
                  "engine_cpu_percent": 180.0, "engine_rss_bytes": 2e9,
                  "client_cpu_percent": 100 * server.client_cpu_share,
                  "client_rss_bytes": 8e7, "host_cpu_percent": 95.0, "other_cpu_percent": 100 * server.others_cpu}
        if server.throttled:
            values |= {"gpu0_clock_reasons": 0.0, "gpu1_clock_reasons": 0x40 * (i % 2)}
        samples += [{"run": run, "repeat": repeat, "level": level.id, "t_ns": int(t), "name": n, "value": v}
                    for n, v in values.items()]
    return samples


def _meta(of: config.Study, server: Server, rows: list[dict[str, Any]],
          takings: list[dict[str, Any]]) -> dict[str, Any]:
    launch = config.Launch(name=server.name, engine=server.engine, precision=server.precision,
                           artifact=f"toy-{server.precision}", environment=server.engine, start_seconds=120)
    sources = [r["stamp_source"] for r in rows]
    return {
        "kind": server.kind, "study": of.name, "profile": of.profile, "depth": of.depth, "launch": server.name,
        "engine": server.engine, "precision": server.precision,
        "config": {"study": of.model_dump(mode="json"), "launch": launch.model_dump(mode="json")},
        "config_hash": config.config_hash(of, launch),
        "machine": {"cpu": "Example CPU", "cores": 2, "memory_bytes": 24_000_000_000, "kernel": "6.1",
                    "os": "Example OS", "flags": ["avx2", "avx512f"], "gpus": []},
        "host_probe": {"bandwidth_bytes_s": server.bandwidth_bytes_s, "flop_s": {"float32": server.flop_s},
                       "seconds": 2.0},
        "versions": {"python": "3.11.9", "engine": server.engine_version, "packages": {}},
        "git": {"commit": "0" * 40, "dirty": server.dirty},
        "clock": {"name": "monotonic", "resolution_ns": 1, "steps": 0,
                  "stamp_sources": {s: sources.count(s) for s in ("kernel", "user")}},
        "artifact": {"name": f"toy-{server.precision}", "bytes": server.artifact_bytes, "seconds": 12.0, "tools": {},
                     "files": [{"path": "model.bin", "bytes": server.artifact_bytes, "sha256": "0" * 64}]},
        "proof": [{"what": "dtype", "expected": server.precision, "found": server.precision, "source": "log line",
                   "ok": True}],
        "started_utc": "2025-01-01T00:00:00Z", "ended_utc": "2025-01-01T00:10:00Z", "incomplete": server.incomplete,
        "runs": [{"run": r, "ready_seconds": server.ready_seconds, "started_utc": "2025-01-01T00:00:00Z",
                  "load_average": [0.1, 0.1, 0.1]} for r in range(of.statistics.runs)],
        "takings": takings,
    }
