"""A launch from config to record, with real processes: whole, resumed, killed, failed, absent, superseded."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lib import config, paths, records
from lib.analyse import tables
from tests import mini_study

RUN = [sys.executable, str(Path(mini_study.__file__))]


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A miniature study; this process sees its folders too."""
    for name, folder in (("CONFIG", "config"), ("ARTIFACTS", "artifacts"), ("RECORDS", "records")):
        monkeypatch.setattr(paths, name, tmp_path / folder)
    return tmp_path


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A miniature study whose launch `good` was measured."""
    folder = tmp_path_factory.mktemp("taken")
    mini_study.prepare(folder, good={})
    done = take(folder, "good")
    assert done.returncode == 0, done.stderr
    assert not left_behind(folder)
    return folder


@pytest.fixture
def good(root, taken):
    """A copy of it, for a test to go on from."""
    shutil.copytree(taken, root, dirs_exist_ok=True)
    return root


def take(root, launch, clients="", **kwargs):
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT), "CLIENTS": clients}
    return subprocess.run(
        [*RUN, str(root), launch], capture_output=True, text=True, env=environment, check=False, **kwargs
    )


def started(root, launch):
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)}
    return subprocess.Popen(
        [*RUN, str(root), launch], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def record(launch):
    return records.read(paths.record("mini", launch))


def outcome(launch):
    return json.loads(paths.record("mini", launch).with_suffix(".outcome.json").read_text())


def left_behind(root):
    """Processes that still name this test's folder on their command line."""
    found = subprocess.run(["pgrep", "-f", str(root)], capture_output=True, text=True, check=False)
    return found.stdout.split()


def asked(table):
    """What a launch asked: ids, prompts and planned lengths of its measured requests."""
    names = ["request_id", "prompt_hash", "planned_input_tokens", "planned_output_tokens"]
    return {tuple(row.values()) for row in table.select(names).to_pylist()}


def test_a_launch_is_measured_once(good):
    table, meta = record("good").table, record("good").meta
    assert meta["incomplete"] is None and len(meta["takings"]) == 4
    assert {(t["level"], t["repeat"]) for t in meta["takings"]} == {
        (level, repeat) for level in ("closed-3", "poisson-6") for repeat in (0, 1)
    }
    measured = [r for r in table.to_pylist() if r["phase"] == "measured"]
    assert not [r for r in measured if str(r["cause"]).startswith("cut")]
    assert len(measured) >= 20 and {r["status"] for r in measured} == {"complete"}
    assert all(r["output_tokens"] == r["planned_output_tokens"] == len(r["event_ns"]) for r in measured)
    ttft = sorted(r["event_ns"][0] - r["sent_ns"] for r in measured)[len(measured) // 2] / 1e6
    assert 40 <= ttft <= 80  # 30 ms and the first of the 10 ms, plus a busy machine
    telemetry = records.read(paths.record("mini", "good").with_suffix(".telemetry.parquet")).table
    assert {"running", "engine_cpu_percent", "client_cpu_percent"} <= set(telemetry["name"].to_pylist())
    assert not paths.partial("mini", "good").exists()

    before = paths.record("mini", "good").stat().st_mtime_ns
    assert take(good, "good").returncode == 0
    assert paths.record("mini", "good").stat().st_mtime_ns == before


def test_a_run_begins_with_a_probe_that_enters_no_row(good):
    (run,) = record("good").meta["runs"]
    probe, longest = run["probe"], run["probe"]["longest"]
    assert 0 < probe["connect_s"] < 1 and 0.03 < probe["first_token_s"] < probe["total_s"]
    assert (longest["input_tokens"], longest["output_tokens"]) == (72, 12)  # 60 and 8 tokens, spread 0.2 and 0.5
    assert longest["total_s"] > 0.03 + 12 * 0.01
    assert all(row["request_id"].startswith("measured-") for row in record("good").table.to_pylist())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("model", "does not serve the model 'faulty'"),
        ("key", "refuses the key (HTTP 401)"),
        ("no-stream", "does not stream"),
        ("usage", "counts no tokens"),
        ("length", "asked for exactly 5 tokens and gave 1"),
        ("context", "The longest request that this study may ask, 72 tokens in and 12 out, fails"),
    ],
)
def test_a_faulty_server_is_named_before_any_level(root, fault, says):
    mini_study.prepare(root, faulty={"fault": fault})
    done = take(root, "faulty")
    assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if line]) == 1
    assert outcome("faulty")["status"] == "failed" and says in outcome("faulty")["reason"]
    assert not paths.record("mini", "faulty").exists() and not left_behind(root)
    assert not list(paths.partial("mini", "faulty").glob("r0-*"))  # no level was begun


def test_two_client_processes_lose_and_double_nothing(good):
    mini_study.prepare(good, two={})
    assert take(good, "two", clients="2").returncode == 0
    one, two = record("good"), record("two")
    assert {t["client_processes"] for t in two.meta["takings"]} == {2}
    assert {t["client_processes"] for t in one.meta["takings"]} == {1}
    rows = two.table.to_pylist()
    measured = [r for r in rows if r["phase"] == "measured"]
    assert {r["status"] for r in measured} == {"complete"}
    ids = [(r["run"], r["repeat"], r["level"], r["request_id"]) for r in rows]
    assert len(ids) == len(set(ids))
    assert all(r["request_id"].endswith(f"-{r['index']}") for r in rows)  # every id has kept its place in the plan
    open_ids = [
        {r["request_id"] for r in t.to_pylist() if r["level"] == "poisson-6" and r["phase"] == "measured"}
        for t in (one.table, two.table)
    ]
    assert open_ids[0] == open_ids[1]
    for taking in two.meta["takings"]:
        here = sorted(r["index"] for r in rows if (r["repeat"], r["level"]) == (taking["repeat"], taking["level"]))
        for part in (0, 1):  # each process went down its own half of the list
            mine = [i for i in here if i % 2 == part]
            assert mine == list(range(part, 2 * len(mine), 2))
    planned = {row[0]: row[1:] for row in asked(one.table)}
    assert all(planned.get(i, tuple(rest)) == tuple(rest) for i, *rest in asked(two.table))
    assert not left_behind(good)


def test_a_server_that_dies_in_mid_level_loses_no_finished_level_and_is_resumed(root):
    mini_study.prepare(root, frail={"dies_after": 45})
    first = take(root, "frail")
    assert first.returncode == 2 and "Traceback" not in first.stderr
    assert "ended" in first.stderr and outcome("frail")["status"] == "failed"
    kept = record("frail")
    assert kept.meta["incomplete"] and 1 <= len(kept.meta["takings"]) < 4
    assert not left_behind(root)
    second = take(root, "frail")
    assert second.returncode == 0, second.stderr
    whole = record("frail")
    assert whole.meta["incomplete"] is None and len(whole.meta["takings"]) == 4
    assert asked(kept.table) <= asked(whole.table)
    assert whole.table.slice(0, 3).select(["event_ns"]) == kept.table.slice(0, 3).select(["event_ns"])  # not taken anew


OVERLOADED = mini_study.STUDY.replace("drain_seconds: 10", "drain_seconds: 0.6").replace("repeats: 2", "repeats: 1")


def test_an_overload_is_measured_once_and_shown(root):
    """24 requests a second for a server that answers about nine, and 0.6 s to drain: some are never answered."""
    levels = "levels:\n  - {kind: constant, rate_rps: 24, workload: news, seconds: 0.6}\n"
    before, after = OVERLOADED.split("levels:\n")
    study = before + levels + after[after.index("statistics:") :]
    mini_study.prepare(root, study, slow={"in_turn": "true"})
    done = take(root, "slow")
    assert done.returncode == 0, done.stderr
    meta, rows = record("slow").meta, record("slow").table.to_pylist()
    left = [r for r in rows if r["phase"] == "measured" and r["status"] == "unfinished"]
    assert left and all(str(r["cause"]).startswith("cut") for r in left)
    assert meta["retaken"] == [] and len(meta["takings"]) == 1 and not list(paths.RECORDS.rglob("*.retaken*"))


def test_a_search_finds_the_capacity_and_goes_on_where_it_was_killed(root):
    mini_study.prepare(root, good={"crowd": 4})
    study = root / "config" / "mini" / "study.yaml"
    search = "search: {kind: closed, workload: news, lowest: 1, highest: 12, at_most_seconds: 24}\n"
    study.write_text(study.read_text() + search)
    process = started(root, "good")
    partial = paths.partial("mini", "good")

    def probed():
        return [p for p in partial.glob("r0-p*-closed-*.json") if not p.name.endswith(".plan.json")]

    limit = time.monotonic() + 60
    while len(probed()) < 4 and time.monotonic() < limit:  # two takings of the planned level and two probes
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {p.stem: p.with_suffix(".parquet").read_bytes() for p in probed()}
    listed = json.loads((partial / "probes.json").read_text())
    assert len(before) >= 4 and not paths.record("mini", "good").exists()
    limit = time.monotonic() + 8
    while left_behind(root) and time.monotonic() < limit:
        time.sleep(0.1)

    done = take(root, "good")
    assert done.returncode == 0, done.stderr
    table, meta = record("good").table, record("good").meta
    found = meta["search"]
    assert found["capacity"] == 4 and found["next"] in (5, 6) and found["next_answer"] == "no", found
    assert found["seconds"] <= 30 and meta["incomplete"] is None
    # What was finished before is in the record as it was, and first on the path.
    kept = [(p["level"], p["repeat"]) for p in found["path"]]
    assert len(set(kept)) == len(kept) and len(meta["takings"]) == 4 + len(kept)
    wanted = [(f"closed-{p['level']['concurrency']}", p["repeat"]) for p in listed]
    assert kept[: len(wanted)] == wanted
    for key, data in before.items():
        _, repeat, level = key.split("-", 2)
        old = pq.read_table(pa.BufferReader(data))
        rows = pc.and_(pc.equal(table["level"], level), pc.equal(table["repeat"], int(repeat[1:])))
        assert table.filter(rows)["event_ns"].to_pylist() == old["event_ns"].to_pylist()


def test_what_this_computer_cannot_run_is_absent_with_its_reason(root):
    mini_study.prepare(root, odd={"precision": "imaginary"})
    assert take(root, "odd").returncode == 0
    assert outcome("odd")["status"] == "absent" and "no_such_flag" in outcome("odd")["reason"]


def test_impossible_launches_are_refused_with_a_paragraph(root):
    mini_study.prepare(root, bad={"precision": "int2"})
    done = take(root, "bad")
    assert done.returncode == 2 and "has no precision 'int2'" in done.stderr and "Traceback" not in done.stderr


def test_a_damaged_artifact_fails_its_launch_alone(good):
    root = good
    mini_study.prepare(root, other={})
    weights = root / "artifacts" / mini_study.ARTIFACT / "tokenizer.json"
    weights.write_text(weights.read_text().replace("\n", " ", 1))  # as long as before, and still a tokenizer
    done = take(root, "other")
    assert done.returncode == 2 and "is damaged" in done.stderr and outcome("other")["status"] == "failed"
    assert record("good").meta["incomplete"] is None
    study = config.load_study("mini")
    facts = tables.build(study, paths.RECORDS / "mini", root / "tables", about_h100={})
    assert [m["launch"] for m in facts["missing"]] == ["other"] and "damaged" in facts["missing"][0]["reason"]
    assert "good" in facts["launches"]


def test_a_changed_config_puts_the_old_record_aside(good):
    before = record("good").meta["config_hash"]
    path = good / "config" / "mini" / "study.yaml"
    path.write_text(path.read_text().replace("seed: 7", "seed: 8"))
    assert take(good, "good").returncode == 0
    assert record("good").meta["config_hash"] != before
    aside = paths.RECORDS / "mini" / "superseded"
    assert records.read(aside / f"{before}.good.parquet").meta["config_hash"] == before


def test_a_read_only_folder_is_named(root):
    mini_study.prepare(root, good={})
    (root / "records").write_text("a file where a folder should be")
    done = take(root, "good")
    assert done.returncode != 0 and "Traceback" not in done.stderr
