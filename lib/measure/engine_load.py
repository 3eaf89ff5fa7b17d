"""A stand-in for the engine's load on the processors: one process on each of its cores that never stops reading memory.

Decoding reads every weight once a token, so an engine under load keeps its cores busy with reads of memory larger than
the caches; so do these. They are not an engine: they never wait for requests, which is harder on a client that shares
their cores, and they run no network code. What is measured beside them says so.

Rule: the processes live inside a `with` and end on every path, also when their parent is killed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from lib.errors import MeasureError

READ_MB = 64  # larger than a core's share of any last-level cache
WHAT = f"one process on each of the engine's cores, reading {READ_MB} MB of memory over and over: a stand-in, no engine"
READER = """
import os, sys
import numpy
parent, block = os.getppid(), numpy.ones(int(sys.argv[1]) * 131_072)
print("reading", flush=True)
while os.getppid() == parent:
    block.max()
"""


@contextmanager
def busy(cores: Sequence[int]) -> Iterator[None]:
    """Keep these cores busy for the length of a `with`.

    Raises
    ------
    MeasureError : a process did not start.
    """
    readers: list[subprocess.Popen[str]] = []
    try:
        for core in cores:
            reader = subprocess.Popen(
                [sys.executable, "-c", READER, str(READ_MB)],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
            readers.append(reader)
            os.sched_setaffinity(reader.pid, (core,))
        for reader in readers:
            assert reader.stdout is not None
            if reader.stdout.readline().strip() != "reading":
                raise MeasureError("The stand-in for the engine's load did not start: is there memory free?")
        yield
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()
            if reader.stdout is not None:
                reader.stdout.close()
