"""Nothing the study runs opens the computer: names, keys and tokens, ports, and what is written."""

import asyncio
import http.client
import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from lib import config, paths
from lib.engines import computer, registry
from lib.engines.door import whole_key
from tests import mini_study
from tests.torture import studies, trial

ODD = "x; touch pwned"
TOKENS = {"HF_TOKEN": "hf_canaryAAAA", "HUGGING_FACE_HUB_TOKEN": "hf_canaryBBBB", "OPENAI_API_KEY": "sk-canaryCCCC"}


def test_a_launch_named_like_a_command_runs_nothing(tmp_path):
    mini_study.prepare(tmp_path, studies.TINY, **{ODD: {}})
    command, environment = studies.command("stand-in", tmp_path)
    command[-1] = ODD
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "may hold only letters" in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.rglob("pwned*")) and not (tmp_path / "records").exists()


@pytest.mark.parametrize("arguments", [[], ["LAUNCH=" + ODD], ["PROFILE=" + ODD], ["DEPTH=`touch pwned`"]])
def test_make_refuses_a_name_like_a_command_before_it_runs_any(tmp_path, arguments):
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    (tmp_path / "config" / "mini").mkdir(parents=True)
    (tmp_path / "config" / "mini" / "study.yaml").touch()
    (tmp_path / "config" / "mini" / f"{'good' if arguments else ODD}.yaml").touch()
    done = subprocess.run(
        ["make", "-C", str(tmp_path), "report", "PROFILE=mini", *arguments],
        capture_output=True, text=True, check=False,
        env={k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))},
    )  # fmt: skip
    assert done.returncode == 2 and "a name with other characters" in done.stderr
    assert not list(tmp_path.rglob("*pwned"))


@pytest.mark.parametrize("name", ["../smoke/vllm-fp32", "-rf", ".hidden", "a b"])
def test_names_that_leave_their_folder_or_look_like_options_are_refused(name):
    with pytest.raises(ValidationError, match="may hold only letters"):
        config.Launch(name=name, engine="e", precision="p", artifact="a", environment="e", start_seconds=1)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A study taken with canaries in its environment: its folder, what all command lines said, the engine's key, where
    it listened and what it answered without the key.
    """
    root = tmp_path_factory.mktemp("watched")
    mini_study.prepare(root, studies.TINY, good={})
    command, environment = studies.command("stand-in", root)
    seen: dict = {"root": root, "lines": set(), "key": None, "address": None, "unkeyed": None}
    with (root / "said.log").open("wb") as log:
        run = subprocess.Popen(command, env=environment | TOKENS, cwd=root, stdout=log, stderr=log)
    while run.poll() is None:
        for process in trial.living():
            with suppress(psutil.Error):
                seen["lines"].add(" ".join(process.cmdline()))
                if trial.role(process) == "engine" and seen["unkeyed"] is None:
                    seen["key"] = process.environ().get("KEY", seen["key"])
                    for port in {c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"}:
                        seen["address"], seen["unkeyed"] = computer.listens_at(port), unkeyed(port)
        time.sleep(0.1)
    assert run.returncode == 0, (root / "said.log").read_text()
    return seen


def unkeyed(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("POST", "/v1/completions", b'{"prompt": "x", "max_tokens": 1}')
    return connection.getresponse().status


def test_the_engine_listens_on_loopback_and_refuses_who_has_no_key(watched):
    assert (watched["address"], watched["unkeyed"]) == ("127.0.0.1", 401)


def test_no_token_no_key_and_no_answer_is_in_anything_written_or_on_a_command_line(watched):
    written = [path for path in watched["root"].rglob("*") if path.is_file()]
    assert {"good.parquet", "good.run-0.log", "said.log"} <= {path.name for path in written}
    kept = b"".join(path.read_bytes() for path in written)
    said = "\n".join(watched["lines"])
    assert watched["key"] and "lib.measure.client" in said and "paced_server" in said
    for secret in (*TOKENS.values(), watched["key"]):
        assert secret.encode() not in kept and secret not in said
    assert b"Bearer" not in kept and b" word word" not in kept


SOURCES = list((paths.ROOT / "lib").rglob("*.py"))


@pytest.mark.parametrize("pattern", [
    r"shell\s*=\s*True", r"\bos\.(system|popen)\(", r"(?<![\w.])(eval|exec)\(", r"\bpickle\b",
    r"yaml\.(load\([^)]*\)(?<!Loader=loader\))|unsafe_load\()", r"[\"'](--privileged|--cap-add\S*)[\"']",
    r"verify\s*=\s*False|CERT_NONE|_create_unverified", r"[\"'](0\.0\.0\.0|::)?[\"']\s*,\s*(port|0)\b",
])  # fmt: skip
def test_no_source_does_what_would_open_the_computer(pattern):
    assert [f"{p.name}: {m[0]}" for p in SOURCES if (m := re.search(pattern, p.read_text()))] == []


def test_every_lock_pins_every_package_by_hash():
    for lock in sorted(Path(paths.ENVS).glob("*.in")):
        text = lock.with_suffix(".txt").read_text()
        entries = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]
        bare = [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry]
        assert entries and bare == [], f"{lock.name}: {bare}"


def door(path, brings=None, kind="http"):
    """What the layer in front of vLLM does with a request: handed on, or what it answers."""
    sent = []

    async def within(scope, receive, send):
        sent.append("handed on")

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"x")] + ([(b"authorization", brings)] if brings is not None else [])
    asyncio.run(whole_key.Door(within)({"type": kind, "path": path, "headers": headers}, None, send))
    return sent


def test_vllm_asks_for_the_key_under_every_path(monkeypatch):
    monkeypatch.setenv("VLLM_API_KEY", "right")
    for path in ("/v1/completions", "/invocations", "/tokenize", "/metrics", "/health", "/"):
        assert door(path, b"Bearer right") == ["handed on"]
        for wrong in (None, b"", b"Bearer ", b"Bearer wrong", b"bearer right", b"right", b"Bearer right "):
            answer, body = door(path, wrong)
            assert answer["status"] == 401 and b"Unauthorized" in body["body"]
            assert dict(answer["headers"])[b"content-length"] == str(len(body["body"])).encode()
    assert door("/v1/realtime", None, "websocket") == [{"type": "websocket.close", "code": 1008}]
    assert door("", None, "lifespan") == ["handed on"]


def test_every_vllm_is_started_behind_it_and_proven_to_be():
    for profile, name in (("cpu", "vllm-fp32"), ("h100", "vllm-0.6.2-fp16"), ("h100-current", "vllm-fp8-tp8")):
        launch = config.load_launch(profile, name)
        engine = registry.of(launch)
        argv = engine.command(launch, 8000)
        assert argv[argv.index("--middleware") + 1] == "whole_key.Door"
        assert (Path(engine.variables(launch, "k")["PYTHONPATH"]) / "whole_key.py").exists()
        assert engine.keyed and engine.unasked == "/invocations"
