"""One launch as its file beside study.yaml states it: a server, engine x precision, what runs it and how it is set.

Refused: a name that could not stand in a command. Rule: what only says when a launch is taken decides no number, and
stays out of its hash.
"""

import re
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from lib import depths
from lib.loads import Strict

LIGHT = ("default", depths.CANARY)  # depths that leave out launches of `depth: full`; a rehearsal tries every one


class Container(Strict):
    """An image that holds an engine, and what runs it. Without a digest the record says which was found."""

    runtime: Literal["docker", "apptainer", "enroot", "pyxis"]
    image: str
    digest: str | None = Field(default=None, pattern=r"^sha256:[0-9a-f]{64}$")

    @property
    def file(self) -> Path | None:
        """The image file where the image is one, named by its whole path."""
        return Path(self.image) if self.image.startswith("/") else None


class Card(Strict):
    """What one GPU must have, where any will do that has it; without it a launch wants the H100s of its study."""

    memory_gib: float = Field(gt=0)  # of the whole GPU, as its driver tells it
    compute: float = Field(gt=0)  # compute capability: 8.9 is the first with FP8


class Launch(Strict):
    """config/<profile>/<name>.yaml: one server, engine x precision."""

    name: str
    engine: str
    version: str | None = None  # of the engine, where the study holds several
    precision: str
    artifact: str
    environment: str  # which locked environment runs it, unless one of the next two says otherwise
    python: str | None = None  # an interpreter of the user's own that holds the engine
    container: Container | None = None
    card: Card | None = None
    client: Literal["other-node"] | None = None  # where the load client runs; None: beside the server
    start_seconds: float = Field(gt=0)  # time limit for becoming ready
    settings: dict[str, bool | int | float | str | None] = Field(default_factory=dict)
    depth: Literal["full"] | None = Field(default=None, exclude=True)  # full: left out of the light version

    @field_validator("name")
    @classmethod
    def _plain(cls, name: str) -> str:
        if not name or not all(c.isalnum() or c in "-_." for c in name) or name[0] in ".-":
            raise ValueError(f"{name!r} may hold only letters, digits, '-', '_' and '.'; it becomes part of commands")
        return name


def only_full(path: Path) -> bool:
    """Whether a launch's file says `depth: full`; read as the Makefile reads it, before it is known to be YAML."""
    try:
        return bool(re.search(r"(?m)^depth: full\b", path.read_text()))
    except (OSError, UnicodeDecodeError):
        return False  # whoever loads it says what is wrong with it
