"""Start, question and end the ground-truth server: the C one when a compiler is there, its Python twin otherwise.

Rule: the server lives inside a `with`, in a process group of its own, on 127.0.0.1, and ends on every path. Which of
the two it was is part of every result, since their own errors differ. Refused: a server that does not come up.
"""

import csv
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib.errors import MeasureError
from lib.paths import BUILD, ROOT

SOURCE = Path(__file__).parent / "instrument" / "gtserver.c"
MODEL = "ground-truth"


@dataclass(frozen=True)
class Truth:
    """What the server knows of one request: arrival (ns) and, shape (tokens,), when each token was sent (ns)."""

    arrival_ns: int
    token_ns: NDArray[np.int64]


class Server:
    """A running ground-truth server."""

    def __init__(self, process: "subprocess.Popen[str]", port: int, kind: str) -> None:
        self.process = process
        self.port = port
        self.kind = kind  # `c` or `python`

    def truths(self) -> dict[str, Truth]:
        """Fetch the truth of all requests since the last reset, by request id."""
        csv.field_size_limit(1 << 30)
        rows = csv.DictReader(self._get("/truth.csv").decode().splitlines())
        return {
            row["id"]: Truth(int(row["arrival_ns"]), np.array(row["token_ns"].split(";"), dtype=np.int64))
            for row in rows
            if row["token_ns"]
        }

    def stats(self) -> dict[str, Any]:
        """Fetch how late tokens were sent against their due time (us) and how often a client's socket was full."""
        stats: dict[str, Any] = json.loads(self._get("/stats"))
        return stats

    def reset(self) -> None:
        """Forget all requests so far."""
        self._get("/reset", b"")

    def _get(self, path: str, data: bytes | None = None) -> bytes:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"http://127.0.0.1:{self.port}{path}", data, timeout=60) as answer:
            body: bytes = answer.read()
            return body


def compiled() -> Path | None:
    """Compile the C server if that has not been done, and return it; None without a compiler that can."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        return None
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    target = BUILD / "instrument" / f"gtserver-{digest}"
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(f".{os.getpid()}")
    done = subprocess.run(
        [compiler, "-O2", "-o", str(temporary), str(SOURCE), "-lm"], capture_output=True, timeout=120, check=False
    )
    if done.returncode:
        return None
    temporary.replace(target)
    return target


@contextmanager
def serve(
    *, ttft_ms: float, itl_ms: float, sigma: float = 0.0, cpus: tuple[int, ...] = (), twin: bool = False
) -> Iterator[Server]:
    """Run a ground-truth server for the length of a `with`.

    Parameters
    ----------
    ttft_ms, itl_ms : the true time to first token and gap, in ms; sigma: of the gap's lognormal factor (C only).
    cpus : cores to pin it to. twin : use the Python one even where C could be had.

    Raises
    ------
    MeasureError : it did not come up.
    """
    binary = None if twin else compiled()
    kind = "python" if binary is None else "c"
    command = [str(binary)] if binary is not None else [sys.executable, "-m", "lib.measure.gttwin"]
    command += ["--port", "0", "--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms), "--model", MODEL]
    if binary is not None:
        command += ["--sigma", str(sigma)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline().strip()
        if not line.isdigit():
            raise MeasureError(
                f"The ground-truth server ({kind}) did not come up. Run {' '.join(command)} by hand to see why."
            )
        if cpus:
            os.sched_setaffinity(process.pid, cpus)
        yield Server(process, int(line), kind)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process.poll() is None:
                os.killpg(process.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=3)
        if process.stdout is not None:
            process.stdout.close()
