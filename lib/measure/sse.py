"""Turn stamped bytes into server-sent events, incrementally and without I/O.

Rule: the same bytes give the same events however they were cut into reads, and an event carries the stamp of the
read that completed it (the read which holds the first byte of its blank line's end). Lines end at LF, CRLF or CR and
nowhere else: U+2028, U+2029 and U+0085 are text. Comments, ids, retry lines and events without data are skipped.

Refused: a line or an event longer than the limit (`EventTooLong`), since a stream without line ends would otherwise
grow for ever. One deviation from the WHATWG text: a field called `error` counts as `event: error` with that data,
because llama.cpp's server wrote failures as `error: {...}` until mid-2025.
"""

from lib.errors import MeasureError

LIMIT = 8 << 20  # bytes in one line or one event
BOM = b"\xef\xbb\xbf"


class EventTooLong(MeasureError):
    """A line or event grew beyond the limit."""


# One dispatched event: stamp of the completing read (ns), event name ('' when none), data. A plain tuple: a named one
# costs as much as the rest of the usual path.
Event = tuple[int, str, bytes]


class SseParser:
    """Feed it (stamp, bytes); it hands back the events those bytes completed."""

    __slots__ = ("_begun", "_clean", "_data", "_limit", "_name", "_size", "_skip_lf", "_tail")

    def __init__(self, limit: int = LIMIT) -> None:
        self._tail = bytearray()  # the unfinished line
        self._data: list[bytes] = []  # data lines of the unfinished event
        self._name = ""
        self._size = 0
        self._limit = limit
        self._skip_lf = False  # the last byte was CR: a following LF belongs to it
        self._clean = False  # past the byte-order mark and between events: the next chunk may be taken as it is
        self._begun = False  # past the place where a byte-order mark may stand

    def feed(self, stamp: int, chunk: bytes) -> list[Event]:
        """Return the events completed by `chunk`, each stamped `stamp` (ns). Raises EventTooLong."""
        # The usual case of an LLM server, one whole event a read, is worth a path of its own: a fifth of the time.
        size = len(chunk)
        if (
            self._clean
            and chunk.startswith(b"data: ")
            and chunk.find(b"\n") == size - 2
            and chunk.endswith(b"\n")
            and b"\r" not in chunk
            and size <= self._limit
        ):
            return [(stamp, "", chunk[6:-2])]
        events = self._lines(stamp, chunk)
        self._clean = self._begun and not (self._tail or self._data or self._name or self._skip_lf)
        return events

    def finish(self, stamp: int) -> Event | None:
        """Return the event left without its blank line, or None; what it is worth is the caller's to say."""
        if self._tail:
            self._field(bytes(self._tail))
        self._tail = bytearray()
        events: list[Event] = []
        self._dispatch(stamp, events)
        return events[0] if events else None

    def _lines(self, stamp: int, chunk: bytes) -> list[Event]:
        if self._skip_lf and chunk:
            self._skip_lf = False
            if chunk[:1] == b"\n":
                chunk = chunk[1:]
        if not chunk:
            return []
        if self._begun and b"\n" not in chunk and b"\r" not in chunk:
            self._tail += chunk  # a long line is not copied anew for each read of it
            if len(self._tail) > self._limit:
                raise self._too_long(len(self._tail))
            return []
        text = bytes(self._tail) + chunk if self._tail else chunk
        if not self._begun:
            if len(text) < 3 and BOM.startswith(text):
                self._tail = bytearray(text)
                return []
            self._begun = True
            if text[:3] == BOM:
                text = text[3:]
        self._skip_lf = text[-1:] == b"\r"
        if b"\r" in text:
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = text.split(b"\n")
        self._tail = bytearray(lines.pop())
        events: list[Event] = []
        for line in lines:
            if line:
                self._field(line)
            else:
                self._dispatch(stamp, events)
        if len(self._tail) > self._limit:
            raise self._too_long(len(self._tail))
        return events

    def _field(self, line: bytes) -> None:
        if len(line) > self._limit:  # of a comment too: cut into reads it would be refused while it grows
            raise self._too_long(len(line))
        if line[:1] == b":":
            return
        field, _, value = line.partition(b":")
        if value[:1] == b" ":
            value = value[1:]
        if field == b"data" or field == b"error":
            self._data.append(value)
            self._size += len(value) + 1  # its line end too: lines without a value would be gathered for ever
            if field == b"error":
                self._name = "error"
            if self._size > self._limit:
                raise self._too_long(self._size)
        elif field == b"event":
            self._name = value.decode("utf-8", "replace")

    def _dispatch(self, stamp: int, events: list[Event]) -> None:
        if self._data:
            events.append((stamp, self._name, b"\n".join(self._data)))
            self._data = []
            self._size = 0
        self._name = ""

    def _too_long(self, size: int) -> EventTooLong:
        return EventTooLong(
            f"A line or event of {size} bytes is over the limit of {self._limit}: this is not a stream of tokens. "
            "Look at what the server sends, or raise the parser's limit."
        )
