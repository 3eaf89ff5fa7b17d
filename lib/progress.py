"""Say what is being done, how far it is and when it will end, wherever the user is looking.

Three places, one rule: a terminal and JupyterLab get one line that renews itself; a log that nobody watches gets one
plain line per stage. `make` names the terminal in STUDY_TERMINAL, since a notebook's kernel has none of its own;
STUDY_TERMINAL=none means a log. Without the variable the caller is a person in a notebook or a shell.
"""

import os
import sys
import time
from contextlib import suppress
from types import TracebackType
from typing import IO, Self

RENEW_S = 0.5  # a line that renews itself twice a second reads as alive and costs nothing


class Progress:
    """Progress of one piece of work of known (or unknown) length in seconds or steps.

    >>> with Progress("build", total=2.0) as progress:      # doctest: +SKIP
    ...     progress.at(1.0, "quantizing")
    """

    def __init__(self, title: str, total: float | None = None):
        self.title = title
        self.total = total
        self._start = time.monotonic()
        self._shown = 0.0
        self.stage = ""
        self._width = 0
        self._live, self._close = _place()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took = time.monotonic() - self._start
        self._write(f"{self.title}: {'stopped' if kind else 'done'} after {clock(took)}", last=True)
        if self._close and self._live is not None:
            self._live.close()

    def at(self, done: float, stage: str = "") -> None:
        """Show that `done` of `total` is behind us, and what is under way."""
        now = time.monotonic()
        new_stage = stage != self.stage
        if self._quiet and not new_stage:
            return
        if not new_stage and now - self._shown < RENEW_S:
            return
        self._shown, self.stage = now, stage
        took = now - self._start
        parts = [self.title, stage] if stage else [self.title]
        if self.total:
            share = min(1.0, done / self.total)
            left = max(0.0, self.total - done)
            parts.append(f"{share:4.0%}, {clock(took)} gone, about {clock(left)} left")
        else:
            parts.append(f"{clock(took)} gone")
        self._write(": ".join(parts[:2]) + (f" ({parts[-1]})" if len(parts) > 2 else f" {parts[-1]}"))

    @property
    def _quiet(self) -> bool:
        return self._live is None

    def _write(self, line: str, last: bool = False) -> None:
        if self._live is None:
            print(line, flush=True)
            return
        with suppress(OSError):  # a terminal that went away must not end a measurement
            self._live.write("\r" + line.ljust(self._width) + ("\n" if last else ""))
            self._live.flush()
        self._width = 0 if last else len(line)


def _place() -> tuple[IO[str] | None, bool]:
    """Where lines that renew themselves go: (stream or None for a log, whether we opened it)."""
    named = os.environ.get("STUDY_TERMINAL")
    if named == "none":
        return None, False
    if named:
        try:
            return os.fdopen(os.open(named, os.O_WRONLY | os.O_NOCTTY), "w"), True
        except OSError:
            return None, False
    in_notebook = "ipykernel" in sys.modules
    return (sys.stdout, False) if in_notebook or sys.stdout.isatty() else (None, False)


def clock(seconds: float) -> str:
    """Seconds as a person reads them.

    >>> clock(5), clock(65), clock(3700)
    ('5 s', '1 min 05 s', '1 h 01 min')
    """
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
