"""The ground-truth server's slower twin in Python, for machines without a C compiler. `python -m lib.measure.gttwin`.

Same options, paths and truth as instrument/gtserver.c, where the protocol is described. Rule: the clock is read just
before the send of each token, and that reading is the truth; a late token is late, not wrong. Its own error is the time
between that reading and the send, some tens of microseconds in an interpreter, and it cannot send more than some
10,000 events/s. Refused: nothing; unknown paths are answered 404.
"""

import argparse
import heapq
import json
import select
import signal
import socket
from time import monotonic_ns, time_ns
from typing import Any

from lib.measure import stamps

MS = 1_000_000
SPIN_NS = 1_000_000
EVENT = (
    'data: {"id":"gt-%08x","object":"%s","created":1764500000,"model":"%s","choices":[{"index":0,%s,"logprobs":null,'
    '"finish_reason":%s,"stop_reason":null,"token_ids":null}]}\n\n'
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: ground-truth-twin\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class _Conn:
    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.data = b""
        self.busy = False
        self.received = 0
        self.pending: list[bytes] = []
        self.truth: dict[str, Any] = {}


class Twin:
    """The server: one thread, one heap of due tokens."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.truths: list[dict[str, Any]] = []
        self.due: list[tuple[int, int, _Conn]] = []
        self.count = 0
        self.conns: dict[int, _Conn] = {}
        self.epoll = select.epoll()
        self.listener = socket.create_server(("127.0.0.1", options.port), backlog=4096)
        self.listener.setblocking(False)
        self.epoll.register(self.listener.fileno(), select.EPOLLIN)
        self.stopping = False

    def run(self) -> None:
        """Serve until told to stop."""
        print(self.listener.getsockname()[1], flush=True)
        while not self.stopping:
            while self.due and self.due[0][0] <= monotonic_ns():
                due, _, conn = heapq.heappop(self.due)
                self._fire(conn, due)
            wait = min(self.due[0][0] - monotonic_ns() - SPIN_NS if self.due else 100 * MS, 100 * MS)
            for fd, _ in self.epoll.poll(wait // MS / 1000 if wait > 0 else 0):
                if fd == self.listener.fileno():
                    self._accept()
                else:
                    self._receive(fd)

    def _accept(self) -> None:
        sock, _ = self.listener.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stamps.enable(sock)
        self.conns[sock.fileno()] = _Conn(sock)
        self.epoll.register(sock.fileno(), select.EPOLLIN)

    def _receive(self, fd: int) -> None:
        conn = self.conns[fd]
        try:
            data, extra, _, _ = conn.sock.recvmsg(1 << 20, stamps.ANCILLARY)
        except OSError:
            data, extra = b"", []
        if not data:
            del self.conns[fd]
            conn.busy = True  # nothing more is answered
            conn.pending.clear()
            conn.sock.close()
            return
        conn.received = monotonic_ns()
        if extra:
            seconds, rest = (int.from_bytes(extra[0][2][at : at + 8], "little") for at in (0, 8))
            conn.received -= max(0, time_ns() - seconds * 1_000_000_000 - rest)
        conn.data += data
        self._parse(conn)

    def _parse(self, conn: _Conn) -> None:
        while not conn.busy and b"\r\n\r\n" in conn.data:
            head, _, rest = conn.data.partition(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            fields = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in lines[1:])}
            length = int(fields.get("content-length", "0"))
            if len(rest) < length:
                return
            conn.data = rest[length:]
            method, path, _ = lines[0].split(" ")
            self._route(conn, method, path, rest[:length], fields.get("x-request-id", ""))

    def _route(self, conn: _Conn, method: str, path: str, body: bytes, request_id: str) -> None:
        if method == "POST" and path in ("/v1/completions", "/v1/chat/completions"):
            self._start(conn, path.startswith("/v1/chat"), json.loads(body), len(body), request_id)
        elif method == "POST" and path == "/reset":
            self.truths.clear()
            self._reply(conn, b"")
        elif path == "/truth.csv":
            names = "id,arrival_ns,end_ns,tokens,blocked,token_ns"
            lines = [
                f"{t['id']},{t['arrival']},{t['end']},{t['tokens']},0,{';'.join(map(str, t['token_ns']))}"
                for t in self.truths
            ]
            self._reply(conn, "\n".join([names, *lines, ""]).encode())
        elif path == "/stats":
            late = sorted(late for t in self.truths for late in t["late"]) or [0]
            parts = {f"late_us_p{p}": late[min(len(late) - 1, len(late) * p // 100)] // 1000 for p in (50, 95, 99)}
            self._reply(conn, json.dumps({"requests": len(self.truths), "blocked": 0, **parts}).encode())
        elif path == "/v1/models":
            model = {"id": self.options.model, "object": "model"}
            self._reply(conn, json.dumps({"object": "list", "data": [model]}).encode())
        elif path == "/health":
            self._reply(conn, b"{}")
        else:
            self._reply(conn, b'{"error":"not found"}', "404 Not Found")

    def _reply(self, conn: _Conn, body: bytes, status: str = "200 OK") -> None:
        conn.sock.setblocking(True)
        conn.sock.sendall(f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)

    def _start(self, conn: _Conn, chat: bool, body: dict[str, Any], size: int, request_id: str) -> None:
        tokens, index, model = int(body.get("max_tokens", 16)), len(self.truths), self.options.model
        kind = "chat.completion.chunk" if chat else "text_completion"
        delta = '"delta":{"content":"%s"}' if chat else '"text":"%s"'
        words = [f" w{index:05x}"] + [" the"] * (tokens - 1)
        last = ['"length"' if k == tokens - 1 else "null" for k in range(tokens)]
        events = [EVENT % (index, kind, model, delta % word, end) for word, end in zip(words, last, strict=True)]
        if (body.get("stream_options") or {}).get("include_usage"):
            usage = {"prompt_tokens": size // 4 + 1, "completion_tokens": tokens}
            events.append(f"data: {json.dumps({'id': f'gt-{index:08x}', 'choices': [], 'usage': usage})}\n\n")
        events.append("data: [DONE]\n\n")
        # All is encoded now, so that only the clock and one send lie between a due time and its token.
        frames = [b"%x\r\n%b\r\n" % (len(event), event.encode()) for event in events]
        frames[tokens:] = [b"".join([*frames[tokens:], b"0\r\n\r\n"])]
        conn.truth = {"id": request_id, "arrival": conn.received, "end": 0, "tokens": tokens}
        conn.truth.update(token_ns=[], late=[])
        self.truths.append(conn.truth)
        conn.busy, conn.pending = True, frames[::-1]
        conn.sock.setblocking(True)
        conn.sock.sendall(HEAD)
        self._at(conn.received + int(self.options.ttft_ms * MS), conn)

    def _at(self, due: int, conn: _Conn) -> None:
        self.count += 1
        heapq.heappush(self.due, (due, self.count, conn))

    def _fire(self, conn: _Conn, due: int) -> None:
        if not conn.pending:
            return  # its client has gone
        frame = conn.pending.pop()
        now = monotonic_ns()
        try:
            conn.sock.sendall(frame)
        except OSError:
            conn.pending.clear()
            return
        conn.truth["token_ns"].append(now)
        conn.truth["late"].append(now - due)
        if len(conn.pending) > 1:
            self._at(due + int(self.options.itl_ms * MS), conn)
            return
        conn.sock.sendall(conn.pending.pop())
        conn.truth["end"] = monotonic_ns()
        conn.busy = False
        self._parse(conn)


def main() -> None:
    """Command line: the C server's options, of which the twin knows those it needs."""
    parser = argparse.ArgumentParser(description="ground-truth server, Python twin")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--ttft-ms", type=float, default=100.0)
    parser.add_argument("--itl-ms", type=float, default=20.0)
    parser.add_argument("--model", default="ground-truth")
    twin = Twin(parser.parse_args())

    def stop(_number: int, _frame: object) -> None:
        twin.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    twin.run()


if __name__ == "__main__":
    main()
