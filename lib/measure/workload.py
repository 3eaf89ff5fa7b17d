"""What is asked: prompts of exact token length, and sessions of several turns.

What it is for: turning lengths and a seed into requests that are the same for every contender.
What it refuses: lengths that no text reaches under the tokenizer, and prompts that overflow the context. It never cuts
a text off and never pads one.
The rule it keeps: a seed and a tokenizer decide everything. What a contender is called, or answers, decides nothing.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from lib.errors import ConfigError, MeasureError
from lib.measure.exact_text import ExactWriter
from lib.measure.finance import KINDS, Kind, Role, Writer
from lib.measure.lengths import Lengths
from lib.measure.schedule import ThinkShape, think_ns

__all__ = ["Lengths", "Prompt", "Turn", "fingerprint", "load_tokenizer", "prompts", "sessions", "special_tokens"]


@dataclass(frozen=True)
class Prompt:
    """One request's text. `input_tokens` is what the server is to count: the text's tokens and those it adds."""

    text: str
    input_tokens: int
    output_tokens: int
    hash: str


@dataclass(frozen=True)
class Turn:
    """One question of a session. Its text's first `shared_tokens` tokens are the whole text of the turn before."""

    prompt: Prompt
    shared_tokens: int
    think_ns: int


def load_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer.json. Truncation and padding, which some of them carry, are switched off: they falsify counts.

    Raises MeasureError if the file is missing or no tokenizer.
    """
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as why:  # the library raises plain Exception for every fault of a file
        raise MeasureError(f"{path}: cannot be read as a tokenizer ({why}); build the model again.") from why
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def special_tokens(tokenizer: Tokenizer) -> int:
    """How many tokens (BOS, EOS) the tokenizer's own post-processor adds to one text: what an engine that asks adds."""
    return int(tokenizer.num_special_tokens_to_add(False))


def prompts(
    tokenizer: Tokenizer,
    lengths: Sequence[tuple[int, int]],
    seed: int,
    kind: Kind | Literal["mixed"] = "mixed",
    *,
    role: Role = "measured",
    added_tokens: int = 0,
    context_tokens: int | None = None,
) -> list[Prompt]:
    """Write one prompt per pair of lengths, exact under the tokenizer.

    Parameters
    ----------
    lengths : sequence of (input_tokens, output_tokens)
        Input as the server will count it, `added_tokens` included.
    seed : int
        See `schedule.seed_for`.
    kind : {"filing", "call", "news", "mixed"}
        "mixed" takes them in turn.
    role : {"measured", "warm-up", "probe"}
        Prompts of different roles differ in their first byte, whatever their seeds.
    added_tokens : int
        Tokens that the engine puts around the text: 1 for a BOS, more for a chat template. See `special_tokens`.
    context_tokens : int, optional
        The served model's limit for input and output together.

    Returns
    -------
    list of Prompt, in the order of `lengths`; no sentence occurs twice, no two texts share more than 11 leading tokens,
    and the first ones stay the same when more are asked for

    Raises
    ------
    MeasureError
        A length that cannot be reached, or that exceeds the context.
    """
    for asked in lengths:
        _check(*asked, added_tokens, context_tokens)
    writer = ExactWriter(tokenizer, Writer(seed, role))
    kinds: list[Kind] = [KINDS[i % len(KINDS)] if kind == "mixed" else kind for i in range(len(lengths))]
    wanted = [(one, tokens - added_tokens) for one, (tokens, _) in zip(kinds, lengths, strict=True)]
    texts = [writer.text(*one) for one in wanted]  # one by one: how many are asked for must not change the first ones
    return [_prompt(text, *pair) for text, pair in zip(texts, lengths, strict=True)]


def sessions(
    tokenizer: Tokenizer,
    *,
    count: int,
    turns: int,
    document: Lengths,
    question: Lengths,
    answer: Lengths,
    think_s: float,
    think_shape: ThinkShape = "exponential",
    seed: int,
    role: Role = "measured",
    added_tokens: int = 0,
    context_tokens: int | None = None,
) -> list[tuple[Turn, ...]]:
    """Multi-turn sessions: a long document, then short questions, each prompt holding the whole turn before it.

    The server's own answers cannot be part of the next prompt, or each contender would be asked something else: between
    two questions stands a written answer of the output length that was asked for (where no sentence is that short, the
    next question is so much longer). A prefix cache is meant to hit here, on `Turn.shared_tokens`; different sessions
    share nothing. The client pauses `think_ns` before a turn, 0 before the first.

    Parameters
    ----------
    count, turns : int
        Sessions, and questions in each.
    document, question, answer : Lengths
        Tokens of the three parts; `answer` is the output length of a turn.
    think_s : float
        Mean pause in seconds, of shape `think_shape`.

    Returns
    -------
    list of `count` tuples of `turns` Turns; the first sessions stay the same when more are asked for

    Raises
    ------
    MeasureError
        A length that cannot be reached, or a last turn that exceeds the context.
    """
    if count < 1 or turns < 1:
        raise ConfigError(f"{count} sessions of {turns} turns measure nothing; state 1 or more of each.")
    writer = ExactWriter(tokenizer, Writer(seed, role))
    sizes = document.draw(count, seed)
    asked, answered = question.draw(count * turns, seed + 1), answer.draw(count * turns, seed + 2)
    pauses = think_ns(count * turns, think_s, think_shape, seed + 3)
    done = []
    for i in range(count):  # one by one: how many are asked for must not change the first ones
        kind, own = KINDS[i % len(KINDS)], slice(i * turns, (i + 1) * turns)
        text, size, shared, last = writer.text(kind, sizes[i]), sizes[i], 0, 0
        session: list[Turn] = []
        for tokens, output, pause in zip(asked[own], answered[own], pauses[own].tolist(), strict=True):
            if session:
                with suppress(MeasureError):  # an answer too short for a sentence: the question takes its room
                    text, size, last = writer.extended(text, size, kind, last), size + last, 0
                tokens += last
            text, size = writer.extended(text, size, "question", tokens), size + tokens
            _check(size + added_tokens, output, added_tokens, context_tokens)
            prompt = _prompt(text, size + added_tokens, output)
            session.append(Turn(prompt, shared, pause if session else 0))
            shared, last = size, output
        done.append(tuple(session))
    return done


def fingerprint(requests: Iterable[Prompt]) -> str:
    """One hash over texts and lengths, in order: equal for all contenders of a level, or they do not compare."""
    digest = sha256()
    for request in requests:
        digest.update(f"{request.hash} {request.input_tokens} {request.output_tokens}\n".encode())
    return digest.hexdigest()


def _prompt(text: str, input_tokens: int, output_tokens: int) -> Prompt:
    return Prompt(text, input_tokens, output_tokens, sha256(text.encode()).hexdigest())


def _check(input_tokens: int, output_tokens: int, added_tokens: int, context_tokens: int | None) -> None:
    if output_tokens < 1:
        raise MeasureError(f"an output of {output_tokens} tokens leaves nothing to time; ask for 1 or more.")
    if input_tokens - added_tokens < 2:
        raise MeasureError(
            f"an input of {input_tokens} tokens, {added_tokens} of them added by the engine, leaves no room for a text "
            "of two tokens, the least that can differ between requests; ask for longer inputs."
        )
    if context_tokens is not None and input_tokens + output_tokens > context_tokens:
        raise MeasureError(
            f"an input of {input_tokens} and an output of {output_tokens} tokens exceed the served context of "
            f"{context_tokens}; shorten one of them, or serve the model with a longer context."
        )
