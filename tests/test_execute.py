"""A notebook's result appears whole or not at all; its refusals read as paragraphs."""

import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from lib import paths
from lib.errors import ConfigError, StudyError
from lib.execute import execute


def notebook(path, *sources, parameters="x = '1'"):
    book = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "language": "python", "display_name": "p"}}
    )
    tagged = nbformat.v4.new_code_cell(parameters)
    tagged.metadata["tags"] = ["parameters"]
    book.cells = [tagged, *map(nbformat.v4.new_code_cell, sources)]
    nbformat.write(book, path)
    return path


def test_executed_copy_appears_and_the_source_is_untouched(tmp_path):
    level = "from traitlets.config import Application\nprint('level', Application.instance().log_level)"
    source = notebook(tmp_path / "a.ipynb", "import lib.paths\nprint('x is', x)", level)
    before = source.read_bytes()
    execute(source, tmp_path / "out" / "a.ipynb", {"x": "007"})
    ran = (tmp_path / "out" / "a.ipynb").read_text()
    assert "x is 007" in ran and "level 50" in ran  # a kernel calls it an error that it is ended
    assert source.read_bytes() == before
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["a.ipynb"]


def test_notebooks_executed_at_once_keep_apart(tmp_path):
    sources = [notebook(tmp_path / f"{i}.ipynb", f"x = {i}", "print('mine:', x)") for i in range(3)]
    running = [
        subprocess.Popen([sys.executable, "-m", "lib.execute", str(source), str(tmp_path / "out" / source.name)])
        for source in sources
    ]
    assert [process.wait(120) for process in running] == [0, 0, 0]
    for i, source in enumerate(sources):
        assert f"mine: {i}" in (tmp_path / "out" / source.name).read_text()
    assert not list(paths.ROOT.glob("kernel-*")), "sockets belong in a folder of their own"


def test_a_failed_notebook_never_looks_up_to_date(tmp_path):
    source = notebook(
        tmp_path / "a.ipynb",
        "from lib.errors import EngineError\nraise EngineError('port 80 is taken: choose another')",
    )
    with pytest.raises(StudyError, match="^port 80 is taken: choose another$"):
        execute(source, tmp_path / "b.ipynb", {})
    assert not (tmp_path / "b.ipynb").exists() and (tmp_path / "b.failed.ipynb").exists()


def test_unknown_parameter_is_refused_before_anything_runs(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "1 / 0")
    with pytest.raises(ConfigError, match="has no parameter lunch; it knows x"):
        execute(source, tmp_path / "b.ipynb", {"lunch": "1"})


def test_a_killed_make_leaves_no_notebook_running(tmp_path):
    mark = tmp_path / "kernel"
    source = notebook(
        tmp_path / "a.ipynb",
        f"import os, time, pathlib\npathlib.Path({str(mark)!r}).write_text(str(os.getpid()))\ntime.sleep(120)",
    )
    command = f"{sys.executable} -m lib.execute {source} {tmp_path / 'b.ipynb'}; true"
    make = subprocess.Popen(["sh", "-c", command], cwd=paths.ROOT, start_new_session=True)
    wait(lambda: mark.exists() and mark.read_text(), 60)
    make.kill()
    make.wait()
    assert wait(lambda: not Path("/proc", mark.read_text()).exists(), 15)
    assert wait(lambda: not list(tmp_path.glob("b*")), 15)     # the kernel goes first, its executor clears up after it


def wait(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_a_killed_kernel_leaves_no_result(tmp_path):
    source = notebook(tmp_path / "a.ipynb", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "print('never')")
    with pytest.raises(StudyError, match="kernel that ran a.ipynb died"):
        execute(source, tmp_path / "b.ipynb", {})
    assert not (tmp_path / "b.ipynb").exists()
