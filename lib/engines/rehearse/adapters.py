"""What a stand-in knows of LoRA adapters and of prompts it has read before: names, lengths and beginnings, no weights.

An adapter is what its path says, `.../llama-3-70b-lora-r8/adapter-1`, and needs no file: its rank stands in its
artifact's name or its own (`rank-128`). Refused, as engines refuse them: a rank over the limit, an adapter for another
base model, one that is not there. Rule: an adapter's answer is its own name over and over, alone and among others.
"""

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path

COUNT = 8  # adapters in an artifact
PLACE = re.compile(r"adapter-(\d+)")
RANKED = re.compile(r"-r(\d+)")
OVER_LIMIT = re.compile(r"rank-(\d+)")
BLOCK = 16  # tokens that the prefix cache keeps together
PIECE = 32  # characters of a prompt that are looked up together
KEPT = 20_000  # beginnings that are remembered


@dataclass
class Adapters:
    """The adapters of one server; `highest` is the rank it allows, 0 where it serves none."""

    highest: int = 0
    loaded: set[str] = field(default_factory=set)

    def load(self, name: str, path: str) -> str | None:
        """Take an adapter; returns the words of the refusal, None where it is taken."""
        folder = Path(path)
        over, place = OVER_LIMIT.fullmatch(folder.name), PLACE.fullmatch(folder.name)
        ranked = RANKED.search(folder.parent.name)
        if over is None and folder.name != "other-base" and not (place and ranked and 1 <= int(place[1]) <= COUNT):
            return f"No adapter found for {path}"
        rank = int(over[1]) if over else int(ranked[1]) if ranked else 0
        if rank > self.highest:
            return f"LoRA rank {rank} is greater than max_lora_rank {self.highest}."
        if place is None:
            return "The size of tensor a must match the size of tensor b: the adapter is for another base model."
        self.loaded.add(name)
        return None

    def unload(self, name: str) -> str | None:
        """Forget an adapter; returns the words of the refusal, None where it was there."""
        if name not in self.loaded:
            return f"The lora adapter '{name}' cannot be found."
        self.loaded.remove(name)
        return None


@dataclass
class Prefixes:
    """A prefix cache: how much of a prompt came before."""

    on: bool
    seen: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def cached(self, text: str, tokens: int) -> int:
        """Tokens of a prompt's longest known beginning, in whole blocks; the prompt is known from now on."""
        if not self.on:
            return 0
        known, ends = 0, range(PIECE, len(text) + 1, PIECE)
        for end in ends:
            if hash(text[:end]) not in self.seen:
                break
            known = end
        self.seen.update(dict.fromkeys(hash(text[:end]) for end in ends))
        while len(self.seen) > KEPT:
            self.seen.popitem(last=False)
        # The last token is always computed: its output is the first token of the answer.
        return min(tokens - 1, tokens * known // max(1, len(text))) // BLOCK * BLOCK
