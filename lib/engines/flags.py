"""Which options a version of an engine knows, and which metrics it exports: lists in data/, each with its source.

Refuses an option that is not in the version's own list: one that was removed or renamed must not reach a rented node.
Pure but for reading the lists.
"""

from collections.abc import Iterable
from functools import cache
from pathlib import Path

from lib import paths
from lib.errors import ConfigError

FOLDER, METRICS = "flags", "metrics"


def known(version_key: str, program: str, kind: str = FOLDER) -> frozenset[str]:
    """Names that a program of a version knows, e.g. ("vllm-0.6.2", "vllm serve").

    Raises
    ------
    ConfigError : the list has no such program.
    """
    found = _sections(paths.DATA / kind / f"{version_key}.txt")
    if program not in found:
        raise ConfigError(f"data/{kind}/{version_key}.txt has no list of {program!r}; it has {', '.join(found)}.")
    return found[program]


def metrics(version_key: str) -> frozenset[str]:
    """Names of the metrics that a version exports, as its endpoint spells them."""
    return known(version_key, "metrics", METRICS)


def options(argv: Iterable[str]) -> list[str]:
    """Option names of an argument list, in order: what begins with a dash and is no number.

    >>> options(["vllm", "serve", "/m", "--seed", "0", "--port=80", "-n", "1", "--end", "-1"])
    ['--seed', '--port', '-n', '--end']
    """
    return [word.partition("=")[0] for word in argv if word.startswith("-") and not word.lstrip("-")[:1].isdigit()]


def refuse_unknown(where: str, version_key: str, program: str, names: Iterable[str]) -> None:
    """Refuse names that the version's list does not hold.

    Raises
    ------
    ConfigError : names them and the list.
    """
    strange = sorted(set(names) - known(version_key, program))
    if strange:
        raise ConfigError(f"{where}: {program} of {version_key} does not know {', '.join(strange)}; "
                          f"data/flags/{version_key}.txt lists what it knows, with its source.")


@cache
def _sections(path: Path) -> dict[str, frozenset[str]]:
    if not path.exists():
        raise ConfigError(f"{path.relative_to(paths.ROOT)} is missing: every version needs its list.")
    sections: dict[str, set[str]] = {}
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text.startswith("["):
            sections[text.strip("[]")] = current = set()
        elif text:
            current.update(text.split())
    return {name: frozenset(words) for name, words in sections.items()}
