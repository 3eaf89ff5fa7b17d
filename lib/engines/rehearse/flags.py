"""Command lines held against the options that one version of an engine knows: data/flags/<engine>-<version>.txt.

A list has a section per program (`[vllm serve]`) and one option a line, all its spellings first
(`--tensor-parallel-size -tp`, `--x --no-x`); `#` begins a comment. Refused, as the engine itself refuses it: an option
that the list does not know (exit status 2).
"""

import re
from dataclasses import dataclass, field

from lib import paths
from lib.errors import ConfigError

SPELLING = re.compile(r"--?[A-Za-z][\w.-]*")
OPTION = re.compile(r"--?[A-Za-z]")


class UnknownOption(Exception):
    """An option that this version does not have."""


@dataclass(frozen=True)
class Line:
    """A command line as read: plain words before the first option, each option's values under its first spelling."""

    words: tuple[str, ...]
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def one(self, option: str, default: str) -> str:
        """Value of an option, or what the engine takes without it."""
        values = self.options.get(option)
        return values[0] if values else default

    def on(self, option: str) -> bool:
        """Whether a switch is given, and not as `False`."""
        values = self.options.get(option)
        return values is not None and values[:1] not in (("False",), ("false",))


def known(stem: str, program: str) -> dict[str, str]:
    """Every spelling of every option of a version's program -> its first long spelling.

    Raises
    ------
    ConfigError : there is no list for this version, or none for this program in it.
    """
    path = paths.DATA / "flags" / f"{stem}.txt"
    there = sorted(p.stem for p in path.parent.glob("*.txt"))
    if stem not in there:
        raise ConfigError(
            f"There is no list of options {path.name} in data/flags, so no command line of it can be checked. "
            f"Lists: {', '.join(there) or 'none'}. Add one with its source."
        )
    programs = sections(path.read_text())
    if program not in programs:
        raise ConfigError(
            f"data/flags/{path.name} has no section [{program}], so its command line cannot be checked. "
            f"Sections: {', '.join(programs)}."
        )
    return programs[program]


def words(stem: str, program: str) -> frozenset[str]:
    """Every word of a section, for lists of names that are no options; ConfigError as for `known`."""
    known(stem, program)
    found: set[str] = set()
    here = ""
    for line in (paths.DATA / "flags" / f"{stem}.txt").read_text().splitlines():
        said = line.partition("#")[0].strip()
        here = said[1:-1].strip() if said.startswith("[") else here
        if here == program and not said.startswith("["):
            found |= set(said.split())
    return frozenset(found)


def sections(text: str) -> dict[str, dict[str, str]]:
    """Read a list: program -> spelling -> first long spelling."""
    found: dict[str, dict[str, str]] = {}
    here: dict[str, str] = {}
    for line in text.splitlines():
        said = line.partition("#")[0].strip()
        if said.startswith("[") and said.endswith("]"):
            here = found.setdefault(said[1:-1].strip(), {})
            continue
        names: list[str] = []
        for word in re.split(r"[\s,|]+", said):
            if not SPELLING.fullmatch(word):
                break  # what follows the spellings says something about their value
            names.append(word)
        main = next((name for name in names if name.startswith("--")), names[0] if names else "")
        here |= {name: name if name.startswith("--no-") else main for name in names}
    return found


def parse(words: list[str], options: dict[str, str]) -> Line:
    """Read a command line's words.

    Raises
    ------
    UnknownOption : names the first option that the list does not have.
    """
    plain: list[str] = []
    given: dict[str, list[str]] = {}
    current: list[str] | None = None
    for word in words:
        if not OPTION.match(word):
            (plain if current is None else current).append(word)
            continue
        name, equals, value = word.partition("=")
        name = name if name in options else name.replace("_", "-")  # vLLM's parser takes either
        if name not in options:
            raise UnknownOption(word)
        current = given[options[name]] = []  # the last of a repeated option counts
        if equals:
            current.append(value)
    return Line(tuple(plain), {name: tuple(values) for name, values in given.items()})
