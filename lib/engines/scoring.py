"""How a launch's model is scored without its server: which weights, by which library, against which reference.

Teacher-forced, over the whole vocabulary, by the scripts `recipes/logits_*.py` in the quantize environment: GGUF files
by llama.cpp itself, with the KV cache that the launch keeps; Hugging Face folders by transformers, in the number format
that the launch computes in. The reference is the 16-bit model that the weights come from, its products in float32
(llama.cpp: as llama.cpp serves f16, with a 16-bit cache).
All contenders of one reference are scored in one process, which loads it once.
Refused, as a number that does not exist: models that no library here loads, and quantized KV caches that exist in an
engine alone. Refused for now: too little free memory for what is scored together.
"""

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import environments, paths
from lib.config import Launch
from lib.engines import build, computer
from lib.engines.process import OWN_PYTHON, Process
from lib.errors import EngineError, NoValue

METHOD = 1                      # of scoring: a record of another one is taken again; code alone never makes it so
LIMIT_S = 1800.0
LOOK_S = 0.2
BASE_BYTES = 1_500_000_000      # torch and transformers, and one text's logits in float64
IN_FLOAT32 = 4.6                # bytes in memory over bytes on disk, of the format that grows most: 4 bits become 32
WHOLE_CACHE = ("auto", "f16")  # words of the engines for a KV cache that is not quantized
SCRIPTS = {True: build.RECIPES / "logits_torch.py", False: build.RECIPES / "logits_llama.py"}


@dataclass(frozen=True)
class Scored:
    """A model as it is scored: its artifact and the format of its products; None where llama.cpp decides. `kv`: what
    keys and values are quantized to; None where they are not.
    """

    artifact: str
    dtype: str | None
    kv: str | None = None

    def told(self, threads: int) -> dict[str, Any]:
        """What the script is told."""
        folder = paths.ARTIFACTS / self.artifact
        if self.dtype:
            return {"folder": str(folder), "dtype": self.dtype, "threads": threads}
        file, library = folder / "model.gguf", _library()
        return {"file": str(file), "library": str(library), "version": _locked(), "threads": threads,
                "kv_type": self.kv or "f16"}

    @property
    def how(self) -> str:
        """Name of the estimator."""
        by = f"transformers, products in {self.dtype}" if self.dtype else "llama.cpp's own kernels (xllamacpp)"
        return f"full vocabulary, teacher-forced, by {by}" + (f", KV cache in {self.kv}" if self.kv else "")


def cache(launch: Launch) -> str | None:
    """What a launch quantizes its KV cache to; None where it does not."""
    said = str(launch.settings.get("kv_type") or launch.settings.get("kv_cache_dtype") or "auto")
    return None if said in WHOLE_CACHE else said


def of(launch: Launch) -> tuple[Scored, Scored]:
    """Return what a launch serves and its 16-bit reference.

    Raises
    ------
    NoValue : its weights are random, or no library here loads it or keeps such a KV cache.
    """
    made = build.recipe(launch.artifact)
    if said := build.qualifier(launch.artifact):
        raise NoValue(f"{launch.artifact} has {said}: there is nothing to score")
    kv = cache(launch)
    if kv and not made.format.startswith("gguf-"):
        raise NoValue(
            f"the KV cache is kept in {kv}, which the engine alone does, on a GPU: no library here reads texts with "
            "such a cache; it takes the engine's own log-probabilities, which this study does not collect"
        )
    if made.fetched:
        raise NoValue(
            f"{launch.artifact} has {made.bytes / 1e9:.0f} GB of weights, more than processors score; it takes the "
            "engine's own log-probabilities, which this study does not collect"
        )
    if made.format.startswith("gguf-"):
        return Scored(launch.artifact, None, kv), Scored(launch.artifact.rpartition("-")[0] + "-f16", None)
    own = launch.settings.get("dtype") or ("bfloat16" if launch.precision == "bf16" else "float32")
    return Scored(launch.artifact, str(own)), Scored(made.source or launch.artifact, "float32")


def needs_bytes(models: Iterable[Scored]) -> float:
    """Memory that scoring these in one process needs at most."""
    return BASE_BYTES + IN_FLOAT32 * sum(build.recipe(one.artifact).bytes for one in set(models))


def key(own: Scored, reference: Scored, asked: Mapping[str, Any]) -> str:
    """16 hex digits over everything that decides the scores: weights, formats, library, method, what is asked.

    A cache that is not quantized adds nothing, so that records from before it could be are still known.
    """
    models = [
        [build.key(one.artifact), one.dtype or _locked(), *([one.kv] if one.kv else [])] for one in (own, reference)
    ]
    text = json.dumps([METHOD, models, asked], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def score(
    reference: Scored, owns: Sequence[Scored], asked: Mapping[str, Any], context: int, log: Path,
    tell: Callable[[str], None], threads: int | None = None,
) -> dict[str, Any]:
    """Run the script on one reference and the models that come from it.

    Parameters
    ----------
    asked : texts (token ids), documents (token ids), items (document, question, options).
    context : tokens that the longest of them needs.
    log : what the script prints.
    tell : told the stage under way; what it raises ends the script.
    threads : that it may use; None for as many as there are cores.

    Returns
    -------
    models: in the order of `owns`, texts, items, versions, seconds and why one was `refused`; versions_reference;
    seconds of the whole.

    Raises
    ------
    EngineError : it failed, with its last words; or too little memory is free just now.
    """
    needed, free = needs_bytes((reference, *owns)), computer.free_memory_bytes()
    if free < needed:
        raise EngineError(
            f"Scoring {', '.join(one.artifact for one in owns)} beside {reference.artifact} needs about "
            f"{needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB is free just now; free some and run this again."
        )
    for one in dict.fromkeys((reference, *owns)):
        build.verify(one.artifact)
    python, cores = environments.ensure("quantize"), threads or len(os.sched_getaffinity(0))
    if not reference.dtype:
        environments.ensure("llama-cpp")
    log.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="score-") as folder:
        ask, out = Path(folder) / "asked.json", Path(folder) / "out.json"
        ask.write_text(json.dumps(asked))
        models = [json.dumps(one.told(cores) | ({} if one.dtype else {"context": context}))
                  for one in (reference, *owns)]
        command = [str(python), "-u", str(SCRIPTS[reference.dtype is not None]), "--asked", str(ask),
                   "--reference", models[0], "--out", str(out)]
        for model in models[1:]:
            command += ["--own", model]
        quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "TQDM_DISABLE": "1",
                 "OMP_WAIT_POLICY": "PASSIVE"}
        with Process(command, quiet | OWN_PYTHON, log) as process:

            def look() -> None:
                stages = [line for line in process.tail().split(" / ") if line and "%|" not in line]   # no bars
                tell(stages[-1] if stages else "starting")

            try:
                status = process.wait(LIMIT_S, look, LOOK_S)
            except TimeoutError:
                late = f"Scoring against {reference.artifact} did not end within {LIMIT_S:g} s. The log is {log}."
                raise EngineError(late) from None
            if status:
                refused = re.findall(r"^refused: (.*)$", process.text(), re.M)
                raise EngineError(f"{reference.artifact} and what comes from it could not be scored: "
                                  f"{refused[-1] if refused else process.why()} The log is {log}.")
        return dict(json.loads(out.read_text()))


def _library() -> Path:
    """The wheel's shared object, which exports llama.cpp's C interface."""
    found = list(environments.python("llama-cpp").parents[1].glob("lib/python3*/site-packages/xllamacpp/*.so"))
    if len(found) != 1:
        raise EngineError("The llama-cpp environment holds no llama.cpp; remove .venvs/llama-cpp and run this again.")
    return found[0]


def _locked() -> str:
    return environments.locked(paths.ENVS / "llama-cpp.txt")["xllamacpp"]
