"""The longest request that a study may ask, which a server must take before any level begins."""

import pytest

from lib import config, paths
from lib.measure import takings
from tests import mini_study

NEWS = "news: {input_tokens: {mean: 60, spread: 0.2}, output_tokens: {mean: 8, spread: 0.5}, reads_like: a test}"
TALK = (
    "news: {input_tokens: {mean: 100}, output_tokens: {mean: 10}, turns: 3, question_tokens: {mean: 20}, "
    "prefix_cache: wanted, reads_like: a test}"
)


@pytest.fixture
def study_of(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "CONFIG", tmp_path / "config")
    mini_study.prepare(tmp_path)

    def study(**changes):
        path = tmp_path / "config" / "mini" / "study.yaml"
        text = mini_study.STUDY
        for old, new in changes.values():
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        return config.load_study("mini")

    return study


def test_single_requests_are_as_long_as_their_distributions_reach(study_of):
    assert takings.longest(study_of()) == (72, 12)


def test_a_session_s_last_turn_holds_all_before_it(study_of):
    study = study_of(
        workload=(NEWS, TALK),
        kind=("kind: closed", "kind: sessions"),
        rest=("  - {kind: poisson, rate_rps: 6, workload: news, seconds: 0.6}\n", ""),
    )
    # document 100, three questions of 20, two answers of 10 before the third
    assert takings.longest(study) == (180, 10)


def test_a_trace_says_its_own_lengths(study_of, tmp_path):
    (tmp_path / "config" / "mini" / "day.csv").write_text("arrival_s,input_tokens,output_tokens\n0,30,5\n0.2,90,4\n")
    study = study_of(
        level=("kind: poisson, rate_rps: 6", "kind: trace, trace: day.csv"),
        rest=("  - {kind: closed, concurrency: 3, workload: news, seconds: 0.6}\n", ""),
    )
    assert takings.longest(study) == (90, 4)
