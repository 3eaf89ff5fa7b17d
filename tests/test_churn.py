"""Adapters swapped while others are served: against a server in this process, by the real load client."""

import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from lib.analyse import swaps
from lib.config import Launch
from lib.engines import inside, registry
from lib.errors import MeasureError, NoValue
from lib.measure import churn, clientplan

NAMES = ("adapter-1", "adapter-2", "adapter-3")
LOAD_S, TOKEN_S, TOKENS = 0.25, 0.01, 4


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


KNOWN = {None: digest(" base" * TOKENS)} | {name: digest(f" {name}" * TOKENS) for name in NAMES}


class Server:
    """Serves adapters by name; nobody gets a token while one is loaded. `refuses`, `mixes`: where that goes wrong."""

    wire, model = "openai-completions", "told"
    launch = Launch(name="x", engine="vllm-cpu", precision="fp32", artifact="smollm2-135m-bf16", environment="vllm-cpu",
                    start_seconds=9, settings={"adapters": "smollm2-135m-lora-r8"})

    def __init__(self, refuses=(), mixes=(), offers=True):
        self.loaded, self.stop, self.refuses, self.mixes = set(NAMES), threading.Lock(), set(refuses), set(mixes)
        self.engine = SimpleNamespace(keeps_connections=True, offer=self.offer, title="told",
                                      reloads=inside.VllmAdapters().reloads)
        self.offers, self.offered = offers, []
        handler = type("Handler", (Handler,), {"told": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def offer(self, server, name, folder):
        self.offered.append(name)
        return self.offers, "no room"

    def body(self, prompt, tokens, adapter=None):
        return "/v1/completions", {"model": adapter or "told", "max_tokens": tokens}

    def check_alive(self):
        pass


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    told: Server

    def log_message(self, *args):
        pass

    def whole(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_POST(self):
        asked, told = json.loads(self.rfile.read(int(self.headers["Content-Length"]))), self.told
        name = asked.get("lora_name") or asked["model"]
        if self.path == "/v1/unload_lora_adapter":
            told.loaded.remove(name)
            return self.whole(200, "out")
        if self.path == "/v1/load_lora_adapter":
            with told.stop:
                time.sleep(LOAD_S)
            if name in told.refuses:
                return self.whole(400, "no room")
            told.loaded.add(name)
            return self.whole(200, "in")
        if name not in told.loaded:
            return self.whole(404, "no such model")
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        word = " adapter-1" if name in told.mixes else f" {name}"
        n = asked["max_tokens"]
        for i in range(n):
            time.sleep(TOKEN_S)
            with told.stop:
                self.event({"choices": [{"text": word, "finish_reason": "length" if i == n - 1 else None}]})
        self.event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": n}})
        self.wfile.write(b"0\r\n\r\n")

    def event(self, data):
        text = f"data: {json.dumps(data)}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))
        self.wfile.flush()


@pytest.fixture
def take(tmp_path, monkeypatch):
    monkeypatch.setenv(clientplan.KEY_ENV, "k")
    monkeypatch.setattr(inside, "SWAPS", 2)
    for name, value in (("BEGINS_S", 0.3), ("EVERY_S", 0.7), ("LASTS_S", 1.7)):
        monkeypatch.setattr(churn, name, value)
    servers = []

    def run(**told):
        servers.append(Server(**told))
        return servers[-1], churn.take(servers[-1], "x", TOKENS, KNOWN, tmp_path, 20.0)

    yield run
    assert not list(tmp_path.iterdir())  # no journal is left
    for server in servers:
        server.http.shutdown()
        server.http.server_close()


def test_a_loading_under_load_is_timed_and_its_neighbours_stall_is_seen(take):
    server, found = take()
    assert found["resident"] == "adapter-1" and [one["adapter"] for one in found["swaps"]] == ["adapter-2", "adapter-3"]
    assert all(one[stage]["http_status"] == 200 for one in found["swaps"] for stage in ("unload", "load"))
    assert all(one["first"]["equal"] and len(one["first"]["event_ns"]) == TOKENS for one in found["swaps"])
    assert {one["status"] for one in found["neighbours"]} == {"complete", "unfinished"} and server.offered == []
    json.dumps(found)  # it goes into the record's metadata
    told = swaps.facts([{"churn": found}, {"churn": None}], "measured", "s")
    value = {key: one["value"] for key, one in told.items()}
    assert (value["loaded"], value["failed"], value["asked"], value["equal"]) == (2, 0, 2, 2)
    assert 1e3 * LOAD_S <= value["load"] < 1e3 * LOAD_S + 500
    assert value["gap_longest"] > 900 * LOAD_S > value["gap_else"]
    assert value["first"] > 0 and value["resident"] > 0


def test_a_loading_that_is_refused_is_a_finding_and_is_made_good(take):
    server, found = take(refuses=["adapter-3"])
    refused = found["swaps"][1]
    assert refused["load"]["http_status"] == 400 and refused["first"]["sent_ns"] is None
    assert server.offered == ["adapter-3"]
    told = swaps.facts([{"churn": found}], "measured", "s")
    assert (told["loaded"]["value"], told["failed"]["value"], told["asked"]["value"]) == (1, 1, 1)


def test_an_adapter_that_does_not_come_back_ends_the_launch(take):
    with pytest.raises(MeasureError, match=r"took adapter-3 out .* does not load it again \(no room\)"):
        take(refuses=["adapter-3"], offers=False)


def test_an_adapter_that_answers_as_another_is_found(take):
    with pytest.raises(MeasureError, match="loaded adapter-2 .* answered for it as adapter-1 does alone"):
        take(mixes=["adapter-2"])


def test_an_engine_that_takes_none_while_it_serves_says_so(tmp_path):
    llama = registry.engine("llama-cpp")
    server = SimpleNamespace(engine=llama, launch=Server.launch, body=None)
    with pytest.raises(NoValue, match=r"llama\.cpp has no request that takes an adapter out"):
        llama.reloads(server, "adapter-2", tmp_path)
    found = churn.take(server, "x", TOKENS, KNOWN, tmp_path, 9.0)
    told = swaps.facts([{"churn": found}], "measured", "s")
    assert told["load"]["value"] is None
    assert told["load"]["reason"] == "llama.cpp has no request that takes an adapter out while it serves"


def test_vllm_is_asked_in_its_own_words(tmp_path):
    out, back = registry.engine("vllm-cpu").reloads(None, "adapter-2", tmp_path)
    assert out == ("/v1/unload_lora_adapter", {"lora_name": "adapter-2"})
    assert back == ("/v1/load_lora_adapter", {"lora_name": "adapter-2", "lora_path": str(tmp_path)})


MS = 1_000_000


def swap(unload, load, first, status=200):
    stage = {"http_status": status, "cause": None}
    return {"adapter": "adapter-2", "unload": stage | {"sent_ns": unload * MS, "end_ns": load[0] * MS},
            "load": stage | {"sent_ns": load[0] * MS, "end_ns": load[1] * MS},
            "first": {"sent_ns": load[1] * MS, "event_ns": [t * MS for t in first], "status": "complete",
                      "cause": None, "equal": True}}


def test_gaps_during_a_loading_are_told_from_the_others():
    # Loaded from 100 to 140 ms: of a neighbour's gaps, that from 90 to 150 alone overlaps it.
    neighbour = {"sent_ns": 50 * MS, "event_ns": [t * MS for t in (70, 80, 90, 150, 165, 180)], "status": "complete"}
    one = {"reason": None, "resident": "adapter-1", "neighbours": [neighbour],
           "swaps": [swap(95, (100, 140), (160, 170))]}
    within, without = swaps.gaps(one)
    assert within.tolist() == pytest.approx([0.060])
    assert without.tolist() == pytest.approx([0.010, 0.010, 0.015, 0.015])
    told = swaps.facts([{"churn": one}], "measured", "s")
    value = {key: found["value"] for key, found in told.items()}
    assert value["load"] == pytest.approx(40) and value["first"] == pytest.approx(20)
    assert value["resident"] == pytest.approx(20) and value["gap_longest"] == pytest.approx(60)
    assert all(found["mark"] == "measured" for found in told.values())


def test_a_record_from_before_says_that_it_times_none():
    told = swaps.facts([{"rank": 8}], "measured", "s")
    assert {found["reason"] for found in told.values()} == {swaps.NOT_TIMED}
