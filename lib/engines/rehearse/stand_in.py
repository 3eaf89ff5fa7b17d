"""The stand-in as a program: it takes an engine's whole command line, checks it, and behaves like that engine.

    python -m lib.engines.rehearse.stand_in TOLD docker run --rm ... vllm/vllm-openai:v0.6.2 --model ... --port 8000

Whose pace it keeps and how it is to fail is the first word (`told`); all others are the real command line. An option
that the version's list does not know ends it with status 2, as the engine would. Rule: nothing here touches a GPU, a
model or a network beyond 127.0.0.1.
"""

import asyncio
import functools
import sys
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from lib.engines.rehearse import failures, flags, pace, tensorrt_llm, tools, trouble, vllm, wrappers
from lib.engines.rehearse.batch import Batch
from lib.engines.rehearse.told import Told, of_text

VLLM_MODULE = "vllm.entrypoints.openai.api_server"
ROUTER = "replicas.py"
NEXT_RANK = ":"  # between programs of one mpirun
UNKNOWN_OPTION = 2  # exit status of argparse


def program(words: tuple[str, ...], told: Told) -> tuple[str, list[str]]:
    """Which program is meant, and its own words. `words` is empty where a container's own entry point serves."""
    rest = list(words)
    name = Path(rest[0]).name if rest else ""
    if told.engine == "vllm":
        if VLLM_MODULE in rest:
            return "vllm serve", rest[rest.index(VLLM_MODULE) + 1 :]
        return "vllm serve", rest[2:] if name == "vllm" and rest[1:2] == ["serve"] else rest
    if not name.startswith("python"):
        return name, rest[1:]
    script = next(i for i, word in enumerate(rest) if word.endswith(".py"))
    name, own = Path(rest[script]).name, rest[script + 1 :]
    if name != ROUTER:
        return name, own
    # Replicas behind the study's router: one stand-in is all of them, at the pace of the whole node.
    port, inner = own[own.index("--port") + 1], own[own.index("--") + 1 :]
    return Path(inner[0]).name, [word.replace("{port}", port) for word in inner[1:]]


def checked(name: str, words: list[str], told: Told) -> flags.Line:
    """Hold a program's words against its version's list; those of further ranks under mpirun too.

    Raises
    ------
    flags.UnknownOption : names the first that is not in it.
    """
    options = flags.known(told.key, name)
    ranks: list[list[str]] = [[]]
    for word in words:
        if word == NEXT_RANK:
            ranks.append([])
        else:
            ranks[-1].append(word)
    for rank in ranks[1:]:
        found = wrappers.unwrap(["mpirun", *rank])
        flags.parse(list(found.words[1:]), options)
    return flags.parse(ranks[0], options)


def main() -> int:
    """Command line: what it is told, then the real one."""
    told = of_text(sys.argv[1])
    failure = failures.read(told.failure)
    try:
        found = wrappers.unwrap(sys.argv[2:])
        name, words = program(found.words, told)
        if name in tools.PLAIN:
            return tools.PLAIN[name](words)
        if failure.kind == "options" and name not in tools.TOOLS:
            raise flags.UnknownOption(words[-1] if words else "--")
        line = checked(name, words, told)
    except wrappers.WrapperRefused as refusal:
        trouble.say(str(refusal))
        return refusal.status
    except flags.UnknownOption as refusal:
        trouble.say(f"usage: {name} [-h] ...\n{name}: error: unrecognized arguments: {refusal}")
        return UNKNOWN_OPTION
    return tools.run(name, line, told) if name in tools.TOOLS else _serve(name, line, told, failure)


def _serve(name: str, line: flags.Line, told: Told, failure: failures.Failure) -> int:
    counter, of = _counter(told.tokenizer), pace.read(told.contender, told.layout)
    if told.engine != "vllm":
        return tensorrt_llm.main(name, line, told, of, failure, counter)
    try:
        asked = vllm.settings(line, told)
    except vllm.StartRefused as refusal:
        trouble.say(str(refusal))
        return 1
    if told.contender.endswith("-fp8") and asked.cache == "auto":  # the cache that was predicted for it is of 8 bit
        of = replace(of, kv_tokens=of.kv_tokens // 2)
    batch = Batch(of, vllm.limits(asked), told.speed, failure)
    print("\n".join(vllm.opening(asked, told, batch.kv_tokens)), flush=True)
    trouble.before_ready(failure, told.engine, told.speed)
    asyncio.run(vllm.run(asked, told, batch, counter))
    return 0


def _counter(path: str) -> "functools._lru_cache_wrapper[int]":
    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    return functools.lru_cache(4096)(lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids))


if __name__ == "__main__":
    sys.exit(main())
