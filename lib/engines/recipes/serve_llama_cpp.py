"""llama.cpp's own HTTP server, as the xllamacpp wheel holds it, run in the llama-cpp environment.

    FIRST_TOKEN_SLA_SERVER_KEY=... python serve_llama_cpp.py '{"model": "FILE", "port": 8080, ...}'

The key comes by environment, so that no list of processes shows it. Prints the versions and what it was told, then
serves until it is ended.
"""

import json
import os
import signal
import sys

import xllamacpp

LOG_LOADING = 4         # what was loaded and how, and some lines per request; never its text


def main() -> None:
    """Serve as the JSON argument says."""
    told = json.loads(sys.argv[1])
    print(f"xllamacpp {xllamacpp.__version__}", xllamacpp.get_system_info(), flush=True)
    params = xllamacpp.CommonParams()
    params.model.path = told["model"]
    params.model_alias = {told["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = told["port"]
    params.api_keys = [os.environ.pop("FIRST_TOKEN_SLA_SERVER_KEY")]
    params.n_parallel = told["slots"]
    params.n_ctx = told["slots"] * told["slot_tokens"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = told["threads"]
    params.cache_prompt = told["prefix_cache"]
    for which in ("cache_type_k", "cache_type_v"):
        setattr(params, which, getattr(xllamacpp.ggml_type, f"GGML_TYPE_{told['kv_type'].upper()}"))
    if told["step_tokens"]:
        params.n_batch = params.n_ubatch = told["step_tokens"]
    # At scale 0 each request chooses; one that does not gets the model itself. At 1 it would get all of them together.
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(path, 0.0) for path in told["adapters"]]
    params.cache_ram_mib = 0        # the server's second prompt cache, in memory, would answer repeats unseen
    params.endpoint_metrics = True
    params.ui = False
    params.verbosity = LOG_LOADING
    server = xllamacpp.Server(params)
    print(f"listening at {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
