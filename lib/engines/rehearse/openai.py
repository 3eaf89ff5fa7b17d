"""The streams of OpenAI-shaped servers, as each generation sends them: completions and chat, usage, end marks, errors.

    vLLM 0.6.2          usage on every chunk unless told otherwise (chat: of that chunk alone); unknown keys refused
    vLLM from 0.24      usage only where asked for, on a chunk of its own; unknown keys ignored
    trtllm-serve 1.2    like it, with a blank behind every event

Shapes after the servers' sources. Rule: an answer has exactly as many tokens as were asked for.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from lib.engines.rehearse.adapters import Adapters, Prefixes
from lib.engines.rehearse.batch import ERROR, Batch, Sequence
from lib.engines.rehearse.serving import Reply, Request

WORD = " word"
FIELDS = {
    "model", "prompt", "messages", "best_of", "echo", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n",
    "presence_penalty", "seed", "stop", "stream", "stream_options", "suffix", "temperature", "top_p", "user",
    "use_beam_search", "top_k", "min_p", "repetition_penalty", "length_penalty", "stop_token_ids",
    "include_stop_str_in_output", "ignore_eos", "min_tokens", "skip_special_tokens", "truncate_prompt_tokens",
    "spaces_between_special_tokens", "allowed_token_ids", "prompt_logprobs", "add_special_tokens", "response_format",
}  # fmt: skip


@dataclass(frozen=True)
class Dialect:
    """How one generation differs from the others."""

    strict: bool = False  # refuses keys it does not know
    usage_by_default: bool = False  # usage and running usage come unless switched off
    chat_counts_chunk: bool = False  # a running usage of chat counts the chunk's own tokens
    blank: str = ""  # what stands between an event's data and its line end
    carries_adapters: bool = False  # a request brings its adapter along instead of naming one as its model


@dataclass
class Answers:
    """Answers completions and chat requests out of a batch."""

    dialect: Dialect
    batch: Batch
    model: str
    context: int
    count: Callable[[str], int]
    adapters: Adapters = field(default_factory=Adapters)
    prefixes: Prefixes = field(default_factory=lambda: Prefixes(on=False))

    async def answer(self, request: Request, reply: Reply) -> None:
        """Answer one request."""
        asked = request.body
        refusal = self._refusal(asked)
        if refusal or asked is None:
            status, text = refusal or (400, "the body is no JSON object")
            reply.whole(status, _error(text, status))
            return
        chat = request.path.endswith("chat/completions")
        text = _text(asked["messages"]) if chat else str(asked["prompt"])
        tokens, wanted = self.count(text), int(asked.get("max_tokens") or 16)
        if tokens + wanted > self.context:
            said = (
                f"This model's maximum context length is {self.context} tokens. However, you requested "
                f"{tokens + wanted} tokens ({tokens} in the prompt, {wanted} in the completion)."
            )
            reply.whole(400, _error(said, 400))
            return
        adapter = (asked.get("lora_request") or {}).get("lora_name") if self.dialect.carries_adapters else None
        model = str(adapter or asked["model"])
        stream = _Stream(self.dialect, asked, chat, model, tokens, reply, WORD if model == self.model else f" {model}")
        sequence = Sequence(tokens, wanted, stream.send, cached=self.prefixes.cached(text, tokens))
        stream.sequence = sequence
        self.batch.add(sequence)
        await sequence.ended.wait()

    def _refusal(self, asked: dict[str, Any] | None) -> tuple[int, str] | None:
        if asked is None or not ("prompt" in asked or "messages" in asked):
            return 400, "Field required: prompt"
        if self.dialect.strict and (strange := sorted(set(asked) - FIELDS)):
            return 400, f"Extra inputs are not permitted: {', '.join(strange)}"
        carried = asked.get("lora_request") if self.dialect.carries_adapters else None
        if carried and (said := self.adapters.load(str(carried["lora_name"]), str(carried["lora_path"]))):
            return 400, said
        if asked.get("model") not in {self.model} | (set() if self.dialect.carries_adapters else self.adapters.loaded):
            return 404, f"The model `{asked.get('model')}` does not exist."
        if not asked.get("stream"):
            return 400, "a rehearsal streams; set stream to true"
        return None


class _Stream:
    """One answer on its way."""

    def __init__(
        self, dialect: Dialect, asked: dict[str, Any], chat: bool, model: str, prompt_tokens: int, reply: Reply,
        word: str,
    ) -> None:  # fmt: skip
        options = asked.get("stream_options") or {}
        self.dialect, self.chat, self.model, self.reply = dialect, chat, model, reply
        self.usage = bool(options.get("include_usage", False))
        self.running = self.usage and bool(options.get("continuous_usage_stats", dialect.usage_by_default))
        self.prompt_tokens, self.sent, self.begun, self.word = prompt_tokens, 0, False, word
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{secrets.token_hex(16)}"
        self.created = int(time.time())
        self.sequence: Sequence | None = None

    def send(self, tokens: int, ended: str) -> None:
        """Send what a step gave."""
        if self.reply.gone and self.sequence is not None:
            self.sequence.gone = True
            return
        if not self.begun:
            self.begun = True
            self.reply.begin()
            if self.chat:
                self._role()
        if ended == ERROR:
            self._event(_error("EngineCore encountered an issue; see the log.", 500))
            self._event("[DONE]")
            return
        self.sent += tokens
        self._chunk(self.word * tokens, ended or None, tokens)
        if ended and self.usage:
            self._event(self._about([]) | {"usage": self._counted(self.sent)})
        if ended:
            self._event("[DONE]")

    def _role(self) -> None:
        # vLLM sends it together with the first token's chunk, trtllm-serve likewise; only TTFT by chunk would differ.
        first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        self._event(self._about([first]))

    def _chunk(self, text: str, ended: str | None, tokens: int) -> None:
        part: dict[str, Any] = {"delta": {"content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **part, "logprobs": None, "finish_reason": ended, "stop_reason": None}
        about = self._about([choice])
        if self.running:
            own = self.chat and self.dialect.chat_counts_chunk
            about["usage"] = self._counted(tokens if own else self.sent)
        self._event(about)

    def _about(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model, "choices": choices}

    def _counted(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": self.prompt_tokens, "completion_tokens": tokens,
                "total_tokens": self.prompt_tokens + tokens}  # fmt: skip

    def _event(self, data: dict[str, Any] | str) -> None:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        blank = "" if text == "[DONE]" else self.dialect.blank
        self.reply.event(text + blank)


def _error(text: str, code: int) -> dict[str, Any]:
    kind = {400: "BadRequestError", 404: "NotFoundError"}.get(code, "InternalServerError")
    return {"error": {"object": "error", "message": text, "type": kind, "param": None, "code": code}}


def _text(messages: list[dict[str, Any]]) -> str:
    return "\n".join(str(message.get("content", "")) for message in messages)
