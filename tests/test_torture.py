"""A seeded subset of `make torture`: small studies, one process of each killed at a random moment, nothing lost."""

import pytest

from tests.torture import kills, streams


@pytest.mark.slow
def test_whatever_is_killed_nothing_is_lost(tmp_path):
    result = kills.run(3, 5, tmp_path, ("worker", "worker", "make"))
    assert result["trials"] == 3 and result["kills"] >= 2, kills.table(result)
    assert result["losses"] == [], kills.table(result)


def test_random_streams_are_read_alike_however_they_are_cut_and_crash_nothing():
    found = streams.fuzz(5000, 3)
    assert found["failures"] == 0 and found["inputs"] == 5000, found["wrong"]
    assert found["grown_mb"] < 50
