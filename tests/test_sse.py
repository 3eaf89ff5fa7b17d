import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.measure.sse import EventTooLong, SseParser

PIECES = [
    b"data: a\n\n", b"data:b\n\n", b"data: c\r\n\r\n", b"data: d\r\r", b": ping\n\n", b"event: error\ndata: {}\n\n",
    b"id: 7\nretry: 1\ndata: e\ndata: f\n\n", b"data:\n\n", "data: g\u2028h\u0085i\n\n".encode(), b"\n", b"\r", b"\r\n",
    b"error: {\"code\": 500}\n\n", b"data: [DONE]\n\n", b"nonsense\n\n", "data: \u00e9\U0001f600\n\n".encode(),
]


def parse(cuts: list[bytes]) -> list[tuple[str, bytes]]:
    parser = SseParser()
    events = [event for n, cut in enumerate(cuts) for event in parser.feed(n, cut)]
    last = parser.finish(len(cuts))
    return [(name, data) for _, name, data in [*events, *([last] if last else [])]]


@given(st.lists(st.sampled_from(PIECES), max_size=8), st.booleans(), st.data())
@settings(max_examples=120, deadline=None)
def test_any_split_of_the_same_bytes_gives_the_same_events(pieces, mark, data):
    whole = (b"\xef\xbb\xbf" if mark else b"") + b"".join(pieces)
    places = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=12)))
    cuts = [whole[a:b] for a, b in zip([0, *places], [*places, len(whole)], strict=True)]
    assert parse(cuts) == parse([whole]) == parse([whole[i : i + 1] for i in range(len(whole))])


def test_an_event_carries_the_stamp_of_the_read_that_completed_it():
    parser = SseParser()
    assert parser.feed(10, b"data: he") == []
    assert parser.feed(20, b"llo\n") == []
    assert parser.feed(30, b"\ndata: x\n\n") == [(30, "", b"hello"), (30, "", b"x")]


def test_a_cut_between_cr_and_lf_is_one_line_end():
    parser = SseParser()
    assert parser.feed(1, b"data: a\r") == []
    assert parser.feed(2, b"\n\r") == [(2, "", b"a")]
    assert parser.feed(3, b"\ndata: b\n\n") == [(3, "", b"b")]


def test_byte_order_mark_cut_in_three():
    parser = SseParser()
    cuts = [b"\xef", b"\xbb", b"\xbfdata: a\n\n"]
    assert [parser.feed(i, cut) for i, cut in enumerate(cuts)] == [[], [], [(2, "", b"a")]]


def test_comments_and_unknown_fields_carry_nothing():
    assert parse([b": ping\n\n: x\ndata: A\n\nevent: message\nid: 7\ndata: B\n\ndata:\n\n"]) == [
        ("", b"A"), ("message", b"B"), ("", b""),
    ]


def test_an_event_name_does_not_outlive_its_event():
    assert parse([b"event: error\n\ndata: a\n\n"]) == [("", b"a")]


def test_error_field_of_older_llama_cpp():
    assert parse([b'error: {"code":500}\n\n']) == [("error", b'{"code":500}')]


LONG = b"data: " + b"x" * 100


@pytest.mark.parametrize("chunk", [LONG, b"data: xxxxxxxxxxxxx\n" * 8, LONG + b"\n\n"])
def test_a_line_or_event_beyond_the_limit_is_refused(chunk):
    parser = SseParser(limit=50)
    with pytest.raises(EventTooLong, match="limit of 50"):
        parser.feed(0, b": ok\n\n")
        for i in range(0, len(chunk), 7):
            parser.feed(1, chunk[i : i + 7])


@pytest.mark.parametrize("chunk", [b": " + b"x" * 100 + b"\n\n", LONG + b"\n\n", b"id: " + LONG + b"\n\n"])
def test_a_line_beyond_the_limit_is_refused_in_one_read_as_in_many(chunk):
    with pytest.raises(EventTooLong, match="limit of 50"):
        SseParser(limit=50).feed(0, chunk)


@pytest.mark.parametrize("line", [b"x" * 997, b"data:\n", b"data: x\n", b"event: x\n", b": ping\n", b"\r"])
def test_memory_is_bounded_whatever_comes_without_an_end(line):
    parser = SseParser(limit=20_000)
    chunk = line * (10_000 // len(line))
    tracemalloc.start()
    try:
        for _ in range(60):
            parser.feed(0, chunk)
    except EventTooLong:
        pass
    held = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert held < 500_000
