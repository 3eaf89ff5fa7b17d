"""From kernel stamps (wall clock) to the monotonic clock of the records, by the samples taken throughout a level.

Rule: a kernel stamp is used only where it can be trusted. A step of the wall clock between two samples, a read outside
the samples, or a stamp that maps to later than its user-space twin makes that whole request fall back to user-space
stamps, and its row says so.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

SLEW = 500e-6  # the kernel slews a clock by at most 500 ppm (adjtimex(2)); more is a step
GRAIN_NS = 20_000  # disagreement of two readings on a busy machine that is not yet a step
SLACK_NS = 5_000  # a stamp may map this much past the user-space one before it is disbelieved


class ClockMap:
    """Maps wall-clock stamps to the monotonic clock by interpolating between samples, shape (n,) each."""

    def __init__(self, samples: list[tuple[int, int]]) -> None:
        pairs = np.array(samples, dtype=np.int64).reshape(-1, 2)
        self._mono: Ints = pairs[:, 0]
        self._offset: Ints = pairs[:, 1] - pairs[:, 0]
        drift = np.abs(np.diff(self._offset))
        self._stepped = drift > SLEW * np.diff(self._mono) + GRAIN_NS

    @property
    def steps(self) -> int:
        """Number of wall-clock steps seen."""
        return int(self._stepped.sum())

    def trusted(self, user_ns: Ints) -> bool:
        """Tell whether samples enclose all of these moments and no step happened around them."""
        if len(self._mono) < 2 or not len(user_ns):
            return False
        first, last = int(user_ns.min()), int(user_ns.max())
        low = int(np.searchsorted(self._mono, first, side="right")) - 1
        high = int(np.searchsorted(self._mono, last, side="left"))
        if low < 0 or high >= len(self._mono):
            return False
        return not bool(self._stepped[low:high].any())

    def to_monotonic(self, kernel_ns: Ints, user_ns: Ints) -> Ints:
        """Kernel stamps (wall clock, ns) on the monotonic clock; `user_ns` says which samples enclose each."""
        # Integers throughout: a float64 cannot hold today's nanoseconds since 1970.
        base = int(self._offset[0])
        drift = np.interp(user_ns - self._mono[0], self._mono - self._mono[0], (self._offset - base).astype(float))
        mapped: Ints = kernel_ns - base - np.rint(drift).astype(np.int64)
        return mapped


def choose(kernel_ns: Ints, user_ns: Ints, clock: ClockMap) -> tuple[Ints, str]:
    """Stamps of one request's reads on the monotonic clock, and their source: `kernel`, `mixed` or `user`.

    kernel_ns: 0 where the kernel gave none. `mixed`: some reads lack a kernel stamp and carry the user-space one.
    """
    have = kernel_ns > 0
    if not have.any() or not clock.trusted(user_ns):
        return user_ns, "user"
    mapped = np.where(have, clock.to_monotonic(kernel_ns, user_ns), user_ns)
    late = mapped > user_ns + SLACK_NS
    if late.any() or (np.diff(mapped) < -SLACK_NS).any():
        return user_ns, "user"
    mapped = np.maximum.accumulate(np.minimum(mapped, user_ns))
    return mapped, "kernel" if have.all() else "mixed"
