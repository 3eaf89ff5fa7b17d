"""AIPerf, NVIDIA's load tool, from an environment of its own (envs/peers.txt).

Its definitions, read in its metrics reference: TTFT is the first non-empty response minus the request's start,
connecting included; its "inter token latency" is (last content - first) / (n - 1), one a request: our TPOT; "inter
chunk latency" are the gaps between responses; output throughput is all output tokens over last response minus first
request. It counts tokens itself unless told to take the server's count, which it is here.

Rule: its moments are wall-clock ns; they are moved to the monotonic clock by the offset at the time of reading, so
they serve to place requests beside each other. Latencies are its own monotonic differences and stay as they are.
"""

import json
import time
from pathlib import Path
from typing import Any

from lib import environments
from lib.measure.clientplan import KEY_ENV
from lib.measure.peers import outside
from lib.measure.peers.target import Run, Target, row
from lib.paths import ENVS

NAME = "aiperf"
TITLE = "AIPerf"
ENVIRONMENT = "peers"
# 0.13.0 takes a folder for a name on the hub when it is told to stay offline; instead its hub is a port nobody answers.
NO_HUB = {"HF_HUB_OFFLINE": "", "TRANSFORMERS_OFFLINE": "", "HF_ENDPOINT": "http://127.0.0.1:9"}


def version() -> str:
    """Locked version."""
    return f"aiperf {environments.locked(ENVS / f'{ENVIRONMENT}.txt')['aiperf']}"


def prepare() -> None:
    """Make its environment. Raises ConfigError or EngineError where that cannot be done."""
    environments.ensure(ENVIRONMENT)


def settings(target: Target, folder: Path) -> dict[str, Any]:
    """Build its configuration; the key is in it by the name of its variable."""
    path, _ = target.body("", target.output_tokens)
    endpoint = {
        "url": target.url, "type": "completions", "path": path, "streaming": True, "useServerTokenCount": True,
        "extra": target.extra() | {"max_tokens": target.output_tokens},
    }  # fmt: skip
    if target.key:
        endpoint["apiKey"] = f"${{{KEY_ENV}}}"
    return {
        "schemaVersion": "2.0", "randomSeed": 0,
        "benchmark": {
            "model": target.model, "endpoint": endpoint, "tokenizer": {"name": str(target.tokenizer)},
            "dataset": {
                "type": "file", "path": str(folder / "prompts.jsonl"), "format": "single_turn",
                "sampling": "sequential",
            },
            "phases": {
                "type": "concurrency", "concurrency": target.concurrency, "requests": len(target.prompts),
            },
            "artifacts": {"dir": str(folder)},
        },
    }  # fmt: skip


def command(folder: Path) -> list[str]:
    """Argument list; the key is not in it."""
    return [
        str(environments.python(ENVIRONMENT)), "-m", "aiperf", "profile", "--config", str(folder / "config.yaml"),
        "--no-server-metrics", "--no-gpu-telemetry", "--ui-type", "none",
    ]  # fmt: skip


def run(target: Target, folder: Path) -> Run:
    """Send every prompt once. Raises as `outside.run`."""
    lines = [json.dumps({"text": prompt}) for prompt in target.prompts]
    (folder / "prompts.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "config.yaml").write_text(json.dumps(settings(target, folder)))  # JSON is YAML
    variables = NO_HUB | ({KEY_ENV: target.key} if target.key else {})
    return outside.run(TITLE, command(folder), variables, target, folder, read)


def read(folder: Path, offset_ns: int | None = None) -> tuple[list[dict[str, Any]], dict[str, float | None]]:
    """Rows and reported values from the exported files.

    `offset_ns`: wall clock minus monotonic clock; None: as it is now. Raises OSError, ValueError or KeyError for
    another shape.
    """
    shift = time.time_ns() - time.monotonic_ns() if offset_ns is None else offset_ns
    rows = []
    for line in (folder / "profile_export.jsonl").read_text().splitlines():
        one = json.loads(line)
        about, metrics, error = one["metadata"], one["metrics"] or {}, one.get("error")
        sent, end = about["request_start_ns"] - shift, about["request_end_ns"] - shift
        if error:
            cause = f"{error.get('type')}: {error.get('message')}"[:200]
            rows.append(row(about["x_request_id"], sent, [], end, None, cause))
        else:
            tokens = round(_value(metrics, "output_sequence_length", "tokens"))
            rows.append(row(about["x_request_id"], sent, _moments(sent, metrics), end, tokens, None))
    whole = json.loads((folder / "profile_export_aiperf.json").read_text())
    reported = {
        "ttft_p50_ms": _reported(whole, "time_to_first_token", "p50", "ms"),
        "tpot_p50_ms": _reported(whole, "inter_token_latency", "p50", "ms"),
        "output_tok_s": _reported(whole, "output_token_throughput", "avg", "tokens/sec"),
    }
    return rows, reported


def _moments(sent_ns: int, metrics: dict[str, Any]) -> list[int]:
    """Moments (ns) of the responses with content, from the first one and the gaps (ms) after it."""
    gaps = metrics.get("inter_chunk_latency", {"value": [], "unit": "ms"})
    if gaps["unit"] != "ms":
        raise ValueError(f"inter_chunk_latency is in {gaps['unit']}, not ms")
    moments, at = [], 0.0
    for step in [_value(metrics, "time_to_first_token", "ms"), *gaps["value"]]:
        at += step
        moments.append(sent_ns + round(at * 1e6))
    return moments


def _value(metrics: dict[str, Any], name: str, unit: str) -> float:
    """Value of a metric of one request. Raises KeyError without it, ValueError for another unit."""
    one = metrics[name]
    if one["unit"] != unit:
        raise ValueError(f"{name} is in {one['unit']}, not {unit}")
    return float(one["value"])


def _reported(whole: dict[str, Any], name: str, statistic: str, unit: str) -> float | None:
    """Read a statistic of the whole run; None where the tool has none."""
    one = whole.get(name)
    if one is None or one.get(statistic) is None:
        return None
    if one["unit"] != unit:
        raise ValueError(f"{name} is in {one['unit']}, not {unit}")
    return float(one[statistic])
