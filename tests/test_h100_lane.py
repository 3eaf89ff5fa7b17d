"""The launches for the H100: what is passed to which engine, in which environment, why this computer refuses them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from lib import config, paths
from lib.config import Launch
from lib.engines import build, check, containers, flags, gpu, made, prepare, registry, talk
from lib.engines.base import COMMON_METRICS
from lib.engines.gpu import GpuEngine
from lib.engines.made import Step
from lib.errors import ConfigError, EngineError
from lib.launches import Container

PROFILES = ("h100", "h100-current", "h100-lora", "h100-sessions", "h100-inside")
LAUNCHES = {f"{p}/{name}": config.load_launch(p, name) for p in PROFILES for name in config.launch_names(p)}
OLD, STEPS = LAUNCHES["h100/vllm-0.6.2-fp16"], LAUNCHES["h100/vllm-0.6.2-fp16-steps8"]
TRITON = LAUNCHES["h100/tensorrt-llm-0.12.0-fp8"]
NEW, SERVE = LAUNCHES["h100-current/vllm-fp8-tp2x4"], LAUNCHES["h100-current/tensorrt-llm-fp8-tp4x2"]

every = pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES.keys())


def engine(launch: Launch) -> GpuEngine:
    found = registry.of(launch)
    assert isinstance(found, GpuEngine)
    return found


def changed(launch: Launch, **settings) -> Launch:
    return launch.model_copy(update={"settings": dict(launch.settings) | settings})


def after(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


@every
def test_every_launch_is_sound(launch):
    engine(launch).check(launch)


@every
def test_every_option_is_in_its_versions_list(launch):
    for program, names in engine(launch).calls(launch):
        assert names, program
        assert set(names) <= flags.known(engine(launch).version_key, program), program


@every
def test_every_metric_is_in_its_versions_list_or_has_a_reason(launch):
    found = engine(launch)
    assert set(found.metrics) | set(found.absent_metrics) == set(COMMON_METRICS)
    assert not set(found.metrics) & set(found.absent_metrics)
    said = [name.removeprefix("mean ") for names in found.metrics.values() for name in names]
    names = {part for name in said for part in name.split(" / ")}
    assert names <= flags.metrics(found.version_key)


def test_an_option_that_the_version_lost_is_refused(monkeypatch):
    known = flags.known
    monkeypatch.setattr(flags, "known", lambda *a: known(*a) - {"--swap-space"})
    with pytest.raises(ConfigError, match=r"of vllm-0.6.2 does not know --swap-space; data/flags/vllm-0.6.2.txt"):
        engine(OLD).check(OLD)


@every
def test_secrets_stay_out_of_argument_lists(launch):
    found = engine(launch)
    assert "s3cret" not in " ".join(found.runs(launch, 8000))
    assert ("s3cret" in found.variables(launch, "s3cret").values()) == found.keyed


@every
def test_a_launch_uses_the_whole_node_and_listens_on_loopback(launch):
    assert engine(launch).gpus(launch) == 8
    assert "127.0.0.1" in " ".join(engine(launch).command(launch, 8000)) or launch.settings.get("replicas", 1) > 1


@every
def test_the_length_is_pinned(launch):
    body = engine(launch).body(launch, "text", 24)[1]
    low, high = ("min_length", "max_tokens") if launch.version == "0.12.0" else ("min_tokens", "max_tokens")
    assert (body[low], body[high], body["stream"]) == (24, 24, True)
    assert body.get("ignore_eos", body.get("end_id")) in (True, -1)


def test_vllm_0_6_2_command():
    argv = engine(OLD).command(OLD, 8000)
    model = str(paths.ARTIFACTS / "llama-3-70b-instruct")
    assert argv == [
        str(paths.VENVS / "vllm-0.6.2/bin/vllm"), "serve", model, "--served-model-name", "vllm-0.6.2-fp16",
        "--middleware", "whole_key.Door", "--host", "127.0.0.1", "--port", "8000",
        "--tensor-parallel-size", "8", "--distributed-executor-backend", "mp", "--dtype", "float16",
        "--kv-cache-dtype", "auto", "--max-model-len", "8192", "--max-num-seqs", "256", "--max-num-batched-tokens",
        "8192", "--gpu-memory-utilization", "0.9", "--seed", "0",
        "--enable-chunked-prefill", "False", "--num-scheduler-steps", "1", "--swap-space", "4",
        "--disable-log-requests",
    ]
    assert "--multi-step-stream-outputs" in engine(STEPS).command(STEPS, 8000)
    awq = LAUNCHES["h100/vllm-0.6.2-awq"]
    assert after(engine(awq).command(awq, 1), "--quantization") == "awq_marlin"


def test_vllm_0_24_replicas_are_its_own():
    argv = engine(NEW).command(NEW, 8000)
    assert (after(argv, "--tensor-parallel-size"), after(argv, "--data-parallel-size")) == ("2", "4")
    assert "--no-enable-prefix-caching" in argv and "--async-scheduling" in argv
    assert after(argv, "--stream-interval") == "1" and after(argv, "--kv-cache-dtype") == "fp8"
    assert not set(argv) & {"--num-scheduler-steps", "--swap-space", "--disable-log-requests"}


@pytest.mark.parametrize("launch, settings, says", [
    (STEPS, {"chunked_prefill": True}, "chunked prefill is not supported with num_scheduler_steps 8"),
    (OLD, {"stream_every_step": True}, "stream_every_step belongs to num_scheduler_steps above 1"),
    (OLD, {"stream_interval": 1}, "this version does not know stream_interval"),
    (OLD, {"swap_space_gib": None}, "settings lack swap_space_gib"),
    (OLD, {"kv_cache_dtype": "fp8"}, "leaves FlashAttention for a slow kernel"),
    (OLD, {"max_num_batched_tokens": 2048}, "a step must hold a whole prompt"),
    (OLD, {"replicas": 2}, "has no router for replicas"),
    (NEW, {"num_scheduler_steps": 8}, "does not know num_scheduler_steps"),
    (TRITON, {"use_paged_context_fmha": False}, "chunked prefill needs an engine with use_paged_context_fmha"),
    (TRITON, {"use_fp8_context_fmha": False}, "leaves FP8 attention off"),
    (TRITON, {"calib_size": None}, "calib_dataset and calib_size belong to FP8"),
    (TRITON, {"max_input_len": 8192}, "leaves no room for an answer"),
    (SERVE, {"calib_size": None}, "calib_size belongs to FP8"),
])
def test_what_the_engine_would_refuse_after_loading_is_refused_before(launch, settings, says):
    with pytest.raises(ConfigError, match=says):
        engine(launch).check(changed(launch, **settings))


def test_triton_steps_quantize_build_and_fill():
    found = engine(TRITON)
    sources, checkpoint, built, _ = found.made(TRITON)
    commands = found.commands(TRITON)
    assert [what for what, _ in commands].count("triton-repository") == 6
    clone, pin, submodule, quantize, build_ = (argv for _, argv in commands[:5])
    assert clone[:2] == ["git", "clone"] and clone[-1] == f"{sources}/backend"
    assert pin[-1] == "9a78477873574098c32467f0fd8a9d3b4c243d9b" and submodule[-1] == "tensorrt_llm"
    assert quantize[0] == "docker" and build_[0] == "docker"
    inside = quantize[quantize.index("python3"):]
    assert after(inside, "--qformat") == "fp8" and after(inside, "--kv_cache_dtype") == "fp8"
    assert after(inside, "--output_dir") == str(checkpoint) and after(inside, "--tp_size") == "8"
    assert after(build_, "--checkpoint_dir") == str(checkpoint) and after(build_, "--output_dir") == str(built)
    assert build_[-1] == "--use_fused_mlp" and after(build_, "--gemm_plugin") == "disable"
    filled = commands[-1][1][-1]
    assert f"engine_dir:{built}" in filled and "batch_scheduler_policy:guaranteed_no_evict" in filled
    assert "enable_kv_cache_reuse:False" in filled
    assert "{" not in " ".join(word for _, argv in commands for word in argv)


def test_triton_server_command_is_one_process_a_gpu():
    argv = engine(TRITON).command(TRITON, 8000)
    assert argv[:5] == ["mpirun", "--allow-run-as-root", "-n", "1", "tritonserver"]
    assert argv.count("tritonserver") == 8 and argv.count(":") == 7 and argv.count("--load-model=tensorrt_llm") == 7
    assert {"--http-port=8000", "--metrics-port=8001", "--allow-grpc=false", "--http-address=127.0.0.1"} <= set(argv)
    assert "--backend-config=python,shm-region-prefix-name=prefix7_" in argv


def test_a_16_bit_engine_is_converted_and_shares_the_sources():
    fp16 = LAUNCHES["h100/tensorrt-llm-0.12.0-fp16"]
    one, two = engine(TRITON).made(TRITON), engine(fp16).made(fp16)
    assert one[0] == two[0] and not set(one[1:]) & set(two[1:])
    assert any("convert_checkpoint.py" in word for _, argv in engine(fp16).commands(fp16) for word in argv)


def test_a_changed_build_flag_does_not_quantize_again():
    other = changed(TRITON, max_num_tokens=4096)
    one, two = engine(TRITON).made(TRITON), engine(other).made(other)
    assert one[:2] == two[:2] and one[2] != two[2] and one[3] != two[3]
    third = changed(TRITON, kv_cache_free_gpu_mem_fraction=0.8)
    assert engine(third).made(third)[:3] == one[:3]


def test_trtllm_serve_command_and_options():
    found = engine(SERVE)
    argv = found.command(SERVE, 8000)
    inner = argv[argv.index("--") + 1:]
    assert after(argv, "--replicas") == "2" and after(argv, "--gpus") == "4" and after(argv, "--port") == "8000"
    assert inner[:2] == ["trtllm-serve", str(found.made(SERVE)[0])]
    assert after(inner, "--port") == "{port}" and after(inner, "--host") == "127.0.0.1"
    assert after(inner, "--tp_size") == "4"
    assert after(inner, "--extra_llm_api_options") == str(found.made(SERVE)[1] / "options.yaml")
    assert found.options(SERVE) == {
        "kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False, "free_gpu_memory_fraction": 0.9},
        "cuda_graph_config": {"enable_padding": True, "max_batch_size": 256},
        "scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"},
        "stream_interval": 1, "disable_overlap_scheduler": False, "enable_iter_perf_stats": True,
        "return_perf_metrics": True,
    }


def test_one_quantization_serves_all_layouts():
    ones = [LAUNCHES[f"h100-current/tensorrt-llm-fp8-{layout}"] for layout in ("tp8", "tp4x2", "tp2x4")]
    assert len({engine(one).made(one)[0] for one in ones}) == 1
    plain = LAUNCHES["h100-current/tensorrt-llm-bf16-tp8"]
    assert engine(plain).command(plain, 1)[1] == str(paths.ARTIFACTS / "llama-3-70b-instruct")


# --- where a launch runs ---------------------------------------------------------------------------------------------

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize("given, named", [
    ({"runtime": "docker", "image": "vllm/vllm-openai:v1", "digest": DIGEST}, f"vllm/vllm-openai:v1@{DIGEST}"),
    ({"runtime": "apptainer", "image": "nvcr.io/nvidia/x:1", "digest": DIGEST}, f"docker://nvcr.io/nvidia/x@{DIGEST}"),
    ({"runtime": "apptainer", "image": "localhost:5000/x:1"}, "docker://localhost:5000/x:1"),
    ({"runtime": "apptainer", "image": "/data/x.sif"}, "/data/x.sif"),
    ({"runtime": "pyxis", "image": "nvcr.io/nvidia/x:1"}, "nvcr.io#nvidia/x:1"),
    ({"runtime": "enroot", "image": "/data/x.sqsh"}, "/data/x.sqsh"),
])
def test_images_are_named_as_each_runtime_wants(given, named):
    assert containers.reference(Container(**given)) == named


@pytest.mark.parametrize("given, says", [
    ({"runtime": "pyxis", "image": "nvcr.io/nvidia/x:1", "digest": DIGEST}, "cannot check the digest"),
    ({"runtime": "enroot", "image": "nvcr.io/nvidia/x:1"}, "enroot import -o .* docker://nvcr.io#nvidia/x:1"),
])
def test_a_runtime_that_cannot_check_is_told_so(given, says):
    with pytest.raises(ConfigError, match=says):
        containers.reference(Container(**given))


@pytest.mark.parametrize("runtime, begins", [
    ("docker", ["docker", "run", "--rm", "--init"]),
    ("apptainer", ["apptainer", "exec", "--nv"]),
    ("enroot", ["enroot", "start", "--rw"]),
    ("pyxis", ["srun", "--overlap", "--nodes=1", "--ntasks=1"]),
])
def test_every_runtime_wraps_the_same_command(runtime, begins):
    image = "/data/x.sqsh" if runtime == "enroot" else "x:1"
    box = Container(runtime=runtime, image=image)
    argv = containers.wrap(box, ["vllm", "serve", "/m"], {"KEY": "s3cret"}, [Path("/p")], "n")
    assert argv[: len(begins)] == begins and argv[-2:] == ["serve", "/m"] and "vllm" in argv
    assert "s3cret" not in " ".join(argv) and "/p:/p" in " ".join(argv)


def test_a_launch_may_run_in_a_python_of_the_users_own():
    own = OLD.model_copy(update={"python": "/opt/vllm/bin/python"})
    engine(own).check(own)
    assert engine(own).command(own, 1)[0] == "/opt/vllm/bin/vllm"
    boxed = OLD.model_copy(update={"container": Container(runtime="docker", image="vllm/vllm-openai:v0.6.2")})
    argv = engine(boxed).runs(boxed, 8000)
    assert after(argv, "--entrypoint") == "vllm" and argv[argv.index("vllm/vllm-openai:v0.6.2") + 1] == "serve"
    assert "VLLM_API_KEY" in argv
    # The door is all that an image is shown of ours; one that needs no door keeps its own Python's path.
    assert engine(boxed).variables(boxed, "key")["PYTHONPATH"] == str(paths.ROOT / "lib/engines/door")
    assert "PYTHONPATH" in argv and "PYTHONPATH" not in engine(TRITON).runs(TRITON, 8000)
    with pytest.raises(ConfigError, match="names both `python` and `container`"):
        engine(boxed).check(boxed.model_copy(update={"python": "/opt/vllm/bin/python"}))
    with pytest.raises(ConfigError, match="envs/ holds no lock of TensorRT-LLM 0.12.0"):
        engine(TRITON).check(TRITON.model_copy(update={"container": None}))


def test_this_computer_is_told_what_it_lacks(monkeypatch):
    monkeypatch.setattr(gpu, "found", lambda: [])
    assert engine(OLD).absent(OLD).startswith("vLLM 0.6.2 at fp16 needs 8 x H100 and this computer has no NVIDIA GPU.")
    monkeypatch.setattr(gpu, "found", lambda: [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": "81559"}] * 4)
    assert "has 4 x NVIDIA H100 80GB HBM3" in engine(OLD).absent(OLD)
    monkeypatch.setattr(gpu, "found", lambda: [{"name": "NVIDIA H100 80GB HBM3", "memory_mib": "81559"}] * 8)
    assert engine(OLD).absent(OLD) is None


# --- what is made ----------------------------------------------------------------------------------------------------


@pytest.fixture
def artifacts(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(made, "LOOK_S", 0.02)
    return tmp_path / "artifacts"


def write(text: str) -> tuple[str, ...]:
    return (sys.executable, "-c", f"open('{{here}}/out', 'w').write({text})")


STEPS_OF_TWO = [Step("first", (write("'one'"),)),
                Step("second", (write("open('{first}/out').read() + ' two'"),), (("options", "of {first}"),))]


def make(steps):
    return made.make(OLD, "v", steps, lambda argv: argv, {}, lambda stage: None)


def test_steps_are_made_once_and_know_each_other(artifacts):
    manifests = make(STEPS_OF_TWO)
    first, second = made.places(OLD, "v", STEPS_OF_TWO)
    assert (second / "out").read_text() == "one two" and (second / "options").read_text() == f"of {first}"
    assert [m["what"] for m in manifests] == ["first", "second"] and manifests[1]["files"][0]["sha256"]
    before = (first / "out").stat().st_mtime_ns
    make(STEPS_OF_TWO)
    assert (first / "out").stat().st_mtime_ns == before


def test_a_failed_step_is_told_with_its_last_words_and_the_others_are_kept(artifacts):
    broken = [STEPS_OF_TWO[0], Step("second", ((sys.executable, "-c", "raise SystemExit('engine needs 8 GPUs')"),))]
    with pytest.raises(EngineError, match="second failed. Its last words: engine needs 8 GPUs"):
        make(broken)
    first = made.places(OLD, "v", broken)[0]
    assert (first / "manifest.json").exists()


def test_a_damaged_result_is_refused(artifacts):
    make(STEPS_OF_TWO)
    second = made.places(OLD, "v", STEPS_OF_TWO)[1]
    (second / "out").write_text("one too")
    with pytest.raises(EngineError, match="is damaged.*then made anew"):
        made.verify(second)


def test_large_files_are_hashed_again_only_when_they_changed(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "LARGE_BYTES", 2)
    (tmp_path / "w").write_text("weights")
    entry = build.described(tmp_path, tmp_path / "w")
    monkeypatch.setattr(build, "_sha256", lambda path: pytest.fail("hashed again"))
    build.check_file(tmp_path, entry, "anew")
    assert entry["found"] == entry["sha256"] and "unchanged since" in entry["checked"]


# --- what is asked of servers ----------------------------------------------------------------------------------------


def test_metrics_of_triton_are_told_apart_by_their_labels():
    text = "\n".join([
        'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 12',
        'nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 256',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 10',
        'nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm",version="1"} 40',
    ])
    values = talk.prometheus(text)
    found = {name: talk.value(values, names[0]) for name, names in engine(TRITON).metrics.items()}
    assert found == {"running": 12.0, "kv_cache_usage": 0.25}


def test_shares_of_several_engines_are_averaged():
    values = talk.prometheus('vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.4')
    assert talk.value(values, engine(NEW).metrics["kv_cache_usage"][0]) == pytest.approx(0.3)


def test_triton_readiness_counts_a_response_a_token(monkeypatch):
    chunks = [{"model_name": "ensemble", "text_output": t} for t in (" a", "", "€", " b")]
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    monkeypatch.setattr(talk, "ask", lambda *a, **k: (200, text))
    monkeypatch.setattr(gpu, "tokens", lambda launch, text, added: 14)
    server = type("Server", (), {"port": 1, "launch": TRITON})()
    got = engine(TRITON).complete(server, {"text_input": "x"}, "/p", 1.0)
    assert got["usage"] == {"prompt_tokens": 14, "completion_tokens": 4}
    monkeypatch.setattr(talk, "ask", lambda *a, **k: (200, 'data: {"error": "engine was built for another GPU"}\n\n'))
    with pytest.raises(OSError, match="broke off: engine was built for another GPU"):
        engine(TRITON).complete(server, {"text_input": "x"}, "/p", 1.0)
    monkeypatch.setattr(talk, "ask", lambda *a, **k: (200, 'data: {"text_output": \n\n'))
    with pytest.raises(OSError, match="an event that is not JSON"):
        engine(TRITON).complete(server, {"text_input": "x"}, "/p", 1.0)


def test_a_missing_image_is_fetched_before_the_server_starts(artifacts, monkeypatch):
    monkeypatch.setattr(containers, "present", lambda container: [sys.executable, "-c", "raise SystemExit(1)"])
    failing = [sys.executable, "-c", "print('no such image'); exit(1)"]
    monkeypatch.setattr(containers, "pulling", lambda container: failing)
    with pytest.raises(EngineError, match="fetching its image failed. Its last words: no such image"):
        engine(TRITON).prepare(TRITON, lambda stage: None)
    monkeypatch.setattr(containers, "present", lambda container: ["/no/such/docker"])
    with pytest.raises(EngineError, match="runs in docker, which cannot be asked for its images"):
        engine(TRITON).prepare(TRITON, lambda stage: None)


def test_a_computer_that_can_run_nothing_says_so_unless_there_are_records(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu, "found", lambda: [])
    monkeypatch.setattr(paths, "RECORDS", tmp_path)
    with pytest.raises(ConfigError, match="Nothing of profile h100 can run.*has no NVIDIA GPU.*make plan"):
        check.check_here("h100", "default")
    check.check_here("cpu", "default")
    (tmp_path / "h100").mkdir()
    (tmp_path / "h100" / "vllm-0.6.2-fp16.parquet").touch()
    check.check_here("h100", "default")


def test_nothing_is_fetched_for_launches_that_cannot_run_here(monkeypatch):
    monkeypatch.setattr(gpu, "found", lambda: [])
    assert prepare.needed("h100") == []
    told = prepare.build_all("h100")
    assert {row["artifact"] for row in told} == set(config.launch_names("h100"))
    assert all("needs 8 x H100" in row["failed"] for row in told)


def test_levels_of_one_load_are_told_apart_by_their_workload():
    levels = {level.id: level.workload for level in config.load_study("h100").levels}
    assert levels["closed-50"] == "news flash" and levels["closed-50-on-filings"] == "filing excerpt"
    concurrencies = [int(name.split("-")[1]) for name in levels if name.startswith("closed")]
    assert max(concurrencies) == 256 and config.load_study("h100").statistics.runs >= 3


def test_launches_run_in_the_stated_order():
    study = config.load_study("h100")
    names = config.run_order(study)
    assert names[:2] == ["tensorrt-llm-0.12.0-fp8", "vllm-0.6.2-fp16"] and sorted(names) == config.launch_names("h100")
    assert "order" not in study.model_dump()
    for profile in PROFILES:
        command = ["make", "-s", "--eval", "launches: ; @echo $(LAUNCHES)", "launches", f"PROFILE={profile}"]
        told = subprocess.run(command, cwd=paths.ROOT, capture_output=True, text=True, check=True).stdout.split()
        assert told == config.run_order(config.load_study(profile))
    for profile in PROFILES:
        assert set(config.load_study(profile).order) == set(config.launch_names(profile))
