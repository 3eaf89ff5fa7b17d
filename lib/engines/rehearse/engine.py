"""An engine as a rehearsal starts it: the same settings, command line, proof and stream, and a stand-in as its process.

Everything but the processes is the engine's own, so that what a rehearsal proves holds for the real run. Refused: an
engine for which there is no stand-in. Rule: a rehearsal starts no real engine and no tool of one, needs no weights, no
GPU and no network, and its version says what it is.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from lib import paths
from lib.config import Launch, Study
from lib.engines import made, registry
from lib.engines.base import Engine, Server, Tell
from lib.engines.gpu import GpuEngine
from lib.engines.made import Step
from lib.engines.rehearse import failures, pace
from lib.engines.rehearse.told import BOS, Told
from lib.errors import ConfigError

HERE = {"PYTHONPATH": str(paths.ROOT)}
MODULE = "lib.engines.rehearse.stand_in"
SPEED, FAIL = "STUDY_REHEARSAL_SPEED", "STUDY_REHEARSAL_FAIL"
NAME = "rehearsal"  # of the tokenizer's folder, and in the key of what steps make


class Rehearsed(GpuEngine):
    """What a rehearsal changes of an engine."""

    tokenizer: Path

    def runs(self, launch: Launch, port: int) -> list[str]:
        """Hand the whole real command line to the stand-in."""
        return self._stood_in(launch, super().runs(launch, port))

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Let the stand-in find itself; no container is told of it."""
        return super().variables(launch, key) | HERE

    def handed(self, launch: Launch) -> list[str]:
        """Name what the real engine hands its container."""
        real = super().variables(launch, "")
        return [name for name in super().handed(launch) if name not in HERE or real[name]]

    def absent(self, launch: Launch) -> str | None:
        """A stand-in runs anywhere."""
        return None

    def unavailable(self, launch: Launch) -> str | None:
        """A stand-in runs anywhere."""
        return None

    def steps(self, launch: Launch) -> list[Step]:
        """Hand every command to the stand-in, those that fetch sources too."""
        return [replace(step, outside=False) for step in super().steps(launch)]

    def made(self, launch: Launch) -> list[Path]:
        """Return the folder of each step; its name has a hash that no real one has."""
        return made.places(launch, f"{NAME} {self.version_key}", self.steps(launch))

    def prepare(self, launch: Launch, progress: Tell) -> None:
        """Run the steps' own commands with stand-ins for their tools."""

        def wrap(argv: list[str]) -> list[str]:
            return self._stood_in(launch, self._in_container(launch, argv))

        made.make(launch, f"{NAME} {self.version_key}", self.steps(launch), wrap, self.making() | HERE, progress)

    def verify(self, launch: Launch) -> dict[str, Any]:
        """There are no weights to hash; what the stand-ins of tools left is hashed."""
        return self.with_made(launch, {"artifact": launch.artifact, "files": []})

    def count(self, server: Server, text: str) -> int:
        """Tokens by the rehearsal's tokenizer."""
        return self.prompt_tokens(server.launch, text) - BOS

    def prompt_tokens(self, launch: Launch, text: str) -> int:
        """Tokens by the rehearsal's tokenizer, and the one that Llama 3 begins with."""
        return len(_tokenizer(self.tokenizer).encode(text, add_special_tokens=False).ids) + BOS

    def version(self, server: Server) -> str:
        """Say that it is none."""
        return f"stand-in for {super().version(server)}"

    @contextmanager
    def start(self, launch: Launch, log: Path, progress: Tell) -> Iterator[Server]:
        """Start the stand-in; see `Engine.start`. There is no container to look for or to remove."""
        with Engine.start(self, launch, log, progress) as server:
            yield server

    def _stood_in(self, launch: Launch, command: list[str]) -> list[str]:
        told = Told(
            engine=launch.engine,
            version=str(launch.version),
            precision=launch.precision,
            contender=pace.contender(launch.engine, launch.precision),
            tokenizer=str(self.tokenizer),
            layout=self.layout(launch),
            speed=speed(),
            failure=failures.demanded(os.environ.get(FAIL, ""), launch.name),
        )
        return [sys.executable, "-m", MODULE, told.text, *command]


def of(study: Study, launch: Launch) -> Engine:
    """Return the engine of a launch, or its stand-in where the study is a rehearsal.

    Raises
    ------
    ConfigError : no such engine, or none that can be rehearsed.
    """
    real = registry.of(launch)
    if study.kind != "rehearsal":
        return real
    if not isinstance(real, GpuEngine):
        raise ConfigError(
            f"Launch {launch.name}: {real.title} has no stand-in, so it cannot be rehearsed; it runs on any computer "
            f"as it is: make report PROFILE={study.profile}."
        )
    own = type(real)
    stand_in: Rehearsed = object.__new__(type(f"Rehearsed{own.__name__}", (Rehearsed, own), {}))
    stand_in.__dict__.update(vars(real), tokenizer=tokenizer_path(study))
    return stand_in


def tokenizer_path(study: Study) -> Path:
    """Return the tokenizer.json that a study counts with: the model's own; in a rehearsal one that stands for it."""
    own = paths.ARTIFACTS / study.model.tokenizer / "tokenizer.json"
    return paths.ARTIFACTS / NAME / "tokenizer.json" if study.kind == "rehearsal" and not own.exists() else own


def speed() -> float:
    """How many times faster than predicted a rehearsal runs.

    Raises
    ------
    ConfigError : not a positive number.
    """
    text = os.environ.get(SPEED) or "1"
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ConfigError(f"SPEED={text} is no positive number; 10 makes a rehearsal run ten times as fast.")
    return value


@cache
def _tokenizer(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_truncation()
    return tokenizer
