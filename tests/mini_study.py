"""A whole study in miniature for tests of the measuring half: a stand-in engine, real processes, real records.

    python tests/mini_study.py ROOT LAUNCH        take one launch of the study under ROOT

The stand-in streams like an engine at a steady pace. Its launch's settings make it misbehave: `dies_after` requests it
exits in mid-stream, once (the file `died` in ROOT remembers); `fault` is one of those of paced_server.py; with
`in_turn` it answers one request at a time; more than `crowd` at once make it slow; with `worker` a child of it does the
work. The environment variable CLIENTS forces the number of client processes, ROOM the
bytes of disk that must be free, AGENT that a client elsewhere has its agent on this computer, and by how many ns its
clock is then said to be off.
"""

import json
import os
import sys
from pathlib import Path
from typing import ClassVar

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lib import config, environments, paths
from lib.config import Strict
from lib.engines import base, build, registry, talk
from lib.engines.base import Engine
from lib.engines.proof import Precision, claim
from lib.errors import EngineError, tell
from lib.measure import clientnode, hostprobe, session, workers
from lib.measure.finance import Writer

PACED = Path(__file__).with_name("paced_server.py")
ARTIFACT = "smollm2-135m-gguf-f16"

STUDY = """
title: A study in miniature
hardware: {name: test, gpus: 0}
price: null
model: {name: SmolLM2-135M-Instruct, tokenizer: smollm2-135m-gguf-f16, context: 512, layers: 30, hidden: 576,
        intermediate: 1536, heads: 9, kv_heads: 3, head_dim: 64, vocab: 49152, tied_embeddings: true, licence: none}
sla: {ttft_p95_ms: 500, tpot_p95_ms: 50, sessions: 2, failure_budget: 0.0, stated: "2026-11-30", reason: test}
workloads:
  news: {input_tokens: {mean: 60, spread: 0.2}, output_tokens: {mean: 8, spread: 0.5}, reads_like: a test}
headline_workload: news
levels:
  - {kind: closed, concurrency: 3, workload: news, seconds: 0.6}
  - {kind: poisson, rate_rps: 6, workload: news, seconds: 0.6}
statistics: {runs: 1, repeats: 2, warmup_seconds: 0.2, drain_seconds: 10, request_timeout_seconds: 10}
seed: 7
"""

LAUNCH = """
engine: stand-in
precision: {precision}
artifact: smollm2-135m-gguf-f16
environment: stand-in
start_seconds: 20
client: {client}
settings: {{dies_after: {dies_after}, fault: {fault}, in_turn: {in_turn}, crowd: {crowd},
           worker: {worker}}}
"""
SOUND = {"precision": "f16", "dies_after": 0, "fault": "none", "in_turn": "false", "crowd": 0, "worker": "false",
         "client": "null"}  # fmt: skip


class Settings(Strict):
    dies_after: int = 0
    fault: str = "none"
    in_turn: bool = False
    crowd: int = 0
    worker: bool = False


class Paced(Engine):
    name = title = environment = "stand-in"
    wire = "openai-completions"
    reachable = True
    settings = Settings
    precisions: ClassVar = {"f16": Precision("gguf-f16", ()), "imaginary": Precision("gguf-f16", ("no_such_flag",))}
    metrics: ClassVar = {"running": ("running",)}
    absent_metrics: ClassVar = {}

    def command(self, launch, port):
        root = paths.CONFIG.parent
        return [
            sys.executable,
            "-u",
            str(PACED),
            str(port),
            launch.name,
            str(self.own(launch).dies_after),
            str(root / "died"),
            self.own(launch).fault,
            base.READY_PROMPT,
            str(root / "artifacts" / ARTIFACT / "tokenizer.json"),
            str(int(self.own(launch).in_turn)),
            str(self.own(launch).crowd),
            str(int(self.own(launch).worker)),
        ]

    def variables(self, launch, key):
        return {"KEY": key}

    def body(self, launch, prompt, output_tokens):
        return "/v1/completions", {"model": launch.name, "prompt": prompt, "max_tokens": output_tokens, "stream": True}

    def claims(self, server):
        served = talk.get_json(server.port, "/v1/models", server.key)["data"][0]["id"]
        return [claim("served model", server.model, served, "GET /v1/models")]

    def version(self, server):
        return "stand-in 1"

    def count(self, server, text):
        return len(Tokenizer.from_file(str(paths.ARTIFACTS / ARTIFACT / "tokenizer.json")).encode(text).ids)

    def memory_bytes(self, launch):
        return 0


def prepare(root: Path, study: str = STUDY, **launches: dict) -> None:
    """Write config, tokenizer and artifact of a study whose launches are given by name (settings as in LAUNCH)."""
    folder = root / "config" / "mini"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(study)
    for name, given in launches.items():
        (folder / f"{name}.yaml").write_text(LAUNCH.format(**SOUND | given))
    artifact = root / "artifacts" / ARTIFACT
    if not artifact.exists():
        artifact.mkdir(parents=True)
        writer = Writer(1)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=800, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        tokenizer.train_from_iterator((writer.sentence("news") for _ in range(400)), trainer)
        tokenizer.save(str(artifact / "tokenizer.json"))
        (artifact / "manifest.json").write_text(json.dumps(build._described(ARTIFACT, artifact, 1.0)))


def stand_in(root: Path) -> None:
    """Point the study at ROOT and put the stand-in among the engines."""
    paths.CONFIG, paths.ARTIFACTS, paths.RECORDS = root / "config", root / "artifacts", root / "records"
    registry.ENGINES["stand-in"] = Paced()
    environments.ensure = lambda name: Path(sys.executable)
    build.build = lambda name, progress=None: build.manifest(name)  # there is no recipe for the stand-in's weights
    hostprobe.probe = lambda: {"bandwidth_bytes_s": 1e12, "flop_s": {"float32": 1e11}, "cores": 2, "seconds": 0.0}
    base.LOOK_S = 0.05
    if os.environ.get("ROOM"):
        session.MIN_FREE_BYTES = int(os.environ["ROOM"])
    if os.environ.get("CLIENTS"):
        workers.workers_needed = lambda events_per_s, cores: int(os.environ["CLIENTS"])
    if os.environ.get("AGENT"):
        clientnode.step = lambda study, launch: (list(clientnode.AGENT), "127.0.0.1") if launch.client else None
        clientnode.ClientNode.clock = lambda self: (int(os.environ["AGENT"]), 1)
    os.environ["STUDY_TERMINAL"] = "none"


def work(root: Path, name: str, refuse: bool) -> None:
    """Take one launch, or fail as one does that says why."""
    stand_in(root)
    if refuse:
        session._outcome(config.load_study("mini"), config.load_launch("mini", name), "failed", "made to fail.")
        raise EngineError("made to fail.")
    session.take("mini", "default", name)


def main() -> None:
    stand_in(Path(sys.argv[1]))
    session.take("mini", "default", sys.argv[2])


if __name__ == "__main__":
    tell(main)
