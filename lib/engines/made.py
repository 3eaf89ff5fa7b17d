"""What an engine needs beyond a model's weights: quantized checkpoints, built engines, option files. Made once.

Every step has a folder under artifacts/, named by what it is and a hash of everything that decides its content: its
commands and files, the step before it, the weights' own key, the engine's version and image, and the kind of GPU where
that matters. So a changed build flag
does not quantize again, and launches share what they have in common. A folder counts once its manifest (sizes,
durations, checksums) is there; each step's output is kept in a log beside it. Refused: a step that fails, with its last
words, and at every start of a server a file that is not the manifest's.
"""

import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib import paths
from lib.config import Launch
from lib.engines import build
from lib.engines.process import Process
from lib.errors import EngineError

LOOK_S = 1.0
HERE = "{here}"             # in commands and files: the step's own folder; `{what}` is the folder of a step before
MANIFEST = build.MANIFEST

Wrap = Callable[[list[str]], list[str]]
Tell = Callable[[str], None]


@dataclass(frozen=True)
class Step:
    """What is made by which commands and files."""

    what: str
    commands: tuple[tuple[str, ...], ...] = ()
    files: tuple[tuple[str, str], ...] = ()     # name, text
    outside: bool = False           # on the node itself, whatever the launch runs in
    served: bool = True             # whether a server reads it; only then it is checked at every start
    for_gpu: bool = False           # fits only the kind of GPU that it was made on
    expected_s: float = 60.0        # for plans
    limit_s: float = 7200.0         # how long one command may take


def places(launch: Launch, version: str, steps: Sequence[Step], gpu: str = "") -> list[Path]:
    """Return the folder of every step, whether or not it has been made. gpu: name of those of this computer."""
    ran_in = (launch.container.digest or launch.container.image) if launch.container else (launch.python or "")
    folders, key = [], build.key(launch.artifact)
    for step in steps:
        parts = [version, "" if step.outside else ran_in, key, step.what, step.commands, step.files]
        said = json.dumps([*parts, gpu] if step.for_gpu else parts)
        key = hashlib.sha256(said.encode()).hexdigest()[:16]
        folders.append(paths.ARTIFACTS / f"{step.what}-{key}")
    return folders


def resolved(steps: Sequence[Step], folders: Sequence[Path]) -> list[list[list[str]]]:
    """Return every step's argument lists with the folders in place."""
    return [[[_placed(word, steps, folders, i) for word in argv] for argv in step.commands]
            for i, step in enumerate(steps)]


def make(
    launch: Launch, version: str, steps: Sequence[Step], wrap: Wrap, variables: dict[str, str], progress: Tell,
    gpu: str = "",
) -> list[dict[str, Any]]:
    """Make what is not there yet.

    Parameters
    ----------
    wrap : turns an argument list into the one that is started (in a container).
    variables : environment of the commands.
    gpu : as for `places`.

    Returns
    -------
    one manifest per served step: what, commands, seconds, files (path, bytes, sha256, mtime_ns), bytes.

    Raises
    ------
    EngineError : a command failed or took too long, or the disk refused.
    """
    folders = places(launch, version, steps, gpu)
    for i, step in enumerate(steps):
        target = folders[i]
        try:
            paths.ARTIFACTS.mkdir(exist_ok=True)
            with (paths.ARTIFACTS / f".{target.name}.lock").open("a") as busy:
                fcntl.flock(busy, fcntl.LOCK_EX)
                if not (target / MANIFEST).exists():
                    # Under its final name: engines and option files hold absolute paths.
                    shutil.rmtree(target, ignore_errors=True)
                    target.mkdir()
                    for name, text in step.files:
                        (target / name).write_text(_placed(text, steps, folders, i))
                    _make(launch, step, target, resolved(steps, folders)[i], wrap, variables, progress)
        except OSError as error:
            raise EngineError(f"{target} could not be written: {error.strerror or error}. Free some space or make the "
                              "folder writable, then run the same command again.") from error
    return [verify(folder) for folder in served(steps, folders)]


def served(steps: Sequence[Step], folders: Sequence[Path]) -> list[Path]:
    """Folders of the steps whose results a server reads."""
    return [folder for step, folder in zip(steps, folders, strict=True) if step.served]


def _make(
    launch: Launch, step: Step, target: Path, commands: list[list[str]], wrap: Wrap, variables: dict[str, str],
    progress: Tell,
) -> None:
    log = paths.ARTIFACTS / f"{target.name}.log"
    log.unlink(missing_ok=True)
    began = time.monotonic()
    for command in commands:
        _run(launch, step, command if step.outside else wrap(command), variables, log, progress)
    seconds = round(time.monotonic() - began, 1)
    files = [build.described(target, path) for path in sorted(target.rglob("*")) if path.is_file()]
    described = {"what": step.what, "commands": commands, "seconds": seconds, "files": files,
                 "bytes": sum(file["bytes"] for file in files)}
    (target / MANIFEST).write_text(json.dumps(described, indent=1))


def fetch_image(launch: Launch, argv: list[str], progress: Tell) -> None:
    """Run the command that fetches a container image, with a log under artifacts/.

    Raises
    ------
    EngineError : it failed, or took two hours.
    """
    paths.ARTIFACTS.mkdir(exist_ok=True)
    log = paths.ARTIFACTS / f"{launch.name}.image.log"
    log.unlink(missing_ok=True)
    _run(launch, Step("fetching its image"), argv, {}, log, progress)


def _run(launch: Launch, step: Step, argv: list[str], variables: dict[str, str], log: Path, progress: Tell) -> None:
    with Process(argv, variables, log) as process:
        try:
            status = process.wait(step.limit_s, lambda: progress(f"{launch.name}: {step.what}"), LOOK_S)
        except TimeoutError:
            late = f"{launch.name}: {step.what} did not end within {step.limit_s:g} s. Its log: {log}."
            raise EngineError(late) from None
        if status:
            raise EngineError(f"{launch.name}: {step.what} failed. {process.why()} The log is {log}. Steps "
                              "before this one are kept: once the cause is mended, run the same command again.")


def verify(target: Path) -> dict[str, Any]:
    """Check what a step made against its manifest.

    Returns
    -------
    the manifest; every file has `found`, its SHA-256 now.

    Raises
    ------
    EngineError : not made, or not what the manifest says.
    """
    try:
        described = dict(json.loads((target / MANIFEST).read_text()))
    except (OSError, ValueError) as error:
        raise EngineError(f"{target} is not whole ({error}). Run the same command again: it is made anew.") from error
    for file in described["files"]:
        build.check_file(target, file, f"Remove {target.name} under artifacts/ and run the same command again: it is "
                         "then made anew.")
    return described


def _placed(text: str, steps: Sequence[Step], folders: Sequence[Path], i: int) -> str:
    for step, folder in zip(steps[:i], folders, strict=False):
        text = text.replace(f"{{{step.what}}}", str(folder))
    return text.replace(HERE, str(folders[i]))
