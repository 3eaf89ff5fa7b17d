"""A small scripted HTTP server for tests: real sockets, a thread each, and whatever bad manners a test asks for."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def frame(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return b"%x\r\n%b\r\n" % (len(data), data)


def event(value: Any) -> bytes:
    return frame(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n")


def token(text: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}})


def stream(tokens: int, pause_s: float = 0.0) -> Iterable[bytes]:
    """A good answer of `tokens` tokens."""
    yield HEAD
    for k in range(tokens):
        time.sleep(pause_s)
        yield token(f" t{k}", "length" if k == tokens - 1 else None)
    yield usage(tokens) + event("[DONE]") + END


def plain(status: str, body: str, kind: str = "application/json") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n{body}".encode()


Piece = bytes | Callable[[socket.socket], object]
Answer = Callable[[dict[str, str], dict[str, Any]], Iterable[Piece] | None]


class Server:
    """Answers each request with the pieces that `answer(headers, body)` yields; None closes the connection."""

    def __init__(self, answer: Answer, context: Any = None) -> None:
        self.answer = answer
        self.context = context
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.listener.getsockname()[1]
        self.accepted = 0
        self.requests: list[tuple[float, dict[str, str]]] = []
        self.conns: list[socket.socket] = []
        self.thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> "Server":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Close everything at once, as a dying process would."""
        for sock in (self.listener, *self.conns):
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # a thread blocked in accept or recv would keep it open otherwise
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                conn, _ = self.listener.accept()
            except OSError:
                return
            self.accepted += 1
            threading.Thread(target=self._serve, args=(conn,), daemon=True).start()

    def _serve(self, conn: socket.socket) -> None:
        try:
            if self.context is not None:
                conn = self.context.wrap_socket(conn, server_side=True)
            self.conns.append(conn)
            conn.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            data = b""
            while True:
                while b"\r\n\r\n" not in data:
                    more = conn.recv(65536)
                    if not more:
                        return
                    data += more
                head, _, data = data.partition(b"\r\n\r\n")
                lines = head.decode().split("\r\n")
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
                headers["path"] = lines[0].split(" ")[1]
                while len(data) < int(headers.get("content-length", 0)):
                    data += conn.recv(65536)
                body, data = data[: int(headers["content-length"])], data[int(headers["content-length"]) :]
                self.requests.append((time.monotonic(), headers))
                pieces = self.answer(headers, json.loads(body))
                if pieces is None:
                    conn.close()
                    return
                for piece in pieces:
                    if callable(piece):
                        piece(conn)  # to close half of it, or reset it
                    else:
                        conn.sendall(piece)
        except OSError:
            return
        finally:
            conn.close()
