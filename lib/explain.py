"""What is wrong with a config, in words: the place, the value, and the nearest right key. Pure.

Rule: an unknown key is told with those known at its place. Refused: nothing; `lib.config` refuses.
"""

import difflib
from typing import Any

from pydantic import BaseModel


def nearest(word: str, known: Any) -> str:
    """Return ` (did you mean ...?)` for the known word nearest to one, or nothing."""
    near = difflib.get_close_matches(str(word), [str(k) for k in known], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def explain(kind: type[BaseModel], error: Any) -> str:
    """Put one of pydantic's errors about a section of a config in words."""
    place = ".".join(str(part) for part in error["loc"]) or "file"
    if error["type"] == "extra_forbidden":
        known = _fields_at(kind, error["loc"][:-1])
        return f"unknown key {place!r}{nearest(error['loc'][-1], known)}; known here: {', '.join(known)}"
    if error["type"] == "missing":
        return f"key {place!r} is missing"
    value = "" if isinstance(error["input"], dict) else f" (got {error['input']!r})"
    return f"{place}: {error['msg'].removeprefix('Value error, ')}{value}"


def _fields_at(kind: Any, where: tuple[Any, ...]) -> list[str]:
    """Field names of the section found by walking `where` down from `kind`."""
    for part in where:
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = kind.model_fields[part].annotation
        inner = [a for a in getattr(kind, "__args__", ()) if isinstance(a, type) and issubclass(a, BaseModel)]
        if inner:
            kind = inner[0]
    return list(kind.model_fields) if isinstance(kind, type) and issubclass(kind, BaseModel) else []
