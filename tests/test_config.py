"""The door: what is wrong is named with its place, the reason and the nearest right thing."""

import pytest
import yaml

from lib import config, paths
from lib.errors import ConfigError


@pytest.fixture
def profile(tmp_path, monkeypatch):
    """A copy of the smoke profile that a test may spoil."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for path in (paths.CONFIG / "smoke").glob("*.yaml"):
        (folder / path.name).write_text(path.read_text())
    monkeypatch.setattr(paths, "CONFIG", tmp_path)
    return folder


def spoil(profile, file, change):
    data = yaml.safe_load((profile / file).read_text())
    change(data)
    (profile / file).write_text(yaml.safe_dump(data))


@pytest.mark.parametrize("name", config.profiles())
def test_every_profile_loads(name):
    study = config.load_study(name)
    assert study.name == name and config.launch_names(name)
    for launch in config.launch_names(name):
        assert config.load_launch(name, launch).name == launch


def test_unknown_profile_names_the_nearest():
    with pytest.raises(ConfigError, match="no profile 'smokee'.*did you mean 'smoke'"):
        config.load_study("smokee")


def test_unknown_launch_and_depth(profile):
    with pytest.raises(ConfigError, match="has no launch 'nope'"):
        config.load_launch("mine", "nope")
    with pytest.raises(ConfigError, match="depth 'fulll' is not defined"):
        config.load_study("mine", "fulll")


def test_misspelt_key_is_refused_with_the_nearest(profile):
    spoil(profile, "study.yaml", lambda d: d["sla"].update(ttft_p95_msec=1))
    with pytest.raises(ConfigError, match=r"unknown key 'sla.ttft_p95_msec' \(did you mean 'ttft_p95_ms'\?\)"):
        config.load_study("mine")


def test_misspelt_key_in_a_level(profile):
    spoil(profile, "study.yaml", lambda d: d["levels"][0].update(concurency=2))
    with pytest.raises(ConfigError, match="did you mean 'concurrency'"):
        config.load_study("mine")


def test_missing_key_and_impossible_value(profile):
    spoil(profile, "study.yaml", lambda d: d.pop("sla"))
    with pytest.raises(ConfigError, match="key 'sla' is missing"):
        config.load_study("mine")
    spoil(profile, "study.yaml", lambda d: d.update(seed="many"))
    with pytest.raises(ConfigError, match="seed"):
        config.load_study("mine")


def test_yaml_that_does_not_parse(profile):
    (profile / "study.yaml").write_text("title: [")
    with pytest.raises(ConfigError, match="cannot be read as YAML"):
        config.load_study("mine")


def test_yaml_is_loaded_safely(profile):
    (profile / "study.yaml").write_text("title: !!python/object/apply:os.system ['true']")
    with pytest.raises(ConfigError):
        config.load_study("mine")


def test_launch_name_with_shell_in_it(profile):
    launch = next(p for p in profile.glob("*.yaml") if p.stem != "study")
    (profile / "x; touch pwned.yaml").write_text(launch.read_text())
    with pytest.raises(ConfigError, match="may hold only letters"):
        config.load_launch("mine", "x; touch pwned")


def test_hash_changes_with_what_decides_the_numbers(profile):
    name = config.launch_names("mine")[0]
    before = config.config_hash(config.load_study("mine"), config.load_launch("mine", name))
    spoil(profile, "study.yaml", lambda d: d.update(seed=d["seed"] + 1))
    assert config.config_hash(config.load_study("mine"), config.load_launch("mine", name)) != before
