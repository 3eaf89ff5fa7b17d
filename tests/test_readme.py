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


PLANNED = {"h100": r"all seven launches.*?(\d+) USD", "h100-current": r"(\d+) GPU-hours and (\d+) USD"}
INSIDE = re.search(r"says (\d+), (\d+) and (\d+) GPU-hours \((\d+), (\d+) and (\d+) USD\)", README).groups()


def told(profile: str) -> tuple[str, str]:
    plan = "\n".join(nodeplan.lines(config.load_study(profile)))
    hours, dollars = re.search(r"in all (\d+) GPU-hours, (\d+) USD", plan).groups()
    return hours, dollars


@pytest.mark.parametrize("profile", PLANNED)
def test_hours_and_dollars_are_those_of_the_plan(profile):
    assert re.search(PLANNED[profile], README).groups() == told(profile)[-1 if profile == "h100" else 0 :]


def test_hours_and_dollars_of_the_insides_are_those_of_the_plan():
    assert tuple(zip(INSIDE[:3], INSIDE[3:], strict=True)) == tuple(
        told(profile) for profile in ("h100-lora", "h100-sessions", "h100-inside"))  # fmt: skip
