"""One HTTP/1.1 connection of the load client: non-blocking, stamped on receipt, received straight into the journal.

Rule: between the kernel and the journal nothing is parsed but the frame (httptools), because a parser in the hot path
is what makes other clients late. With TLS the bytes pass through a memory BIO, so that a read keeps its kernel stamp.

Refused: nothing is raised for a broken connection; the owner is told by `lost(connection, why)`.
"""

import contextlib
import errno
import resource
import socket
import ssl
import struct
from time import monotonic_ns
from typing import Protocol

import httptools

from lib.errors import MeasureError
from lib.measure import stamps
from lib.measure.clientplan import Plan
from lib.measure.journal import DATA, HEAD, NO_REQUEST, READ, SENT, Writer

CLOSED, CONNECTING, IDLE, BUSY = range(4)
SENT_FIELDS = struct.Struct("=qqq")  # due ns, connect ns (-1 on a connection used before), connection number


class Owner(Protocol):
    """What a connection needs from the level it belongs to."""

    journal: Writer
    address: tuple[str, int]
    host: str
    round: int
    context: ssl.SSLContext | None

    def watch(self, connection: "Connection", writable: bool) -> None:
        """Watch the connection's socket for reading, and for writing if asked."""

    def opened(self, connection: "Connection") -> None:
        """Take note that the connection can send."""

    def answered(self, connection: "Connection") -> None:
        """Take note that the answer's frame is complete."""

    def lost(self, connection: "Connection", why: str) -> None:
        """Take note that it closed: `refused`, `reset`, `eof`, `bad http` or `tls`."""


class Connection:
    """A connection and the one request it carries."""

    def __init__(self, owner: Owner, number: int) -> None:
        self.owner = owner
        self.number = number
        self.journal = owner.journal
        self.state = CLOSED
        self.index = NO_REQUEST  # of the request in flight
        self.kernel_stamps = False
        self.since = 0  # ns: connect started, last request finished or request sent, by state
        self.connect_ns = -1
        self.due_ns = 0
        self.round = 0  # the poll in which it was opened: events of that poll are for its socket's predecessor
        self.complete = False
        self.keep_alive = True
        self.http_status = 0
        self.sock = socket.socket()
        self._out = memoryview(b"")
        self._tls: ssl.SSLObject | None = None
        self._incoming = self._outgoing = ssl.MemoryBIO()
        self.parser = httptools.HttpResponseParser(self)

    def on_message_complete(self) -> None:
        """Note the frame's end; interim 1xx answers do not count (called by httptools)."""
        self.http_status = self.parser.get_status_code()
        if self.http_status >= 200:
            self.complete = True
            self.keep_alive = self.parser.should_keep_alive()

    def open(self) -> None:
        """Start connecting; `opened` or `lost` follows."""
        self.state, self.since, self.round = CONNECTING, monotonic_ns(), self.owner.round
        family = socket.AF_INET6 if ":" in self.owner.address[0] else socket.AF_INET
        self.sock = socket.socket(family, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.kernel_stamps = stamps.enable(self.sock)
        code = self.sock.connect_ex(self.owner.address)
        if code not in (0, errno.EINPROGRESS):
            self.drop("refused")
            return
        self.owner.watch(self, writable=True)

    def begin(self, index: int, message: bytes, due_ns: int) -> None:
        """Send a prepared request; `answered` or `lost` follows."""
        self.index, self.due_ns, self.state, self.since = index, due_ns, BUSY, monotonic_ns()
        self.complete = False
        self.http_status = 0
        self.parser = httptools.HttpResponseParser(self)
        if self._tls is not None:
            self._tls.write(message)
            message = self._outgoing.read()
        self._out = memoryview(message)
        self._push()
        if self._out and self.state == BUSY:
            self.owner.watch(self, writable=True)

    def writable(self) -> None:
        """Go on with the connect, the handshake or the request: the socket takes more."""
        if self.state == CONNECTING:
            if self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.drop("refused")
                return
            if self.owner.context is not None and self._tls is None:
                self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
                self._tls = self.owner.context.wrap_bio(
                    self._incoming, self._outgoing, server_hostname=self.owner.host
                )
            if self._tls is not None:
                self._shake()
            else:
                self._ready()
            return
        self._push()
        if not self._out and self.state != CLOSED:
            self.owner.watch(self, writable=False)

    def readable(self) -> None:
        """Receive once, stamp, commit, and look for the frame's end."""
        journal = self.journal
        at = journal.position
        if at > journal.limit:
            raise journal.full()
        if self._tls is not None or self.state == CONNECTING:
            self._readable_tls()
            return
        view = journal.view
        try:
            size, extra, _, _ = self.sock.recvmsg_into((view[at + HEAD : at + HEAD + READ],), stamps.ANCILLARY)
        except BlockingIOError:
            return
        except OSError:
            self.drop("reset")
            return
        now = monotonic_ns()
        if not size:
            self.drop("eof")
            return
        journal.commit(DATA, self.index, now, size, extra[0][2] if extra else b"")
        self._frame(view[at + HEAD : at + HEAD + size])

    def drop(self, why: str) -> None:
        """Close the socket and tell the owner."""
        self.close()
        self.owner.lost(self, why)

    def close(self) -> None:
        """Close the socket without a word."""
        self.state = CLOSED
        self._tls = None
        self._out = memoryview(b"")
        self.sock.close()

    def _push(self) -> None:
        """Hand bytes to the kernel; the stamp before the call that takes the last one is `sent`."""
        while self._out:
            now = monotonic_ns()
            try:
                taken = self.sock.send(self._out)
            except BlockingIOError:
                return
            except OSError:
                # The answer to a request the server did not read to its end may still be waiting.
                self._out = memoryview(b"")
                return
            if taken < len(self._out):
                self._out = self._out[taken:]
                continue
            self._out = memoryview(b"")
            if self.state == BUSY:
                self.since = now
                fields = SENT_FIELDS.pack(self.due_ns, self.connect_ns, self.number)
                self.journal.append(SENT, self.index, now, fields)
                self.connect_ns = -1

    def _frame(self, data: memoryview | bytes) -> None:
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            if not self.complete:
                self.drop("bad http")
                return
            self.keep_alive = False
        if self.complete:
            if self._out:
                self.keep_alive = False  # answered before it was all sent: the rest would garble the next request
            if self.state == BUSY:
                self.owner.answered(self)
            else:
                self.drop("eof")  # an answer nobody asked for, such as 408: the server is about to close

    def _readable_tls(self) -> None:
        try:
            data, extra, _, _ = self.sock.recvmsg(READ, stamps.ANCILLARY)
        except BlockingIOError:
            return
        except OSError:
            self.drop("reset" if self.state == BUSY else "refused")
            return
        now = monotonic_ns()
        if not data or self._tls is None:
            self.drop("eof" if self.state == BUSY else "refused")
            return
        self._incoming.write(data)
        if self.state == CONNECTING:
            self._shake()
            return
        stamp = extra[0][2] if extra else b""
        while True:
            try:
                plain = self._tls.read(READ)
            except ssl.SSLWantReadError:
                return
            except ssl.SSLError:
                plain = b""
            if not plain:
                self.drop("eof")
                return
            self.journal.append(DATA, self.index, now, plain, stamp)
            self._frame(plain)
            if self._tls is None:
                return

    def _shake(self) -> None:
        if self._tls is None:
            return
        try:
            self._tls.do_handshake()
            done = True
        except ssl.SSLWantReadError:
            done = False
        except ssl.SSLError:
            self.drop("tls")
            return
        self._out = memoryview(self._outgoing.read())
        with contextlib.suppress(OSError):
            self._push()
        if done:
            self._ready()
        else:
            self.owner.watch(self, writable=bool(self._out))

    def _ready(self) -> None:
        now = monotonic_ns()
        self.connect_ns, self.since, self.state = now - self.since, now, IDLE
        self.owner.watch(self, writable=False)
        self.owner.opened(self)


def resolve(plan: Plan) -> tuple[str, int]:
    """Look the plan's host up, once. Raises MeasureError for a name without an address."""
    try:
        found = socket.getaddrinfo(plan.host, plan.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise MeasureError(f"The host {plan.host!r} has no address ({error}): correct it or give one.") from error
    # IPv4 first: servers that listen on `localhost` or 0.0.0.0 often have no IPv6 socket.
    host, port = min(found, key=lambda entry: entry[0] != socket.AF_INET)[4][:2]
    return str(host), int(port)


def tls(plan: Plan) -> ssl.SSLContext | None:
    """Make the TLS context of the plan, None without TLS. Raises MeasureError for an unreadable certificate."""
    try:
        return ssl.create_default_context(cafile=plan.tls_ca) if plan.tls else None
    except OSError as error:
        raise MeasureError(f"The certificate {plan.tls_ca} cannot be used ({error}): correct tls_ca.") from error


def allow_files(wanted: int) -> None:
    """Raise this process's limit of open files to `wanted`. Raises MeasureError beyond the account's own limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if wanted <= soft:
        return
    if hard != resource.RLIM_INFINITY and wanted > hard:
        raise MeasureError(
            f"{wanted} open files are needed for this many connections and this account may have {hard}: "
            "raise `ulimit -n`, or use more workers."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
