"""Rehearsals: stand-ins that take the real command lines and speak the real streams, and that nothing mistakes for a
measurement.
"""

import json
import os
import shutil
import subprocess
import time

import pytest

from lib import config, depths, paths, records
from lib.analyse import collect, tables
from lib.engines import base, registry
from lib.engines.rehearse import engine as rehearse
from lib.engines.rehearse import failures, flags, pace, tools, wrappers
from lib.errors import ConfigError, EngineError, RecordError
from lib.measure import hostprobe, rehearsal, serve, session
from tests import synthetic

GPU_PROFILES = [p for p in config.profiles() if config.load_study(p).hardware.gpus]
LAUNCHES = [(p, name) for p in GPU_PROFILES for name in config.launch_names(p)]
VLLM = {"0.6.2": ("h100", "vllm-0.6.2-fp16"), "0.24.0": ("h100-current", "vllm-fp8-tp8")}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Artifacts and records of this test alone; a stand-in that is quick."""
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(paths, "RECORDS", tmp_path / "records")
    monkeypatch.setattr(base, "LOOK_S", 0.05)
    monkeypatch.setenv("STUDY_TERMINAL", "none")
    monkeypatch.setenv(rehearse.SPEED, "20")
    return tmp_path


def started(profile, name, tmp_path, **changes):
    """Start a launch's stand-in as a rehearsal would."""
    study = config.load_study(profile, depths.REHEARSAL)
    launch = config.load_launch(profile, name).model_copy(update={"start_seconds": 20.0, **changes})
    rehearsal.tokenizer(study)
    engine = rehearse.of(study, launch)
    engine.prepare(launch, lambda stage: None)
    return engine.start(launch, tmp_path / "server.log", lambda stage: None)


# -- the real command lines ------------------------------------------------------------------------
@pytest.mark.parametrize(("profile", "name"), LAUNCHES)
def test_every_launch_of_the_gpu_profiles_starts_is_proven_and_answers(profile, name, here):
    with started(profile, name, here) as server:
        assert all(row["ok"] for row in server.proof())
        assert server.added_tokens == 1 and server.version.startswith("stand-in for ")
        path, body = server.body("What did net revenue do?", 7)
        answer = server.engine.complete(server, body, path, 20.0)
        assert answer["usage"]["completion_tokens"] == 7
        assert set(server.gauges()) == set(server.engine.metrics) <= set(base.COMMON_METRICS)


def stand_in(profile, name, *more):
    """Run a launch's stand-in with words added to its command line; exit status and what it said."""
    study = config.load_study(profile, depths.REHEARSAL)
    launch = config.load_launch(profile, name)
    engine = rehearse.of(study, launch)
    environment = os.environ | engine.variables(launch, "key")
    done = subprocess.run(
        [*engine.runs(launch, 1), *more], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("profile", "name"), LAUNCHES)
def test_a_stand_in_is_given_the_real_command_line_to_the_last_word(profile, name, here):
    study, launch = config.load_study(profile, depths.REHEARSAL), config.load_launch(profile, name)
    given, real = rehearse.of(study, launch).runs(launch, 8000), registry.of(launch).runs(launch, 8000)
    made_of = {str(real_one): str(tried) for real_one, tried in zip(
        registry.of(launch).made(launch), rehearse.of(study, launch).made(launch), strict=True)}  # fmt: skip
    for folder, tried in made_of.items():
        real = [word.replace(folder, tried) for word in real]
    assert given[-len(real) :] == real and len(given) == len(real) + 4
    assert not any(folder == tried for folder, tried in made_of.items())


@pytest.mark.parametrize(("profile", "name"), VLLM.values())
def test_an_option_that_the_version_does_not_know_ends_it_with_2(profile, name, here):
    rehearsal.tokenizer(config.load_study(profile, depths.REHEARSAL))
    status, said = stand_in(profile, name, "--no-such-option")
    assert status == 2 and "unrecognized arguments: --no-such-option" in said


def test_what_one_generation_has_the_other_refuses(here):
    for version, option in (("0.24.0", "--num-scheduler-steps"), ("0.6.2", "--stream-interval")):
        rehearsal.tokenizer(config.load_study(VLLM[version][0], depths.REHEARSAL))
        status, said = stand_in(*VLLM[version], option, "8")
        assert status == 2 and option in said


def test_combinations_that_0_6_2_refuses_are_refused(here):
    rehearsal.tokenizer(config.load_study("h100", depths.REHEARSAL))
    more = ("--num-scheduler-steps", "8", "--enable-chunked-prefill", "True")
    status, said = stand_in(*VLLM["0.6.2"], *more)
    assert status == 1 and "not supported with multi-step" in said


def test_a_list_is_read_by_program_and_alias(tmp_path):
    text = "# source\n[a b]\n--tensor-parallel-size -tp   # tensor\n--model MODEL\n\n[c]\n--x\n"
    found = flags.sections(text)
    assert found == {
        "a b": {"--tensor-parallel-size": "--tensor-parallel-size", "-tp": "--tensor-parallel-size",
                "--model": "--model"},
        "c": {"--x": "--x"},
    }  # fmt: skip
    line = flags.parse(["M", "-tp", "8", "--model=/m", "--tensor_parallel_size", "4"], found["a b"])
    assert line.words == ("M",) and line.one("--tensor-parallel-size", "1") == "4" and line.one("--model", "") == "/m"
    with pytest.raises(flags.UnknownOption, match="--x"):
        flags.parse(["--x"], found["a b"])


@pytest.mark.parametrize(
    ("command", "words", "image"),
    [
        ("docker run --rm --gpus all -e KEY img:1 --port 80", "--port 80", "img:1"),
        ("docker run --rm --entrypoint vllm img serve m", "vllm serve m", "img"),
        ("apptainer exec --nv --bind /a:/a x.sif vllm serve m", "vllm serve m", "x.sif"),
        ("srun --overlap --container-image=x.sqsh trtllm-serve m", "trtllm-serve m", "x.sqsh"),
        ("enroot start --rw --env A name python3 x.py", "python3 x.py", "name"),
        ("mpirun --allow-run-as-root -n 8 tritonserver --a=b", "tritonserver --a=b", None),
        ("env A=b taskset -c 0-3 vllm serve m", "vllm serve m", None),
    ],
)
def test_wrappers_are_taken_off(command, words, image):
    found = wrappers.unwrap(command.split())
    assert (" ".join(found.words), found.image) == (words, image)


def test_a_wrapper_refuses_what_it_does_not_know():
    with pytest.raises(wrappers.WrapperRefused) as refused:
        wrappers.unwrap(["docker", "run", "--gpu", "all", "img"])
    assert refused.value.status == 125


# -- pace ------------------------------------------------------------------------------------------
def test_the_pace_is_the_predicted_one():
    of = pace.read(pace.contender("vllm", "fp8"))
    with (paths.DATA / "predictions.csv").open() as file:
        head, *rows = [line.rstrip("\n").split(",") for line in file]
    row = next(
        r for r in (dict(zip(head, cells, strict=True)) for cells in rows)
        if (r["config"], r["layout"], r["policy"], r["workload"], r["concurrency"])
        == ("vllm-fp8", "TP8", "chunked", "headline", "64")
    )  # fmt: skip
    assert of.step_s(0, 64) == pytest.approx(float(row["tpot_mean_s"]))
    assert of.step_s(0, 1) < of.step_s(0, 64) < of.step_s(2048, 64)
    with pytest.raises(ConfigError, match="no prediction"):
        pace.contender("llama-cpp", "q8_0")


@pytest.mark.parametrize("version", VLLM)
def test_a_stand_in_keeps_it(version, here, monkeypatch):
    monkeypatch.setenv(rehearse.SPEED, "1")
    with started(*VLLM[version], here) as server:
        path, body = server.body("What did net revenue do?", 40)
        began = time.monotonic()
        server.engine.complete(server, body, path, 20.0)
        took = time.monotonic() - began
    launch = config.load_launch(*VLLM[version])
    of = pace.read(pace.contender(launch.engine, launch.precision))
    assert 0.9 * 39 * of.step_s(0, 1) < took < 39 * of.step_s(0, 1) + 1.0


# -- failures --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("fail", "says"),
    [
        ("oom", "a GPU ran out of memory .*CUDA out of memory.* `make doctor` who else holds memory"),
        ("other-gpu", "built for another GPU .*no kernel image.*Remove what was made for it under artifacts/"),
        ("options", "does not know an option .*unrecognized arguments.*another version than the config names"),
        ("nccl-hang", "not ready within .*its ranks wait for each other .*NCCL INFO.*the links between the GPUs"),
        ("worker-dies@2", "worker process died|broke off|ended by itself"),
        ("stream-error@2", "not ready within"),
    ],
)
def test_an_engine_that_fails_is_told_by_its_own_words(fail, says, here, monkeypatch):
    profile, name = VLLM["0.6.2"]
    monkeypatch.setenv(rehearse.FAIL, f"other:oom,{name}:{fail}")
    if fail.startswith("stream-error"):
        with started(profile, name, here) as server:  # only one stream carries the error: the next look succeeds
            assert server.ready_seconds > 0
        return
    with pytest.raises(EngineError, match=says), started(profile, name, here, start_seconds=4.0):
        pass


def test_a_slow_start_is_waited_for(here, monkeypatch):
    profile, name = VLLM["0.6.2"]
    monkeypatch.setenv(rehearse.FAIL, f"{name}:slow-ready@30")  # 1.5 s at twenty times the pace
    with started(profile, name, here) as server:
        assert server.ready_seconds > 1.5


def test_a_demand_that_cannot_be_read_is_refused():
    assert failures.demanded("a:oom, b:worker-dies@9", "b") == "worker-dies@9"
    assert failures.demanded("", "b") == ""
    for text, says in (("oom", "not LAUNCH:FAILURE"), ("a:boom", "'boom' is no failure"), ("a:oom@x", "no number")):
        with pytest.raises(ConfigError, match=says):
            failures.demanded(text, "a")


# -- whole launches --------------------------------------------------------------------------------
def small(monkeypatch, profile):
    """A rehearsal of two short levels."""
    study = config.load_study(profile, depths.REHEARSAL)
    levels = tuple(
        level.model_copy(update={"seconds": 1.0}) for level in study.levels if level.id in ("closed-8", "closed-50")
    )
    statistics = study.statistics.model_copy(update={"warmup_seconds": 0.3, "drain_seconds": 10.0})
    short = study.model_copy(update={"levels": levels, "statistics": statistics})
    real = config.load_study
    monkeypatch.setattr(config, "load_study", lambda p, d="default": short if d == depths.REHEARSAL else real(p, d))
    return short


def test_a_launch_is_rehearsed_into_its_own_folder_and_a_failing_one_goes_on(here, monkeypatch):
    profile, name = VLLM["0.6.2"]
    study = small(monkeypatch, profile)
    monkeypatch.setenv(rehearse.FAIL, f"{name}:worker-dies@4000")
    with pytest.raises(EngineError, match="worker process died"):
        session.take(profile, depths.REHEARSAL, name)
    outcome = json.loads((paths.RECORDS / study.name / f"{name}.outcome.json").read_text())
    assert outcome["status"] == "failed" and "worker process died" in outcome["reason"]
    monkeypatch.setenv(rehearse.FAIL, "")
    assert session.take(profile, depths.REHEARSAL, name)["status"] == "measured"
    record = records.read(paths.record(study.name, name))
    assert record.meta["kind"] == "rehearsal" and record.meta["incomplete"] is None
    assert record.meta["study"] == "h100-rehearsal" and record.meta["versions"]["engine"].startswith("stand-in")
    rows = [r for r in record.table.to_pylist() if r["phase"] == "measured"]
    assert rows and {r["status"] for r in rows} == {"complete"}
    assert all(r["output_tokens"] == r["planned_output_tokens"] for r in rows)
    assert not (paths.RECORDS / profile).exists()


def test_a_build_cache_that_was_damaged_ends_its_launch_by_name_and_what_is_finished_stays(here, monkeypatch):
    profile, name = "h100-current", "tensorrt-llm-fp8-tp8"
    study = small(monkeypatch, profile)
    twice = study.statistics.model_copy(update={"runs": 2})
    level = study.levels[0].model_copy(update={"concurrency": 2, "seconds": 0.6})
    lengths = {"input_tokens": config.Lengths(mean=48), "output_tokens": config.Lengths(mean=8)}
    brief = {name: work.model_copy(update=lengths) for name, work in study.workloads.items()}
    study = study.model_copy(update={"statistics": twice, "levels": (level,), "workloads": brief})
    monkeypatch.setattr(config, "load_study", lambda *_: study)
    monkeypatch.setattr(hostprobe, "probe", lambda: {"bandwidth_bytes_s": 1e12, "flop_s": {"float32": 1e11}})
    launch = config.load_launch(profile, name)
    built, whole = rehearse.of(study, launch).made(launch)[0], serve.one_run

    def spoiled(*given):
        whole(*given)
        (built / "model.safetensors").write_text(tools.MARK.upper())  # as long as before

    monkeypatch.setattr(serve, "one_run", spoiled)
    says = f"{name}: .*model.safetensors is damaged.* Remove {built.name} under artifacts/ and run the same command"
    with pytest.raises(EngineError, match=says):
        session.take(profile, depths.REHEARSAL, name)
    kept = records.read(paths.record(study.name, name)).meta
    assert [t["run"] for t in kept["takings"]] == [0] and "is damaged" in kept["incomplete"]
    shutil.rmtree(built)
    monkeypatch.setattr(serve, "one_run", whole)
    assert session.take(profile, depths.REHEARSAL, name)["status"] == "measured"
    after = records.read(paths.record(study.name, name)).meta
    assert [t["run"] for t in after["takings"]] == [0, 1] and after["takings"][0] == kept["takings"][0]


def test_an_error_inside_a_stream_is_a_failed_request_and_no_more(here, monkeypatch):
    profile, name = VLLM["0.24.0"]
    study = small(monkeypatch, profile)
    monkeypatch.setenv(rehearse.FAIL, f"{name}:stream-error@4000")
    assert session.take(profile, depths.REHEARSAL, name)["status"] == "measured"
    again = records.read(paths.record(study.name, name)).meta["retaken"]
    assert [r["failed"] for r in again] in ([1], [])  # it may have met the warm-up


# -- nothing mistakes it for a measurement ---------------------------------------------------------
def test_a_rehearsal_and_a_measurement_never_share_a_name_or_a_kind():
    for profile in config.profiles():
        real, tried = config.load_study(profile), config.load_study(profile, depths.REHEARSAL)
        assert (real.kind, tried.kind) == ("measured", "rehearsal") and real.name != tried.name
        assert [level.id for level in tried.levels] == [level.id for level in real.levels]


def test_kind_cannot_be_written_into_a_profile(tmp_path, monkeypatch):
    text = (paths.CONFIG / "smoke" / "study.yaml").read_text()
    monkeypatch.setattr(paths, "CONFIG", tmp_path)
    (tmp_path / "sly").mkdir()
    (tmp_path / "sly" / "study.yaml").write_text("kind: rehearsal\n" + text)
    with pytest.raises(ConfigError, match="make rehearse"):
        config.load_study("sly")
    (tmp_path / "sly" / "study.yaml").write_text("kind: measured\n" + text)
    assert config.load_study("sly", depths.REHEARSAL).kind == "rehearsal"


@pytest.mark.parametrize(("study_kind", "record_kind"), [("measured", "rehearsal"), ("rehearsal", "measured")])
def test_a_record_moved_among_the_others_is_refused(study_kind, record_kind, tmp_path):
    study = synthetic.study().model_copy(update={"kind": study_kind})
    folder = tmp_path / "records"
    synthetic.write_study(folder, study, (synthetic.Server(name="a", kind=study_kind),))
    synthetic.write_launch(folder, study, synthetic.Server(name="b", kind=record_kind))
    found, missing = collect.collect(study, folder)
    assert [one.name for one in found] == ["a"]
    assert [(m.launch, m.status) for m in missing] == [("b", "damaged")] and "never joins" in missing[0].reason
    with pytest.raises(RecordError, match="never joins"):
        records.read_study(sorted(folder.glob("?.parquet")), study.name)


def test_every_row_of_its_tables_says_so(tmp_path):
    study = synthetic.study().model_copy(update={"kind": "rehearsal"})
    synthetic.write_study(tmp_path / "records", study, (synthetic.Server(kind="rehearsal"),))
    tables.build(study, tmp_path / "records", tmp_path / "tables", about_h100={"value": None, "reason": "a test"})
    for path in (tmp_path / "tables").glob("*.csv"):
        head, *rows = path.read_text().splitlines()
        assert head.endswith(",mark") and all(row.endswith(",REHEARSAL") for row in rows)


def test_make_leaves_the_article_alone():
    calibration = paths.RECORDS / "cpu-rehearsal" / "calibration.json"
    there = calibration.exists()
    done = subprocess.run(
        ["make", "-n", "rehearse", "PROFILE=cpu"], cwd=paths.ROOT, capture_output=True, text=True, check=False
    )
    assert "DEPTH=rehearsal" in done.stdout
    assert ("lib.measure.calibrate_study cpu rehearsal light" in done.stdout) != there  # told, and not done
    assert calibration.exists() == there
    page = subprocess.run(
        ["make", "-n", "article", "PROFILE=cpu", "DEPTH=rehearsal"], cwd=paths.ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert "report/index.html is left alone" in page.stdout and ".index.tmp" not in page.stdout


def test_an_engine_that_runs_anywhere_is_not_rehearsed():
    study = config.load_study("smoke", depths.REHEARSAL)
    with pytest.raises(ConfigError, match="has no stand-in"):
        rehearse.of(study, config.load_launch("smoke", "vllm-fp32"))


