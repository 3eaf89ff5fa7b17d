"""A seeded subset of `make torture`: small studies, one process of each killed at a random moment, nothing lost."""

import pytest

from tests.torture import kills


@pytest.mark.slow
def test_whatever_is_killed_nothing_is_lost(tmp_path):
    result = kills.run(3, 5, tmp_path, ("worker", "worker", "make"))
    assert result["trials"] == 3 and result["kills"] >= 2, kills.table(result)
    assert result["losses"] == [], kills.table(result)


def test_trials_go_on_where_an_earlier_sitting_stopped(tmp_path, monkeypatch):
    taken, said = [], []

    def one(kind, seed, folder):
        taken.append(seed)
        wrong = ["lost a row"] if seed == 11 and taken.count(11) == 1 else []
        return {"kind": kind, "seed": seed, "attacks": [], "wrong": wrong, "kept": 1}

    monkeypatch.setattr(kills, "one", one)
    monkeypatch.setattr(kills, "template", lambda kind, folder: None)
    first = kills.run(2, 10, tmp_path, ("worker",), at_once=1, tell=said.append)
    assert first["trials"] == 2 and len(first["losses"]) == 1 and any("LOSS" in line for line in said)
    with (tmp_path / kills.LOG).open("a") as log:
        log.write('{"kind": "worker", "se')  # killed while it wrote
    second = kills.run(3, 10, tmp_path, ("worker",), at_once=1, tell=said.append)
    assert taken == [10, 11, 11, 12] and second["trials"] == 3 and not second["losses"]
    assert kills.run(3, 10, tmp_path, ("worker",), at_once=1, tell=said.append)["trials"] == 3 and len(taken) == 4
    assert [r["seed"] for r in second["lost_before"]] == [11] and "1 lost something" in kills.table(second)
