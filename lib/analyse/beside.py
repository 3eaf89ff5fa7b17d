"""Studies that are taken beside another and told in its article: which they are, and how light a version each is."""

from collections.abc import Mapping, Sequence
from typing import Any

from lib import config
from lib.analyse.collect import Measured
from lib.errors import ConfigError


def facts(study: config.Study, kept: Sequence[Measured]) -> dict[str, Any]:
    """Return the study's name, profile and title, and the sources of its numbers."""
    return {
        "name": study.name,
        "profile": study.profile,
        "title": study.title,
        "sources": [one.source for one in kept],
    }


def light(study: config.Study, inside: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Say how much less is taken of a study than DEPTH=full takes: nothing where it is the whole, or knows no depth.

    Parameters
    ----------
    inside : what it shows of the engines' insides, as `inside.facts`.

    Returns
    -------
    profile; parts: the keys of `inside` that it fills; launches and takings (of a launch): [taken, of].
    """
    if study.depth != "default":
        return []
    try:
        whole = config.load_study(study.profile, "full")
    except ConfigError:  # its profile knows no other depth
        return []
    return [{
        "profile": study.profile,
        "parts": [key for key, rows in inside.items() if isinstance(rows, list) and rows],
        "launches": [len(config.launch_names(study.profile, depth)) for depth in (study.depth, whole.depth)],
        "takings": [len(of.levels) * of.statistics.runs * of.statistics.repeats for of in (study, whole)],
    }]  # fmt: skip
