"""How long one step of an engine takes, as a table: the only thing the simulator knows about an engine.

A step carries new prompt tokens, decoding sequences, or both. Its time is put together from four measured parts (all
ms in the file):

    chunk      t tokens pushed through the layers, as short prompts          a = tokens, b = 0
    context    what one prompt adds by its length and its cached prefix      a = new tokens, b = cached tokens
    attention  what decoding sequences add to a step that has prompts too    a = sequences, b = mean context
    decode     a step of decoding sequences alone                            a = sequences, b = mean context

Between grid points the parts are interpolated linearly, beyond the grid extended. The generator states the error of
this against its own source. Refuses a table that lacks a part or has a time that is not positive where it must be.
"""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lib.errors import ConfigError

PARTS = ("chunk", "context", "attention", "decode")
CONTEXT_STEP = 256  # tokens between two stored contexts
MAX_CONTEXT = 32768  # tokens; longer contexts than any workload here


def _grid(rows: list[Mapping[str, Any]]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Axes a (A,), b (B,) and values (A, B) in seconds of one part; ConfigError where the grid has holes."""
    a = np.unique([float(row["a"]) for row in rows])
    b = np.unique([float(row["b"]) for row in rows])
    values = np.full((a.size, b.size), np.nan)
    for row in rows:
        values[np.searchsorted(a, float(row["a"])), np.searchsorted(b, float(row["b"]))] = float(row["ms"]) / 1e3
    if np.isnan(values).any():
        raise ConfigError(
            f"step-time table: part '{rows[0]['part']}' of '{rows[0]['config']}' has holes in its "
            "grid; make the table again."
        )
    return a, b, values


def _extended(x: NDArray[np.float64], axis: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Linear interpolation of values (N,) over axis (N,) at x, extended by the last slope beyond the end."""
    inside = np.interp(x, axis, values)
    if axis.size < 2:
        return inside
    slope = (values[-1] - values[-2]) / (axis[-1] - axis[-2])
    return np.where(x > axis[-1], values[-1] + slope * (x - axis[-1]), inside)


class StepTimes:
    """Step times of one engine, precision and tensor-parallel size; seconds."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], max_tokens: int = 8192 + 512, max_batch: int = 512) -> None:
        parts: dict[str, list[Mapping[str, Any]]] = {part: [] for part in PARTS}
        for row in rows:
            parts[row["part"]].append(row)
        missing = [part for part in PARTS if not parts[part]]
        if missing:
            raise ConfigError(f"step-time table lacks the part {', '.join(missing)}; make it again with the generator.")
        tokens, _, chunk = _grid(parts["chunk"])
        if chunk.min() <= 0:
            raise ConfigError("step-time table: a chunk takes no time; make the table again with the generator.")
        self._chunk: list[float] = _extended(np.arange(max_tokens + 1, dtype=float), tokens, chunk[:, 0]).tolist()
        self._context_axes = _grid(parts["context"])
        self._attention = self._by_batch(parts["attention"], max_batch)
        self._decode = self._by_batch(parts["decode"], max_batch)
        self.context = lru_cache(maxsize=None)(self._context)

    @staticmethod
    def _by_batch(rows: list[Mapping[str, Any]], max_batch: int) -> list[list[float]]:
        """Row per batch size 0..max_batch: seconds at contexts 0, CONTEXT_STEP, ... MAX_CONTEXT."""
        batches, contexts, values = _grid(rows)
        even = np.arange(0, MAX_CONTEXT + 1, CONTEXT_STEP, dtype=float)
        by_context = np.stack([_extended(even, contexts, line) for line in values])
        sizes = np.arange(max_batch + 1, dtype=float)
        return np.stack([_extended(sizes, batches, column) for column in by_context.T], axis=1).tolist()  # type: ignore[no-any-return]

    def _context(self, new: int, cached: int) -> float:
        """Extra seconds of one prompt of `new` tokens after `cached` tokens."""
        a, b, values = self._context_axes
        return float(np.interp(new, a, [float(np.interp(cached, b, line)) for line in values]))

    @staticmethod
    def _at(lines: list[list[float]], batch: int, context: float) -> float:
        line, place = lines[batch], context / CONTEXT_STEP
        index = int(place)
        low = line[index]
        return low + (line[index + 1] - low) * (place - index)

    def decode_s(self, batch: int, context: float) -> float:
        """Seconds of a step that decodes `batch` sequences of mean `context` tokens."""
        return self._at(self._decode, batch, context)

    def mixed_s(self, new_tokens: int, context_s: float, batch: int, context: float) -> float:
        """Seconds of a step with `new_tokens` of prompts (their `context` times summed in context_s) and `batch`
        decoding ones.
        """
        seconds = self._chunk[new_tokens + batch] + context_s
        return seconds + self._at(self._attention, batch, context) if batch else seconds


def constant(step_s: float, prefill_s: float = 0.0) -> StepTimes:
    """Return an engine whose every decode step takes `step_s` and every prompt `prefill_s`: the server of textbook
    queues.

    With prefill_s = 0 a prompt takes a step as well, since the first token comes out of one.
    """
    first = (prefill_s or step_s) * 1e3
    flat = [("chunk", first), ("context", 0.0), ("attention", 0.0), ("decode", step_s * 1e3)]
    return StepTimes([{"config": "constant", "part": part, "a": 1, "b": 0, "ms": ms} for part, ms in flat])


def write(path: Path, text: str) -> None:
    """Replace a file of data/ whole or not at all."""
    beside = path.with_suffix(path.suffix + ".part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
