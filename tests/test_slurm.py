"""Launches as jobs of a real Slurm: done, failed, cancelled, killed, out of time, and a login shell that goes away.

Needs root and Slurm's packages, and says so where it skips; with CI set it fails instead.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from lib import config, paths, records
from lib.errors import ConfigError, MeasureError
from lib.measure import costs, jobs, slurm
from tests import mini_study, slurm_box, slurm_make

LOGIN = [sys.executable, str(Path(__file__).with_name("slurm_login.py"))]


@pytest.fixture(scope="module")
def box():
    why = slurm_box.lacking()
    if why and os.environ.get("CI"):
        pytest.fail(f"CI must run these tests: {why}")
    if why:
        pytest.skip(f"SLURM IS NOT TESTED HERE: {why}")
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    running = slurm_box.Box(folder)
    try:
        yield running.start()
    finally:
        running.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Miniature studies on a machine of eight GPUs."""
    folder = tmp_path_factory.mktemp("study")
    mini_study.prepare(folder, **{n: {} for n in ("one", "two", "stopped", "late", "lost", "lazy", "held", "frail")},
                       apart={"client": "other-node"})  # fmt: skip
    study = folder / "config" / "mini" / "study.yaml"
    study.write_text(study.read_text().replace("gpus: 0", "gpus: 8").replace("repeats: 2", "repeats: 1"))
    return folder


@pytest.fixture(autouse=True)
def _here(root, monkeypatch):
    for name, folder in (("CONFIG", "config"), ("ARTIFACTS", "artifacts"), ("RECORDS", "records")):
        monkeypatch.setattr(paths, name, root / folder)


def login(box, root, what, name):
    """Start what make would start on the login node."""
    environment = box.environment | {"PYTHONPATH": str(paths.ROOT)}
    command = [*LOGIN, str(root), what, name]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            preexec_fn=in_the_foreground)  # fmt: skip


def in_the_foreground():
    """Let a command heed the terminal, even where these tests run under nohup or in the background."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def told(process):
    """Exit status and last words."""
    _, said = process.communicate(timeout=90)
    assert "Traceback" not in said, said
    return process.returncode, said


def until(true, within=30.0):
    limit = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.05)
    return found


def outcome(name):
    return json.loads(paths.record("mini", name).with_suffix(".outcome.json").read_text())


def job_of(name):
    note = paths.RECORDS / "mini" / f"{name}.job.json"
    return json.loads(until(lambda: note.exists() and note.read_text()))["id"]


def test_two_launches_run_at_once_each_on_a_whole_node_of_its_own(box, root):
    shells = [login(box, root, "take", name) for name in ("one", "two")]
    assert [told(shell)[0] for shell in shells] == [0, 0]
    one, two = (json.loads((root / f"{name}.target").read_text()) for name in ("one", "two"))
    assert {one["node"], two["node"]} == set(slurm_box.NODES)
    assert one["began"] < two["ended"] and two["began"] < one["ended"]
    for seen in (one, two):
        assert seen["gpus"] == "0,1,2,3,4,5,6,7" and not seen["slurm"]
    for name in ("one", "two"):
        assert records.read(paths.record("mini", name)).meta["incomplete"] is None
        assert not (paths.RECORDS / "mini" / f"{name}.job.json").exists()


def test_a_client_on_another_node_asks_from_there(box, root):
    status, said = told(login(box, root, "take", "apart"))
    assert status == 0, said
    seen = json.loads((root / "apart.target").read_text())
    (other,) = set(slurm_box.NODES) - {seen["node"]}
    assert f"The load client runs on {other}." in (root / "apart.target").with_suffix(".slurm.log").read_text()
    assert seen["gpus"] == "0,1,2,3,4,5,6,7"
    kept = records.read(paths.record("mini", "apart")).meta
    assert kept["incomplete"] is None and kept["client"]["where"] == "another node"
    assert {note["network"]["host"] for note in kept["takings"]} == {"another node"}
    assert all(other not in json.dumps(kept[part]) for part in ("client", "takings"))  # nobody's business


def test_a_whole_study_by_make_on_the_login_node(box, tmp_path):
    slurm_make.prepare(tmp_path)
    good, bad = slurm_make.LAUNCHES
    done = slurm_make.report(tmp_path, box.environment, SPEED="20", FAIL=f"{bad}:oom")
    said = done.stdout + done.stderr
    assert done.returncode and "Traceback" not in said
    folder = tmp_path / "records" / "tiny-rehearsal"
    statuses = {n: json.loads((folder / f"{n}.outcome.json").read_text())["status"] for n in (good, bad)}
    assert statuses == {good: "measured", bad: "failed"}, said
    assert f"{bad}: " in said and "CUDA out of memory" in said
    assert records.read(folder / f"{good}.parquet").meta["incomplete"] is None
    assert json.loads((folder / "calibration.json").read_text())["loads"]  # a job too
    jobs_seen = box.ask("scontrol", "show", "job", "--oneliner")
    for name in ("build", good, bad):
        assert f"JobName=tiny-rehearsal/{name} " in jobs_seen
    assert jobs_seen.count("JobName=tiny-rehearsal/build ") == 2  # 01_build and the calibration
    assert (tmp_path / "report" / "tiny-rehearsal" / "index.html").exists()  # told of what there is


@pytest.fixture(scope="module")
def late(box, root):
    """A job that runs into its time limit while other tests run: Slurm looks at limits every half minute."""
    shell = login(box, root, "linger", "late")
    until((root / "late.began").exists)
    seen = json.loads((root / "late.began").read_text())
    end = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(time.time() + 1))
    box.ask("scontrol", "update", f"jobid={seen['job']}", f"EndTime={end}")
    yield shell, seen
    shell.kill()


def test_a_measurement_that_fails_says_why(box, root, late):
    status, said = told(login(box, root, "refuse", "frail"))
    assert status == 2 and "made to fail" in said and "log is" in said
    assert outcome("frail")["status"] == "failed"


def test_zero_is_not_believed_where_nothing_was_left(box, root, late):
    status, said = told(login(box, root, "shirk", "lazy"))
    assert status == 2 and "(COMPLETED) before it had finished" in said
    assert outcome("lazy")["status"] == "failed" and not (root / "lazy.target").exists()


def test_a_cancelled_job_keeps_its_finished_levels(box, root, late):
    shell = login(box, root, "take", "stopped")
    until(lambda: list(paths.partial("mini", "stopped").glob("r*-*.telemetry.parquet")))
    until(lambda: [p for p in paths.partial("mini", "stopped").glob("r*.json") if "plan" not in p.name])
    box.ask("scancel", job_of("stopped"))
    status, said = told(shell)
    assert status == 2 and "was cancelled" in said and "finished taking(s) are kept" in said
    kept = records.read(paths.record("mini", "stopped")).meta
    assert "was cancelled" in kept["incomplete"] and len(kept["takings"]) == 1
    assert outcome("stopped")["status"] == "failed" and "was cancelled" in outcome("stopped")["reason"]


def test_the_job_outlives_the_login_shell_and_is_found_again(box, root, late):
    shell = login(box, root, "leave", slurm.BUILD)
    until((root / "-.began").exists)
    number = job_of("build")
    shell.send_signal(signal.SIGHUP)
    shell.wait()
    status, said = told(login(box, root, "shirk", slurm.BUILD))
    assert status == 0, said  # it did not submit what it was given: it waited
    assert json.loads((root / "-.target").read_text())["job"] == number


@pytest.mark.parametrize("before", ["", '{"id": "999999", "submitted_s": 9e9}'])
def test_a_job_whose_number_was_never_noted_is_found_by_its_name(box, root, late, before):
    began, target, go = root / "-.began", root / "-.target", root / "-.go"
    for left in (began, target, go):
        left.unlink(missing_ok=True)
    shell = login(box, root, "attend", slurm.BUILD)
    until(began.exists)
    number = job_of("build")
    shell.kill()
    shell.wait()
    # As if it had died between the two, after an earlier try or as the first.
    (paths.RECORDS / "mini" / "build.job.json").write_text(before)
    again = login(box, root, "shirk", slurm.BUILD)
    until(lambda: job_of("build") == number)                        # found by its name
    go.touch()
    status, said = told(again)
    assert status == 0, said
    assert json.loads(target.read_text())["job"] == number


def test_a_submission_that_was_heard_but_not_answered_is_not_made_twice(root, monkeypatch):
    def late(options, script):
        raise MeasureError("sbatch did not answer within 60 s")

    work(root).note.parent.mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(jobs, "submit", late)
    monkeypatch.setattr(jobs, "find", lambda name, folder: "7")
    assert slurm._submit(work(root)).id == "7" and json.loads(work(root).note.read_text())["id"] == "7"
    work(root).note.unlink()
    monkeypatch.setattr(jobs, "find", lambda name, folder: None)
    with pytest.raises(MeasureError, match="did not answer"):
        slurm._submit(work(root))


def test_only_a_job_of_this_folder_is_this_studys(monkeypatch):
    told = "12+0|mini/one|/here\n13|mini/one|/there\n14|mini/one-more|/here\n"
    monkeypatch.setattr(jobs, "_ask", lambda command: subprocess.CompletedProcess(command, 0, told, ""))
    assert [jobs.find("mini/one", Path(p)) for p in ("/here", "/there", "/else")] == ["12", "13", None]


def test_ctrl_c_cancels_the_job(box, root, late):
    shell = login(box, root, "linger", "held")
    until((root / "held.began").exists)
    number = job_of("held")
    shell.send_signal(signal.SIGINT)
    status, said = told(shell)
    assert status == 130 and f"job {number} was cancelled" in said, said
    until(lambda: "JobState=CANCELLED" in box.ask("scontrol", "show", "job", number))


def test_a_node_that_dies_takes_its_job_with_it_and_is_named(box, root, late):
    shell = login(box, root, "linger", "lost")
    until((root / "lost.began").exists)
    box.kill_node(json.loads((root / "lost.began").read_text())["node"])
    status, said = told(shell)
    assert status == 2 and "lost its node (NODE_FAIL" in said
    assert outcome("lost")["status"] == "failed"


def test_the_time_limit_is_told(box, root, late):
    status, said = told(late[0])
    assert status == 2 and "reached its time limit (TIMEOUT" in said
    assert outcome("late")["status"] == "failed" and "time limit" in outcome("late")["reason"]


# -- without Slurm ---------------------------------------------------------------------------------
def work(root, name="one"):
    launch = None if name == slurm.BUILD else config.load_launch("mini", name)
    return slurm.Work(config.load_study("mini"), launch, root / f"{name}.x", ("python", "a b.py"))


def test_a_job_asks_for_a_whole_node_with_its_gpus_and_what_the_cluster_wants(root):
    asked = slurm.Cluster(partition="h100", account="desk", options=("--qos=short",))
    given = slurm.options(work(root), asked)
    whole = {"--exclusive", "--nodes=1", "--gres=gpu:8", "--no-requeue"}
    assert whole | {"--partition=h100", "--account=desk"} <= set(given)
    assert given[-1] == "--qos=short" and f"--time={slurm.minutes(work(root), asked)}" in given
    assert slurm.minutes(work(root), slurm.Cluster(minutes=7)) == 7
    assert slurm.minutes(work(root, slurm.BUILD), slurm.Cluster(build_minutes=180)) == 180
    alone = slurm.Work(config.load_study("mini"), config.load_launch("mini", "apart"), root / "x", ("python",))
    given = slurm.options(alone, slurm.Cluster(options=("--qos=short",), client_options=("--partition=cpu",)))
    first, second = given[: given.index(":")], given[given.index(":") + 1 :]
    assert first[-1] == "--qos=short" and second[-1] == "--partition=cpu" and "--exclusive" in second
    assert not [option for option in second if "gres" in option or "qos" in option]
    assert "--gres=gpu:h100:4" in slurm.options(work(root), slurm.Cluster(gres="gpu:h100:4"))


def test_jobs_ask_for_what_the_plan_expects_and_half_as_much_again(root):
    of = config.load_study("mini")
    one = config.load_launch("mini", "one")
    expected = (costs.measuring_s(of) + of.statistics.runs * one.start_seconds) / 60
    assert slurm.minutes(work(root), slurm.Cluster()) == pytest.approx(1.5 * expected, abs=1)


@pytest.mark.parametrize(("state", "first"), [("CANCELLED", "was cancelled"), ("TIMEOUT", "reached its time limit"),
                                              ("FAILED", "the server died")])  # fmt: skip
def test_what_ended_a_job_is_told_before_what_that_made_the_measurement_say(root, monkeypatch, state, first):
    monkeypatch.setattr(slurm, "SETTLE_S", 0.0)
    path = paths.record("mini", "one").with_suffix(".outcome.json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"status": "failed", "reason": "one: the server died."}))
    with pytest.raises(MeasureError) as told_:
        slurm._judge(work(root), jobs.Job("7", 0.0), jobs.State(state))
    said = str(told_.value)
    assert "the server died" in said and said.index(first) <= said.index("the server died")
    assert outcome("one")["status"] == "failed" and first in outcome("one")["reason"]


def test_the_script_hides_slurm_from_mpi_but_not_from_pyxis():
    assert "unset" in slurm.script(("a",), False) and "unset" not in slurm.script(("a",), True)
    assert "exec python 'a b.py'" in slurm.script(("python", "a b.py"), False)


def test_a_mistake_in_the_clusters_file_is_told(root):
    path = root / "config" / slurm.FILE
    path.write_text("partitoin: gpu\n")
    try:
        with pytest.raises(ConfigError, match="did you mean 'partition'"):
            slurm.cluster()
    finally:
        path.unlink()
    assert slurm.cluster() == slurm.Cluster()


def test_without_slurm_it_is_said_where_to_run(root, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="login node"):
        slurm.run(work(root))


def test_a_silent_controller_is_not_an_ended_job(monkeypatch):
    class Quiet:
        def at(self, done, stage):
            pass

    answers = iter([OSError("timed out"), jobs.State("RUNNING"), OSError("timed out"), jobs.State("TIMEOUT")])

    def state(job):
        found = next(answers)
        if isinstance(found, OSError):
            raise found
        return found

    monkeypatch.setattr(jobs, "state", state)
    assert jobs.wait("1", Quiet(), 0.0).name == "TIMEOUT"
    monkeypatch.setattr(jobs, "SILENT_S", -1.0)
    monkeypatch.setattr(jobs, "state", lambda job: (_ for _ in ()).throw(OSError("timed out")))
    with pytest.raises(MeasureError, match="may go on"):
        jobs.wait("1", Quiet(), 0.0)
