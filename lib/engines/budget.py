"""What a profile has cost so far, and the stop before it costs more than MAX_COST.

Every launch, canary and build keeps an account of its own beside its record: seconds on the node, what it has set aside
for its next step, and the price of its hour. Refused: a step that could take the sum of the profile's accounts, of all
its depths, over the limit; what is finished stays, and the same command with a larger limit goes on. A rehearsal counts
alone: it is played with the node's price, and nobody pays.

Rule: a step is paid for before it begins, at the longest it may take, so that launches that run at once cannot pass the
limit together. One that may take hours, as fetching a model, is paid by the minute.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from lib import config, depths, paths, records
from lib.config import Launch, Study
from lib.errors import ConfigError, MeasureError

VARIABLE = "STUDY_MAX_COST"
SUFFIX = ".cost.json"
MINUTE_S = 60.0
BUILD = "build"  # the account of 01_build


class Budget:
    """An account in its study. Where the profile has no price nothing is counted and nothing refused.

    Parameters
    ----------
    launch : whose account it is; None for the build's.
    """

    def __init__(self, study: Study, launch: Launch | None) -> None:
        self.study, self.limit = study, limit(study)
        self.usd_per_hour = usd_per_hour(study, launch) or 0.0
        self.path = paths.RECORDS / study.name / f"{launch.name if launch else BUILD}{SUFFIX}"
        earlier = _read(self.path)  # a try that was killed counts as long as it may have lasted
        self.before_s = float(earlier.get("seconds", 0.0)) + float(earlier.get("reserved_seconds", 0.0))
        self.began = time.monotonic()
        self.paid_s = 0.0  # up to which the account is paid for; 0 before the first step

    @property
    def seconds(self) -> float:
        """Seconds on the node so far, those of earlier tries included."""
        return self.before_s + time.monotonic() - self.began

    def reserve(self, seconds: float, what: str) -> None:
        """Set aside what the next step may cost at most.

        Raises
        ------
        MeasureError : it could take the profile beyond its limit.
        """
        if self.study.price is None:
            return
        with self._alone():
            others = spent_usd(self.study, but=self.path)
            mine, step = (s / 3600 * self.usd_per_hour for s in (self.seconds, seconds))
            if self.limit is not None and others + mine + step > self.limit:
                raise MeasureError(
                    f"MAX_COST: {what} may cost ${step:.2f}, and with the ${others + mine:.2f} that profile "
                    f"{self.study.profile!r} has cost or set aside that passes the limit of ${self.limit:.2f}. What is "
                    "finished is kept; the same command with a larger MAX_COST goes on."
                )
            self.paid_s = self.seconds + seconds
            self._write(seconds)

    def keep_paying(self, what: str) -> None:
        """Set aside one more minute of a step of unknown length, once half of the last is gone. Raises as `reserve`."""
        if self.seconds + MINUTE_S / 2 > self.paid_s:
            self.reserve(MINUTE_S, f"one more minute of {what}")

    def close(self) -> None:
        """Give back what was set aside and not used."""
        if self.paid_s:
            with self._alone():
                self._write(0.0)

    def _write(self, reserved_s: float) -> None:
        told = {"seconds": round(self.seconds, 1), "reserved_seconds": round(reserved_s, 1),
                "usd_per_hour": self.usd_per_hour}  # fmt: skip
        records.write_whole(self.path, json.dumps(told).encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (paths.RECORDS / f".{self.study.profile}.cost.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def spending(study: Study, launch: Launch | None) -> Iterator[Budget]:
    """Keep an account while the node works for it."""
    account = Budget(study, launch)
    try:
        yield account
    finally:
        account.close()


def limit(study: Study) -> float | None:
    """MAX_COST in USD; None where none is set.

    Raises
    ------
    ConfigError : not a positive number, or a profile without a price.
    """
    text = os.environ.get(VARIABLE, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ConfigError(f"MAX_COST={text} is no amount in USD; MAX_COST=40 stops before 40 dollars are passed.")
    if study.price is None:
        raise ConfigError(
            f"MAX_COST={text}, but profile {study.profile!r} states no price: add `price` to its study.yaml."
        )
    return value


def usd_per_hour(study: Study, launch: Launch | None) -> float | None:
    """Price of an hour of what a launch takes: the node, and its client's own where both are known. None without."""
    if study.price is None:
        return None
    client = study.price.client_usd_per_hour if launch and launch.client else None
    return study.price.usd_per_hour + (client or 0.0)


def usd(study: Study, seconds: float) -> float:
    """Price of some seconds of the whole node."""
    return seconds / 3600 * (usd_per_hour(study, None) or 0.0)


def spent_usd(study: Study, but: Path | None = None) -> float:
    """What all accounts of a study's profile have cost or set aside, `but` one left out."""
    total = 0.0
    for path in (p for name in _together(study) for p in (paths.RECORDS / name).glob(f"*{SUFFIX}") if p != but):
        account = _read(path)
        seconds = float(account.get("seconds", 0.0)) + float(account.get("reserved_seconds", 0.0))
        total += seconds / 3600 * float(account.get("usd_per_hour", usd_per_hour(study, None) or 0.0))
    return total


def _together(study: Study) -> list[str]:
    """Studies whose accounts are one: those of all depths that are paid for."""
    if study.depth == depths.REHEARSAL:
        return [study.name]
    paid = set(get_args(config.Depth)) - {depths.REHEARSAL}
    return sorted(paths.study_name(study.profile, depth) for depth in paid)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
