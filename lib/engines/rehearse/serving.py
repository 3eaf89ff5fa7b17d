"""The little HTTP/1.1 that a stand-in needs: whole answers and chunked streams on 127.0.0.1, connections kept.

Rule: a handler gets a request and a reply and says what it means; nothing here knows an engine.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 405: "Method Not Allowed",
           422: "Unprocessable Entity", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


@dataclass(frozen=True)
class Request:
    """One request; `body` is its JSON, None where it has none or sends no JSON object."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any] | None


class Reply:
    """What is sent back: one whole answer, or a stream."""

    def __init__(self, writer: asyncio.StreamWriter, server: str) -> None:
        self._writer, self._server = writer, server
        self.streaming = False

    @property
    def gone(self) -> bool:
        """Whether the client has left."""
        return self._writer.is_closing()

    def whole(self, status: int, content: str | dict[str, Any] | list[Any], kind: str = "") -> None:
        """Send a whole answer; a mapping or list as JSON."""
        text = content if isinstance(content, str) else json.dumps(content)
        body = text.encode()
        default = "text/plain; version=0.0.4" if isinstance(content, str) else "application/json"
        head = self._head(status, kind or default, f"content-length: {len(body)}")
        self._writer.write(head + body)

    def begin(self, kind: str = "text/event-stream; charset=utf-8") -> None:
        """Begin a stream that is answered 200."""
        self.streaming = True
        self._writer.write(self._head(200, kind, "transfer-encoding: chunked"))

    def event(self, data: str) -> None:
        """Send one event of a stream, in one piece."""
        self.piece(f"data: {data}\n\n")

    def piece(self, text: str) -> None:
        """Send a piece of a stream as it is."""
        if not self._writer.is_closing():
            body = text.encode()
            self._writer.write(b"%x\r\n%b\r\n" % (len(body), body))

    def end(self) -> None:
        """End a stream."""
        if not self._writer.is_closing():
            self._writer.write(b"0\r\n\r\n")

    async def flush(self) -> None:
        """Wait until what was sent has gone to the kernel."""
        with suppress(ConnectionError):
            await self._writer.drain()

    def _head(self, status: int, kind: str, size: str) -> bytes:
        lines = (f"HTTP/1.1 {status} {REASONS[status]}", f"server: {self._server}", f"content-type: {kind}", size)
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


Handler = Callable[[Request, Reply], Awaitable[None]]


async def serve(host: str, port: int, handler: Handler, server: str) -> asyncio.Server:
    """Listen; the handler is called once a request."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            while True:
                request = await _request(reader)
                reply = Reply(writer, server)
                await handler(request, reply)
                if reply.streaming:
                    reply.end()
                await reply.flush()
        writer.close()

    return await asyncio.start_server(connected, host, port, limit=1 << 24)


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:]) if name}
    raw = await reader.readexactly(int(headers.get("content-length", "0")))
    body = None
    if raw:
        with suppress(ValueError):
            decoded = json.loads(raw)
            body = decoded if isinstance(decoded, dict) else None
    return Request(method, path.partition("?")[0], headers, body)
