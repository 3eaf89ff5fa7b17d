"""Other load tools beside ours: on one live server with the same prompts, and against the server that knows the truth.

Rule: every tool is asked for the same requests, all slots at once, on the same cores; ours is taken first and last,
and what the two differ by is the noise of the day (A/A). The record keeps raw stamps and what each tool reported;
differences and their reasons are computed by whoever reads it. A tool that cannot be installed or run is absent with
its reason, and the rest goes on; a server that dies ends everything.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lib import config, environments, paths, records
from lib.engines import build, cores, registry
from lib.errors import EngineError, StudyError, tell
from lib.measure import calibrate, calibrate_study, groundtruth, provenance, schedule, session, workload
from lib.measure.calibrate import Load
from lib.measure.peers import aiperf, ours, vllm_bench
from lib.measure.peers.target import Run, Target
from lib.progress import Progress

PROFILE, LAUNCH = "cpu", "vllm-fp32"  # the 16-bit weights of every launch, at the precision that every CPU computes
REQUESTS, CONCURRENCY, OUTPUT_TOKENS = 32, 2, 16
WARM_UP = 4  # requests
# A load that no tool should feel, and the article's: 128 streams of 30 tokens/s.
LOADS = (Load("small", streams=2, tokens_per_s=20.0, output_tokens=16, answers=10), calibrate_study.SCENARIOS[1])
TOOLS: tuple[ModuleType, ...] = (ours, vllm_bench, aiperf)
ORDER: tuple[ModuleType, ...] = (*TOOLS, ours)
FILE = "crosscheck.json"


def main() -> None:
    """Measure both halves and keep them as records/crosscheck.json."""
    study, launch = config.load_study(PROFILE), config.load_launch(PROFILE, LAUNCH)
    with session.alone(paths.RECORDS / study.name):
        for artifact in dict.fromkeys((study.model.tokenizer, launch.artifact)):
            build.build(artifact)
        environments.ensure(launch.environment)
        absent = prepared()
        found = {
            "schema": 1, "when_utc": provenance.utc(), "machine": provenance.machine(), "git": provenance.git(),
            "cores_shared": cores.share()[0] == cores.share()[1],
            "tools": {tool.NAME: {"title": tool.TITLE, "version": tool.version()} for tool in TOOLS},
            "live": live(study, launch, absent),
            "truth": [against(load, paths.ARTIFACTS / study.model.tokenizer, absent) for load in LOADS],
            "absent": absent,
        }  # fmt: skip
    keep(found, paths.RECORDS / FILE)


def prepared() -> dict[str, str]:
    """Make every tool's environment; returns the reason of each that cannot be made."""
    absent = {}
    for tool in TOOLS:
        try:
            tool.prepare()
        except StudyError as why:
            absent[tool.NAME] = str(why)
    return absent


def live(study: config.Study, launch: config.Launch, absent: dict[str, str]) -> dict[str, Any]:
    """Run every tool on one live server, ours twice. Adds to `absent`.

    Raises
    ------
    EngineError : the server could not be started or died.
    MeasureError : ours failed.
    """
    spec = study.workloads[study.headline_workload].input_tokens
    drawn = workload.Lengths(mean=spec.mean, spread=spec.spread, shape=spec.shape)
    inputs = drawn.draw(REQUESTS, _seed(study, "input"))
    tokenizer = workload.load_tokenizer(paths.ARTIFACTS / study.model.tokenizer / "tokenizer.json")
    log = paths.RECORDS / "crosscheck.server.log"
    log.unlink(missing_ok=True)
    engine = registry.of(launch)
    with Progress("crosscheck") as progress, engine.start(launch, log, lambda text: progress.at(0.0, text)) as server:

        def target(role: str, count: int) -> Target:
            made = workload.prompts(
                tokenizer, [(tokens, OUTPUT_TOKENS) for tokens in inputs[:count]], _seed(study, "text"),
                role="warm-up" if role == "warm-up" else "measured", added_tokens=server.added_tokens,
                context_tokens=study.model.context,
            )  # fmt: skip
            return Target(
                server.port, server.model, tuple(one.text for one in made), OUTPUT_TOKENS, CONCURRENCY, server.body,
                paths.ARTIFACTS / study.model.tokenizer, server.key, server.engine.keeps_connections,
                server.check_alive, tuple(cores.share()[1]),
            )  # fmt: skip

        with _folder() as folder:
            ours.run(target("warm-up", WARM_UP), folder)
        asked = target("measured", REQUESTS)
        return {
            "server": server.version, "launch": launch.name, "engine": launch.engine, "precision": launch.precision,
            "config_hash": config.config_hash(study, launch), "proof": server.proof(),
            "requests": REQUESTS, "concurrency": CONCURRENCY, "output_tokens": OUTPUT_TOKENS,
            "input_tokens": list(map(int, inputs)),
            "runs": list(taken(ORDER, asked, absent)),
        }  # fmt: skip


def taken(order: Sequence[ModuleType], asked: Target, absent: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Run tools one after the other on one target; a peer that fails joins `absent` and is left out from then on.

    Yields
    ------
    tool, load_average before it, rows, reported and usage of each run.
    """
    for tool in order:
        if tool.NAME in absent:
            continue
        before = os.getloadavg()[0]
        print(f"crosscheck: {tool.TITLE}, {len(asked.prompts)} requests, {asked.concurrency} at once", flush=True)
        found = _tried(tool, asked, absent)
        if found is not None:
            yield {
                "tool": tool.NAME, "load_average": before, "rows": found.rows, "reported": found.reported,
                "usage": found.usage,
            }  # fmt: skip


def _tried(tool: ModuleType, asked: Target, absent: dict[str, str]) -> Run | None:
    """Run one tool. None, with its reason in `absent`, for a peer that fails; ours and a dead server raise."""
    try:
        with _folder() as folder:
            found: Run = tool.run(asked, folder)
            return found
    except EngineError:
        raise
    except StudyError as why:
        if tool is ours:
            raise
        absent[tool.NAME] = str(why)
        print(f"crosscheck: {tool.TITLE} is absent: {why}", flush=True)
        return None


def against(load: Load, tokenizer: Path, absent: dict[str, str]) -> dict[str, Any]:
    """Run every tool against the ground-truth server at one load. Adds to `absent`.

    Returns
    -------
    load, its parameters, server (`c` or `python`), and tools: what `errors` says of each, its usage, and
    load_reached_percent, the ideal length of the run over the real one.
    """
    mine = sorted(os.sched_getaffinity(0))
    apart = ((mine[0],), (mine[1],)) if len(mine) >= 2 else ((), ())
    found: dict[str, Any] = {}
    with groundtruth.serve(ttft_ms=calibrate.TTFT_MS, itl_ms=1e3 / load.tokens_per_s, cpus=apart[0]) as server:
        asked = Target(
            server.port, groundtruth.MODEL,
            tuple(f"{i}: a ship on the horizon, bound for another port" for i in range(load.streams * load.answers)),
            load.output_tokens, load.streams, _body, tokenizer, cpus=apart[1],
        )  # fmt: skip
        for tool in TOOLS:
            server.reset()
            for run in taken([tool], asked, absent):
                used = run["usage"]
                found[tool.NAME] = {
                    **errors(run["rows"], server.truths()), **used, "load_average": run["load_average"],
                    "load_reached_percent": 100 * (load.seconds - 1.0) / used["span_s"],
                    "server_late_us_p99": server.stats()["late_us_p99"],
                }  # fmt: skip
        return {
            "load": load.name, "streams": load.streams, "tokens_per_s": load.tokens_per_s,
            "output_tokens": load.output_tokens, "answers": load.answers, "server": server.kind, "tools": found,
        }  # fmt: skip


def errors(rows: Sequence[dict[str, Any]], truths: dict[str, groundtruth.Truth]) -> dict[str, Any]:
    """How far a tool's stamps are from the truth.

    Returns
    -------
    requests; complete; matched: those with as many token events as the server sent; of these, in ms: ttft_bias and
    tpot_bias (medians of what the tool says minus the truth), ttft_error and gap_error at p50, p95, p99 (of absolute
    values). None where nothing matched.
    """
    ttft, tpot, gaps = [], [], []
    complete = [row for row in rows if row["status"] == "complete"]
    for row in complete:
        seen, truth = np.array(row["event_ns"]), truths.get(row["id"])
        if truth is None or len(seen) != len(truth.token_ns) or len(seen) < 2:
            continue
        ttft.append((seen[0] - row["sent_ns"]) - (truth.token_ns[0] - truth.arrival_ns))
        gap = np.diff(seen) - np.diff(truth.token_ns)
        gaps.append(gap)
        tpot.append(gap.mean())
    counted = {"requests": len(rows), "complete": len(complete), "matched": len(ttft)}
    off = np.abs(np.concatenate(gaps)) if gaps else np.empty(0)
    return {
        **counted,
        "ttft_bias_ms": _ms(np.array(ttft), 50), "tpot_bias_ms": _ms(np.array(tpot), 50),
        **{f"ttft_error_p{p}_ms": _ms(np.abs(ttft), p) for p in (50, 95, 99)},
        **{f"gap_error_p{p}_ms": _ms(off, p) for p in (50, 95, 99)},
    }  # fmt: skip


def keep(found: dict[str, Any], path: Path) -> None:
    """Write the record, whole or not at all. Raises RecordError for a folder that cannot be written to."""
    records.write_whole(path, (json.dumps(found, allow_nan=False) + "\n").encode())


def _ms(values_ns: Any, percentile: float) -> float | None:
    return float(np.percentile(values_ns, percentile)) / 1e6 if len(values_ns) else None


def _body(prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
    return "/v1/completions", {
        "model": groundtruth.MODEL, "prompt": prompt, "max_tokens": output_tokens, "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


def _seed(study: config.Study, what: str) -> int:
    return schedule.seed_for(study.seed, "crosscheck", 0, 0, what)


@contextmanager
def _folder() -> Iterator[Path]:
    """Lend a folder of our own for what a tool writes, answers included; it is gone afterwards."""
    paths.BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="crosscheck-", dir=paths.BUILD) as folder:
        yield Path(folder)


if __name__ == "__main__":
    tell(main)
