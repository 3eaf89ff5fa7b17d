"""Files that are seen whole or not at all.

Light on purpose: the load client writes through it, and starts in a third of the time that it needs with the libraries
that records need. Refuses nothing but a disk that refuses.
"""

import os
from pathlib import Path

from lib.errors import RecordError


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is seen under its name only whole: beside, synced, renamed.

    Raises
    ------
    RecordError : the disk refuses; what was there before is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RecordError(
            f"{path} could not be written: {error.strerror or error}. What was there before is unchanged. "
            f"Free space or make {path.parent} writable, then run the same command again."
        ) from error
