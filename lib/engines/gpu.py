"""What the engines on NVIDIA GPUs have in common: where they run, how many GPUs they need, what they must find there.

A launch runs in the locked environment of its engine's generation, in a Python of the user's own, or in a container.
Refuses a computer without the GPUs, before anything is fetched or built. Rule: a server listens on loopback only,
unless its client is elsewhere (`reach`); one that takes no key must be seen to.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from tokenizers import Tokenizer

from lib import environments, paths
from lib.config import Launch
from lib.engines import build, cards, computer, containers, cores, flags, made
from lib.engines.base import Engine, Server, Tell
from lib.engines.inside import with_adapters
from lib.engines.made import Step
from lib.engines.nvml import CHOICE, ORDER
from lib.engines.process import OWN_PYTHON
from lib.errors import ConfigError, EngineError
from lib.launches import Container

QUIET = {
    # Nothing may leave the node, and no package of the user's home may come in.
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "PYTHONNOUSERSITE": "1",
    **ORDER,
}


ASKED = {"name": "name", "memory.total": "memory_mib", "compute_cap": "compute"}     # nvidia-smi's words, ours


def found() -> list[dict[str, str]]:
    """NVIDIA GPUs as the driver lists them: name, memory in MiB, compute capability; empty without a driver."""
    for fields in (list(ASKED), list(ASKED)[:2]):       # drivers before 2021 do not know the third
        asked = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
        try:
            done = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return []
        if done.returncode == 0:
            names = [ASKED[field] for field in fields]
            return [dict(zip(names, (cell.strip() for cell in line.split(",")), strict=False))
                    for line in done.stdout.strip().splitlines()]
    return []


class GpuEngine(Engine):
    """An engine in one version; its flags and metric names are those of `version_key` in data/."""

    family: ClassVar[str]                           # of the version's files: vllm, tensorrt-llm
    gpu: ClassVar[str] = "H100"                     # what a GPU's name must hold
    lock: bool = False                              # whether envs/ holds a lock of this version

    def __init__(self, version: str) -> None:
        self.version_name = version
        self.version_key = f"{self.family}-{version}"
        self.environment = self.version_key

    def gpus(self, launch: Launch) -> int:
        """GPUs of the node that the launch uses: those of a replica, times replicas."""
        own = self.own(launch)
        return int(own.tensor_parallel) * int(own.replicas)

    def layout(self, launch: Launch) -> str:
        """Return the layout in words: TP8, TP4x2."""
        own = self.own(launch)
        return f"TP{own.tensor_parallel}" + (f"x{own.replicas}" if own.replicas > 1 else "")

    def check(self, launch: Launch) -> None:
        """Refuse a launch that cannot work on any computer; see `Engine.check`."""
        super().check(launch)
        if launch.container:
            containers.reference(launch.container)
        if launch.container and launch.python:
            raise ConfigError(f"Launch {launch.name} names both `python` and `container`: keep the one it runs in.")
        if not (launch.container or launch.python or self.lock):
            raise ConfigError(
                f"Launch {launch.name}: envs/ holds no lock of {self.title} {self.version_name} (envs/README.md says "
                f"why). Give it a `container`, or `python`, an interpreter that holds it."
            )

        for program, names in self.calls(launch):
            flags.refuse_unknown(f"Launch {launch.name}", self.version_key, program, names)

    def calls(self, launch: Launch) -> list[tuple[str, list[str]]]:
        """Every program that runs for the launch, and the names of the options it is given, for the version's lists."""
        raise NotImplementedError

    def absent(self, launch: Launch) -> str | None:
        """Why this computer can never run the launch: it lacks the GPUs."""
        wanted, here = self.gpus(launch), found()
        if launch.card:
            why = cards.none_fits(launch.card, here)
            return f"{self.title} {self.version_name} at {launch.precision} does not fit: {why}." if why else None
        fit = [gpu for gpu in here if self.gpu in gpu["name"]]
        if len(fit) >= wanted:
            return None
        has = f"{len(here)} x {here[0]['name']}" if here else "no NVIDIA GPU"
        return (f"{self.title} {self.version_name} at {launch.precision} needs {wanted} x {self.gpu} and this computer "
                f"has {has}. README says how to run it on a node or a cluster that has them.")

    def unavailable(self, launch: Launch) -> str | None:
        """Why this computer cannot run the launch now."""
        reason = self.absent(launch)
        if reason:
            return reason
        free, needed = computer.free_memory_bytes(), self.memory_bytes(launch)
        if free < needed:
            return (f"{self.title} {self.version_name} needs about {needed / 1e9:.0f} GB of host memory while it loads "
                    f"and {free / 1e9:.0f} GB is free. Close other programs on the node.")
        return None

    def memory_bytes(self, launch: Launch) -> int:
        """Host memory while loading: every worker reads the weights through the page cache, which can be given back."""
        return 10_000_000_000 if launch.card else 64_000_000_000    # one worker; weights small, or made on the GPU

    def executable(self, launch: Launch, name: str) -> str:
        """Path of a program: in the container by its name, else beside the launch's interpreter."""
        if launch.container:
            return name
        if launch.python:
            return str(Path(launch.python).parent / name)
        return str(environments.python(self.environment).parent / name)

    def runs(self, launch: Launch, port: int) -> list[str]:
        """Argument list as this computer starts it."""
        argv = self.command(launch, port)
        if launch.container is None:
            return argv
        names = dict.fromkeys(self.handed(launch), "")
        return containers.wrap(launch.container, argv, names, folders(), container_name(launch), cores.share()[0])

    def handed(self, launch: Launch) -> list[str]:
        """Name the variables that a container is given; its image knows where its own Python's packages are."""
        named = self.variables(launch, "").items()
        return [name for name, value in named if value or name not in OWN_PYTHON] + _chosen()

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Environment variables of the server."""
        return QUIET | OWN_PYTHON

    def steps(self, launch: Launch) -> list[Step]:
        """What is made before the first start, in order."""
        return []

    def made(self, launch: Launch) -> list[Path]:
        """Return the folder of each step."""
        steps = self.steps(launch)
        return made.places(launch, self.version_key, steps, _kind(steps))

    def commands(self, launch: Launch) -> list[tuple[str, list[str]]]:
        """Every command that runs before the first start, as it is run: what it makes, argument list."""
        steps = self.steps(launch)
        return [(step.what, argv if step.outside else self._in_container(launch, argv)) for step, argvs in
                zip(steps, made.resolved(steps, self.made(launch)), strict=True) for argv in argvs]

    def prepare(self, launch: Launch, progress: Tell) -> None:
        """Make the environment, then what the steps say; see `Engine.prepare`."""
        if launch.container:
            _have_image(launch, launch.container, progress)
        elif launch.python is None:
            environments.ensure(self.environment)
        _clear(launch)
        steps = self.steps(launch)
        made.make(launch, self.version_key, steps, lambda argv: self._in_container(launch, argv), self.making(),
                  progress, _kind(steps))

    def making(self) -> dict[str, str]:
        """Environment variables of the steps."""
        return {"PYTHONNOUSERSITE": "1", **ORDER, **OWN_PYTHON}

    def verify(self, launch: Launch) -> dict[str, Any]:
        """Manifest of the weights, of what was made of them, of adapters, and of the image it all runs in."""
        whole = with_adapters(self.with_made(launch, build.verify(launch.artifact)), launch)
        return whole | {"image": _image(launch.container)} if launch.container else whole

    def with_made(self, launch: Launch, artifact: dict[str, Any]) -> dict[str, Any]:
        """Add what was made, hashed again, to a manifest.

        Raises
        ------
        EngineError : something was not made, or is damaged.
        """
        read = made.served(self.steps(launch), self.made(launch))
        beyond = [made.verify(folder) | {"folder": folder.name} for folder in read]
        files = [file | {"path": f"{of['folder']}/{file['path']}"} for of in beyond for file in of["files"]]
        return artifact | {"files": artifact["files"] + files,
                           "made": [{k: of[k] for k in ("folder", "commands", "seconds", "bytes")} for of in beyond]}

    def count(self, server: Server, text: str) -> int:
        """Tokens by the model's own tokenizer: not every server of these tells them."""
        return tokens(server.launch, text, added=False)

    def prompt_tokens(self, launch: Launch, text: str) -> int:
        """Tokens of a prompt as the engine makes them of it: the text's, and those that the tokenizer puts before."""
        return tokens(launch, text, added=True)

    @contextmanager
    def start(self, launch: Launch, log: Path, progress: Tell) -> Iterator[Server]:
        """Start the server; see `Engine.start`. A container is removed whatever happens, an earlier try's before."""
        _clear(launch)
        try:
            with super().start(launch, log, progress) as server:
                if launch.container:
                    told = _told(containers.main_process(launch.container, container_name(launch)))
                    server.family = int(told) if told.isdigit() else 0
                yield server
        finally:
            _clear(launch)

    def _in_container(self, launch: Launch, argv: list[str]) -> list[str]:
        """Return the argument list of a step as it is started: in the launch's container, if it has one."""
        if launch.container is None:
            return argv
        names = dict.fromkeys([name for name in self.making() if name not in OWN_PYTHON] + _chosen(), "")
        return containers.wrap(launch.container, argv, names, folders(), container_name(launch))


def _told(argv: list[str] | None) -> str:
    """Return what a short command prints; nothing if there is none, or it cannot be run."""
    with suppress(OSError, subprocess.TimeoutExpired):
        if argv:
            return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60).stdout.strip()
    return ""


def _clear(launch: Launch) -> None:
    """Remove a launch's container, which no end of a process group ends; there may be none."""
    if launch.container:
        _told(containers.ending(launch.container, container_name(launch)))


def _chosen() -> list[str]:
    """Name the choice among the node's GPUs if there is one: a container sees them all."""
    return [CHOICE] if CHOICE in os.environ else []


def _kind(steps: list[Step]) -> str:
    """Name the GPUs of this computer where a step needs to know; an engine built on one kind serves on no other."""
    here = found() if any(step.for_gpu for step in steps) else []
    return here[0]["name"] if here else ""


def _image(container: Container) -> dict[str, Any]:
    """What the image is that runs: a file by its size and age, docker's by its id and digests; else only its name."""
    if container.file:
        seen = container.file.stat()
        return {"image": container.image, "bytes": seen.st_size, "mtime_ns": seen.st_mtime_ns}
    told = _told(containers.identity(container)).split()
    return {"image": containers.reference(container), "id": told[0] if told else None, "digests": told[1:]}


def _have_image(launch: Launch, container: Container, progress: Tell) -> None:
    """Fetch an image that is not there, so that fetching is not counted as the server's start."""
    asked = containers.present(container)
    try:
        if asked and subprocess.run(asked, capture_output=True, check=False, timeout=60).returncode == 0:
            return
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineError(f"Launch {launch.name} runs in {container.runtime}, which cannot be asked for its images "
                          f"({error}). Install and start it, or name another `container` or a `python`.") from error
    made.fetch_image(launch, containers.pulling(container), progress)


def container_name(launch: Launch) -> str:
    """Name of a launch's docker container; one computer never runs a launch twice at once."""
    return f"{containers.NAME_PREFIX}{launch.name}"


def folders() -> list[Path]:
    """Folders that a container must see: the project, and where models and environments really lie."""
    wanted = [paths.ROOT, paths.ARTIFACTS.resolve()]
    if os.environ.get(build.MODELS_ENV):
        wanted.append(Path(os.environ[build.MODELS_ENV]).resolve())
    return [path for i, path in enumerate(wanted) if not any(path.is_relative_to(other) for other in wanted[:i])]


def tokens(launch: Launch, text: str, added: bool) -> int:
    """Tokens of a text under the launch's tokenizer; with `added` those that it puts before a prompt count too.

    Raises
    ------
    EngineError : the tokenizer cannot be read.
    """
    path = paths.ARTIFACTS / launch.artifact / "tokenizer.json"
    try:
        return len(Tokenizer.from_file(str(path)).encode(text, add_special_tokens=added).ids)
    except Exception as error:      # the library raises plain Exception
        raise EngineError(f"{path} cannot be read as a tokenizer: {error}.") from error
