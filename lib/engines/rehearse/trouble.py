"""What engines print when they cannot start, and how they end: the words that a person will search for.

Rule: each failure ends, or hangs, the way the real one does; the study must tell it by the log alone.
"""

import sys
import time

from lib.engines.rehearse.failures import Failure

FOR_EVER_S = 7 * 24 * 3600.0

OUT_OF_MEMORY = {
    "vllm": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 0 has a total capacity of "
    "79.11 GiB of which 320.50 MiB is free. Including non-PyTorch memory, this process has 78.79 GiB memory in use.",
    "tensorrt_llm": "[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaMalloc(ptr, n): out of memory",
}
OTHER_GPU = {
    "vllm": "RuntimeError: CUDA error: no kernel image is available for execution on the device",
    "tensorrt_llm": "[TensorRT-LLM][ERROR] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine "
    "plan file is generated on an incompatible device, expecting compute 8.0 got compute 9.0, please rebuild.)",
}
WAITING = "NCCL INFO comm 0x55d0c0 rank 0 nranks 8 cudaDev 0 - Init START"


def before_ready(failure: Failure, engine: str, speed: float) -> None:
    """Fail at loading, or be slow, as demanded."""
    if failure.kind in ("oom", "other-gpu"):
        say({"oom": OUT_OF_MEMORY, "other-gpu": OTHER_GPU}[failure.kind][engine])
        sys.exit(1)
    if failure.kind == "nccl-hang":
        say(WAITING)
        time.sleep(FOR_EVER_S)
    if failure.kind == "slow-ready":
        time.sleep(failure.at / speed)


def say(text: str) -> None:
    """Print to the log at once."""
    print(text, file=sys.stderr, flush=True)
