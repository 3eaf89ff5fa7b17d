"""A study on GPUs from its canary to its warnings, on a node that is pretended from below: see stand_in_node.py."""

import copy
import importlib.util
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import stand_in_node as node

from lib import config, paths, records
from lib.analyse import tables
from lib.measure import network
from lib.show import article, verdict


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    if not shutil.which("cc") or importlib.util.find_spec("pynvml") is None:
        pytest.skip("NO NODE IS PRETENDED HERE: a C compiler or nvidia-ml-py is missing")
    folder = tmp_path_factory.mktemp("node")
    node.prepare(folder)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _here(root):
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in (("CONFIG", "config"), ("ARTIFACTS", "artifacts"), ("RECORDS", "records")):
            patch.setattr(paths, name, root / folder)
        yield


def run(root, what, mood=""):
    command = [sys.executable, str(Path(node.__file__)), str(root), what]
    return subprocess.run(
        command, env=node.environment(root, mood), cwd=paths.ROOT, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip


def test_a_canary_is_not_sent_where_launches_would_fail(root):
    done = run(root, "canary", "busy")
    assert done.returncode == 2 and "The canary was not sent" in done.stderr and "4242" in done.stderr
    assert not (root / "records" / "node-canary").exists()


def test_a_canary_measures_and_says_what_the_study_will_take(root):
    done = run(root, "canary")
    assert done.returncode == 0, done.stderr
    assert "The canary sang: vllm-fp16 at closed-2 answers" in done.stdout
    meta = records.read(root / "records" / "node-canary" / "vllm-fp16.parquet").meta
    assert meta["kind"] == "measured" and [t["level"] for t in meta["takings"]] == ["closed-2"]
    assert meta["qualifier"] is None and meta["machine"]["gpus"][0]["name"] == "NVIDIA H100 80GB HBM3"
    assert {f["what"]: f["state"] for f in meta["doctor"]}["what fits"] == "ok"


@pytest.fixture(scope="module")
def throttled(root, tmp_path_factory):
    """Facts and tables of a study that was taken while GPU 1 was too hot."""
    done = run(root, "take", "hot")
    assert done.returncode == 0, done.stderr
    study, out = config.load_study(node.PROFILE), tmp_path_factory.mktemp("tables")
    return tables.build(study, root / "records" / node.PROFILE, out, about_h100={}), out


def test_one_gpu_throttled_during_a_level_is_flagged_in_the_tables(throttled):
    facts, out = throttled
    doubts = verdict.doubts(facts, node.LAUNCH, "closed-2")
    assert any(text.startswith("throttled by heat or the board: GPU 1 in 100%") for text in doubts), doubts
    (level,) = pd.read_csv(out / "levels.csv").to_dict("records")
    assert "throttled" in level["warnings"] and level["gpu_throttled_share"] == 0.5
    assert level["gpu_clock_spread_share"] == pytest.approx(1 - 1200 / 1980)
    assert np.isfinite(level["gpu_energy_j_per_token"]) and level["gpu_power_w"] == pytest.approx(701)


def test_and_on_the_page_beside_the_number(throttled, made, tmp_path):
    (doubt,) = [w for w in throttled[0]["warnings"] if "throttled" in w["text"]]
    facts = copy.deepcopy(made[0])
    row = facts["headline"][0]
    facts["warnings"] = [doubt | {"where": f"{row['launch']} {row['level']}"}]
    page = article.render(facts, made[1] / "figures", made[1] / "tables", tmp_path / "page.html").read_text()
    results = page[page.index('aria-label="Results"') :]
    cell = results[results.index('<sup class="warn">') :]
    assert "Warning: throttled by heat or the board: GPU 1" in page
    assert cell.index("<td") > 0 and results.index('<sup class="warn">') < results.index("</tbody>")


def test_the_way_to_the_server_is_measured_and_told(throttled, root):
    note = records.read(root / "records" / node.PROFILE / f"{node.LAUNCH}.parquet").meta["takings"][0]
    way = note["network"]
    assert way["host"] == "127.0.0.1" and len(way["connect_ns"]) == len(way["round_trip_ns"]) >= 10
    told = throttled[0]["network"]
    assert told["where"].startswith("on the server's own computer") and told["reason"] is None
    assert told["round_trip"]["p50"]["value"] == pytest.approx(np.median(way["round_trip_ns"]) / 1e6)
    assert told["round_trip"]["p99"]["reason"] == f"p99 needs 368 requests, there are {len(way['round_trip_ns'])}"


def test_a_server_that_does_not_answer_gives_no_value(monkeypatch):
    monkeypatch.setattr(network, "LONGEST_S", 0.1)
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        assert network.measured(deaf.getsockname()[1], "/health")["round_trip_ns"] == []
