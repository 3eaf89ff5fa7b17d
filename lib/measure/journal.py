"""The journal: one pre-sized, memory-mapped file per worker that survives the death of its process at any moment.

Layout, native byte order: a header page (magic, version, byte-order mark, progress counters, a JSON note), then
entries of 32 bytes and payload, padded to 8. An entry's first word (kind, length, request) is stored last, in one
aligned write, and is what makes the entry exist: a process killed half-way leaves no half entry, only unused bytes.

    word 0   kind | length << 8 | request << 32      word 1   monotonic ns, user space
    word 2   kernel stamp, seconds                   word 3   kernel stamp, nanoseconds (both 0 when there is none)

Rule: appending never blocks on anything but memory, and never parses. Refused: a file larger than the free disk (a
write to a full disk would kill the process), and an entry beyond the end (`JournalFull` ends the level by name).
"""

import json
import mmap
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib.errors import MeasureError, RecordError

MAGIC = b"FTSJ"
VERSION = 1
PAGE = 4096
HEAD = 32  # bytes before an entry's payload
READ = 65536  # largest read
RESERVE = 256 << 10  # kept for the entries that close a full journal
CLOCK, SENT, DATA, END, DONE, DUE = range(1, 7)  # DUE: only of requests that were never sent
NO_REQUEST = 0xFFFFFFFF
WINDOW = 8 << 20  # mapped pages are handed back to the page cache in steps of this many bytes
ISSUED_AT, FINISHED_AT, NOTE_AT = 16, 24, 64


class JournalFull(MeasureError):
    """The journal has no room for the next entry."""


class Writer:
    """Appends entries. `position` and `view` are public because the client receives straight into the file."""

    def __init__(self, path: Path, size: int, note: dict[str, Any] | None = None) -> None:
        size = (max(size, PAGE + 2 * READ + RESERVE) + PAGE - 1) // PAGE * PAGE
        free = shutil.disk_usage(path.parent).free
        if size > free:
            raise MeasureError(
                f"The journal {path.name} may need {size / 1e6:.0f} MB and {path.parent} has {free / 1e6:.0f} MB free: "
                "free some space, or measure fewer or shorter requests per level."
            )
        text = json.dumps(note or {}).encode()
        if len(text) > PAGE - NOTE_AT - 8:
            raise MeasureError(f"The journal's note is {len(text)} bytes; its page holds {PAGE - NOTE_AT - 8}.")
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.ftruncate(handle, size)
                self._map = mmap.mmap(handle, size)
                # A fault on a new page would read ahead: 20 ms without a stamp at every 8 MB, where the disk is set so.
                self._map.madvise(mmap.MADV_RANDOM)
            except BaseException:
                os.close(handle)
                raise
        except OSError as error:
            raise MeasureError(
                f"The journal {path} of {size / 1e6:.0f} MB cannot be made ({error.strerror or error}): make its "
                "folder writable, free space, or raise the account's limits (`ulimit -f`, `ulimit -v`)."
            ) from error
        self._handle = handle
        self.path = path
        self.view = memoryview(self._map)
        self.words = self.view.cast("q")
        self.position = PAGE
        self.limit = size - HEAD - READ - RESERVE  # beyond it nothing more is received
        self._kept = PAGE
        self.view[8:16] = VERSION.to_bytes(4, sys.byteorder) + (0x01020304).to_bytes(4, sys.byteorder)
        self.view[NOTE_AT : NOTE_AT + 8] = len(text).to_bytes(8, sys.byteorder)
        self.view[NOTE_AT + 8 : NOTE_AT + 8 + len(text)] = text
        self.view[0:4] = MAGIC

    def append(self, kind: int, request: int, user_ns: int, payload: bytes = b"", kernel: bytes = b"") -> None:
        """Commit one entry; `kernel` is the raw timespec of 16 bytes or nothing. Raises JournalFull."""
        at = self.position
        if at + HEAD + len(payload) > len(self.view) - 8:
            raise self.full()
        self.view[at + HEAD : at + HEAD + len(payload)] = payload
        self.commit(kind, request, user_ns, len(payload), kernel)

    def commit(self, kind: int, request: int, user_ns: int, length: int, kernel: bytes = b"") -> None:
        """Commit an entry whose payload of `length` bytes (<= READ) already lies at `position` + HEAD."""
        at = self.position
        word = at >> 3
        words = self.words
        words[word + 1] = user_ns
        if kernel:
            self.view[at + 16 : at + 32] = kernel
        # Stored last and whole: this word is the commit.
        words[word] = kind | length << 8 | request << 32 if request < 1 << 31 else kind | length << 8 | -1 << 32
        self.position = at + HEAD + (length + 7 & ~7)
        if self.position - self._kept > WINDOW:
            self._release()

    def progress(self, issued: int, finished: int) -> None:
        """Publish counters that `progress()` reads while the level runs."""
        self.words[ISSUED_AT >> 3] = issued
        self.words[FINISHED_AT >> 3] = finished

    def full(self) -> JournalFull:
        """Word the refusal for a journal without room."""
        return JournalFull(
            f"The journal {self.path.name} of {len(self.view) / 1e6:.0f} MB is full: more came than was planned for. "
            "The level ends with what was finished; raise journal_bytes in the plan to take the whole level."
        )

    def close(self) -> None:
        """Cut the file to its used length and let go of it."""
        used = self.position
        self.words.release()
        self.view.release()
        self._map.close()
        os.ftruncate(self._handle, used)        # by handle: another file may bear the name by now
        os.close(self._handle)

    def _release(self) -> None:
        """Give written pages back to the page cache: the file keeps them, the process need not."""
        start, end = self._kept, self.position // PAGE * PAGE
        self._map.madvise(mmap.MADV_DONTNEED, start, end - start)
        self._kept = end


@dataclass(frozen=True)
class Progress:
    """Counters of a level in progress."""

    issued: int
    finished: int


def progress(path: Path) -> Progress:
    """Tell how far a worker is; zeros before its journal exists."""
    try:
        head = path.open("rb").read(FINISHED_AT + 8)
    except FileNotFoundError:
        return Progress(0, 0)
    if len(head) < FINISHED_AT + 8:
        return Progress(0, 0)
    return Progress(*(int.from_bytes(head[at : at + 8], sys.byteorder) for at in (ISSUED_AT, FINISHED_AT)))


class Reader:
    """A journal opened for reading: its note and its committed entries, whether or not the worker lived to close it."""

    def __init__(self, path: Path) -> None:
        size = path.stat().st_size if path.exists() else 0
        if size < PAGE:
            raise RecordError(f"{path} is no journal ({size} bytes): its worker never began. Measure the level again.")
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.view = memoryview(self._map)
        mark = int.from_bytes(self.view[12:16], sys.byteorder)
        version = int.from_bytes(self.view[8:12], sys.byteorder)
        if bytes(self.view[:4]) != MAGIC or mark != 0x01020304 or version != VERSION:
            raise RecordError(
                f"{path} is not a journal of version {VERSION} of this machine's byte order; it cannot be read here. "
                "Read it with the version and on the kind of machine that wrote it, or measure the level again."
            )
        length = int.from_bytes(self.view[NOTE_AT : NOTE_AT + 8], sys.byteorder)
        self.note: dict[str, Any] = json.loads(bytes(self.view[NOTE_AT + 8 : NOTE_AT + 8 + length]))
        self.words = self.view[: len(self.view) & ~7].cast("q")
        self.path = path

    def scan(self) -> Iterator[tuple[int, int, int]]:
        """Yield (kind, request, position) of every committed entry, in the order they were written."""
        end = len(self.view) & ~7
        words = self.words
        at = PAGE
        while at + HEAD <= end:
            first = words[at >> 3]
            following = at + HEAD + ((first >> 8 & 0xFFFFFF) + 7 & ~7)
            if not first or following > end:
                return
            yield first & 0xFF, first >> 32 & 0xFFFFFFFF, at
            at = following

    def user_ns(self, at: int) -> int:
        """Read the user-space stamp of the entry at this position."""
        return self.words[(at >> 3) + 1]

    def kernel_ns(self, at: int) -> int:
        """Read the kernel stamp (wall clock, ns) of the entry at this position, 0 when it has none."""
        return self.words[(at >> 3) + 2] * 1_000_000_000 + self.words[(at >> 3) + 3]

    def payload(self, at: int) -> memoryview:
        """Slice the bytes of the entry at this position, as a view into the file."""
        return self.view[at + HEAD : at + HEAD + (self.words[at >> 3] >> 8 & 0xFFFFFF)]
