"""Models are built once, known by what decides their content, and refused when damaged."""

import json
import sys

import pytest

from lib import environments, paths
from lib.engines import build, prepare
from lib.errors import ConfigError, EngineError

NAME, CHILD = "smollm2-135m-bf16", "smollm2-135m-int8"

RECIPE = """
import argparse
from pathlib import Path
parser = argparse.ArgumentParser()
parser.add_argument("--out", type=Path)
parser.add_argument("--source", type=Path)
parser.add_argument("--scheme")
args = parser.parse_args()
text = (args.source / "weights").read_text() + args.scheme if args.source else "sixteen bits"
(args.out / "weights").write_text(text)
"""


@pytest.fixture
def recipes(tmp_path, monkeypatch):
    """Tiny recipes that run in this interpreter; everything else is real."""
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(build, "RECIPES", tmp_path)
    monkeypatch.setattr(build, "LOOK_S", 0.02)
    monkeypatch.setattr(environments, "ensure", lambda name: sys.executable)
    for made in build.ARTIFACTS.values():
        (tmp_path / made.script).write_text(RECIPE)
    return tmp_path


def test_an_artifact_is_built_with_what_it_starts_from_and_described(recipes):
    made = build.build(CHILD)
    assert (recipes / "artifacts" / CHILD / "weights").read_text() == "sixteen bitsw8a8"
    assert made == build.manifest(CHILD)
    assert made["bytes"] == len("sixteen bitsw8a8")
    assert made["files"][0]["path"] == "weights"
    assert made["tools"]["torch"].startswith("2.")
    assert build.manifest(NAME)["format"] == "bf16"
    assert not list((recipes / "artifacts").glob("*.tmp"))


def test_it_is_built_once_and_again_when_its_origin_changes(recipes):
    build.build(CHILD)
    weights = recipes / "artifacts" / CHILD / "weights"
    stamp = weights.stat().st_mtime_ns
    build.build(CHILD)
    assert weights.stat().st_mtime_ns == stamp
    (recipes / build.recipe(NAME).script).write_text(RECIPE.replace("sixteen", "16"))
    build.build(CHILD)
    assert weights.read_text() == "16 bitsw8a8"


def test_a_failed_recipe_leaves_nothing_under_the_name(recipes):
    (recipes / build.recipe(NAME).script).write_text(RECIPE + "raise SystemExit('no such tensor')")
    with pytest.raises(EngineError, match=r"could not be built.*no such tensor.*The log is"):
        build.build(NAME)
    assert not (recipes / "artifacts" / NAME).exists()


def test_a_damaged_file_is_named_and_a_short_one_is_built_anew(recipes):
    build.build(NAME)
    weights = recipes / "artifacts" / NAME / "weights"
    assert build.verify(NAME)["files"][0]["found"] == build.manifest(NAME)["files"][0]["sha256"]
    weights.write_text("sixteen bitz")
    with pytest.raises(EngineError, match=rf"weights is damaged.*Remove artifacts/{NAME}"):
        build.verify(NAME)
    weights.write_text("")
    build.build(NAME)
    assert weights.read_text() == "sixteen bits"


def test_a_damaged_manifest(recipes):
    build.build(NAME)
    (recipes / "artifacts" / NAME / "manifest.json").write_text("{")
    with pytest.raises(EngineError, match=r"manifest\.json cannot be read"):
        build.verify(NAME)


def test_read_only_folder(recipes):
    (recipes / "artifacts").write_text("a file where a folder should be")
    with pytest.raises(EngineError, match="Free some space or make the folder writable"):
        build.build(NAME)


def test_too_little_disk(recipes, monkeypatch):
    monkeypatch.setattr(build.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(ConfigError, match=r"needs 0\.8 GB of disk while it is made and 0\.0 GB is free"):
        build.build(NAME)


def test_unknown_artifact():
    with pytest.raises(ConfigError, match=r"no recipe for artifact 'llama'. Artifacts: smollm2-135m-bf16"):
        build.build("llama")


def test_a_profile_needs_its_tokenizer_first_and_sources_before_what_they_make():
    order = build.needed("cpu")
    assert order[0] == NAME
    assert order.index(NAME) < order.index(CHILD)
    assert len(order) == len(set(order))


def test_build_all_tells_what_failed_and_goes_on(recipes, capsys):
    (recipes / build.recipe("smollm2-135m-gguf-q8_0").script).write_text("raise SystemExit('broken')")
    outcome = {m["artifact"]: m for m in prepare.build_all("smoke")}
    assert "broken" in outcome["smollm2-135m-gguf-q8_0"]["failed"]
    assert json.dumps(outcome[NAME]["files"])


WAITS_FOR_THE_OTHER = """
import time
from pathlib import Path
here = Path(__file__).with_suffix(".here")
here.touch()
while len(list(here.parent.glob("*.here"))) < 2:
    time.sleep(0.01)
"""


def test_two_are_built_at_once(recipes):
    assert build.needed("smoke") == [NAME, "smollm2-135m-gguf-q8_0"]
    for name in build.needed("smoke"):
        (recipes / build.recipe(name).script).write_text(WAITS_FOR_THE_OTHER + RECIPE)
    assert [m["artifact"] for m in prepare.build_all("smoke")] == build.needed("smoke")
