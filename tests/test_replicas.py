"""The router for engines that have none: real processes behind one port, and all of them gone at the end."""

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lib.engines import talk
from lib.engines.process import free_port

SCRIPT = Path(__file__).resolve().parents[1] / "lib" / "engines" / "recipes" / "replicas.py"
# Answers with its own port and the GPUs it was given; dies when told to.
SERVER = """
import http.server, json, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_GET(self):
        if self.path == "/die":
            os._exit(3)
        body = json.dumps({"port": int(sys.argv[1]), "gpus": os.environ["CUDA_VISIBLE_DEVICES"]}).encode()
        self.send_response(200); self.send_header("Content-Length", str(len(body))); self.end_headers()
        self.wfile.write(body)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.fixture
def router():
    port = free_port()
    command = [sys.executable, str(SCRIPT), "--port", str(port), "--replicas", "2", "--gpus", "4",
               "--health", "/health", "--", sys.executable, "-c", SERVER, "{port}"]
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        limit = time.monotonic() + 15
        while time.monotonic() < limit:
            try:
                talk.ask(port, "GET", "/", None)
                break
            except OSError:
                time.sleep(0.1)
        yield port, process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_connections_are_spread_and_replicas_have_gpus_of_their_own(router):
    port, _ = router
    held = [http.client.HTTPConnection("127.0.0.1", port, timeout=5) for _ in range(4)]
    seen = []
    for connection in held:                 # all four stay open: two for each replica
        connection.request("GET", "/")
        seen.append(json.loads(connection.getresponse().read()))
    assert sorted([one["gpus"] for one in seen]) == ["0,1,2,3", "0,1,2,3", "4,5,6,7", "4,5,6,7"]
    held[0].request("GET", "/")
    assert json.loads(held[0].getresponse().read()) == seen[0]      # a connection stays where it is
    for connection in held:
        connection.close()


def test_one_dead_replica_ends_all(router):
    port, process = router
    ports = {json.loads(talk.ask(port, "GET", "/", None)[1])["port"] for _ in range(2)}
    with pytest.raises(OSError):
        talk.ask(port, "GET", "/die", None)
    assert process.wait(10) == 1
    time.sleep(0.3)
    for one in ports:
        with pytest.raises(OSError):
            talk.ask(one, "GET", "/", None)
