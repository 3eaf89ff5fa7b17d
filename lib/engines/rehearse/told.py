"""What a stand-in is told before the real command line begins: whose pace it keeps and how it fails.

Nothing of it could be read off a real command line, and nothing of it is in one.
"""

import json
from dataclasses import asdict, dataclass

BOS = 1  # tokens that Llama 3 puts before every prompt


@dataclass(frozen=True)
class Told:
    """One rehearsed launch."""

    engine: str  # vllm | tensorrt_llm
    version: str
    precision: str
    contender: str  # among the predictions
    tokenizer: str  # path of a tokenizer.json
    layout: str = "TP8"
    speed: float = 1.0  # how many times faster than predicted
    failure: str = ""

    @property
    def key(self) -> str:
        """Which list of options holds: vllm-0.6.2."""
        return f"{self.engine.replace('_', '-')}-{self.version}"

    @property
    def text(self) -> str:
        """As one word of a command line."""
        return json.dumps(asdict(self))


def of_text(text: str) -> Told:
    """Read what `Told.text` wrote."""
    return Told(**json.loads(text))
