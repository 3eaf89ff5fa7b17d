"""A server's life, with a stand-in that misbehaves on purpose: start, proof, and an end on every path."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import pytest

from lib import paths
from lib.config import Launch, Strict
from lib.engines import base, build, computer, process, talk
from lib.engines.base import Engine
from lib.engines.process import Process
from lib.engines.proof import Precision, claim
from lib.errors import ConfigError, EngineError
from lib.launches import Container

STAND_IN = Path(__file__).with_name("stand_in_server.py")
ARTIFACT = "smollm2-135m-gguf-f16"


class StandIn(Engine):
    name = title = environment = "stand-in"
    wire = "openai-completions"
    settings = Strict
    precisions: ClassVar = {"f16": Precision("gguf-f16", ()),
                            "imaginary": Precision("gguf-f16", ("no_such_flag",), "a reason")}
    metrics: ClassVar = {"running": ("running",), "prompt_tokens_total": ("tokens_total", "more_total")}
    absent_metrics: ClassVar = {"prompt_tokens_total": "the stand-in counts half of it"}

    def __init__(self, mode):
        self.mode = mode

    def command(self, launch, port):
        return [sys.executable, "-u", str(STAND_IN), self.mode, str(port), launch.name]

    def variables(self, launch, key):
        return {"KEY": key}

    def body(self, launch, prompt, output_tokens):
        return "/v1/completions", {"model": launch.name, "prompt": prompt, "max_tokens": output_tokens}

    def claims(self, server):
        served = talk.get_json(server.port, "/v1/models", server.key)["data"][0]["id"]
        return [claim("served model", server.model, served, "GET /v1/models")]

    def version(self, server):
        return "1"

    def count(self, server, text):
        return talk.get_json(server.port, "/tokenize", server.key, {"prompt": text})["count"]

    def memory_bytes(self, launch):
        return 0


def launch(**changes):
    return Launch(**{"name": "stand-in-f16", "engine": "stand-in", "precision": "f16", "artifact": ARTIFACT,
                     "environment": "stand-in", "start_seconds": 20.0, **changes})


@pytest.fixture(autouse=True)
def artifact(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "ARTIFACTS", tmp_path / "artifacts")
    monkeypatch.setattr(base, "LOOK_S", 0.05)
    folder = tmp_path / "artifacts" / ARTIFACT
    folder.mkdir(parents=True)
    (folder / "model.gguf").write_bytes(b"weights")
    described = build._described(ARTIFACT, folder, 1.0)
    (folder / "manifest.json").write_text(json.dumps(described))
    return folder


def start(mode, tmp_path, **changes):
    return StandIn(mode).start(launch(**changes), tmp_path / "server.log", lambda stage: None)


def alive(pid):
    return not process._dead(pid)


def gone(pid, within=5.0):
    limit = time.monotonic() + within
    while alive(pid) and time.monotonic() < limit:
        time.sleep(0.02)
    return not alive(pid)


def test_ready_proven_spoken_to_and_ended(tmp_path):
    stages = []
    with StandIn("good").start(launch(), tmp_path / "server.log", stages.append) as server:
        pid = server.pid
        assert server.added_tokens == 1
        assert server.ready_seconds > 0
        assert all(row["ok"] for row in server.proof())
        assert [r["what"] for r in server.proof()] == ["served model", "status without the key", "sha256 of model.gguf"]
        assert server.gauges() == {"running": 3.0}          # summed over labels; what is half there is absent
        argv = Path(f"/proc/{pid}/cmdline").read_text()
        guard_argv = Path(f"/proc/{server.process._guard.pid}/cmdline").read_text()
        assert server.key not in argv + guard_argv
        key = server.key
    assert gone(pid, 0.0)
    assert key not in (tmp_path / "server.log").read_text()
    assert stages[0] == "checking the weights on disk"


def test_death_while_loading_is_noticed_at_once_with_its_last_words(tmp_path):
    began = time.monotonic()
    with pytest.raises(EngineError, match=r"status 3.*out of luck"), start("dies-loading", tmp_path):
        pass
    assert time.monotonic() - began < 5


def test_death_at_the_first_request(tmp_path):
    with pytest.raises(EngineError, match="kernel not found"), start("dies-at-first-request", tmp_path):
        pass


def test_death_in_mid_level(tmp_path):
    with start("good", tmp_path) as server:
        server.check_alive()
        os.kill(server.pid, signal.SIGKILL)
        with pytest.raises(EngineError, match="signal 9"):
            for _ in range(100):
                server.check_alive()
                time.sleep(0.02)


def test_never_ready(tmp_path):
    with pytest.raises(EngineError, match=r"not ready within 1 s.*still loading.*start_seconds"), \
         start("never-ready", tmp_path, start_seconds=1.0):
        pass


@pytest.mark.parametrize("mode, says", [("one-token-only", "asked for 4 tokens it gave 1"),
                                        ("error-in-stream", "EngineCore is dead"),
                                        ("no-json", "not ready .*streamed an event that is not JSON"),
                                        ("no-object", "not ready .*an event that is no JSON object"),
                                        ("no-count", "not ready .*streamed 1 chunks without a token count")])
def test_an_open_port_is_not_ready(tmp_path, mode, says):
    with pytest.raises(EngineError, match=says), start(mode, tmp_path, start_seconds=1.0):
        pass


def test_a_tokenizer_that_gives_no_count_ends_the_launch(tmp_path):
    with pytest.raises(EngineError, match=r"tokenizer could not be asked \(KeyError\('count'\)\)"), \
         start("counts-nothing", tmp_path):
        pass


def test_wrong_model_ends_the_launch(tmp_path):
    with pytest.raises(EngineError, match=r"served model should be stand-in-f16 and is another-model \(GET /v1/mod"), \
         start("wrong-model", tmp_path):
        pass


def test_a_server_that_answers_without_the_key_is_refused(tmp_path):
    with pytest.raises(EngineError, match="status without the key should be 401 and is"), start("open-door", tmp_path):
        pass


def test_unknown_is_as_good_as_wrong():
    assert claim("dtype", "bfloat16", None, "log") == {
        "what": "dtype", "expected": "bfloat16", "found": "unknown", "source": "log", "ok": False}
    assert not claim("dtype", "unknown", None, "log")["ok"]


def test_port_taken(tmp_path, monkeypatch):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        monkeypatch.setattr(base, "free_port", lambda behind: holder.getsockname()[1])
        with pytest.raises(EngineError, match="Address already in use"), start("good", tmp_path):
            pass


def test_damaged_artifact(tmp_path, artifact):
    (artifact / "model.gguf").write_bytes(b"weighty")
    with pytest.raises(EngineError, match=rf"model\.gguf is damaged.*Remove artifacts/{ARTIFACT}"), \
         start("good", tmp_path):
        pass
    (artifact / "model.gguf").unlink()
    with pytest.raises(EngineError, match=r"model\.gguf is damaged: No such file"), start("good", tmp_path):
        pass


def test_a_command_is_waited_for_as_long_as_it_may_take_and_looked_at_meanwhile(tmp_path):
    looks = []
    with Process(["sleep", "0.3"], {}, tmp_path / "a.log") as process:
        assert process.wait(20, lambda: looks.append(process.status), 0.05) == 0 and set(looks) == {None}
    with Process(["sleep", "30"], {}, tmp_path / "b.log") as process, pytest.raises(TimeoutError):
        process.wait(0.2, lambda: None, 0.05)
    assert process.status is not None  # leaving the context ends it


def test_engine_missing(tmp_path):
    with pytest.raises(EngineError, match="No such file"):
        Process([str(tmp_path / "no-such-engine")], {}, tmp_path / "server.log")


def test_log_folder_read_only(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(EngineError, match="Make the folder writable"):
        Process(["true"], {}, tmp_path / "file" / "server.log")


def test_an_exception_ends_the_server(tmp_path):
    with pytest.raises(KeyboardInterrupt), start("good", tmp_path) as server:
        raise KeyboardInterrupt
    assert gone(server.pid, 0.0)


@pytest.fixture
def impatient(monkeypatch, tmp_path):
    """The guard with half a second of patience."""
    text = process.GUARD.read_text().replace("POLITE_S = 8.0", "POLITE_S = 0.5")
    (tmp_path / "guard.py").write_text(text)
    monkeypatch.setattr(process, "GUARD", tmp_path / "guard.py")


def test_a_server_that_ignores_sigterm_and_its_orphans_are_ended(tmp_path, impatient):
    with start("brood", tmp_path) as server:
        orphan = int(re.search(r"grandchild (\d+)", server.process.text())[1])
        assert alive(orphan)
    assert gone(server.pid, 0.0)
    assert gone(orphan, 0.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_study_leaves_nothing_behind(tmp_path, impatient, number):
    code = f"""
import sys, time
from pathlib import Path
from lib.engines import process
process.GUARD = Path({str(process.GUARD)!r})
command = [sys.executable, '-u', {str(STAND_IN)!r}, 'brood', '0', 'x']
p = process.Process(command, {{'KEY': 'k'}}, Path({str(tmp_path / "log")!r}), None, 'PLACE')
while 'grandchild' not in p.text(): time.sleep(0.02)
print(p.pid, p._guard.pid, p.text().split()[1], flush=True)
time.sleep(600)
"""
    study = subprocess.Popen([sys.executable, "-c", code], cwd=paths.ROOT, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in study.stdout.readline().split()]
    assert len(pids) == 3
    assert all(alive(pid) for pid in pids)
    told = Path(f"/proc/{pids[0]}/environ").read_text()
    folder = Path(re.search(r"(?:^|\0)PLACE=([^\0]+)", told)[1])
    assert folder.is_dir()
    study.send_signal(number)
    study.wait()
    study.stdout.close()
    assert all(gone(pid) for pid in pids) and not folder.exists()


def test_even_a_killed_guard_takes_the_server_along_and_its_children_follow(tmp_path):
    code = "import subprocess; child = subprocess.Popen(['sleep', '600']); print(child.pid, flush=True); child.wait()"
    with Process([sys.executable, "-c", code], {}, tmp_path / "log") as server:
        while not server.text().strip():
            time.sleep(0.02)
        child = int(server.text())
        server._guard.kill()
        assert gone(server.pid) and alive(child)
        with pytest.raises(EngineError, match="ended by itself"):
            server.check_alive()
    assert gone(child)


def leaves_a_socket(tmp_path, then):
    """A command that binds a socket where vLLM would, tells it, and goes on with `then`."""
    code = (
        "import os, socket, time, uuid; at = os.environ['PLACE'] + '/' + str(uuid.uuid4()); "
        f"socket.socket(socket.AF_UNIX).bind(at); os.mkdir(at + '.d'); print(at, flush=True); {then}"
    )
    return Process([sys.executable, "-c", code], {}, tmp_path / "log", None, "PLACE")


def test_what_a_server_leaves_in_its_own_folder_goes_with_it(tmp_path, monkeypatch):
    far = tmp_path / ("far" * 20)       # no socket could lie there
    far.mkdir()
    monkeypatch.setenv("TMPDIR", str(far))
    with leaves_a_socket(tmp_path, "time.sleep(600)") as server:
        while "/" not in server.text():
            time.sleep(0.02)
        folder = Path(server.text().strip()).parent
        assert folder.parent == Path("/tmp") and len(str(folder)) + 37 <= 107
        assert folder.stat().st_mode & 0o777 == 0o700 and len(list(folder.iterdir())) == 2
    assert not folder.exists()


def test_what_a_server_leaves_goes_also_when_it_dies(tmp_path):
    with leaves_a_socket(tmp_path, "os._exit(3)") as server:
        assert server.wait(20, lambda: None, 0.02) == 3
        assert not Path(server.text().strip()).parent.exists()


@pytest.mark.parametrize("container", [None, Container(runtime="docker", image="an/image:1")])
def test_a_server_outside_a_container_is_told_its_own_folder(tmp_path, monkeypatch, container):
    monkeypatch.setattr(StandIn, "scratch", "PLACE")
    with start("good", tmp_path, container=container) as server:
        told = Path(f"/proc/{server.pid}/environ").read_text()
        assert ("\0PLACE=/" in f"\0{told}") == (container is None)


def test_its_own_folder_lies_under_a_short_tmpdir(tmp_path, monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as above:
        monkeypatch.setenv("TMPDIR", above)
        with leaves_a_socket(tmp_path, "time.sleep(600)") as server:
            while "/" not in server.text():
                time.sleep(0.02)
            assert list(Path(above).iterdir()) == [Path(server.text().strip()).parent]
        assert list(Path(above).iterdir()) == []


def test_cores_are_kept(tmp_path):
    core = min(os.sched_getaffinity(0))
    tells = "import os; print(os.sched_getaffinity(0)); input()"
    with Process([sys.executable, "-c", tells], {}, tmp_path / "log", [core]) as server:
        with pytest.raises(EngineError):
            for _ in range(200):
                server.check_alive()
                time.sleep(0.02)
        assert f"{{{core}}}" in server.text()


def test_what_can_never_work_is_refused():
    engine = StandIn("good")
    engine.check(launch())
    with pytest.raises(ConfigError, match="has no precision 'fp8' here; it serves f16, imaginary"):
        engine.check(launch(precision="fp8"))
    with pytest.raises(ConfigError, match=r"holds bf16 weights.*serves gguf-f16.*smollm2-135m-gguf-f16"):
        engine.check(launch(artifact="smollm2-135m-bf16"))
    with pytest.raises(ConfigError, match="no recipe for artifact 'llama-70b'"):
        engine.check(launch(artifact="llama-70b"))
    with pytest.raises(ConfigError, match="unknown key 'threds'"):
        engine.check(launch(settings={"threds": 2}))
    with pytest.raises(ConfigError, match="environment 'study' does not hold"):
        engine.check(launch(environment="study"))


def test_what_this_computer_cannot_run_is_a_reason_not_an_error(monkeypatch):
    engine = StandIn("good")
    assert "lacks no_such_flag (a reason)" in engine.unavailable(launch(precision="imaginary"))
    monkeypatch.setattr(computer, "free_memory_bytes", lambda: 1_000_000)
    assert "0.0 GB is free. Close other programs" in engine.unavailable(launch())
