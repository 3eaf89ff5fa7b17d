"""Locks that are whole and name no index, one environment for pip and conda users alike, clear refusals."""

import re
import subprocess
import sys
from importlib import metadata

import pytest
import yaml

from lib import environments, paths
from lib.errors import ConfigError

rattler = pytest.importorskip("rattler", reason="conda's parser is in the test environment")

LOCKS = sorted(path for path in paths.ENVS.glob("*.txt") if path.with_suffix(".in").exists())
CONDA = yaml.safe_load((paths.ROOT / "environment.yml").read_text())


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.stem)
def test_every_locked_package_has_hashes_and_no_line_names_an_index(lock):
    text = lock.read_text()
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", text.replace("\\\n", ""))
    packages = [entry for entry in entries if re.match(r"[A-Za-z0-9]", entry)]
    assert packages
    for entry in packages:
        assert re.match(r"[a-z0-9._-]+==\S+", entry), entry
        assert "--hash=sha256:" in entry, entry
    assert not re.search(r"https?://|file:|^--", text, re.MULTILINE)
    never = {"pyairports"} if lock.stem in environments.GPU else set(environments.NEVER)
    assert not set(environments.locked(lock)) & never


def test_the_test_environment_holds_the_studys_versions():
    study, test = environments.locked(paths.ENVS / "study.txt"), environments.locked(paths.ENVS / "test.txt")
    assert {name: test.get(name) for name in study} == study


def test_conda_users_get_the_lock():
    conda = [entry for entry in CONDA["dependencies"] if isinstance(entry, str)]
    pip = [entry["pip"] for entry in CONDA["dependencies"] if isinstance(entry, dict)]
    assert pip == [["-r envs/study.txt"]]
    assert (paths.ROOT / "envs/study.txt").exists()
    specs = {str(spec.name.normalized): spec for spec in (rattler.MatchSpec(entry, strict=True) for entry in conda)}
    assert set(specs) == {"python", "pip", "make"}
    locked = [f"{major}.{minor}" for major, minor in environments.PYTHONS]
    versions = rattler.VersionSpec(str(specs["python"].version))
    allowed = [v for v in ("3.10", "3.11", "3.12", "3.13", "3.14") if versions.matches(rattler.Version(f"{v}.1"))]
    assert allowed == locked
    for channel in CONDA["channels"]:
        assert rattler.Channel(channel).name == channel


def test_only_an_activated_conda_environment_with_the_locked_versions_is_used(tmp_path, monkeypatch):
    lock = tmp_path / "study.txt"
    lock.with_suffix(".in").write_text("pytest   # a comment\n")
    lock.write_text(f"pytest=={metadata.version('pytest')} \\\n    --hash=sha256:00\n")
    monkeypatch.delenv("CONDA_PREFIX", raising=False)
    assert not environments.conda_holds(lock)
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path))
    assert not environments.conda_holds(lock)               # activated, and yet another interpreter runs
    monkeypatch.setenv("CONDA_PREFIX", sys.prefix)
    assert environments.conda_holds(lock)
    lock.write_text("pytest==0.0.1 \\\n    --hash=sha256:00\n")
    assert not environments.conda_holds(lock)


def test_refusals(monkeypatch):
    with pytest.raises(ConfigError, match=r"no environment 'vllm'; envs/ locks .*vllm-cpu"):
        environments.ensure("vllm")
    monkeypatch.setattr(environments, "VENVS", paths.ROOT / "build" / "no-venvs")
    monkeypatch.setattr(environments.sys, "version_info", (3, 10, 0))
    with pytest.raises(ConfigError, match=r"locked for 3\.11 to 3\.13"):
        environments.ensure("llama-cpp")


def test_it_runs_on_a_bare_interpreter():
    """Standard library only: no site-packages at all."""
    done = subprocess.run(
        [sys.executable, "-S", "-E", str(paths.ROOT / "lib" / "environments.py"), "--which", "llama-cpp"],
        capture_output=True, text=True, check=True, cwd="/",
    )
    assert done.stdout.strip() == str(environments.python("llama-cpp"))


def test_a_typing_error_on_the_command_line_is_a_paragraph():
    done = subprocess.run([sys.executable, str(paths.ROOT / "lib" / "environments.py"), "vlm"],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("first-token-sla: There is no environment 'vlm'")
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_what_has_no_lock_says_why():
    with pytest.raises(ConfigError, match=r"No lock can be made for tensorrt-llm-0\.12\.0: its wheel lies on"):
        environments.ensure("tensorrt-llm-0.12.0")


def test_an_old_engine_gets_the_packages_of_its_day(monkeypatch):
    versions = environments.locked(paths.ENVS / "vllm-0.6.2.txt")
    assert (versions["vllm"], versions["torch"]) == ("0.6.2", "2.4.0")
    assert versions["transformers"].startswith("4.45.") and versions["numpy"].startswith("1.")
    monkeypatch.setattr(environments, "VENVS", paths.ROOT / "build" / "no-venvs")
    monkeypatch.setattr(environments.sys, "version_info", (3, 13, 0))
    with pytest.raises(ConfigError, match=r"locked for 3\.11 to 3\.12"):
        environments.ensure("vllm-0.6.2")
