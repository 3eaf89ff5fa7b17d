"""The ways in which a stand-in can fail on demand, as the real engines do.

    oom              out of memory while the weights are loaded
    other-gpu        the engine was built for another GPU (TensorRT), or has no kernels for this one
    nccl-hang        the ranks wait for each other and nothing is ever ready
    slow-ready@S     ready only S seconds later
    worker-dies@K    the worker is gone after K tokens in all, and the server with it
    stream-error@K   after K tokens in all, one stream that was answered 200 carries an error
    options          the engine says that it does not know an option

A demand is `LAUNCH:FAILURE`, several with commas between: `make rehearse FAIL=vllm-fp16:oom,trt-fp8:worker-dies@4000`.
Refused: a failure that is not in this list.
"""

from dataclasses import dataclass

from lib.errors import ConfigError

FAILURES = ("oom", "other-gpu", "nccl-hang", "slow-ready", "worker-dies", "stream-error", "options")
COUNTED = {"slow-ready": 20.0, "worker-dies": 200.0, "stream-error": 200.0}  # what stands for a missing @


@dataclass(frozen=True)
class Failure:
    """One failure; `at` is seconds or tokens, by its kind."""

    kind: str = ""
    at: float = 0.0


def demanded(text: str, launch: str) -> str:
    """Pick a launch's failure out of a demand; '' where none is asked of it.

    Raises
    ------
    ConfigError : a demand that cannot be read.

    >>> demanded("a:oom,b:worker-dies@9", "b")
    'worker-dies@9'
    """
    found = ""
    for part in text.split(","):
        if not part.strip():
            continue
        name, colon, failure = part.strip().partition(":")
        if not colon:
            raise ConfigError(f"FAIL: {part!r} is not LAUNCH:FAILURE. Failures: {', '.join(FAILURES)}.")
        read(failure)
        if name == launch:
            found = failure
    return found


def read(text: str) -> Failure:
    """Read one failure.

    Raises
    ------
    ConfigError : it is none of `FAILURES`, or what follows its @ is no number.
    """
    if not text:
        return Failure()
    kind, _, at = text.partition("@")
    if kind not in FAILURES:
        raise ConfigError(f"FAIL: {kind!r} is no failure of a stand-in; there are {', '.join(FAILURES)}.")
    try:
        return Failure(kind, float(at) if at else COUNTED.get(kind, 0.0))
    except ValueError as error:
        raise ConfigError(f"FAIL: {at!r} in {text!r} is no number of seconds or tokens.") from error
