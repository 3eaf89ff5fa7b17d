"""The commands as a person types them, with real engines: the smoke profile from config to page, and then nothing."""

import json
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from lib import paths, records

SMOKE = paths.RECORDS / "smoke"
PAGE = paths.REPORT / "index.html"


def make(*arguments, timeout=1200):
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS", "PYTHONPATH", "STUDY_"))}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=paths.ROOT,
        env=environment,
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def sockets():
    """Sockets named by a UUID, as vLLM's are, that lie where temporary files do."""
    uuid = re.compile(r"[0-9a-f]{8}(-[0-9a-f]+){4}")
    return {path for path in Path(tempfile.gettempdir()).iterdir() if uuid.fullmatch(path.name)}


@pytest.fixture(scope="module")
def smoke():
    """`make report PROFILE=smoke`, once for this module; and which sockets it left behind."""
    before = sockets()
    done = make("report", "PROFILE=smoke")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    done.left = sockets() - before
    return done


@pytest.mark.engines
class TestSmoke:
    def test_both_engines_were_measured_or_say_why_not(self, smoke):
        outcomes = [json.loads(p.read_text()) for p in SMOKE.glob("*.outcome.json")]
        assert {o["launch"] for o in outcomes} == {"llama-cpp-q8_0", "vllm-fp32"}
        assert all(o["status"] == "measured" or (o["status"] == "absent" and o["reason"]) for o in outcomes)
        assert any(o["status"] == "measured" for o in outcomes)
        assert smoke.left == set()

    def test_records_hold_complete_answers_of_the_asked_length(self, smoke):
        for path in SMOKE.glob("*.parquet"):
            if "telemetry" in path.name:
                continue
            record = records.read(path)
            rows = [r for r in record.table.to_pylist() if r["phase"] == "measured"]
            assert rows and all(r["status"] == "complete" for r in rows)
            assert all(r["output_tokens"] == r["planned_output_tokens"] for r in rows)
            assert all(r["input_tokens"] == r["planned_input_tokens"] for r in rows)
            assert all(p["ok"] for p in record.meta["proof"])

    def test_the_page_is_one_file_that_asks_no_network(self, smoke):
        page = PAGE.read_text()
        assert "Content-Security-Policy" in page
        fetched = re.findall(r"""(?:src|href|action|data)\s*=\s*["']?(?!#|data:)([^"'\s>]+)""", page)
        assert [f for f in fetched if f.startswith(("http", "//"))] == []
        assert "url(http" not in page and "@import" not in page

    def test_the_second_run_executes_nothing(self, smoke):
        before = {p: p.stat().st_mtime_ns for p in [*SMOKE.iterdir(), PAGE, *(paths.BUILD / "smoke").iterdir()]}
        start = time.monotonic()
        done = make("report", "PROFILE=smoke")
        took = time.monotonic() - start
        assert done.returncode == 0
        assert {p: p.stat().st_mtime_ns for p in before} == before
        assert took < 15, f"{took:.1f} s"  # 3 s on an idle machine, see LOG.md; CI machines are not idle

    def test_what_is_published_is_verified_and_compared_with_itself(self, smoke):
        for target in (["publish"], ["verify-site"], ["compare", "A=smoke", f"B={paths.REPORT / 'site' / 'tables'}"]):
            done = make(*target, "PROFILE=smoke")
            assert done.returncode == 0, done.stdout + done.stderr
        assert {"index.html", "SHA256SUMS", "tables", "figures"} <= {p.name for p in (paths.REPORT / "site").iterdir()}
        assert list(paths.REPORT.glob("*.tar.gz"))
        assert "nothing changed" in (paths.REPORT / "compare.html").read_text().lower()

    def test_the_explorer_of_the_lab_knows_its_profile(self, smoke):
        target = paths.BUILD / "smoke" / "lab" / "07_explore.ipynb"
        assert make(str(target.relative_to(paths.ROOT)), "PROFILE=smoke").returncode == 0
        cells = json.loads(target.read_text())["cells"]
        (given,) = (c for c in cells if "injected-parameters" in c["metadata"].get("tags", []))
        assert 'profile = "smoke"' in "".join(given["source"])
        assert "build/smoke/lab/07_explore.ipynb" in make("-n", "lab", "PROFILE=smoke").stdout

    def test_a_plot_change_measures_nothing(self, smoke):
        before = {p: p.stat().st_mtime_ns for p in SMOKE.iterdir()}
        (paths.ROOT / "lib" / "show" / "plots.py").touch()
        done = make("-n", "article", "PROFILE=smoke")
        assert "06_figures" in done.stdout and "02_measure" not in done.stdout and "05_tables" not in done.stdout
        assert {p: p.stat().st_mtime_ns for p in SMOKE.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["PROFILE=smokee"], "There is no profile 'smokee' (did you mean 'smoke'?)"),
        (["PROFILE=smoke", "DEPTH=deep"], "depth 'deep' is not defined"),
    ],
)
def test_a_mistake_is_one_paragraph(arguments, says):
    done = make("report", *arguments)
    assert done.returncode != 0 and says in done.stderr
    assert "Traceback" not in done.stderr + done.stdout


def test_help_lists_every_target_with_a_line():
    text = (paths.ROOT / "Makefile").read_text()
    listed = re.findall(r"^  make (\S+) +(\S.*)$", make("help").stdout, flags=re.MULTILINE)
    documented = re.findall(r"^([a-z-]+):.*## ", text, flags=re.MULTILINE)
    assert {name for name, _ in listed} == set(documented) and len(listed) >= 7


def test_plan_prints_every_launch_and_runs_nothing():
    done = make("plan", "PROFILE=cpu")
    assert done.returncode == 0, done.stderr
    for path in (paths.CONFIG / "cpu").glob("*.yaml"):
        assert path.stem == "study" or path.stem in done.stdout
    assert re.search("expected: (about|nothing is measured here)", done.stdout) and "disk:" in done.stdout
    assert "Study lora:" in done.stdout and "llama-cpp-f16-r8" in done.stdout  # taken beside it, in the light version
    assert "vllm-fp32-r8" not in done.stdout
