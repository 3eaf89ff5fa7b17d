"""Why a server, or a step that makes something for one, failed: its whole log in, a sentence and the way out. Pure.

The words are those of vLLM 0.6.2 to 0.32, TensorRT-LLM 0.12 and 1.2, PyTorch, NCCL and the CUDA driver. Rules: what
makes the others fail comes first, since one rank out of memory ends its neighbours with errors of their own; where
nothing is known, the last error and the last lines are told as they stand; what Python's libraries say of leaks while
they are unloaded is nobody's last word.
"""

import re
from dataclasses import dataclass

LINES, CHARACTERS = 12, 300  # of a log's end, and of each of its lines
AGAIN = "then run the same command again: finished levels stay."
NOISE = re.compile(r"^(- leaked |- \.\.\. skipped|nanobind: |See https?://nanobind)")
ERROR = re.compile(r"\b\w*(Error|Exception)\b.*|\b(FATAL|fatal error)\b.*")


@dataclass(frozen=True)
class Cause:
    """A cause that can be told by its words: a pattern of one line, what happened, and what to do."""

    pattern: str
    what: str
    way: str


KNOWN = (
    Cause(r"No available memory for the cache blocks|can be stored in (the )?KV cache|available KV cache memory",
          "no room was left for the KV cache",
          f"Raise gpu_memory_utilization or lower max_model_len in its config, {AGAIN}"),
    Cause(r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory|cudaMalloc.*out of memory",
          "a GPU ran out of memory",
          "See by `make doctor` who else holds memory on the GPUs; lower gpu_memory_utilization, max_num_seqs or "
          f"max_num_batched_tokens in its config, or give it more GPUs; {AGAIN}"),
    Cause(r"std::bad_alloc|Cannot allocate memory|\bMemoryError\b|DefaultCPUAllocator: can't allocate",
          "this computer ran out of memory", f"End what else runs on it, {AGAIN}"),
    Cause(r"incompatible device|expecting compute [\d.]+ got compute|no kernel image is available"
          r"|engine plan file is not compatible",
          "it was built for another GPU",
          "Remove what was made for it under artifacts/ (a TensorRT engine is built again on this computer's GPU), or "
          f"name an environment whose build knows this GPU; {AGAIN}"),
    Cause(r"driver version is insufficient|NVIDIA driver on your system is too old|unsupported display driver"
          r"|cudaErrorInsufficientDriver|forward compatibility was attempted",
          "the NVIDIA driver is too old for it",
          f"`make doctor` shows the driver and the one it needs: update it or name an older image, {AGAIN}"),
    Cause(r"GatedRepoError|[Gg]ated repo|Access to model \S+ is restricted|401 Client Error.*huggingface",
          "the model's licence was not accepted, or the hub's token is missing",
          f"Accept the licence on the model's page, put the token into HF_TOKEN, {AGAIN}"),
    Cause(r"unrecognized arguments?:|invalid choice:|unrecognised argument",
          "it does not know an option that it was given",
          "The environment or image holds another version than the config names: make the two agree, "
          f"{AGAIN}"),
    Cause(r"Address already in use|EADDRINUSE|failed to bind", "its port was taken by another program meanwhile",
          f"Every start asks for a port that is free: wait a moment, {AGAIN}"),
    Cause(r"/dev/shm.*No space left|No space left on device.*shm|\bBus error\b", "shared memory (/dev/shm) was full",
          f"Enlarge /dev/shm, or the container's --shm-size, {AGAIN}"),
    Cause(r"Too many open files", "its account may not open more files", f"Raise `ulimit -n`, {AGAIN}"),
    Cause(r"No space left on device", "the disk was full", f"Free space (`make plan` tells how much), {AGAIN}"),
    Cause(r"\S+ not implemented for '\w+'", "it has no kernel for this type of number",
          f"Choose another dtype or precision in its config, {AGAIN}"),
    Cause(r"Watchdog caught collective operation timeout|ncclSystemError|ncclInternalError|ncclUnhandledCudaError"
          r"|ncclRemoteError|NCCL WARN",
          "the GPUs could not speak with each other (NCCL)",
          f"`make doctor` shows the links between them; NCCL_DEBUG=INFO makes its log tell more; {AGAIN}"),
)  # fmt: skip
WAITS = Cause(r"NCCL INFO .*Init START", "its ranks wait for each other (NCCL was begun and never ready)",
              f"`make doctor` shows the links between the GPUs; NCCL_DEBUG=INFO makes its log tell more; {AGAIN}")
READY = re.compile(r"NCCL INFO .*Init COMPLETE")


def known(log: str) -> str:
    """Tell the cause that a whole log names, its line and the way out; '' where none is known."""
    lines = _lines(log)
    for cause in KNOWN:
        if found := [line for line in lines if re.search(cause.pattern, line)]:
            return _told(cause, found[0])
    begun = [line for line in lines if re.search(WAITS.pattern, line)]
    return _told(WAITS, begun[-1]) if begun and not any(map(READY.search, lines)) else ""


def words(log: str) -> str:
    """Return a log's last lines as one line of prose, with its last error where they name none."""
    lines = _lines(log)
    last = lines[-LINES:]
    errors = [line for line in lines if ERROR.search(line)]
    if errors and not any(map(ERROR.search, last)):
        last = [errors[-1], *last[1:]]
    return " / ".join(line[:CHARACTERS] for line in last)


def why(log: str) -> str:
    """Tell why, as far as the log does: the known cause, its last words, or that it has none."""
    last = words(log)
    return known(log) or (f"Its last words: {last}" if last else "It said nothing.")


def _told(cause: Cause, line: str) -> str:
    found = re.search(cause.pattern, line)
    start = max(0, found.start() - 60) if found else 0  # a log's lines begin with dates, names and places
    return f"Its log says that {cause.what} (\"{line[start : start + CHARACTERS].strip()}\"). {cause.way}"


def _lines(log: str) -> list[str]:
    stripped = (line.strip() for line in log.replace("\r", "\n").splitlines())
    return [line for line in stripped if line and not NOISE.match(line)]
