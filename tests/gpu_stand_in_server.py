"""A stand-in for `vllm`, `trtllm-serve` and Triton under `mpirun`, called as they are: log line, endpoints, streams.

STAND_IN_TRITON is what Triton says of its model's configuration, in JSON. STAND_IN_VERSION is what it says of itself;
STAND_IN_LOG replaces parts of its log line: {"old": "new"} in JSON.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

argv, program = sys.argv[1:], Path(sys.argv[0]).name
KEY = os.environ.get("VLLM_API_KEY")
VERSION = os.environ["STAND_IN_VERSION"]
MODEL = argv[1] if program == "vllm" else argv[0]


def option(name: str, default: str = "") -> str:
    joined = next((word.partition("=")[2] for word in argv if word.startswith(f"{name}=")), default)
    return argv[argv.index(name) + 1] if name in argv else joined


NAME = option("--served-model-name", Path(MODEL).name)


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def say(self, value, status=200):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        found = {
            "/health": {}, "/v2/health/ready": {}, "/v2": {"version": "2.49.0"},
            "/v2/models/tensorrt_llm/config": json.loads(os.environ.get("STAND_IN_TRITON", "{}")),
            "/version": {"version": VERSION},
            "/v1/models": {"data": [{"id": NAME, "root": MODEL, "max_model_len": int(option("--max-model-len", "0"))}]},
        }.get(self.path)
        self.say(found if found is not None else {"error": "no such path"}, 200 if found is not None else 404)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if KEY and self.headers.get("Authorization") != f"Bearer {KEY}":
            return self.say({"error": "Unauthorized"}, 401)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        if "text_input" in body:
            for _ in range(body["max_tokens"]):
                self.event({"model_name": "ensemble", "text_output": " x"})
            return None
        count, prompt = body["max_tokens"], len(body["prompt"].split()) + 1
        for i in range(count):
            finish = "length" if i == count - 1 else None
            self.event({"choices": [{"index": 0, "text": " x", "finish_reason": finish}]})
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def event(self, value):
        self.wfile.write(f"data: {json.dumps(value)}\n\n".encode())


if program == "vllm":
    line = (
        f"INFO 10-01 00:00:00 llm_engine.py:226] Initializing an LLM engine (v{VERSION}) with config: model={MODEL!r}, "
        f"dtype=torch.{option('--dtype')}, max_seq_len={option('--max-model-len')}, "
        f"tensor_parallel_size={option('--tensor-parallel-size')}, disable_custom_all_reduce=False, "
        f"quantization={option('--quantization', 'None')}, enforce_eager={'--enforce-eager' in argv}, "
        f"kv_cache_dtype={option('--kv-cache-dtype')}, num_scheduler_steps={option('--num-scheduler-steps')}, "
        f"multi_step_stream_outputs={'--multi-step-stream-outputs' in argv}, "
        f"enable_prefix_caching={'--enable-prefix-caching' in argv}, use_async_output_proc=True)"
    )
    for old, new in json.loads(os.environ.get("STAND_IN_LOG", "{}")).items():
        line = line.replace(old, new)
    print(line, flush=True)
host, port = option("--host") or option("--http-address"), option("--port") or option("--http-port")
ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
