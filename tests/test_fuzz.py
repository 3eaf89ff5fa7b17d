"""A hundred thousand random streams over the parser and the decoder; `make torture` goes on to a million."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.torture import streams

INPUTS = 100_000


@pytest.mark.slow
def test_random_streams_are_read_alike_however_they_are_cut_and_crash_nothing():
    # In a process of its own: among a test run's own objects the allocator's pages fill less well.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as own:
        found = own.submit(streams.fuzz, INPUTS, 3).result()
    assert found["failures"] == 0 and found["inputs"] == INPUTS, found["wrong"]
    assert found["grown_mb"] < 50


def test_a_parser_that_depends_on_the_cut_is_found(monkeypatch):
    class Forgetful(streams.SseParser):
        def feed(self, stamp, data):
            return super().feed(stamp, data.rstrip(b"\n") if len(data) < 9 else data)

    monkeypatch.setattr(streams, "SseParser", Forgetful)
    assert streams.fuzz(200, 3)["failures"] > 5


def test_a_parser_that_keeps_what_it_read_is_found(monkeypatch):
    kept = []

    class Hoarding(streams.SseParser):
        def feed(self, stamp, data):
            kept.append(bytes(data) * 200)
            return super().feed(stamp, data)

    monkeypatch.setattr(streams, "SseParser", Hoarding)
    assert streams.fuzz(1000, 3)["grown_mb"] > 100
