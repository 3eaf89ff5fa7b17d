"""The life of one server process: started under a guard, watched, and ended with everything it started.

Refuses to outlive the study: success, failure, Ctrl-C, a killed kernel, a server that ignores SIGTERM or leaves workers
behind all end in an empty process group. Rule: secrets travel in the environment, never in arguments or logs.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from lib.engines import causes
from lib.errors import EngineError

GUARD = Path(__file__).with_name("guard.py")
END_S = 30.0                # for the guard to end everything; its own patience is 8 s
# Another environment's interpreter looks into its own packages only, and keeps compiled modules: without them every
# start of vLLM compiles some thousand files in each of its processes, which takes minutes on two cores.
OWN_PYTHON = {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
NOISE = re.compile(r"\x1b\[[0-9;]*m|\(\w+ pid=\d+\) ")      # colours and vLLM's process names


def free_port(behind: int = 0) -> int:
    """Find a loopback TCP port that nobody listens on, nor on the `behind` ports after it.

    Another process may still take one: the start then says so.
    """
    while True:
        with ExitStack() as held, suppress(OSError, OverflowError):
            port = 0
            for number in range(behind + 1):
                probe = held.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port + number))
                port = port or int(probe.getsockname()[1])
            return port


class Process:
    """A running command.

    Parameters
    ----------
    command : argument list; visible to everyone on this computer, so no secret is in it.
    environment : variables on top of the caller's own.
    log : file that receives what the command prints; its folder is made.
    cores : cores the command and everything it starts may use; None for all.
    scratch : variable in which the command is told a folder of its own, removed when it has ended; "" for none.

    Raises
    ------
    EngineError : the command cannot be started, or the log cannot be written.
    """

    def __init__(
        self, command: Sequence[str], environment: dict[str, str], log: Path, cores: Sequence[int] | None = None,
        scratch: str = "",
    ) -> None:
        self.log = log
        self.pid = 0
        self._began_at = 0
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("ab") as out:
                self._began_at = out.tell()
                self._start(command, environment, out.fileno(), cores, scratch)
        except OSError as error:
            raise EngineError(f"{command[0]} could not be started with its log at {log}: {error.strerror or error}. "
                              "Make the folder writable and see that the environment is complete.") from error

    def _start(
        self, command: Sequence[str], environment: dict[str, str], out: int, cores: Sequence[int] | None, scratch: str
    ) -> None:
        held, self._leash = os.pipe()
        try:
            pinned = ",".join(str(core) for core in cores) if cores else "all"
            self._guard = subprocess.Popen(
                [sys.executable, "-I", str(GUARD), str(held), pinned, scratch or "-", *command],
                env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=out,
                pass_fds=(held,), start_new_session=True,
            )
        except BaseException:
            os.close(self._leash)
            raise
        finally:
            os.close(held)
        assert self._guard.stdout is not None
        told = self._guard.stdout.readline()        # an end of file if the guard could not start the command
        if not told.strip().isdigit():
            self.stop()
            raise EngineError(f"{command[0]} could not be started: {self.tail() or 'no reason given'}. See {self.log}.")
        self.pid = int(told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def status(self) -> int | None:
        """The command's exit status once it and everything it started is gone; None while it runs."""
        return self._guard.poll()

    def wait(self, limit_s: float, look: Callable[[], None], every_s: float) -> int:
        """Wait for the command to end by itself, calling `look` every so often, and return its exit status.

        Raises
        ------
        TimeoutError : it did not end in time; leaving the context ends it. Whatever `look` raises passes through.
        """
        limit = time.monotonic() + limit_s
        while (status := self.status) is None:
            look()
            if time.monotonic() > limit:
                raise TimeoutError
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(every_s)       # no longer than the command: what is made takes many short ones
        return status

    def check_alive(self) -> None:
        """Raise if the command has ended.

        Raises
        ------
        EngineError : with its status, and the cause or the last lines of its log.
        """
        # The guard needs a moment to clear away what a dead server leaves; the server's own death is seen at once.
        if self.status is None and not _dead(self.pid):
            return
        with suppress(subprocess.TimeoutExpired):
            self._guard.wait(END_S)
        raise EngineError(f"The server ended by itself ({_means(self.status)}). {self.why()} The whole log is "
                          f"{self.log}.")

    def text(self) -> str:
        """Return what this start has printed so far, without colours."""
        with self.log.open("rb") as file:
            file.seek(self._began_at)
            return NOISE.sub("", file.read().decode(errors="replace"))

    def tail(self) -> str:
        """Return the last lines of the log as one line of prose."""
        return causes.words(self.text())

    def why(self) -> str:
        """Tell why it failed, as far as its log does."""
        return causes.why(self.text())

    def stop(self) -> None:
        """End the command and everything it started; return when nothing is left. May be called twice."""
        first = self._leash >= 0
        if first:
            os.close(self._leash)
            self._leash = -1
        limit = time.monotonic() + END_S
        while self._guard.poll() is None and time.monotonic() < limit:
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(1.0)
        if self._guard.poll() is None:
            self._guard.kill()          # its children carry a parent-death signal
            self._guard.wait()
        if first and self.pid and self._guard.returncode < 0:
            with suppress(ProcessLookupError):      # the guard was killed: its server died with it, the server's own
                os.killpg(self.pid, signal.SIGKILL)     # children did not, and they share its process group
        if self._guard.stdout:
            self._guard.stdout.close()


def _dead(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def _means(status: int | None) -> str:
    if status is None:
        return "it is dying"
    if status > 128:
        return f"signal {status - 128}" + (", as when memory runs out" if status == 137 else "")
    return f"status {status}"
