"""Text of an exact number of tokens, from whole sentences.

What it is for: `workload` asks for texts of so many tokens, this module finds the sentences whose counts sum to that.
What it refuses: to cut a sentence, to pad one, or to hand out a text whose own encoding does not have the length.
The rule it keeps: count each sentence once, choose the last ones so that the sum fits, then encode the whole text and
believe only that. Counts add up wherever the tokenizer splits at spaces before it merges (GPT-2, Llama 3, Qwen,
SmolLM2); where they do not, the last sentence is exchanged until the whole is right.
"""

import math
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from statistics import median, quantiles
from typing import Literal

from tokenizers import Tokenizer

from lib.errors import MeasureError
from lib.measure.finance import Form, Kind, Writer

Symbol = Kind | Literal["question"]
Counted = tuple[str, int]  # a sentence and its tokens behind another sentence

BATCH = 256  # sentences encoded at a time
ANCHOR = "A."  # what sentences are counted behind
ROUNDS = 40  # batches drawn in search of one usual length
EXCHANGES = 12  # of a last sentence, before a text is given up
FORMS: tuple[Form, ...] = ("full",) * 2 + ("brief",) * 6 + ("tick", "brief") * 300  # openings tried for one text


class _Stock:
    """Sentences of one kind, counted, by their number of tokens."""

    def __init__(self, draw: Callable[[], str], count: Callable[[Sequence[str]], list[int]]) -> None:
        self._draw = draw
        self._count = count
        self._by_tokens: defaultdict[int, deque[str]] = defaultdict(deque)
        self._order: deque[int] = deque()  # token counts in the order drawn; entries whose sentence is gone are skipped
        first = self._more()
        self._typical = int(median(first))
        self._short = int(quantiles(first, n=20)[0])  # lengths below this are used when at hand, never searched for

    def fill(self, tokens: int) -> list[Counted] | None:
        """Sentences of so many tokens together, or None if there are none that fit."""
        taken: list[Counted] = []
        while tokens > 2 * self._typical:  # what stays is then between one and two typical sentences: always found
            taken.append(self._next(tokens - self._typical))
            tokens -= taken[-1][1]
        end = self.exact(tokens)
        return None if end is None else taken + end

    def exact(self, tokens: int) -> list[Counted] | None:
        """None, one or two sentences of exactly so many tokens."""
        if tokens == 0:
            return []
        for _ in range(ROUNDS):
            if self._by_tokens.get(tokens):
                return [self._take(tokens)]
            for one in range(tokens // 2, 0, -1):
                two = tokens - one
                if self._by_tokens.get(one) and len(self._by_tokens.get(two, ())) > (one == two):
                    return [self._take(one), self._take(two)]
            if tokens < self._short:
                break
            self._more()
        return None

    def _next(self, at_most: int) -> Counted:
        while True:
            for _ in range(len(self._order)):
                tokens = self._order.popleft()
                if self._by_tokens.get(tokens):
                    if tokens <= at_most:
                        return self._take(tokens)
                    self._order.append(tokens)
            self._more()

    def _take(self, tokens: int) -> Counted:
        return self._by_tokens[tokens].popleft(), tokens

    def _more(self) -> list[int]:
        sentences = [self._draw() for _ in range(BATCH)]
        anchor, *behind = self._count([ANCHOR, *(f"{ANCHOR} {sentence}" for sentence in sentences)])
        counts = [tokens - anchor for tokens in behind]
        for sentence, tokens in zip(sentences, counts, strict=True):
            self._by_tokens[tokens].append(sentence)
        self._order.extend(counts)
        return counts


class ExactWriter:
    """Texts of exact length from one `finance.Writer`, under one tokenizer.

    Special tokens (BOS, EOS) are never counted here: they are the engine's, and `workload` adds them.
    """

    def __init__(self, tokenizer: Tokenizer, writer: Writer) -> None:
        self._tokenizer = tokenizer
        self._writer = writer
        self._stocks: dict[Symbol, _Stock] = {}

    def count(self, texts: Sequence[str]) -> list[int]:
        """Tokens of each text."""
        return [len(coded) for coded in self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    def text(self, kind: Kind, tokens: int) -> str:
        """Write a new text of so many tokens. Raises MeasureError where none has that length."""
        shortest = math.inf
        for form in FORMS:
            opening = self._writer.opening(kind, form)
            (size,) = self.count([opening])
            shortest = min(shortest, size)
            text = self._grown(opening, size, kind, tokens - size)
            if text is not None:
                return text
        raise MeasureError(
            f"a prompt ({kind}) of {tokens} text tokens cannot be written; the shortest opening still free under this "
            f"tokenizer has {shortest} tokens, and short texts run out: ask for longer inputs or for fewer requests."
        )

    def extended(self, text: str, size: int, symbol: Symbol, tokens: int) -> str:
        """Append so many tokens to a text of `size` tokens. Raises MeasureError where that is impossible."""
        longer = self._grown(text, size, symbol, tokens)
        if longer is None:
            raise MeasureError(
                f"a {symbol} of {tokens} tokens cannot be written under this tokenizer; ask for a longer one "
                "(most sentences have 15 to 60 tokens)."
            )
        return longer

    def _grown(self, base: str, size: int, symbol: Symbol, tokens: int) -> str | None:
        """Put sentences behind the base, proven by encoding the whole; None where nothing fits."""
        if tokens < 0:
            return None
        stock = self._stock(symbol)
        fill = stock.fill(tokens)
        for _ in range(EXCHANGES):
            if fill is None:
                return None
            whole = " ".join([base, *(sentence for sentence, _ in fill)])
            excess = self.count([whole])[0] - size - tokens
            if excess == 0:
                return whole
            if not fill or fill[-1][1] <= excess:
                return None
            end = stock.fill(fill[-1][1] - excess)
            fill = None if end is None else fill[:-1] + end
        return None

    def _stock(self, symbol: Symbol) -> _Stock:
        if symbol not in self._stocks:
            draw = self._writer.question if symbol == "question" else lambda: self._writer.sentence(symbol)
            self._stocks[symbol] = _Stock(draw, self.count)
        return self._stocks[symbol]
