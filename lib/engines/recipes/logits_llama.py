"""Score GGUF files by llama.cpp itself: `score.py` says how, this loads them. Runs in the quantize environment.

A model is {"file", "library", "version", "context", "threads", "kv_type"}; `library` is the shared object of the
xllamacpp wheel, the engine that serves, and `kv_type` what it keeps keys and values in. Its Python classes give no
logits of a prompt; the wheel exports llama.cpp's C interface, and that is called, so the scores carry every rounding of
its own kernels. Structures whose fields differ between versions are handled as bytes: four numbers of the context's
parameters and the types of keys and values are set, after their defaults were found where they are expected; the
context is then asked whether it took the numbers, and llama.cpp prints the types it took. Flash attention, which a
quantized cache needs, is llama.cpp's own choice here as in its server. A version with another layout is refused, and so
is a library without the interface.
"""

import ctypes
import re
import sys
from ctypes import POINTER, c_bool, c_char_p, c_float, c_int8, c_int32, c_uint32, c_void_p
from typing import Any

import numpy as np
import score

# llama.h, llama_context_default_params(): n_ctx, n_batch, n_ubatch, n_seq_max.
HEAD = (512, 2048, 512, 1)
# Two pointers, null by default, and after them type_k and type_v, by the numbers of ggml.h.
CACHE, NULL, TYPES = 26, (0, 0, 0, 0), {"f16": 1, "q8_0": 8}
TOOK = ("llama_n_ctx", "llama_n_batch", "llama_n_ubatch", "llama_n_seq_max")
STEP = 512                      # tokens of one batch
LOUD = (3, 4)                   # ggml's levels of warnings and errors
KEEPS = re.compile(r"llama_kv_cache: size = .*?K \((\w+)\).*?V \((\w+)\)")
kept: list[tuple[str, ...]] = []        # types of keys and values, as llama.cpp says of each cache that it makes


def _loud(level: int, text: bytes, _: int | None) -> None:
    """Print what llama.cpp says about trouble; of everything else it says some thousand lines, and one is kept."""
    said = text.decode(errors="replace")
    if level in LOUD:
        sys.stderr.write(said)
    elif cache := KEEPS.search(said):
        kept.append(cache.groups())


Listener = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
LISTENER = Listener(_loud)      # kept as long as the library may call it


class Bytes(ctypes.Structure):
    """Parameters of any layout up to a kilobyte. In memory and as the last argument, what is too much is not read."""

    _fields_ = (("words", c_uint32 * 256),)


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = (
        ("n_tokens", c_int32), ("token", POINTER(c_int32)), ("embd", POINTER(c_float)), ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)), ("seq_id", POINTER(POINTER(c_int32))), ("logits", POINTER(c_int8)),
    )


SIGNATURES: dict[str, tuple[Any, list[Any]]] = {
    "llama_log_set": (None, [Listener, c_void_p]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (Bytes, []),
    "llama_context_default_params": (Bytes, []),
    "llama_model_load_from_file": (c_void_p, [c_char_p, Bytes]),
    "llama_init_from_model": (c_void_p, [c_void_p, Bytes]),
    "llama_model_get_vocab": (c_void_p, [c_void_p]),
    "llama_vocab_n_tokens": (c_int32, [c_void_p]),
    "llama_set_n_threads": (None, [c_void_p, c_int32, c_int32]),
    "llama_get_memory": (c_void_p, [c_void_p]),
    "llama_memory_seq_rm": (c_bool, [c_void_p, c_int32, c_int32, c_int32]),
    "llama_batch_init": (Batch, [c_int32, c_int32, c_int32]),
    "llama_decode": (c_int32, [c_void_p, Batch]),
    "llama_get_logits_ith": (POINTER(c_float), [c_void_p, c_int32]),
}
SIGNATURES |= {name: (c_uint32, [c_void_p]) for name in TOOK}


class Llama:
    """One model of a file."""

    def __init__(self, told: dict[str, Any]) -> None:
        self._call = ctypes.CDLL(told["library"])
        for name, (gives, takes) in SIGNATURES.items():
            if not hasattr(self._call, name):
                raise score.Refused(f"{told['library']} exports no {name}, so its log-probabilities cannot be had.")
            function = getattr(self._call, name)
            function.restype, function.argtypes = gives, takes
        self._call.llama_log_set(LISTENER, None)
        self._call.llama_backend_init()
        model = self._call.llama_model_load_from_file(told["file"].encode(), self._call.llama_model_default_params())
        params = self._call.llama_context_default_params()
        found = tuple(params.words[: len(HEAD)])
        if found != HEAD:
            raise score.Refused(f"llama.cpp's context parameters begin with {found} where {HEAD} is known: "
                                "another version.")
        whole = TYPES["f16"]
        if tuple(params.words[CACHE - len(NULL) : CACHE + 2]) != (*NULL, whole, whole):
            raise score.Refused("llama.cpp's context parameters do not hold the types of keys and values where they "
                                "are known: another version.")
        params.words[CACHE : CACHE + 2] = (TYPES[told["kv_type"]],) * 2
        kept.clear()
        self._step = min(STEP, told["context"])
        asked = (told["context"], self._step, self._step, 1)
        params.words[: len(HEAD)] = asked
        self._context = self._call.llama_init_from_model(model, params) if model else None
        if not self._context:
            raise score.Refused(f"llama.cpp could not load {told['file']}.")
        took = tuple(int(getattr(self._call, name)(self._context)) for name in TOOK)
        if took != asked:
            raise score.Refused(f"llama.cpp was asked for a context of {asked} and made one of {took}: "
                                "another version.")
        if kept != [(told["kv_type"],) * 2]:
            raise score.Refused(f"llama.cpp was asked to keep keys and values in {told['kv_type']} and says {kept}: "
                                "another version.")
        self._call.llama_set_n_threads(self._context, told["threads"], told["threads"])
        self.context = told["context"]
        self._words = int(self._call.llama_vocab_n_tokens(self._call.llama_model_get_vocab(model)))
        self._batch = self._call.llama_batch_init(self._step, 0, 1)
        self.versions = {"xllamacpp": told["version"]}

    def logits(self, tokens: list[int], keep: int, last: bool = False) -> np.ndarray:
        """As `score.Model` says."""
        self._call.llama_memory_seq_rm(self._call.llama_get_memory(self._context), 0, keep, -1)
        places = range(0, len(tokens), self._step)
        parts = [self._read(tokens[i : i + self._step], keep + i, last) for i in places]
        return np.concatenate(parts[-1:] if last else parts) if parts else np.empty((0, self._words), np.float32)

    def branches(self, rows: list[list[int]], keep: int) -> list[np.ndarray]:
        """As `score.Model` says."""
        return [self.logits(row, keep) for row in rows]

    def _read(self, tokens: list[int], begins: int, last: bool) -> np.ndarray:
        batch, wanted = self._batch, [not last or i == len(tokens) - 1 for i in range(len(tokens))]
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, begins + i, 1, wanted[i]
            batch.seq_id[i][0] = 0
        status = self._call.llama_decode(self._context, batch)
        if status:
            raise score.Refused(f"llama.cpp could not read {len(tokens)} tokens from place {begins} on "
                                f"(llama_decode: {status}).")
        rows = [self._call.llama_get_logits_ith(self._context, i) for i in range(len(tokens)) if wanted[i]]
        if not all(rows):
            raise score.Refused("llama.cpp keeps no log-probabilities of prompt tokens.")
        return np.stack([np.ctypeslib.as_array(row, shape=(self._words,)).copy() for row in rows])


if __name__ == "__main__":
    score.main(Llama)
