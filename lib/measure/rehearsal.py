"""What a rehearsal needs before it starts: a tokenizer, where the model's own is not on this computer.

Prompts need exact lengths under some tokenizer. A gated model's is not to be had on every laptop; a small one, trained
in a second on the study's own text, stands for it. Rule: a tokenizer that is there is used, and nothing is fetched.
"""

from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lib import records
from lib.config import Launch, Study
from lib.engines.rehearse import engine
from lib.measure.finance import Writer

SENTENCES, VOCABULARY = 600, 1000


def prepare(study: Study, launch: Launch, progress: Callable[[str], None]) -> None:
    """Make what a launch's stand-in needs: a tokenizer, and what the launch's steps would leave."""
    tokenizer(study)
    engine.of(study, launch).prepare(launch, progress)


def tokenizer(study: Study) -> Path:
    """Return the tokenizer.json that a rehearsal counts with; made where none is there."""
    path = engine.tokenizer_path(study)
    if not path.exists():
        writer = Writer(study.seed)
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        made.train_from_iterator((writer.sentence("news") for _ in range(SENTENCES)), trainer)
        records.write_whole(path, made.to_str().encode())
    return path
