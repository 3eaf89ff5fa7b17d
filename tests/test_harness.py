"""lm-evaluation-harness beside a server: what it is told, what is kept, how it fails. A stand-in takes its place."""

import json
import sys
from types import SimpleNamespace

import pytest

from lib import environments
from lib.errors import ConfigError, EngineError, MeasureError
from lib.measure import harness

STAND_IN = """
import json, os, pathlib, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert os.environ["OPENAI_API_KEY"] == "very-secret" and "very-secret" not in " ".join(sys.argv)
if words["--tasks"] == "nonsense":
    sys.exit("ERROR no task nonsense for very-secret")
out = pathlib.Path(words["--output_path"], "m")
out.mkdir(parents=True)
found = {"results": {words["--tasks"]: {"acc,none": 0.5}}, "versions": {words["--tasks"]: 1.0},
         "n-samples": {words["--tasks"]: {"effective": int(words.get("--limit", 9))}}, "config": words["--model_args"]}
(out / "results_now.json").write_text(json.dumps(found))
"""


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server that is alive, and a harness that does as STAND_IN says."""
    (tmp_path / "lm_eval").mkdir()
    (tmp_path / "lm_eval" / "__main__.py").write_text(STAND_IN)
    monkeypatch.setattr(environments, "python", lambda name: sys.executable)
    monkeypatch.setattr(harness, "QUIET", {"PYTHONPATH": str(tmp_path)})
    return SimpleNamespace(port=4711, key="very-secret", check_alive=lambda: None)


LAUNCH = SimpleNamespace(name="small")


def test_what_it_finds_is_kept_with_its_versions(server, tmp_path):
    found = harness.asked(server, LAUNCH, tmp_path, "arc_easy", 5)
    assert found["results"] == {"arc_easy": {"acc,none": 0.5}} and found["versions"] == {"arc_easy": 1.0}
    assert found["samples"] == {"arc_easy": {"effective": 5}} and found["harness"][0].isdecimal()
    assert "very-secret" not in json.dumps(found)
    assert harness.asked(server, LAUNCH, tmp_path, "arc_easy", None)["samples"]["arc_easy"]["effective"] == 9


def test_it_is_pointed_at_the_server_and_at_its_tokenizer(server, tmp_path):
    words = harness.command(server, LAUNCH, tmp_path, "a,b", None, tmp_path / "out")
    told = dict(pair.split("=", 1) for pair in words[words.index("--model_args") + 1].split(","))
    assert told["base_url"] == "http://127.0.0.1:4711/v1/completions" and told["tokenizer"] == str(tmp_path)
    assert words[words.index("--tasks") + 1] == "a,b" and "--limit" not in words


def test_a_task_it_does_not_know_is_told_without_the_key(server, tmp_path):
    with pytest.raises(MeasureError, match=r"status 1 and no result: .*nonsense") as told:
        harness.asked(server, LAUNCH, tmp_path, "nonsense", None)
    assert "very-secret" not in str(told.value)


def test_a_dead_server_is_not_the_harness_s_fault(server, tmp_path):
    def dead():
        raise EngineError("the server died")

    server.check_alive = dead
    with pytest.raises(EngineError, match="the server died"):
        harness.asked(server, LAUNCH, tmp_path, "nonsense", None)


def test_a_server_without_log_probabilities_is_refused_before_it_starts():
    with pytest.raises(ConfigError, match="gives no log-probabilities"):
        harness.take("cpu", "default", "llama-cpp-f16")


@pytest.mark.parametrize(
    ("words", "says"), [(["", "", ""], "Name the launch"), (["vllm-fp32", "x", "ten"], "LIMIT=ten")]
)
def test_mistakes_on_the_command_line_are_told(words, says, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["harness", "cpu", "default", *words])
    with pytest.raises(ConfigError, match=says):
        harness.main()
