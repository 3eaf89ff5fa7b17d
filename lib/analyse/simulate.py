"""A continuous-batching server in event time: requests queue, prompts are prefilled in chunks, sequences decode
together, memory runs out.

It knows an engine only by its step times and its limits, so that whatever it adds is queueing. Steps between two
events (an arrival, a finish, memory running out) are taken in one stride: their time is the sum of a linear function,
so a long answer costs one line of work.

    policy "chunked"        decoding first, prompts fill the token budget of the same step (today's default in both)
    policy "prefill_first"  whole prompts in steps of their own while decoding waits (vLLM 0.6 at 8k context)
    admission "prompt"      a request enters when its prompt fits; when memory runs out the youngest is recomputed
    admission "reserve"     a request enters when prompt and whole answer fit (TensorRT-LLM guaranteed_no_evict)

Deterministic: it draws nothing; the work it is given was drawn from a seed (lib/analyse/traffic.py). Refuses a
request that can never fit.
"""

from bisect import insort
from collections import OrderedDict, deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import ceil

import numpy as np
from numpy.typing import NDArray

from lib.analyse.steptimes import CONTEXT_STEP, MAX_CONTEXT, StepTimes
from lib.errors import ConfigError

Floats = NDArray[np.float64]
WATERMARK = 0.01  # share of the KV cache kept free at admission (vLLM's default)


@dataclass(frozen=True)
class Engine:
    """Step times and limits of one engine replica: tokens of KV cache, sequences, tokens a step."""

    steps: StepTimes
    kv_tokens: int = 10**12
    max_seqs: int = 256
    token_budget: int = 8192
    policy: str = "chunked"
    admission: str = "prompt"
    prefix_cache: bool = False


@dataclass(frozen=True)
class Work:
    """Requests in the order in which they are issued: tokens in and out (n,), and when they come.

    Open loop: `due_s` (n,). Closed loop: `clients` of them at once; a client issues its next one `think_s` (n,) after
    the last answer. Requests come in sessions of `turns`; a later turn's prompt starts with the whole conversation
    before it.
    """

    inputs: NDArray[np.int64]
    outputs: NDArray[np.int64]
    due_s: Floats | None = None
    clients: int = 0
    think_s: Floats | None = None
    turns: int = 1


@dataclass(frozen=True)
class Trace:
    """What happened: seconds of sending, first token and end (n,); strides as (start, end, tokens) rows; gaps
    between tokens, weighted.
    """

    sent_s: Floats
    first_s: Floats
    done_s: Floats
    outputs: NDArray[np.int64]
    strides: Floats
    gaps: Floats
    preemptions: int
    cached_tokens: int


class _Server:
    """State of one run. `batch` decodes; `partial` is being prefilled; `idle` holds finished turns' caches, oldest
    first.
    """

    def __init__(self, engine: Engine, work: Work) -> None:
        self.engine, self.steps, self.fused = engine, engine.steps, engine.policy == "chunked"
        self.grows = engine.admission == "prompt"
        self.inputs, self.outputs = work.inputs.tolist(), work.outputs.tolist()
        self.turns, self.total = work.turns, len(self.inputs)
        self.think = None if work.think_s is None else work.think_s.tolist()
        self.sent, self.first, self.done = ([float("nan")] * self.total for _ in range(3))
        self.made, self.cached, self.filled = [0] * self.total, [0] * self.total, [0] * self.total
        self.now = self.last_decode = 0.0
        self.decoded = self.batch = self.context_sum = self.allocated = self.idle_tokens = self.preemptions = (
            self.hits
        ) = 0
        self.queue: deque[int] = deque()
        self.partial: list[int] = []
        self.finishing: list[tuple[int, int]] = []  # heap of (decode step, request)
        self.joined: list[float] = []  # times at which sequences joined since the last decode step
        self.idle: OrderedDict[int, int] = OrderedDict()  # session -> tokens
        self.strides: list[tuple[float, float, int]] = []
        self.gaps: list[tuple[float, int]] = []
        self.closed = work.due_s is None
        self.issued = min(work.clients, self.total // self.turns)  # sessions handed out so far
        starts = [0.0 if self.think is None else self.think[i * self.turns] for i in range(self.issued)]
        times = starts if work.due_s is None else work.due_s.tolist()
        self.arrivals = [(t, i * self.turns if self.closed else i) for i, t in enumerate(times)]
        heapify(self.arrivals)

    # -- memory ------------------------------------------------------------------------------------
    def _make_room(self, tokens: int, keep: int = -1) -> bool:
        """Drop idle caches, oldest first, until `tokens` are free; the session `keep` counts as moved, not dropped."""
        spare = self.engine.kv_tokens - self.allocated - tokens
        while self.idle_tokens - self.idle.get(keep, 0) > spare:
            oldest = next((session for session in self.idle if session != keep), None)
            if oldest is None:
                break
            self.idle_tokens -= self.idle.pop(oldest)
        return self.idle_tokens - self.idle.get(keep, 0) <= spare

    def _admit(self, i: int) -> bool:
        whole = self.inputs[i] + (self.made[i] if self.grows else self.outputs[i])
        margin = int(WATERMARK * self.engine.kv_tokens) if self.grows and (self.batch or self.partial) else 0
        session = i // self.turns
        if not self._make_room(whole + margin, session):
            return False
        kept = self.idle.pop(session, 0)
        self.idle_tokens -= kept
        self.cached[i] = min(kept, self.inputs[i] - 1) if not self.made[i] else 0
        self.hits += self.cached[i]
        self.filled[i] = self.cached[i]
        self.allocated += whole
        return True

    def _preempt(self) -> None:
        """Send the youngest decoding sequence back to the head of the queue; its cache is lost and recomputed later."""
        step, i = max(self.finishing, key=lambda entry: (self.first[entry[1]], entry[1]))
        self.finishing.remove((step, i))
        heapify(self.finishing)
        self.made[i] = self.outputs[i] - (step - self.decoded)
        self._release(i, self.inputs[i] + self.made[i] - 1)
        self.queue.appendleft(i)
        self.preemptions += 1

    def _release(self, i: int, context: int) -> None:
        self.batch -= 1
        self.context_sum -= context
        self.allocated -= context if self.grows else self.inputs[i] + self.outputs[i]

    # -- requests ----------------------------------------------------------------------------------
    def _arrive(self) -> None:
        while self.arrivals and self.arrivals[0][0] <= self.now:
            due, i = heappop(self.arrivals)
            self.sent[i] = due
            self.queue.append(i)

    def _token_from_prompt(self, i: int) -> None:
        if self.made[i] == 0:
            self.first[i] = self.now
        self.made[i] += 1
        self.batch += 1
        self.context_sum += self.inputs[i] + self.made[i] - 1
        if self.made[i] == self.outputs[i]:
            self._finish(i)
        else:
            heappush(self.finishing, (self.decoded + self.outputs[i] - self.made[i], i))
            self.joined.append(self.now)

    def _finish(self, i: int) -> None:
        self.done[i] = self.now
        self._release(i, self.inputs[i] + self.outputs[i] - 1)
        if not self.closed:
            return
        following = i + 1
        if following % self.turns == 0:
            following, self.issued = self.issued * self.turns, self.issued + 1
        elif self.engine.prefix_cache:
            self.idle[i // self.turns] = self.inputs[i] + self.outputs[i] - 1
            self.idle_tokens += self.idle[i // self.turns]
        if following < self.total:
            heappush(self.arrivals, (self.now + (0.0 if self.think is None else self.think[following]), following))

    def _schedule(self) -> list[tuple[int, int]]:
        """Prompt chunks of the next step as (request, tokens)."""
        room = self.engine.token_budget - (self.batch if self.fused else 0)
        chunks = []
        for i in self.partial:
            if room > 0:
                tokens = min(room, self.inputs[i] + self.made[i] - self.filled[i])
                chunks.append((i, tokens))
                room -= tokens
        while self.queue and room > 0 and self.batch + len(self.partial) < self.engine.max_seqs:
            i = self.queue[0]
            if (not self.fused and chunks and self.inputs[i] + self.made[i] > room) or not self._admit(i):
                break
            self.queue.popleft()
            insort(self.partial, i)
            tokens = min(room, self.inputs[i] + self.made[i] - self.filled[i])
            chunks.append((i, tokens))
            room -= tokens
        return chunks

    # -- time --------------------------------------------------------------------------------------
    def _advance(self, seconds: float, decoding: int, steps: int, prompt_tokens: int = 0) -> None:
        """Move time on by a stride of `steps` equal steps in which `decoding` sequences each get a token a step."""
        start, self.now = self.now, self.now + seconds
        self.strides.append((start, self.now, decoding * steps + prompt_tokens))
        if not decoding:
            return
        gap = seconds / steps
        old = decoding - len(self.joined)
        if old:
            self.gaps.append((start + gap - self.last_decode, old))
        for since in self.joined:
            self.gaps.append((start + gap - since, 1))
        if steps > 1:
            self.gaps.append((gap, decoding * (steps - 1)))
        self.joined.clear()
        self.last_decode = self.now
        self.decoded += steps
        self.context_sum += decoding * steps
        if self.grows:
            self.allocated += decoding * steps
        while self.finishing and self.finishing[0][0] <= self.decoded:
            self._finish(heappop(self.finishing)[1])

    def _prompt_step(self, chunks: list[tuple[int, int]]) -> None:
        decoding = self.batch if self.fused else 0
        context_s, tokens, complete = 0.0, 0, []
        for i, size in chunks:
            context_s += self.steps.context(size, self.filled[i])
            self.filled[i] += size
            tokens += size
            if self.filled[i] == self.inputs[i] + self.made[i]:
                complete.append(i)
                self.partial.remove(i)
        seconds = self.steps.mixed_s(tokens, context_s, decoding, self.context_sum / decoding if decoding else 0.0)
        self._advance(seconds, decoding, 1, len(complete))
        for i in complete:
            self._token_from_prompt(i)

    def _decode_stride(self) -> None:
        batch, context = self.batch, self.context_sum / self.batch
        steps = self.finishing[0][0] - self.decoded
        if self.grows:
            steps = min(steps, max(1, int((self.engine.kv_tokens - self.allocated - self.idle_tokens) // batch)))
        first = self.steps.decode_s(batch, context)
        last = self.steps.decode_s(batch, context + steps - 1)
        if self.arrivals and batch < self.engine.max_seqs:
            until = max(1, ceil((self.arrivals[0][0] - self.now) / max(first, last)))
            if until < steps:
                steps, last = until, self.steps.decode_s(batch, context + until - 1)
        self._advance(steps * (first + last) / 2, batch, steps)

    def run(self) -> None:
        """Serve until every request has its answer."""
        while self.arrivals or self.queue or self.partial or self.batch:
            self._arrive()
            if not (self.queue or self.partial or self.batch):
                self.now = self.arrivals[0][0]
                continue
            while self.grows and self.batch > 1 and not self._make_room(self.batch):
                self._preempt()
            chunks = self._schedule() if self.queue or self.partial else []
            if chunks:
                self._prompt_step(chunks)
            else:
                self._decode_stride()


def simulate(engine: Engine, work: Work) -> Trace:
    """Serve `work` on `engine`; ConfigError where a request can never fit into the KV cache or the step-time table."""
    largest = int((work.inputs + work.outputs).max())
    if largest > engine.kv_tokens * (1 - WATERMARK) or largest > MAX_CONTEXT - CONTEXT_STEP:
        raise ConfigError(
            f"a request of {largest} tokens does not fit: the KV cache holds {engine.kv_tokens} "
            "tokens and the step times reach "
            f"{MAX_CONTEXT - CONTEXT_STEP}; use shorter prompts or more GPUs per replica."
        )
    server = _Server(engine, work)
    server.run()
    return Trace(
        np.array(server.sent),
        np.array(server.first),
        np.array(server.done),
        work.outputs,
        np.array(server.strides),
        np.array(server.gaps).reshape(-1, 2),
        server.preemptions,
        server.hits,
    )
