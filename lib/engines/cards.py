"""Whether one GPU has what a launch asks of it: memory and compute capability.

For profiles that are written for any GPU. Refuses nothing: it says what is lacking, and the engine draws the
conclusion. Rule: a GPU whose capability its driver does not tell is taken for able; the engine itself will say so.
"""

from collections.abc import Mapping, Sequence

from lib.launches import Card

MIB_PER_GIB = 1024


def lacks(card: Card, gpu: Mapping[str, str]) -> str | None:
    """What a GPU lacks, as half a sentence; None if it has all.

    Parameters
    ----------
    gpu : name, memory_mib and, where the driver tells it, compute.

    >>> lacks(Card(memory_gib=60, compute=8.0), {"name": "NVIDIA A10", "memory_mib": "23028", "compute": "8.6"})
    'NVIDIA A10 has 22 GiB of the 60 GiB needed'
    """
    has = float(gpu["memory_mib"]) / MIB_PER_GIB
    if has < card.memory_gib:
        return f"{gpu['name']} has {has:.0f} GiB of the {card.memory_gib:g} GiB needed"
    told = _number(gpu.get("compute", ""))
    if told is not None and told < card.compute:
        return f"{gpu['name']} has compute capability {told:g}, and {card.compute:g} is needed"
    return None


def none_fits(card: Card, gpus: Sequence[Mapping[str, str]]) -> str | None:
    """Why the first GPU, which is the one that an engine takes, cannot run a launch; None if it can."""
    return lacks(card, gpus[0]) if gpus else "this computer has no NVIDIA GPU"


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
