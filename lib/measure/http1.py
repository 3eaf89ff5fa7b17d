"""Take one HTTP/1.1 response out of its frames after the fact: stamped reads in, stamped body pieces out.

Framing itself is httptools' work (llhttp, the parser of Node.js); this module only keeps the stamp of the read
beside each piece of body. Refused: nothing is raised for a bad answer, it is described in `Response.cause`.

Rule: a body is `complete` only when its own framing says so: the zero chunk, the promised length, or, for a body with
neither, the server's close.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import httptools


@dataclass(slots=True)
class Response:
    """One answer without its frames.

    status: HTTP status or None when no head came. pieces: (stamp ns, body bytes), in order. complete: framing ended.
    cause: why it is not usable as HTTP, '' when it is.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[tuple[int, bytes]] = field(default_factory=list)
    complete: bool = False
    cause: str = ""

    def body(self) -> bytes:
        """Join the whole body."""
        return b"".join(piece for _, piece in self.pieces)


class _Unframer:
    """httptools' callbacks; `stamp` is set before each read is fed."""

    def __init__(self) -> None:
        self.stamp = 0
        self.answer = Response()
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.answer.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.answer.status = self.parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.answer.pieces.append((self.stamp, body))

    def on_message_complete(self) -> None:
        if self.answer.status is not None and self.answer.status < 200:
            self.answer = Response()  # 1xx: the real answer follows
        else:
            self.answer.complete = True


def unframe(reads: Iterable[tuple[int, bytes | memoryview]], closed: bool) -> Response:
    """Response held in `reads` = (stamp ns, raw bytes); `closed`: the server closed the connection after them."""
    frames = _Unframer()
    feed = frames.parser.feed_data
    try:
        for stamp, data in reads:
            frames.stamp = stamp
            feed(data)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        if not frames.answer.complete:  # bytes after a complete answer are the connection's fault, not the answer's
            frames.answer.cause = f"bad HTTP: {error}"
    answer = frames.answer
    headers = answer.headers
    endless = "content-length" not in headers and "chunked" not in headers.get("transfer-encoding", "").lower()
    if closed and endless and answer.status is not None and not answer.cause:
        answer.complete = True
    return answer
