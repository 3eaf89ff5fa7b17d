"""What every load tool is told and what every one gives back, so that only the tools themselves differ.

Rule: a tool's result is its own raw stamps, put on the monotonic clock; medians and rates are made of them by one code
for all tools, in the reading half. Beside them stands what the tool itself reported, by its own definitions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Keys of a request that each tool writes itself; whatever else the engine wants goes along as it is.
OWN_KEYS = ("model", "prompt", "stream", "stream_options", "max_tokens")


@dataclass(frozen=True)
class Target:
    """A server and what it is asked.

    port : on 127.0.0.1. model : the name it is served under. prompts : texts, in order; one request each.
    output_tokens : of every answer. concurrency : requests in flight, all started at once. body : (prompt, output
    tokens) -> path and JSON body. tokenizer : folder with the model's tokenizer. key : bearer key or None; it reaches
    a tool by its environment alone. check : raises EngineError once the server is dead. cpus : cores of the client,
    empty for any. limit_s : seconds a tool may take, its start included.
    """

    port: int
    model: str
    prompts: tuple[str, ...]
    output_tokens: int
    concurrency: int
    body: Callable[[str, int], tuple[str, dict[str, Any]]]
    tokenizer: Path
    key: str | None = None
    reuse: bool = True
    check: Callable[[], None] = lambda: None
    cpus: tuple[int, ...] = ()
    limit_s: float = 300.0

    @property
    def url(self) -> str:
        """Its address without a path."""
        return f"http://127.0.0.1:{self.port}"

    def extra(self) -> dict[str, Any]:
        """Keys of a request beyond those that a load tool writes itself: sampling, output length."""
        _, body = self.body("", self.output_tokens)
        return {key: value for key, value in body.items() if key not in OWN_KEYS}


@dataclass(frozen=True)
class Run:
    """One tool on one target.

    rows : one per request: id, sent_ns, event_ns (list), end_ns, on the monotonic clock; output_tokens, shared_reads,
    status (`complete` or `failed`), cause. reported : the tool's own words for ttft_p50_ms, tpot_p50_ms and
    output_tok_s; empty for ours, whose words are made from its rows. usage : cpu_s between first send and last event
    and span_s, its length; peak_mb of all its processes; start_s, from the command to the first send. None where
    unknown.
    """

    rows: list[dict[str, Any]]
    reported: dict[str, float | None] = field(default_factory=dict)
    usage: dict[str, float | None] = field(default_factory=dict)


def row(
    id: str, sent_ns: int, event_ns: list[int], end_ns: int, output_tokens: int | None, cause: str | None
) -> dict[str, Any]:
    """One request of a peer; without a token event it has failed, whatever the tool thinks of it."""
    failed = cause or (None if event_ns else "no token event")
    return {
        "id": id, "sent_ns": sent_ns, "event_ns": event_ns, "end_ns": end_ns, "output_tokens": output_tokens,
        "shared_reads": 0, "status": "failed" if failed else "complete", "cause": failed,
    }  # fmt: skip


def span_ns(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """First send and last event of a run, ns."""
    sent = [one["sent_ns"] for one in rows if one["sent_ns"] is not None]
    last = [one["event_ns"][-1] for one in rows if one["event_ns"]]
    return (min(sent), max(last)) if sent and last else (0, 0)
