"""A tiny server that behaves like an engine, or misbehaves as told: MODE PORT NAME; the key is in the environment."""

import http.server
import json
import os
import signal
import subprocess
import sys
import time

mode, port, name = sys.argv[1], int(sys.argv[2]), sys.argv[3]
key = os.environ["KEY"]
BROKEN = {"no-json": '{"choices": [', "no-object": "[1]", "no-count": '{"choices": [], "usage": {"prompt_tokens": 3}}'}


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if self.path == "/health":
            return self.answer(200, "ok")
        if self.path == "/metrics":
            return self.answer(200, '# TYPE running gauge\nrunning{e="0"} 1\nrunning{e="1"} 2\ntokens_total 7\n')
        served = "another-model" if mode == "wrong-model" else name
        return self.answer(200, json.dumps({"data": [{"id": served}]}))

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if mode != "open-door" and self.headers.get("Authorization") != f"Bearer {key}":
            return self.answer(401, "{}")
        if self.path == "/tokenize":
            if mode == "counts-nothing":
                return self.answer(200, "{}")
            return self.answer(200, json.dumps({"count": len(asked["prompt"].split())}))
        if mode == "dies-at-first-request":
            print("kernel not found", flush=True)
            os._exit(3)
        if mode == "error-in-stream":
            return self.answer(200, 'data: {"error": {"message": "EngineCore is dead"}}\n\n')
        if mode in BROKEN:
            return self.answer(200, f"data: {BROKEN[mode]}\n\n")
        tokens = 1 if mode == "one-token-only" else asked["max_tokens"]
        chunks = [{"choices": [{"text": " token"}]}] * tokens
        usage = {"prompt_tokens": len(asked["prompt"].split()) + 1, "completion_tokens": tokens}
        events = [*chunks, {"choices": [], "usage": usage}]
        return self.answer(200, "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n")


if mode == "dies-loading":
    print("loading weights", flush=True)
    print("out of luck", flush=True)
    sys.exit(3)
if mode in ("stubborn", "brood"):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if mode == "brood":         # a grandchild in a session of its own whose parent is gone
    sleeper = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    spawn = ("import subprocess as s, sys; "
             f"p = s.Popen([sys.executable, '-c', {sleeper!r}], start_new_session=True, stdout=s.DEVNULL); "
             "print(p.pid)")
    grandchild = subprocess.check_output([sys.executable, "-c", spawn], text=True).strip()
    print(f"grandchild {grandchild}", flush=True)
if mode == "never-ready":
    print("still loading", flush=True)
    time.sleep(600)
http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
