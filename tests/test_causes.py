"""Why a server failed, from its log: the cause before its consequences, and a way out."""

import pytest

from lib.engines import causes
from lib.engines.rehearse import trouble

UNLOADED = """nanobind: leaked 4 instances!
 - leaked instance 0x7f of type "tensorrt_llm.bindings.executor.KvCacheConfig"
 - ... skipped remainder
See https://nanobind.readthedocs.io/en/latest/refleaks.html for the meaning of these messages.
"""
LOGS = {
    "no room was left for the KV cache": (
        "ValueError: No available memory for the cache blocks. Try increasing gpu_memory_utilization.",
        "ValueError: To serve at least one request with max_model_len 8192, 2.50 GiB KV cache is needed, which is "
        "larger than the available KV cache memory (1.91 GiB).",
        "ValueError: The model's max seq len (8192) is larger than the maximum number of tokens that can be stored in "
        "KV cache (5488).",
    ),
    "a GPU ran out of memory": tuple(trouble.OUT_OF_MEMORY.values()),
    "it was built for another GPU": tuple(trouble.OTHER_GPU.values()),
    "its ranks wait for each other": (trouble.WAITING,),
    "this computer ran out of memory": (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 11811160064 bytes.",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ),
    "the NVIDIA driver is too old": (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).",
        "CUDA driver version is insufficient for CUDA runtime version",
    ),
    "the model's licence was not accepted": (
        "OSError: You are trying to access a gated repo.",
        "huggingface_hub.errors.GatedRepoError: 401 Client Error.",
    ),
    "it does not know an option": ("vllm: error: unrecognized arguments: --middleware",),
    "its port was taken": ("OSError: [Errno 98] error while attempting to bind: Address already in use",),
    "shared memory (/dev/shm) was full": (
        "Error while creating shared memory segment /dev/shm/nccl-Rf (size 9637888): No space left on device",
        "Bus error (core dumped)",
    ),
    "its account may not open more files": ("OSError: [Errno 24] Too many open files",),
    "the disk was full": ("OSError: [Errno 28] No space left on device",),
    "it has no kernel for this type of number": ("RuntimeError: \"cpu_gemm_wna16\" not implemented for 'Float'",),
    "the GPUs could not speak with each other": (
        "RuntimeError: NCCL error: unhandled cuda error, ncclUnhandledCudaError",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE) ran for 600029 ms",
    ),
}


@pytest.mark.parametrize(("what", "line"), [(what, line) for what, lines in LOGS.items() for line in lines])
def test_a_known_cause_is_told_with_its_line_and_a_way_out_wherever_it_stands_in_the_log(what, line):
    said = causes.why("\n".join(["INFO loading"] * 40 + [line] + ["RuntimeError: Engine core died"] * 40 + [UNLOADED]))
    assert f"Its log says that {what}" in said and said.endswith(causes.AGAIN)
    assert line[-40:] in said


def test_every_cause_that_is_known_has_a_log():
    told = [next(what for what in LOGS if what in cause.what) for cause in (*causes.KNOWN, causes.WAITS)]
    assert sorted(told) == sorted(LOGS)


def test_what_made_the_others_fail_comes_first():
    log = "\n".join(
        [
            "(Worker_TP3) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            "(Worker_TP0) ncclRemoteError: A call failed possibly due to a network error",
            "RuntimeError: Engine core initialization failed. See root cause above.",
        ]
    )
    assert "a GPU ran out of memory" in causes.why(log) and "NCCL" not in causes.why(log)


def test_ranks_that_found_each_other_do_not_wait():
    ready = "NCCL INFO comm 0x55d0c0 rank 0 nranks 8 cudaDev 0 - Init COMPLETE"
    assert causes.known(f"{trouble.WAITING}\n{ready}\nloading weights") == ""


def test_what_is_unknown_is_told_by_its_last_words_without_those_of_leaks():
    log = "\n".join(["ValueError: the first reason", *[f"line {i}" for i in range(40)], UNLOADED])
    said = causes.why(log)
    assert said.startswith("Its last words: ValueError: the first reason / line 29 / ") and said.endswith("/ line 39")
    assert "leaked" not in said and "nanobind" not in said
    assert causes.why("x" * 5000) == "Its last words: " + "x" * causes.CHARACTERS
    assert causes.why(UNLOADED) == causes.why("") == "It said nothing."


def test_of_a_progress_bar_the_last_state_is_told():
    assert causes.words("Loading: 0%\rLoading: 50%\rLoading: 100%\n").endswith("Loading: 100%")
