"""Run one command and see to its end. A script of its own, standard library only.

    python guard.py LEASH CORES SCRATCH COMMAND...

The guard stands between the study and a server. It ends the server with everything the server started when the study
asks for it, when the study's process is gone for whatever reason (kill -9 included), and when the server itself dies
and leaves workers behind. It refuses nothing and knows nothing about engines.

Rule: it holds the read end of a pipe, the leash, whose other end only the study's process has. An end of file there,
or another parent than it began with, means: end everything. As a subreaper it inherits processes whose parents died,
so none gets away. It ends with the server's own status; one line on stdout tells the server's process id. Where SCRATCH
is not `-`, it is the variable in which the command is told a folder of its own, which is gone when the guard is.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOOK_S = 0.2                # how often the server and the parent are looked at
POLITE_S = 8.0              # after SIGTERM, before SIGKILL; vLLM takes about a second
LONGEST = 45                # bytes of TMPDIR: our own name takes 25 more
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36        # linux/prctl.h

libc = ctypes.CDLL(None, use_errno=True)


def descendants(pid: int) -> list[int]:
    """Every living process below `pid`, zombies included."""
    found = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def signal_all(number: int) -> bool:
    """Send a signal to everything below the guard; whether anything was there."""
    living = descendants(os.getpid())
    for pid in living:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(living)


@contextmanager
def scratch(variable: str) -> Iterator[dict[str, str]]:
    """Make a folder for as long as the guard lives; the variable that tells it. Nothing for `-`.

    Its path is short: that of a Unix socket has at most 107 bytes, of which vLLM's UUID and its slash take 37.
    """
    if variable == "-":
        yield {}
        return
    above = Path(os.environ.get("TMPDIR", "/tmp"))
    short = above.is_dir() and len(bytes(above)) <= LONGEST
    folder = (above if short else Path("/tmp")) / f"first-token-{os.urandom(6).hex()}"
    folder.mkdir(mode=0o700)
    try:
        yield {variable: str(folder)}
    finally:
        clear(folder)


def clear(folder: Path) -> None:
    """Remove a folder and what was left in it."""
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                clear(path)
            else:
                path.unlink()
        folder.rmdir()


def reap(server: "subprocess.Popen[bytes]") -> None:
    """Collect whatever has died: the server first, so that its status is not lost, then what the guard adopted."""
    if server.poll() is not None:
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def end_everything(server: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, patience, SIGKILL until nothing is left."""
    signal_all(signal.SIGTERM)
    limit = time.monotonic() + POLITE_S
    while descendants(os.getpid()):
        reap(server)
        if time.monotonic() > limit:
            signal_all(signal.SIGKILL)
        time.sleep(0.02)


def main() -> int:
    """Start the command on the given cores and watch it and the leash."""
    leash, cores, variable, command = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    parent = os.getppid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)       # only the leash ends the guard
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def inside_the_server() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)       # should even the guard be killed

    if cores != "all":
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    with scratch(variable) as told:
        try:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True,
                                      preexec_fn=inside_the_server, env=os.environ | told)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        print(server.pid, flush=True)
        watched = [leash]
        with suppress(OSError):         # kernels before 5.3 do not tell an end at once
            watched.append(os.pidfd_open(server.pid))
        while server.poll() is None and os.getppid() == parent:
            if leash in select.select(watched, [], [], LOOK_S)[0]:
                break
        end_everything(server)
    return server.returncode if server.returncode >= 0 else 128 - server.returncode


if __name__ == "__main__":
    sys.exit(main())
