"""How much of what the client sees is the way to the server: connections and short requests, before each level.

Where client and server share a computer this is the loopback and the server's own front door; it is measured there
too, so that a client elsewhere has something to be held against. Rule: no model is asked, and a server that does not
answer gives no value. Refuses nothing.
"""

import os
import socket
import time
from typing import Any

from lib.measure.clientplan import KEY_ENV
from lib.measure.http1 import unframe

PROBES = 50  # of one level: 368 make a p99, which eight levels have together
LONGEST_S = 1.0  # for all of them
HERE = "127.0.0.1"  # where this study starts its servers


def measured(port: int, path: str, host: str = HERE) -> dict[str, Any]:
    """Connect and ask for a short page, again and again.

    Parameters
    ----------
    path : a page that costs the server nothing, such as its health.

    Returns
    -------
    host; connect_ns, round_trip_ns : one value a probe: until the connection stands; from the last byte of the request
        to the first of the answer. Empty where the server does not answer.
    """
    key = os.environ.get(KEY_ENV)
    known = f"Authorization: Bearer {key}\r\n" if key else ""
    asked = f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{known}Connection: close\r\n\r\n".encode()
    connects: list[int] = []
    trips: list[int] = []
    limit = time.monotonic() + LONGEST_S
    while len(trips) < PROBES and (left := limit - time.monotonic()) > 0:
        try:
            connect, trip = _once((host, port), asked, left)
        except OSError:
            time.sleep(0.01)  # a full backlog: not at once again
            continue
        connects.append(connect)
        trips.append(trip)
    return {"host": host, "connect_ns": connects, "round_trip_ns": trips}


def _once(where: tuple[str, int], asked: bytes, limit_s: float) -> tuple[int, int]:
    began = time.monotonic_ns()
    with socket.create_connection(where, timeout=limit_s) as way:
        connected = time.monotonic_ns()
        way.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sent = time.monotonic_ns()
        way.sendall(asked)
        reads: list[tuple[int, bytes]] = []
        while not (reads and unframe(reads, closed=False).complete):  # to the end, so that the server sees no reset
            data = way.recv(65536)
            if not data:
                break
            reads.append((time.monotonic_ns(), data))
    if not reads:
        raise ConnectionError("closed without an answer")
    return connected - began, reads[0][0] - sent
