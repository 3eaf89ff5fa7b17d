"""What the test files share: one built study, and the order in which they are taken."""

import fcntl
import json
import os
import shutil

import built
import pytest

from lib.show import pictures

# Files that take longest. A file runs on one worker, so these come first and the short ones fill what is left. What
# times requests to the millisecond stands behind the page's files: `test_make` starts a real engine beside them.
FIRST = ("test_make", "test_article", "test_lint", "test_explorer", "test_publish", "test_plots", "test_quality",
         "test_session", "test_rehearse", "test_fuzz", "test_slurm", "test_torture", "test_loads", "test_limits",
         "test_stand_in_node", "test_inside")  # fmt: skip


def pytest_collection_modifyitems(items):
    """Order the files; the tests of each stay in theirs."""
    places = {name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


@pytest.fixture(scope="session", autouse=True)
def _pictures_are_read_once():
    """Many tests render the page with its same figures."""
    known, read = {}, pictures.read

    def remembered(path):
        if not path.exists():
            return read(path)
        key = path, path.stat().st_mtime_ns, path.stat().st_size
        if key not in known:
            known[key] = read(path)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "read", remembered)
        yield


@pytest.fixture(scope="session")
def whole_study(tmp_path_factory):
    """Facts of a small study, and a folder of its tables and figures; built once, by the worker that needs it first."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "built"
    with shared.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        facts = shared / "tables" / "facts.json"
        if not (shared / "whole").exists():
            shutil.rmtree(shared, ignore_errors=True)
            built.build(shared)
            (shared / "whole").touch()
    folder = tmp_path_factory.mktemp("study") / "built"
    shutil.copytree(shared, folder)
    return json.loads(facts.read_text()), folder


@pytest.fixture(scope="session")
def made(whole_study):
    """The same, where a file has no study of its own."""
    return whole_study
