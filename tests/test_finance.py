import re

import pytest

from lib.measure.finance import FIRST_DIGITS, GRAMMAR, KINDS, Writer

SLOT = re.compile(r"{([^}]+)}")


def test_same_seed_same_text_and_another_seed_another_text():
    def page(seed):
        writer = Writer(seed)
        return [writer.opening("call"), *(writer.sentence(kind) for kind in KINDS), writer.question()]

    assert page(1) == page(1)
    assert not set(page(1)) & set(page(2))


@pytest.mark.parametrize("kind", [*KINDS, "question"])
def test_ten_thousand_sentences_all_different_and_well_formed(kind):
    writer = Writer(5)
    end = "?" if kind == "question" else "."
    sentences = [writer.question() if kind == "question" else writer.sentence(kind) for _ in range(10_000)]
    assert len(set(sentences)) == len(sentences)
    for sentence in sentences:
        assert sentence.isascii() and sentence[0].isupper() and sentence.endswith(end)
        assert not re.search(r"[{}]|  | [,.?]|\. |\.\.", sentence), sentence  # ". " would split one sentence into two


@pytest.mark.parametrize("kind", KINDS)
def test_the_grammar_has_room_for_a_hundred_thousand_prompts(kind):
    writer = Writer(11)
    raw = [writer[kind] for _ in range(20_000)]  # expanded straight from the grammar, which may repeat itself
    assert 1 - len(set(raw)) / len(raw) < 0.001


def test_openings_differ_within_eleven_characters():
    writer = Writer(2)
    heads = {writer.opening(kind, form)[:11] for form in ("full", "brief") for kind in KINDS for _ in range(2_000)}
    assert len(heads) == 12_000
    ticks = [writer.opening("news", "tick") for _ in range(2_000)]
    assert len(set(ticks)) == 2_000


@pytest.mark.parametrize("form", ["full", "brief", "tick"])
def test_roles_differ_in_the_first_character_even_with_the_same_seed(form):
    first = {role: {Writer(3, role).opening(kind, form)[0] for kind in KINDS} for role in FIRST_DIGITS}
    assert first["warm-up"] == {"8"} and first["probe"] == {"9"} and first["measured"] <= set("1234567")


def test_every_symbol_of_the_grammar_can_be_expanded_and_is_used():
    writer = Writer(4)
    for symbol, productions in GRAMMAR.items():
        for production in productions:
            assert "{" not in production.format_map(writer), symbol
    used = {slot[0].lower() + slot[1:] for lines in GRAMMAR.values() for line in lines for slot in SLOT.findall(line)}
    drawn_by_name = {*KINDS, *(f"{kind} full" for kind in KINDS), "question", "brief", "tick", "scale", "currency"}
    assert set(GRAMMAR) <= used | drawn_by_name
