"""A stand-in engine that streams one token every 10 ms, 30 ms after the request, and counts as its tokenizer does.

PORT NAME DIES_AFTER MARK FAULT READY_PROMPT TOKENIZER IN_TURN CROWD WORKER

FAULT, one of those below or none, holds for all but READY_PROMPT, by which a starter knows that it is ready. IN_TURN:
with 1 it answers one request at a time, and the others wait. CROWD: with more at once (0: any number) it is slow.
WORKER: with 1 a child answers, as vLLM's engine does, and what was started only waits for it.
"""

import json
import os
import sys
import threading
import time
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tokenizers import Tokenizer

port, name, dies_after, mark = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
fault, ready_prompt = sys.argv[5], sys.argv[6]
CONTEXT = 30  # words of a prompt and tokens of its answer, with the fault `context`
key = os.environ["KEY"]
tokenizer = Tokenizer.from_file(sys.argv[7])
alone = threading.Lock() if sys.argv[8] == "1" else nullcontext()
crowd = int(sys.argv[9])
if int(sys.argv[10]) and (child := os.fork()):
    os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 0xFF)
served = at_once = 0
counting = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def whole(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        if self.path == "/metrics":
            return self.whole(200, "running 1\n")
        return self.whole(200, json.dumps({"data": [{"id": name}]}) if self.path == "/v1/models" else "ok")

    def event(self, data):
        text = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%b\r\n" % (len(text), text))

    def do_POST(self):
        global served, at_once
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.headers.get("Authorization") != f"Bearer {key}":
            return self.whole(401, "{}")
        bad = fault if asked["prompt"] != ready_prompt else "none"
        n = asked["max_tokens"]
        if bad == "model":
            return self.whole(404, json.dumps({"message": f"The model `{asked['model']}` does not exist."}))
        if bad == "key":
            return self.whole(401, json.dumps({"error": "Unauthorized"}))
        if bad == "no-stream":
            return self.whole(200, json.dumps({"choices": [{"text": " word" * n, "finish_reason": "length"}]}))
        if bad == "context" and len(asked["prompt"].split()) + n > CONTEXT:
            return self.whole(400, json.dumps({"message": f"This model's maximum context length is {CONTEXT} tokens."}))
        with counting:
            served, at_once = served + 1, at_once + 1
            last = dies_after and served >= dies_after and not mark.exists()
        try:
            with alone:
                self.stream(asked, 1 if bad == "length" else n, last, usage=bad != "usage")
        finally:  # also when the client has gone
            with counting:
                at_once -= 1

    def stream(self, asked, n, last, usage):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        time.sleep(0.03)
        for i in range(n):
            time.sleep(0.08 if crowd and at_once > crowd else 0.01)
            self.event(json.dumps({"choices": [{"text": " word", "finish_reason": "length" if i == n - 1 else None}]}))
            if last and i == 2:
                mark.touch()
                print("out of luck", flush=True)
                os._exit(3)
        if usage:
            counted = {"prompt_tokens": len(tokenizer.encode(asked["prompt"]).ids), "completion_tokens": n}
            self.event(json.dumps({"choices": [], "usage": counted}))
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


ThreadingHTTPServer.request_queue_size = 128  # its own five are overrun by a client that opens all at once
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
