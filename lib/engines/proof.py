"""How a server proves what it is: rows of a property, what the config says, what was found, and where.

Refuses an unknown: what could not be found out is never right.
"""

import re
from dataclasses import dataclass
from typing import Any

from lib import paths

UNKNOWN = "unknown"


def claim(what: str, expected: object, found: object, source: str) -> dict[str, Any]:
    """One row of proof: a property, what the config says, what was found, and where. Unknown is never right."""
    known = found is not None
    # Where the project lies on this computer is nobody's business: paths are told from its root.
    wanted, seen = (str(value).removeprefix(f"{paths.ROOT}/") for value in (expected, found if known else UNKNOWN))
    return {"what": what, "expected": wanted, "found": seen, "source": source, "ok": known and seen == wanted}


def first(pattern: str, text: str) -> str | None:
    """Return the first group of the first match; None if there is none, which `claim` takes as unknown."""
    found = re.search(pattern, text)
    return found[1] if found else None


@dataclass(frozen=True)
class Precision:
    """What a precision means for one engine: what the artifact must hold, and the CPU flags its kernels need."""

    stores: str                         # the manifest's `format`
    flags: tuple[str, ...]              # as /proc/cpuinfo spells them
    why: str = ""                       # why those flags, for the refusal
