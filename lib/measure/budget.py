"""What a study has cost so far, and the stop before it costs more than MAX_COST.

Every launch keeps its own account beside its record: seconds on the node, and what it has set aside for its next step.
The price of an hour is the profile's. Refused: a step that could take the sum of all accounts over the limit; what
is finished stays, and the same command with a larger limit goes on.

Rule: a step is paid for before it begins, at the longest it may take, so that launches that run at once cannot pass the
limit together.
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lib import paths, records
from lib.config import Launch, Study
from lib.errors import ConfigError, MeasureError
from lib.measure import takings
from lib.measure.takings import Taking

VARIABLE = "STUDY_MAX_COST"
SUFFIX = ".cost.json"
CLIENT_S = 10.0  # interpreters, prompts and parsing around a taking


class Budget:
    """A launch's account in its study. Where the profile has no price nothing is counted and nothing refused."""

    def __init__(self, study: Study, launch: Launch) -> None:
        self.study, self.limit = study, limit(study)
        self.path = paths.RECORDS / study.name / f"{launch.name}{SUFFIX}"
        earlier = _read(self.path)  # a try that was killed counts as long as it may have lasted
        self.before_s = float(earlier.get("seconds", 0.0)) + float(earlier.get("reserved_seconds", 0.0))
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds on the node so far, those of earlier tries included."""
        return self.before_s + time.monotonic() - self.began

    def reserve(self, seconds: float, what: str) -> None:
        """Set aside what the next step may cost at most.

        Raises
        ------
        MeasureError : it could take the study beyond its limit.
        """
        if self.study.price is None:
            return
        with self._alone():
            others = spent_usd(self.study, but=self.path)
            mine, step = usd(self.study, self.seconds), usd(self.study, seconds)
            if self.limit is not None and others + mine + step > self.limit:
                raise MeasureError(
                    f"MAX_COST: {what} may cost ${step:.2f}, and with the ${others + mine:.2f} that this study has "
                    f"cost or set aside that passes the limit of ${self.limit:.2f}. What is finished is kept; the same "
                    "command with a larger MAX_COST goes on."
                )
            self._write(seconds)

    def close(self) -> None:
        """Give back what was set aside and not used."""
        if self.study.price is not None:
            with self._alone():
                self._write(0.0)

    def _write(self, reserved_s: float) -> None:
        told = {"seconds": round(self.seconds, 1), "reserved_seconds": round(reserved_s, 1)}
        records.write_whole(self.path, json.dumps(told).encode())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with (self.path.parent / ".cost.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@contextmanager
def spending(study: Study, launch: Launch) -> Iterator[Budget]:
    """Keep a launch's account while it is measured."""
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


def usd(study: Study, seconds: float) -> float:
    """Price of some seconds of the whole node."""
    return seconds / 3600 * study.price.usd_per_hour if study.price else 0.0


def spent_usd(study: Study, but: Path | None = None) -> float:
    """What all launches of a study have cost or set aside, `but` one account left out."""
    accounts = [_read(path) for path in (paths.RECORDS / study.name).glob(f"*{SUFFIX}") if path != but]
    return usd(study, sum(float(a.get("seconds", 0)) + float(a.get("reserved_seconds", 0)) for a in accounts))


def longest_s(study: Study, taking: Taking) -> float:
    """The longest that a taking with its warm-up may last, once more where a request fails."""
    level, statistics = taking.level, study.statistics
    issuing = max(level.seconds, level.at_most_seconds if level.requests else 0.0) + takings.ramp_s(level)
    return statistics.warmup_seconds + 3 * statistics.drain_seconds + 2 * issuing + CLIENT_S


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
