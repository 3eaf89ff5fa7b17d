"""One level under way: the epoll loop that connects, sends on schedule, receives into the journal, and ends.

One thread, one loop of its own. Why not asyncio or uvloop: a read costs one call into the connection instead of a
handle, a context and a callback, and sends are on schedule to the microsecond where uvloop's timers are whole
milliseconds.

Rule: while the clock runs nothing is built, parsed, encoded or collected. No request is ever sent twice, none is left
without an end entry once it was due. Refused: nothing; a level that ends early says why.
"""

import contextlib
import select
import struct
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from time import monotonic_ns

from lib.measure import journal as jn
from lib.measure import stamps
from lib.measure.clientplan import BURST, CLOSED, Plan, message
from lib.measure.connection import BUSY, CONNECTING, IDLE, Connection, resolve, tls
from lib.measure.connection import CLOSED as DOWN

S = 1_000_000_000
TICK_NS = 100_000_000  # clock samples, timeouts, idle connections
MS = 1_000_000
FRESH_NS = 3 * S  # servers close idle connections after 5 s (uvicorn, cpp-httplib): renew before that
RENEW = 64  # connections renewed per tick at most: more would overflow a short listen backlog
GONE_NS = 2 * S  # no connection to be had for this long and none in flight: the server is gone
COOLDOWN, GONE = "cooldown", "server gone"  # reasons a level ends that are used twice
ISSUE_END, DRAIN_END = -1, -2  # timers that are no request
SKIPPED = b"not sent: the request before it failed"
CLOCK_FIELDS = struct.Struct("=qq")  # a timespec: seconds, nanoseconds


class Level:
    """One plan under way: connections, timers and what is left to send."""

    def __init__(self, plan: Plan, writer: jn.Writer) -> None:
        self.plan = plan
        self.journal = writer
        self.address = resolve(plan)
        self.context = tls(plan)
        self.host = plan.host
        self.messages = [message(plan, request) for request in plan.requests]  # final bytes
        self.epoll = select.epoll()
        self.by_fd: dict[int, Connection] = {}
        self.connections: list[Connection] = []
        self.idle: list[Connection] = []
        self.waiting: dict[Connection, tuple[int, int]] = {}  # connection -> (position, due): sent once it is open
        self.timers: list[tuple[int, int, int, Connection | None]] = []
        self.timer_count = 0
        self.places = {request.id: place for place, request in enumerate(plan.requests)}
        self.followers: dict[int, list[int]] = {}
        for place, request in enumerate(plan.requests):
            if request.after is not None:
                self.followers.setdefault(self.places[request.after], []).append(place)
        self.queue = deque(place for place, request in enumerate(plan.requests) if request.after is None)
        self.busy: dict[Connection, int] = {}
        self.measured: set[int] = set()  # what a level in its cooldown still waits for
        self.left = len(plan.requests)
        self.issued = self.finished = 0
        self.issuing = True
        self.reason = ""
        self.down_since = 0
        self.round = 0

    def new_connection(self) -> Connection:
        """Start opening one more connection."""
        connection = Connection(self, len(self.connections))
        self.connections.append(connection)
        connection.open()
        return connection

    def run(self, start_ns: int) -> str:
        """Send everything from `start_ns` (monotonic) on; returns why the level ended."""
        plan = self.plan
        if plan.load == CLOSED:
            slots = self.connections[: min(plan.concurrency, len(self.queue))]
            spread = 0.0 if plan.ramp == BURST else plan.ramp_s / len(slots)
            starts = plan.starts_s or [slot * spread for slot in range(len(slots))]
            for start_s, connection in zip(starts, slots, strict=False):
                self._at(start_ns + int(start_s * S), self.queue.popleft(), connection)
        else:
            self.idle = [c for c in self.connections if c.state == IDLE]
            for place in self.queue:
                self._at(start_ns + int((plan.requests[place].due_s or 0.0) * S), place, None)
            self.queue.clear()
        if plan.issue_s is not None:
            self._at(start_ns + int(plan.issue_s * S), ISSUE_END, None)
            self._at(start_ns + int((plan.issue_s + plan.drain_s) * S), DRAIN_END, None)
        try:
            self._loop()
            self.stop("finished" if self.issuing else "issue limit")
        except jn.JournalFull:
            self.stop("journal full")
        with contextlib.suppress(jn.JournalFull):
            self._cut()
            self._tick(monotonic_ns())
        return self.reason

    def _loop(self) -> None:
        tick = 0
        while self.left and not self.reason:
            now = monotonic_ns()
            while self.timers and self.timers[0][0] <= now:
                due, _, place, connection = heappop(self.timers)
                if place >= 0:
                    self._send(place, due, connection)
                elif place == DRAIN_END:
                    self.stop("drain limit")
                elif self.plan.cooldown:
                    self._cool_down()
                else:
                    self._stop_issuing()
            if now >= tick:
                self._tick(now)
                tick = now + TICK_NS
            self.poll(min(tick, self.timers[0][0] if self.timers else tick) - monotonic_ns())

    def stop(self, reason: str) -> None:
        """End the level now; the first reason stands."""
        self.reason = self.reason or reason

    def poll(self, wait_ns: int) -> None:
        """Wait for events at most this long and let connections act on them."""
        self.round += 1
        if wait_ns >= 2 * MS:
            events = self.epoll.poll(wait_ns // MS / 1000)
        else:
            if wait_ns > 0:  # epoll waits whole milliseconds; select on the epoll itself waits microseconds
                select.select((self.epoll,), (), (), wait_ns / S)
            events = self.epoll.poll(0)
        for fd, event in events:
            connection = self.by_fd[fd]
            if connection.round == self.round:
                continue  # closed and opened again within this round: the event was the old socket's
            if event & select.EPOLLOUT or (connection.state == CONNECTING and event & ~select.EPOLLIN):
                connection.writable()
            if event & ~select.EPOLLOUT and connection.state != DOWN:
                connection.readable()

    def _at(self, when: int, place: int, connection: Connection | None) -> None:
        self.timer_count += 1
        heappush(self.timers, (when, self.timer_count, place, connection))

    def _send(self, place: int, due: int, connection: Connection | None) -> None:
        if not self.issuing:
            return
        while connection is None:
            candidate = self.idle.pop() if self.idle else self.new_connection()
            if candidate.state in (IDLE, CONNECTING) and candidate not in self.waiting:
                connection = candidate
            elif candidate.state == DOWN:
                candidate.open()
                connection = candidate
        self.issued += 1
        if connection.state == IDLE:
            self.busy[connection] = place
            connection.begin(self.plan.indices[place], self.messages[place], due)
        else:
            self.waiting[connection] = (place, due)
            if connection.state == DOWN and not self.down_since:
                connection.open()

    def _finish(self, connection: Connection | None, place: int, cause: str, ok: bool) -> None:
        """Close one request's account, release what waits for it and give its slot new work."""
        now = monotonic_ns()
        self.journal.append(jn.END, self.plan.indices[place], now, cause.encode())
        self.left -= 1
        self.finished += 1
        if place in self.measured:
            self.measured.remove(place)
            if not self.measured:
                self.stop(COOLDOWN)
        followers: Sequence[int] = self.followers.get(place, ())
        if not ok:
            self._skip(followers)
            followers = ()
        if not self.issuing:
            return
        if self.plan.load == CLOSED:
            for follower in followers[1:]:
                self.queue.appendleft(follower)
            if connection is not None and (followers or self.queue):
                following = followers[0] if followers else self.queue.popleft()
                think = int(self.plan.requests[following].think_s * S)
                if think or connection.state != IDLE:
                    self._at(now + think, following, connection)
                else:
                    self._send(following, now, connection)
        else:
            for follower in followers:
                self._at(now + int(self.plan.requests[follower].think_s * S), follower, None)

    def _skip(self, places: Sequence[int]) -> None:
        """Account for requests that will not be sent because the one before them failed, and for theirs."""
        skipped = list(places)
        while skipped:
            place = skipped.pop()
            self.journal.append(jn.END, self.plan.indices[place], monotonic_ns(), SKIPPED)
            self.left -= 1
            skipped.extend(self.followers.get(place, ()))

    def _drop_waiting(self, cause: str) -> None:
        """Account for requests that were due and never got a connection."""
        for place, due in self.waiting.values():
            self.journal.append(jn.DUE, self.plan.indices[place], due)
            self._finish(None, place, cause, ok=False)
        self.waiting.clear()

    def _tick(self, now: int) -> None:
        mono, wall = stamps.sample()
        self.journal.append(jn.CLOCK, jn.NO_REQUEST, mono, kernel=CLOCK_FIELDS.pack(*divmod(wall, S)))
        self.journal.progress(self.issued, self.finished)
        limit = now - int(self.plan.timeout_s * S)
        renewals = 0
        for connection in self.connections:
            if connection.state == BUSY and connection.since < limit:
                connection.close()
                self._ended(connection, "timeout")
            elif connection.state == IDLE and connection.since < now - FRESH_NS and renewals < RENEW:
                renewals += 1
                connection.close()
                connection.open()
            elif connection.state == CONNECTING and connection.since < now - 10 * S:
                connection.drop("refused")
            elif connection.state == DOWN and (connection in self.waiting or self.issuing):
                connection.open()
        if self.down_since and now - self.down_since > GONE_NS and not self.busy:
            self.stop(GONE)

    def _stop_issuing(self) -> None:
        self.issuing = False
        self._drop_waiting("not sent: no connection before the issue limit")
        self.queue.clear()
        self.left = len(self.busy)

    def _cool_down(self) -> None:
        """Keep the load up until all that were due before now have ended, then end the level."""
        self.measured = {*self.busy.values(), *(place for place, _ in self.waiting.values())}
        if not self.measured:
            self.stop(COOLDOWN)

    def _cut(self) -> None:
        """Account for what is still under way when the level ends."""
        self.issuing = False
        self._drop_waiting("connection refused" if self.reason == GONE else f"cut: {self.reason}")
        for place in list(self.busy.values()):
            self._finish(None, place, f"cut: {self.reason}", ok=False)
        for connection in self.connections:
            connection.close()

    def watch(self, connection: Connection, writable: bool) -> None:
        """Watch a connection's socket (Owner)."""
        fd = connection.sock.fileno()
        mask = select.EPOLLIN | (select.EPOLLOUT if writable else 0)
        if self.by_fd.get(fd) is connection:
            with contextlib.suppress(FileNotFoundError):  # a new socket may have the number of the old one
                self.epoll.modify(fd, mask)
                return
        self.epoll.register(fd, mask)
        self.by_fd[fd] = connection

    def opened(self, connection: Connection) -> None:
        """Send what waited for this connection (Owner)."""
        self.down_since = 0
        if connection in self.waiting:
            place, due = self.waiting.pop(connection)
            self.busy[connection] = place
            connection.begin(self.plan.indices[place], self.messages[place], due)
        elif self.plan.load != CLOSED and connection not in self.idle:
            self.idle.append(connection)

    def answered(self, connection: Connection) -> None:
        """Close the account of a request whose answer's frame is complete (Owner)."""
        connection.state, connection.since, connection.index = IDLE, monotonic_ns(), jn.NO_REQUEST
        ok = connection.http_status == 200
        if not (connection.keep_alive and self.plan.reuse):
            connection.close()
            connection.open()
        elif self.plan.load != CLOSED:
            self.idle.append(connection)
        self._finish(connection, self.busy.pop(connection), "", ok)

    def lost(self, connection: Connection, why: str) -> None:
        """End the closed connection's request if it carried one, and renew it (Owner)."""
        if connection in self.busy:
            self._ended(connection, why)
        elif why in ("refused", "tls"):
            self.down_since = self.down_since or monotonic_ns()
        elif self.issuing and monotonic_ns() - connection.since > TICK_NS:
            connection.open()  # one that was closed at once waits for the tick

    def _ended(self, connection: Connection, why: str) -> None:
        place = self.busy.pop(connection)
        # A body without a length ends with its connection; whether it was whole is decided when it is parsed.
        ok = why == "eof" and connection.parser.get_status_code() == 200
        connection.index = jn.NO_REQUEST
        if self.issuing:
            connection.open()
        self._finish(connection, place, why, ok)
