"""Run a foreign load tool as a process: guarded, timed, its CPU and memory looked at, its key kept out of every word.

Rule: whatever happens, the tool and all it started are ended. A tool that fails says so by its own last words, without
the server's key in them; a server that died meanwhile is told as such, not as the tool's fault.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from lib import paths
from lib.engines.process import OWN_PYTHON, Process
from lib.errors import EngineError, MeasureError
from lib.measure.peers.target import Run, Target, span_ns

LOOK_S = 0.2
WORDS = 600  # characters of a tool's last words that are passed on
# No tool may look for models on a hub, or tell anybody that it ran.
QUIET = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "NO_PROXY": "127.0.0.1", **OWN_PYTHON}

Read = Callable[[Path], tuple[list[dict[str, Any]], dict[str, float | None]]]


class Meter:
    """CPU seconds and memory of a process and everything below it, over time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._looks: list[tuple[int, float]] = []
        self.peak_mb: float | None = None

    def look(self) -> None:
        """Take one look; a process that is gone is left out."""
        cpu, resident, seen = 0.0, 0, False
        with suppress(psutil.Error):
            one = psutil.Process(self._pid)
            for member in [one, *one.children(recursive=True)]:
                with suppress(psutil.Error):
                    times = member.cpu_times()
                    cpu += times.user + times.system + times.children_user + times.children_system
                    resident += member.memory_info().rss
                    seen = True
        if seen:
            self._looks.append((time.monotonic_ns(), cpu))
            self.peak_mb = max(self.peak_mb or 0.0, resident / 2**20)

    def between(self, start_ns: int, end_ns: int) -> float | None:
        """CPU seconds used between two moments; None where fewer than two looks were taken."""
        if len(self._looks) < 2:
            return None
        t, cpu = np.array([at for at, _ in self._looks]), np.maximum.accumulate([used for _, used in self._looks])
        low, high = np.interp([start_ns, end_ns], t, cpu)
        return float(high - low)


def run(
    title: str, command: list[str], variables: dict[str, str], target: Target, folder: Path, read: Read
) -> Run:
    """Run a tool to its end and read what it left in `folder`.

    Parameters
    ----------
    command, variables : argument list, without the key; environment, the key among it.
    read : folder -> rows and what the tool itself reported.

    Raises
    ------
    EngineError : the server died.
    MeasureError : the tool failed, took longer than target.limit_s, or left nothing that can be read.
    """
    log = folder / "tool.log"
    began = time.monotonic_ns()
    try:
        with Process(command, QUIET | variables, log, target.cpus or None) as process:
            meter = Meter(process.pid)

            def look() -> None:
                meter.look()
                target.check()

            try:
                status = process.wait(target.limit_s, look, LOOK_S)
            except TimeoutError:
                late = f"{title} did not end within {target.limit_s:g} s: {last_words(process)}"
                raise MeasureError(late) from None
            words = last_words(process)
        if status:
            target.check()
            raise MeasureError(f"{title} ended with status {status}: {words}")
        try:
            rows, reported = read(folder)
        except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
            raise MeasureError(f"{title} left no result that can be read ({error!r}): {words}") from error
    except (EngineError, MeasureError) as trouble:
        target.check()
        raise MeasureError(without(str(trouble), target.key)) from None
    if not any(one["status"] == "complete" for one in rows):
        causes = sorted({str(one["cause"]) for one in rows})
        raise MeasureError(without(f"{title} completed no request ({', '.join(causes)[:WORDS]}).", target.key))
    first, last = span_ns(rows)
    usage = {
        "cpu_s": meter.between(first, last), "span_s": (last - first) / 1e9, "peak_mb": meter.peak_mb,
        "start_s": (first - began) / 1e9,
    }  # fmt: skip
    return Run(rows, reported, usage)


def last_words(process: Process) -> str:
    """Return the first line that a tool logged as an error, or the last lines it printed."""
    errors = [line.strip() for line in process.text().splitlines() if " ERROR " in line]
    return errors[0][:WORDS] if errors else process.tail()[-WORDS:]


def without(words: str, key: str | None) -> str:
    """Take the key out of a text, and where the project lies on this computer."""
    words = words.replace(f"{paths.ROOT}/", "")
    return words.replace(key, "(key)") if key else words
