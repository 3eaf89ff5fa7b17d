"""A continuous batch that costs time and computes nothing: requests wait, are prefilled, and get a token a step.

A prompt is read whole or, in chunks, over as many steps as the step's budget of tokens makes it. Where the KV cache
cannot hold the next tokens of all, the youngest request loses its own and waits to be read again, as in vLLM. Deadlines
are absolute, so that the pace does not drift; one that cannot be kept is not caught up. Rule: it decides when tokens
come and how many, never how they are sent.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from lib.engines.rehearse.failures import Failure
from lib.engines.rehearse.pace import Pace

DIES_WITH = 1  # exit status of vLLM's server when its engine is gone
ERROR = "error"  # why a sequence ended, besides its length


@dataclass(eq=False)
class Sequence:
    """One request in the batch. `send` is called with the tokens of a step and with how it ended ('' while it runs)."""

    prompt_tokens: int
    wanted: int
    send: Callable[[int, str], None]
    made: int = 0
    gone: bool = False  # its client has left
    cached: int = 0  # tokens of its prompt that the prefix cache holds when it comes
    unread: int = 0  # tokens of its prompt that steps to come must read
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class Limits:
    """What a step may hold, whether it may hold a part of a prompt, how many pass before tokens are sent, the cache."""

    sequences: int = 256
    prompt_tokens: int = 8192
    steps_per_chunk: int = 1
    chunked: bool = False
    kv_tokens: int | None = None  # None: as many as were predicted


class Batch:
    """The batch of one server.

    Parameters
    ----------
    speed : how many times faster than the pace time passes.
    failure : what goes wrong at a token, if anything.
    """

    def __init__(self, pace: Pace, limits: Limits, speed: float = 1.0, failure: Failure | None = None) -> None:
        self.pace, self.limits, self.speed = pace, limits, speed
        self.failure = failure or Failure()
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.kv_tokens = limits.kv_tokens or pace.kv_tokens
        self.prompt_tokens_total = self.generation_tokens_total = self.cached_tokens_total = self.preemptions = 0
        self._arrived = asyncio.Event()
        self._spared = False  # whether the one stream with an error has had it

    def add(self, sequence: Sequence) -> None:
        """Queue a request."""
        self.waiting.append(sequence)
        self._arrived.set()

    @property
    def kv_usage(self) -> float:
        """Share of the KV cache in use."""
        return min(1.0, self._held() / self.kv_tokens)

    def _held(self) -> int:
        return sum(s.prompt_tokens + s.made for s in self.running)

    async def run(self) -> None:
        """Work for ever."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not (self.waiting or self.running):
                self._arrived.clear()
                await self._arrived.wait()
                due = clock()
            decoding = sum(not s.unread for s in self.running)
            new = self._read()
            due = max(due + self.pace.step_s(new, decoding) / self.speed, clock())
            await asyncio.sleep(max(0.0, due - clock()))
            self._step()

    def _read(self) -> int:
        """Go on with prompts begun, and take what fits from the queue; returns the tokens read."""
        tokens, budget = 0, self.limits.prompt_tokens
        for sequence in self.running:
            part = min(sequence.unread, budget - tokens)
            sequence.unread -= part
            tokens += part
        while self.waiting and len(self.running) < self.limits.sequences:
            first = self.waiting[0]
            wanted = first.prompt_tokens + first.made - first.cached
            full = tokens >= budget if self.limits.chunked else bool(tokens) and tokens + wanted > budget
            if full or (self.running and self._held() + first.prompt_tokens + first.made > self.kv_tokens):
                break
            self.waiting.popleft()
            self.running.append(first)
            part = min(wanted, budget - tokens) if self.limits.chunked else wanted
            first.unread = wanted - part
            tokens += part
            if not first.made:
                self.prompt_tokens_total += first.prompt_tokens
                self.cached_tokens_total += first.cached
        return tokens

    def _step(self) -> None:
        every = self.limits.steps_per_chunk
        while len(self.running) > 1 and self._held() + len(self.running) > self.kv_tokens:
            loser = self.running.pop()
            loser.cached = loser.unread = 0
            self.waiting.appendleft(loser)
            self.preemptions += 1
        for sequence in [s for s in self.running if not s.unread]:
            sequence.made += 1
            self.generation_tokens_total += 1
            last = sequence.made >= sequence.wanted
            if self._fails():
                sequence.gone = True
                sequence.send(0, ERROR)
            elif last or sequence.made % every == 0:
                sequence.send((sequence.made - 1) % every + 1, "length" if last else "")
        over = [s for s in self.running if s.gone or s.made >= s.wanted]
        if over:
            self.running = [s for s in self.running if not (s.gone or s.made >= s.wanted)]
            for sequence in over:
                sequence.ended.set()

    def _fails(self) -> bool:
        """Whether this very token is the one that goes wrong; a dead worker takes the server with it."""
        if self.generation_tokens_total < self.failure.at:
            return False
        if self.failure.kind == "worker-dies":
            print("RuntimeError: a worker process died unexpectedly; shutting down the engine", file=sys.stderr)
            sys.stderr.flush()
            os._exit(DIES_WITH)
        if self.failure.kind == "stream-error" and not self._spared:
            self._spared = True
            return True
        return False
