"""The README says what is there: its commands exist, its picture is of today's study, its folders are the folders."""

import json
import re

import pytest

from lib import config, paths
from lib.measure import nodeplan

README = (paths.ROOT / "README.md").read_text()


def test_every_command_named_exists():
    targets = set(re.findall(r"^([a-z-]+):", (paths.ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))
    assert {"report", "test", "plan", "lab"} <= named <= targets


def test_the_picture_is_of_todays_study():
    """`make picture` re-makes it after `make report`."""
    origin = json.loads((paths.FIGURES / "readme.json").read_text())
    study = config.load_study(origin["profile"], origin["depth"])
    assert origin["records"]
    for launch, record in origin["records"].items():
        today = config.config_hash(study, config.load_launch(origin["profile"], launch))
        assert record["config_hash"] == today, f"{launch} was measured with another config than today's"
    picture = (paths.FIGURES / "readme.svg").read_text()
    assert origin["stamp"] in picture, "the picture names the records it was drawn from"


def test_the_map_of_folders_is_true():
    tree = re.search(r"```\n(config/.*?)```", README, flags=re.DOTALL)[1]
    for line in tree.splitlines():
        folder = line.split()[0]
        assert (paths.ROOT / ("lib/" + folder if line.startswith("  ") else folder)).is_dir(), folder


THREE = r"says {}, {} and {} GPU-hours \({}, {} and {} USD\)"
HOURS, USD, ANY = r"(?P<hours>\d+)", r"(?P<usd>\d+)", r"\d+"


@pytest.mark.parametrize(("profile", "written"), [
    ("h100", f"all seven launches.*?{USD} USD"),
    ("h100-current", f"{HOURS} GPU-hours and {USD} USD"),
    ("h100-lora", THREE.format(HOURS, ANY, ANY, USD, ANY, ANY)),
    ("h100-sessions", THREE.format(ANY, HOURS, ANY, ANY, USD, ANY)),
    ("h100-inside", THREE.format(ANY, ANY, HOURS, ANY, ANY, USD)),
])
def test_hours_and_dollars_are_those_of_the_plan(profile, written):
    plan = "\n".join(nodeplan.lines(config.load_study(profile)))
    told = re.search(f"in all {HOURS} GPU-hours, {USD} USD", plan).groupdict()
    assert re.search(written, README).groupdict().items() <= told.items()
