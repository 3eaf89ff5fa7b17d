"""What a chunk of each wire format means: pure functions, one per format, that fold a decoded chunk into a tally.

Formats, with what ends a complete stream, after reading the servers' sources and documents:
  openai-completions, openai-chat   finish_reason (vLLM, llama.cpp, any OpenAI-compatible server)
  llama-cpp                         finish_reason; usage or `timings` on the last chunk; older builds: `stop`
  triton-generate-stream            the server's clean end: no finish_reason, no usage, no [DONE]
  triton-generate-stream-accumulated  likewise, each response repeats the text so far (BLS with accumulate_tokens)
  tensorrt-llm-0.12-completions     [DONE]: finish_reason is always null and usage absent
  tensorrt-llm-0.12-chat            finish_reason or the usage chunk: no [DONE]
  trtllm-serve-completions, trtllm-serve-chat   finish_reason (TensorRT-LLM 1.x)

Refused: nothing; a chunk of another shape raises AttributeError or TypeError, which the caller counts as unparsable.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """What has been seen so far of one answer; filled by the format's fold function."""

    text: list[str] = field(default_factory=list)
    visible: bool = False
    reasoning: bool = False
    role: bool = False
    finish: str | None = None
    usage: dict[str, Any] | None = None
    last_chunk_usage: bool = False
    responses: int = 0  # chunks that stand for a token each, also where their text is empty; where a format has them

    def say(self, text: str) -> None:
        """Take more of the answer's text. Raises TypeError for what is no text."""
        if not isinstance(text, str):
            raise TypeError
        self.text.append(text)

    def end(self, reason: str) -> None:
        """Take the reason why the answer ended. Raises TypeError for what is no text."""
        if not isinstance(reason, str):
            raise TypeError
        self.finish = reason


def completions(chunk: dict[str, Any], tally: Tally) -> bool:
    """Fold one OpenAI text completion chunk; True when it carries output."""
    token = False
    for choice in chunk.get("choices") or ():
        text = choice.get("text")
        if text:
            tally.say(text)
            tally.visible = token = True
        if choice.get("finish_reason"):
            tally.end(choice["finish_reason"])
    return token


def chat(chunk: dict[str, Any], tally: Tally) -> bool:
    """Fold one OpenAI chat chunk: content, reasoning (both spellings), tool calls; True when it carries output."""
    token = False
    for choice in chunk.get("choices") or ():
        delta = choice.get("delta") or {}
        text = delta.get("content") or delta.get("refusal")
        if text:
            tally.say(text)
            tally.visible = token = True
        if delta.get("reasoning_content") or delta.get("reasoning"):
            tally.reasoning = token = True
        for call in delta.get("tool_calls") or ():
            function = call.get("function") or {}
            if function.get("name") or function.get("arguments"):
                tally.say((function.get("name") or "") + (function.get("arguments") or ""))
                tally.visible = token = True
        if "role" in delta and not token:
            tally.role = True
        if choice.get("finish_reason"):
            tally.end(choice["finish_reason"])
    return token


def llama_cpp(chunk: dict[str, Any], tally: Tally) -> bool:
    """Fold one chunk of llama.cpp's completions, OpenAI-shaped or native; True when it carries output."""
    timings = chunk.get("timings")
    if timings and not chunk.get("usage") and "predicted_n" in timings:
        tally.usage = {"prompt_tokens": timings.get("prompt_n"), "completion_tokens": timings["predicted_n"]}
    if "choices" in chunk:
        return completions(chunk, tally)
    if chunk.get("stop"):
        tally.finish = "length" if chunk.get("stop_type") == "limit" or chunk.get("stopped_limit") else "stop"
        if chunk.get("tokens_predicted") is not None:
            tally.usage = {
                "prompt_tokens": chunk.get("tokens_evaluated"),
                "completion_tokens": chunk["tokens_predicted"],
            }
    if chunk.get("content"):
        tally.say(chunk["content"])
        tally.visible = True
        return True
    return False


def triton(chunk: dict[str, Any], tally: Tally) -> bool:
    """Fold one generate_stream response with delta text; True when it carries output."""
    text = chunk.get("text_output")
    tally.responses += text is not None
    if text:
        tally.say(text)
        tally.visible = True
        return True
    return False


def triton_accumulated(chunk: dict[str, Any], tally: Tally) -> bool:
    """Fold one generate_stream response that repeats the text so far; True when the text changed."""
    text = chunk.get("text_output")
    tally.responses += text is not None
    if text and text != "".join(tally.text):
        tally.text.clear()
        tally.say(text)
        tally.visible = True
        return True
    return False


@dataclass(frozen=True, slots=True)
class Format:
    """How to read one wire format: its fold, which evidence (finish, done, usage, close) ends a stream, and whether the
    server counts tokens.
    """

    fold: Callable[[dict[str, Any], Tally], bool]
    ends: frozenset[str]
    counts: bool = True


FINISH = frozenset({"finish"})
FORMATS = {
    "openai-completions": Format(completions, FINISH),
    "openai-chat": Format(chat, FINISH),
    "llama-cpp": Format(llama_cpp, FINISH),
    "triton-generate-stream": Format(triton, frozenset({"close"}), counts=False),
    "triton-generate-stream-accumulated": Format(triton_accumulated, frozenset({"close"}), counts=False),
    "tensorrt-llm-0.12-completions": Format(completions, frozenset({"finish", "done"}), counts=False),
    "tensorrt-llm-0.12-chat": Format(chat, frozenset({"finish", "usage"})),
    "trtllm-serve-completions": Format(completions, FINISH),
    "trtllm-serve-chat": Format(chat, FINISH),
}
