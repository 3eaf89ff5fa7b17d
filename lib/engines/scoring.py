"""How a launch's model is scored without its server: which weights, by which library, against which reference.

Teacher-forced, over the whole vocabulary, by the script `recipes/score.py` in the quantize environment: GGUF files by
llama.cpp itself, Hugging Face folders by transformers, in the number format that the launch computes in. The reference
is the 16-bit model that the weights come from, its products in float32 (llama.cpp: as llama.cpp serves f16).
Refused, as a number that does not exist: models that no library here loads, and too little memory for two of them.
"""

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import environments, paths
from lib.config import Launch
from lib.engines import build, computer
from lib.engines.process import OWN_PYTHON, Process
from lib.errors import EngineError, NoValue

SCRIPT = build.RECIPES / "score.py"
METHOD = 1                      # of scoring: a record of another one is taken again; code alone never makes it so
LIMIT_S = 1800.0
LOOK_S = 0.2
BASE_BYTES = 1_500_000_000      # torch and transformers, and one text's logits in float64
IN_FLOAT32 = 4.6                # bytes in memory over bytes on disk, of the format that grows most: 4 bits become 32


@dataclass(frozen=True)
class Scored:
    """A model as it is scored: its artifact and the format of its products; None where llama.cpp decides."""

    artifact: str
    dtype: str | None

    @property
    def told(self) -> dict[str, Any]:
        """What the script is told."""
        folder, threads = paths.ARTIFACTS / self.artifact, len(os.sched_getaffinity(0))
        if self.dtype:
            return {"kind": "torch", "folder": str(folder), "dtype": self.dtype, "threads": threads}
        return {"kind": "llama", "file": str(folder / "model.gguf"), "library": str(_library()), "threads": threads,
                "version": _locked()}

    @property
    def how(self) -> str:
        """Name of the estimator."""
        by = f"transformers, products in {self.dtype}" if self.dtype else "llama.cpp's own kernels (xllamacpp)"
        return f"full vocabulary, teacher-forced, by {by}"


def of(launch: Launch) -> tuple[Scored, Scored]:
    """Return what a launch serves and its 16-bit reference.

    Raises
    ------
    NoValue : no library here loads it, or the memory does not hold both.
    """
    made = build.recipe(launch.artifact)
    if made.fetched:
        raise NoValue(
            f"{launch.artifact} has {made.bytes / 1e9:.0f} GB of weights, more than processors score; it takes the "
            "engine's own log-probabilities, which this study does not collect"
        )
    if made.format.startswith("gguf-"):
        pair = Scored(launch.artifact, None), Scored(launch.artifact.rpartition("-")[0] + "-f16", None)
    else:
        own = launch.settings.get("dtype") or ("bfloat16" if launch.precision == "bf16" else "float32")
        pair = Scored(launch.artifact, str(own)), Scored(made.source or launch.artifact, "float32")
    build.recipe(pair[1].artifact)
    needed = BASE_BYTES + IN_FLOAT32 * sum(build.recipe(one.artifact).bytes for one in set(pair))
    if computer.free_memory_bytes() < needed:
        raise NoValue(
            f"scoring {launch.artifact} beside its reference needs about {needed / 1e9:.1f} GB of memory and "
            f"{computer.free_memory_bytes() / 1e9:.1f} GB is free"
        )
    return pair


def key(own: Scored, reference: Scored, asked: Mapping[str, Any]) -> str:
    """16 hex digits over everything that decides the scores: weights, formats, library, method, what is asked."""
    models = [[build.key(one.artifact), one.dtype or _locked()] for one in (own, reference)]
    text = json.dumps([METHOD, models, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def score(
    own: Scored, reference: Scored, asked: Mapping[str, Any], context: int, log: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Run the script.

    Parameters
    ----------
    asked : texts (token ids), documents (token ids), items (document, question, options).
    context : tokens that the longest of them needs.
    log : what the script prints.
    tell : told the stage under way.

    Returns
    -------
    What the script writes: per text and per item the log-probabilities, versions, seconds.

    Raises
    ------
    EngineError : it failed, with its last words.
    """
    for one in (own, reference):
        build.verify(one.artifact)
    python = environments.ensure("quantize")
    if not (own.dtype and reference.dtype):
        environments.ensure("llama-cpp")
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="score-") as folder:
        ask, out = Path(folder) / "asked.json", Path(folder) / "out.json"
        ask.write_text(json.dumps(asked))
        models = [json.dumps(one.told | ({} if one.dtype else {"context": context})) for one in (own, reference)]
        command = [str(python), "-u", str(SCRIPT), "--asked", str(ask), "--own", models[0],
                   "--reference", models[1], "--out", str(out)]
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_WAIT_POLICY": "PASSIVE"}
        began = time.monotonic()
        with Process(command, quiet | OWN_PYTHON, log) as process:
            while process.status is None:
                tell("scoring")
                if time.monotonic() - began > LIMIT_S:
                    raise EngineError(f"Scoring {own.artifact} did not end within {LIMIT_S:g} s. The log is {log}.")
                time.sleep(LOOK_S)
            if process.status:
                said = process.tail().rpartition(" / ")[2] or "it said nothing"
                raise EngineError(f"{own.artifact} could not be scored: {said} The log is {log}.")
        return dict(json.loads(out.read_text()))


def _library() -> Path:
    """The wheel's shared object, which exports llama.cpp's C interface."""
    found = list(environments.python("llama-cpp").parents[1].glob("lib/python3*/site-packages/xllamacpp/*.so"))
    if len(found) != 1:
        raise EngineError("The llama-cpp environment holds no llama.cpp; remove .venvs/llama-cpp and run this again.")
    return found[0]


def _locked() -> str:
    return environments.locked(paths.ENVS / "llama-cpp.txt")["xllamacpp"]
