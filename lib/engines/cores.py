"""Who gets which cores: engine and load client apart where there are at least four, together below that."""

import os

APART_FROM = 4              # cores; below this a core for the client alone would cost the engine a third or more
CLIENT_SHARE = 8            # one core in eight is the client's, at least one


def share() -> tuple[list[int], list[int]]:
    """Cores of the engine and cores of the client, among those this process may use.

    Returns
    -------
    two sorted lists of core numbers; the same list twice where there are fewer than four.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < APART_FROM:
        return cores, cores
    split = len(cores) - max(1, len(cores) // CLIENT_SHARE)
    return cores[:split], cores[split:]
