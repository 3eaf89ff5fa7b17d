import time
from collections import Counter
from itertools import pairwise

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from lib import paths
from lib.errors import ConfigError, MeasureError
from lib.measure.finance import KINDS, Writer
from lib.measure.lengths import Lengths
from lib.measure.schedule import seed_for
from lib.measure.workload import fingerprint, load_tokenizer, prompts, sessions, special_tokens

LEVEL = seed_for(2024, "c8", repeat=0, run=0, purpose="text")


def trained(pre_tokenizer, normalizer=None):
    """Train a small BPE on our own text; the same one every time."""
    writer = Writer(1)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer:
        tokenizer.normalizer = normalizer
    corpus = [" ".join(writer.sentence(kind) for kind in KINDS) for _ in range(300)]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1_500, show_progress=False, initial_alphabet=alphabet, max_token_length=24)
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


@pytest.fixture(scope="module")
def small():
    digits = pre_tokenizers.Digits(individual_digits=True)
    return trained(pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]))


@pytest.fixture(scope="module", params=["trained here", "of the study's model"])
def tokenizer(request, small):
    if request.param == "trained here":
        return small
    built = sorted(paths.ARTIFACTS.rglob("tokenizer.json"))
    if not built:
        pytest.skip("no tokenizer.json under artifacts/ yet: notebook 01 builds it")
    return load_tokenizer(built[0])


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def sentences(text):
    return [sentence.rstrip(".?") for sentence in text.replace("? ", ". ").split(". ")]


def shared(first, second):
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


@pytest.fixture(scope="module")
def level(tokenizer):
    inputs = Lengths(128, 0.5, "uniform").draw(300, seed=1)
    outputs = Lengths(32, 0.5, "uniform").draw(300, seed=2)
    lengths = list(zip(inputs, outputs, strict=True))
    return lengths, prompts(tokenizer, lengths, LEVEL)


def test_every_prompt_has_exactly_its_length_and_keeps_it_through_decode_and_encode(tokenizer, level):
    lengths, written = level
    assert [(prompt.input_tokens, prompt.output_tokens) for prompt in written] == lengths
    for prompt in written:
        coded = ids(tokenizer, prompt.text)
        assert len(coded) == prompt.input_tokens
        if tokenizer.decoder is not None:
            assert ids(tokenizer, tokenizer.decode(coded)) == coded


def test_no_sentence_occurs_twice_in_a_level(level):
    times = Counter(sentence for prompt in level[1] for sentence in sentences(prompt.text))
    assert len(times) > 800 and set(times.values()) == {1}


def test_no_two_prompts_of_a_level_share_more_than_sixteen_leading_tokens(tokenizer, level):
    coded = sorted(ids(tokenizer, prompt.text) for prompt in level[1])  # neighbours share the most
    assert max(shared(a, b) for a, b in pairwise(coded)) <= 11


def test_levels_and_repeats_share_no_leading_block_either(tokenizer):
    coded = []
    for name in ("c1", "c8", "c64"):
        for repeat in range(3):
            seed = seed_for(2024, name, repeat, 0, "text")
            coded += [ids(tokenizer, prompt.text) for prompt in prompts(tokenizer, [(96, 8)] * 50, seed)]
    coded.sort()
    assert max(shared(a, b) for a, b in pairwise(coded)) < 16  # a cache block of vLLM


def test_same_seed_same_workload_another_seed_another(tokenizer, level):
    lengths, written = level
    again = prompts(tokenizer, lengths, LEVEL)
    assert again == written and fingerprint(again) == fingerprint(written)
    other = prompts(tokenizer, lengths, LEVEL + 1)
    assert fingerprint(other) != fingerprint(written)
    assert not {prompt.hash for prompt in other} & {prompt.hash for prompt in written}


def test_the_first_prompts_do_not_depend_on_how_many_are_asked_for(tokenizer, level):
    lengths, written = level
    assert prompts(tokenizer, lengths[:70], LEVEL) == written[:70]


def test_warm_up_and_probe_prompts_are_disjoint_from_measured_ones_even_with_the_same_seed(tokenizer, level):
    lengths, written = level
    first = {prompt.text[0] for prompt in written}
    for role in ("warm-up", "probe"):
        assert not first & {prompt.text[0] for prompt in prompts(tokenizer, lengths[:50], LEVEL, role=role)}


@pytest.mark.parametrize("kind", [*KINDS, "mixed"])
@pytest.mark.parametrize("tokens", [8, 17, 25, 40, 1024])
def test_short_and_long_lengths_of_every_kind(tokenizer, kind, tokens):
    written = prompts(tokenizer, [(tokens, 4)] * 20, seed=9, kind=kind)
    assert {len(ids(tokenizer, prompt.text)) for prompt in written} == {tokens}
    assert len({prompt.hash for prompt in written}) == 20


def test_tokens_that_the_engine_adds_are_part_of_the_input_length(small):
    with_bos = Tokenizer.from_str(small.to_str())
    with_bos.add_special_tokens(["<s>"])
    bos = ("<s>", with_bos.token_to_id("<s>"))
    with_bos.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[bos])
    assert special_tokens(small) == 0 and special_tokens(with_bos) == 1
    (prompt,) = prompts(with_bos, [(100, 4)], seed=3, added_tokens=special_tokens(with_bos))
    assert prompt.input_tokens == 100 == len(with_bos.encode(prompt.text).ids)
    assert len(ids(with_bos, prompt.text)) == 99


@pytest.mark.parametrize("splits", ["nothing", "sentencepiece"])
def test_tokenizers_that_merge_across_words_are_met_exactly_too(splits):
    if splits == "nothing":
        merging = trained(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    else:
        under = normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")])
        merging = trained(pre_tokenizers.Split("\n", "isolated"), under)
    written = prompts(merging, [(200, 4)] * 30 + [(90, 4)] * 30, seed=5)
    assert [len(ids(merging, prompt.text)) for prompt in written] == [200] * 30 + [90] * 30
    assert any(missed(merging, prompt.text) for prompt in written)  # the exchange of sentences was really needed


def missed(tokenizer, text):
    """Say by how much the sentences' own counts miss the whole."""
    first, *rest = text.split(". ")
    return len(ids(tokenizer, text)) - len(ids(tokenizer, first)) - sum(len(ids(tokenizer, ". " + one)) for one in rest)


@pytest.mark.parametrize(
    ("lengths", "options", "named"),
    [
        ([(1, 8)], {}, "1 tokens"),
        ([(0, 8)], {}, "0 tokens"),
        ([(-5, 8)], {}, "-5 tokens"),
        ([(128, 0)], {}, "output of 0"),
        ([(3, 8)], {"added_tokens": 2}, "2 of them added"),
        ([(128, 8), (2_000, 100)], {"context_tokens": 2_048}, "2048"),
        ([(2, 8)] * 200, {}, "2 text tokens"),
    ],
)
def test_lengths_that_cannot_be_are_refused_in_one_paragraph(small, lengths, options, named):
    with pytest.raises(MeasureError, match=named) as refusal:
        prompts(small, lengths, seed=1, **options)
    assert "\n" not in str(refusal.value) and "; " in str(refusal.value)


def test_an_unreadable_tokenizer_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    for path in (tmp_path / "tokenizer.json", tmp_path / "none.json"):
        with pytest.raises(MeasureError, match=path.name):
            load_tokenizer(path)


def test_truncation_stored_with_a_tokenizer_does_not_falsify_counts(small, tmp_path):
    cutting = Tokenizer.from_str(small.to_str())
    cutting.enable_truncation(64)
    cutting.enable_padding(length=64)
    cutting.save(str(tmp_path / "tokenizer.json"))
    (prompt,) = prompts(load_tokenizer(tmp_path / "tokenizer.json"), [(300, 4)], seed=3)
    assert len(ids(small, prompt.text)) == 300


def test_writing_keeps_up(small):
    began = time.process_time()
    prompts(small, [(128, 8)] * 300, seed=1)
    prompts(small, [(1024, 8)] * 50, seed=1)
    assert time.process_time() - began < 8  # 1 s each is the goal on an idle core; this catches a loop that re-encodes


@pytest.fixture(scope="module")
def talks(tokenizer):
    return sessions(
        tokenizer, count=6, turns=4, document=Lengths(400, 0.2, "uniform"), question=Lengths(50, 0.2, "uniform"),
        answer=Lengths(60, 0.3, "uniform"), think_s=2.0, seed=8, context_tokens=2_048,
    )


def test_each_turn_begins_with_the_whole_turn_before_it(tokenizer, talks):
    assert len(talks) == 6 and all(len(talk) == 4 for talk in talks)
    for talk in talks:
        assert talk[0].shared_tokens == 0 and talk[0].think_ns == 0
        for before, now in pairwise(talk):
            old, new = ids(tokenizer, before.prompt.text), ids(tokenizer, now.prompt.text)
            assert new[: len(old)] == old and now.shared_tokens == len(old)
            assert len(new) == now.prompt.input_tokens
            # the written answer has the output length asked for, the question 40 to 60 tokens
            assert 40 <= len(new) - len(old) - before.prompt.output_tokens <= 60
            assert now.prompt.text.endswith("?") and now.think_ns > 0


def test_sessions_share_nothing_and_depend_on_the_seed(tokenizer, talks):
    coded = sorted(ids(tokenizer, talk[-1].prompt.text) for talk in talks)
    assert max(shared(a, b) for a, b in pairwise(coded)) <= 11
    parts = {"document": Lengths(300), "question": Lengths(50), "answer": Lengths(60), "think_s": 0}
    first, again, other = (sessions(tokenizer, count=1, turns=2, seed=seed, **parts) for seed in (1, 1, 2))
    assert first == again != other


def test_a_session_that_outgrows_the_context_or_has_no_turn_is_refused(small):
    parts = {"document": Lengths(400), "question": Lengths(50), "answer": Lengths(60), "think_s": 1.0, "seed": 1}
    with pytest.raises(MeasureError, match="exceed the served context of 600"):
        sessions(small, count=2, turns=9, context_tokens=600, **parts)
    with pytest.raises(MeasureError, match="question of 3 tokens"):
        sessions(small, count=2, turns=2, **{**parts, "question": Lengths(3)})
    with pytest.raises(ConfigError, match="0 turns"):
        sessions(small, count=2, turns=0, **parts)
