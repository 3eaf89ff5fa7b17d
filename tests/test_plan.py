"""What `make plan` says of a study on this computer."""

import pytest

from lib import config, environments, paths
from lib.engines import build, registry
from lib.measure import plan


def line(profile: str, begins: str) -> str:
    return next(text.strip() for text in plan.lines(profile, "default") if text.strip().startswith(begins))


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A computer on which nothing has been made."""
    for where, name in ((paths, "ARTIFACTS"), (paths, "RECORDS"), (environments, "VENVS")):
        monkeypatch.setattr(where, name, tmp_path / name.lower())


def test_disk_counts_what_is_still_to_come(bare, monkeypatch):
    for name in config.launch_names("smoke"):
        monkeypatch.setattr(registry.of(config.load_launch("smoke", name)), "unavailable", lambda launch: None)
    environment = sum(environments.DISK_GB[name] for name in ("vllm-cpu", "llama-cpp", "quantize"))
    models = sum(build.recipe(name).bytes for name in ("smollm2-135m-bf16", "smollm2-135m-gguf-q8_0")) / 1e9
    assert f"; {environment + models:.1f} GB of environments and artifacts are still to come" in line("smoke", "disk:")
    assert line("smoke", "expected:").startswith("expected: about ")


def test_where_nothing_can_run_no_time_is_told(monkeypatch):
    for name in config.launch_names("smoke"):
        monkeypatch.setattr(registry.of(config.load_launch("smoke", name)), "unavailable", lambda launch: "no memory")
    assert line("smoke", "expected:").startswith("expected: nothing is measured here")
    assert "; 0.0 GB of" in line("smoke", "disk:")
