"""What a probe names before a level starts."""

import json
import socket
import time

import pytest

from lib.errors import MeasureError
from lib.measure.clientplan import Plan, Request
from lib.measure.probe import probe
from tests.hostile import END, HEAD, Server, event, plain, stream, token, usage

WIRE = "openai-completions"


def body(text, tokens):
    return {"model": "m", "prompt": text, "max_tokens": tokens, "stream": True}


def ask(port, wire=WIRE, **more):
    plan = Plan(port=port, requests=(Request("r", "/v1/completions", b""),), journal="unused")
    return probe(plan, "/v1/completions", body, wire, **more)


def refusal(answer, **more) -> str:
    with Server(answer) as server, pytest.raises(MeasureError) as error:
        ask(server.port, **more)
    return str(error.value)


def test_a_good_server_passes_and_its_prompt_is_the_probe_s_own():
    seen = []

    def answer(_headers, sent):
        seen.append(sent)
        return stream(sent["max_tokens"], 0.01)

    with Server(answer) as server:
        found = ask(server.port)
    assert found.answer.output_tokens == 5 and 0.01 < found.first_token_s < found.total_s
    assert "lighthouse" in seen[0]["prompt"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (plain("404 Not Found", '{"detail":"Not Found"}'), "does not exist on this server (HTTP 404)"),
        (plain("401 Unauthorized", '{"error":"Unauthorized"}'), "refuses the key (HTTP 401)"),
        (plain("403 Forbidden", "no"), "refuses the key (HTTP 403)"),
        (plain("404 Not Found", json.dumps({"message": "The model `m` does not exist."})), "not serve the model 'm'"),
        (
            plain("400 Bad Request", json.dumps({"message": "This model's maximum context length is 8192 tokens."})),
            "exceeds its context (HTTP 400)",
        ),
        (plain("500 Oops", "stack"), "answers HTTP 500: stack"),
        (plain("200 OK", '{"choices":[{"text":"abc"}]}'), "does not stream: it sent 'application/json'"),
        (HEAD + token("a") + END, "truncated (no finish_reason)"),
        (HEAD + event({"error": {"code": 507}}) + END, "failed (error in stream: 507)"),
        (HEAD + token("a") * 4 + token("a", "length") + event("[DONE]") + END, "counts no tokens"),
        (HEAD + token("a", "stop") + usage(1) + event("[DONE]") + END, "asked for exactly 5 tokens and gave 1"),
        (b"SSH-2.0-OpenSSH_9\r\n", "does not answer in HTTP"),
        (b"", "does not answer in HTTP"),
    ],
    ids=[
        "url", "key", "forbidden", "model", "context", "500", "no stream", "cut", "error", "usage",
        "length", "ssh", "mute",
    ],
)
def test_what_is_wrong_is_named(answer, words):
    def say(_headers, _body):
        yield answer
        raise OSError  # closes

    said = refusal(say)
    assert words in said and "\n" not in said and said.endswith(".")


def test_formats_without_usage_are_not_asked_for_it():
    done = [HEAD, token("a"), token("b"), event("[DONE]") + END]
    with Server(lambda h, b: done) as server:
        assert ask(server.port, "tensorrt-llm-0.12-completions").answer.output_tokens is None


def test_no_server_and_a_hanging_one():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(MeasureError, match=r"did not finish 5 tokens in 0 s|did not finish"):
            ask(port, timeout_s=0.3)
        assert time.monotonic() - began < 2
    with pytest.raises(MeasureError, match="cannot be reached"):
        ask(port)
