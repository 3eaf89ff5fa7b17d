"""What every engine has in common: checked settings, a start that ends in proof, words to speak to it, and an end.

An engine module says how its server is called and what its log and endpoints mean; nothing else knows either.
Refuses a server that is not provably what the config says: every claim has the value found and where it was found, and
an unknown is as good as a mismatch. Rule: ready means one streamed completion of more than one token, not an open port.
"""

import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from lib import config, environments, paths
from lib.config import Launch, Strict
from lib.engines import build, computer, cores, reach, talk
from lib.engines.inside import Inside, with_adapters
from lib.engines.process import Process, free_port
from lib.engines.proof import Precision, claim
from lib.errors import ConfigError, EngineError

Tell = Callable[[str], None]        # receives the stage under way

COMMON_METRICS = ("running", "waiting", "kv_cache_usage", "preemptions_total", "prefix_cache_queries_total",
                  "prefix_cache_hits_total", "prompt_tokens_total", "generation_tokens_total")
READY_PROMPT = "The central bank left its key rate unchanged, and the market"
READY_TOKENS = 4
LOOK_S = 0.5                        # between two looks at a server that is loading


class Engine(Inside):
    """How to check, start and speak to one engine. Subclasses fill in the class attributes and the methods below."""

    name: ClassVar[str]
    title: str
    wire: ClassVar[str]                             # a wire format of lib.measure.formats
    health: ClassVar[str] = "/health"               # answers 200 when it may be asked for a completion
    metrics_path: ClassVar[str] = "/metrics"
    keyed: ClassVar[bool] = True                    # whether it refuses requests without the key
    unasked: ClassVar[str] = ""                     # a path that also generates, where a key has been forgotten before
    reachable: ClassVar[bool] = False               # whether its client may be on another node
    keeps_connections: ClassVar[bool] = True        # whether a connection may carry a second request
    environment: str                                # the locked environment it runs in
    scratch: ClassVar[str] = ""                     # variable that tells it where its sockets may lie while it runs
    settings: ClassVar[type[Strict]]
    precisions: ClassVar[Mapping[str, Precision]]
    metrics: ClassVar[Mapping[str, tuple[str, ...]]]        # common name -> names in /metrics, summed
    absent_metrics: ClassVar[Mapping[str, str]]             # common name -> why this engine does not have it

    def command(self, launch: Launch, port: int) -> list[str]:
        """Argument list of the server; holds no secret."""
        raise NotImplementedError

    def runs(self, launch: Launch, port: int) -> list[str]:
        """Argument list as this computer starts it: the server's own, in a container where the launch names one."""
        return self.command(launch, port)

    def variables(self, launch: Launch, key: str) -> dict[str, str]:
        """Environment variables of the server, the key among them."""
        raise NotImplementedError

    def body(self, launch: Launch, prompt: str, output_tokens: int) -> tuple[str, dict[str, Any]]:
        """Path and JSON body of a streamed completion of exactly `output_tokens` tokens."""
        raise NotImplementedError

    def claims(self, server: "Server") -> list[dict[str, Any]]:
        """Proof that the server serves what the launch says, from endpoints and the log."""
        raise NotImplementedError

    def version(self, server: "Server") -> str:
        """Return the engine's own word for its version."""
        raise NotImplementedError

    def count(self, server: "Server", text: str) -> int:
        """Tokens of a text without any the server adds, by the server's own tokenizer."""
        raise NotImplementedError

    def memory_bytes(self, launch: Launch) -> int:
        """Memory the server needs beyond its weights."""
        raise NotImplementedError

    def own(self, launch: Launch) -> Any:
        """Validate the launch's settings against this engine's."""
        return config.validated(self.settings, dict(launch.settings), f"config launch {launch.name}, settings")

    def check(self, launch: Launch) -> None:
        """Refuse a launch that cannot work on any computer.

        Raises
        ------
        ConfigError : unknown precision, artifact, environment or setting, or an artifact of another precision.
        """
        where = f"Launch {launch.name}"
        if launch.precision not in self.precisions:
            raise ConfigError(f"{where}: {self.title} has no precision {launch.precision!r} here; "
                              f"it serves {', '.join(self.precisions)}.")
        if launch.environment != self.environment:
            raise ConfigError(f"{where}: environment {launch.environment!r} does not hold {self.title}; "
                              f"write {self.environment!r}.")
        stored, wanted = build.recipe(launch.artifact).format, self.precisions[launch.precision].stores
        if stored != wanted:
            raise ConfigError(f"{where}: artifact {launch.artifact!r} holds {stored} weights, and {self.title} at "
                              f"{launch.precision} serves {wanted}. Artifacts: {', '.join(build.holding(wanted))}.")
        self.own(launch)
        reach.check(self, launch)

    def absent(self, launch: Launch) -> str | None:
        """Why this computer can never run the launch, as a sentence; None if it can."""
        precision = self.precisions[launch.precision]
        reason = computer.lacks(precision.flags)
        if reason:
            why = f" ({precision.why})" if precision.why else ""
            return f"{self.title} at {launch.precision} cannot run here: {reason}{why}."
        return None

    def unavailable(self, launch: Launch) -> str | None:
        """Why this computer cannot run the launch now, as a sentence; None if nothing speaks against it."""
        if reason := self.absent(launch):
            return reason
        needed = self.memory_bytes(launch) + 2 * build.recipe(launch.artifact).bytes
        free = computer.free_memory_bytes()
        if free < needed:
            return (f"{self.title} at {launch.precision} needs about {needed / 1e9:.1f} GB of memory and "
                    f"{free / 1e9:.1f} GB is free. Close other programs, or lower the KV cache in its config.")
        disk, room = environments.DISK_GB.get(self.environment, 1.0), shutil.disk_usage(paths.ROOT).free / 1e9
        if not environments.python(self.environment).exists() and room < disk:
            return (f"{self.title} needs about {disk:g} GB of disk for its environment and {room:.1f} GB is free. "
                    "Free some space.")
        return None

    def prepare(self, launch: Launch, progress: Tell) -> None:
        """Make what the server needs beyond its artifact, unless that has been done.

        Raises
        ------
        StudyError : it cannot be made.
        """
        environments.ensure(launch.environment)

    def verify(self, launch: Launch) -> dict[str, Any]:
        """Return the manifest of what the server will serve, adapters among it, with the hashes as found.

        Raises
        ------
        EngineError : not built, or damaged.
        """
        return with_adapters(build.verify(launch.artifact), launch)

    def complete(self, server: "Server", body: dict[str, Any], path: str, limit_s: float) -> dict[str, Any]:
        """Stream one completion to its end, as `talk.completion` does.

        Raises
        ------
        OSError : as for `talk.completion`.
        """
        return talk.completion(server.port, path, server.key, body, limit_s)

    def gpus(self, launch: Launch) -> int:
        """GPUs of the node that the launch uses."""
        return 0

    def metrics_port(self, port: int) -> int:
        """Port of the server's metrics."""
        return port

    @contextmanager
    def start(self, launch: Launch, log: Path, progress: Tell) -> Iterator["Server"]:
        """Start the server, wait until it answers and is proven, hand it over, and end it whatever happens.

        Parameters
        ----------
        launch : checked before; its environment and artifact exist.
        log : file for what the server prints, beside the record.
        progress : told the stage under way and the seconds since the start.

        Raises
        ------
        EngineError : it died (with its last words), did not answer within launch.start_seconds, or is not what the
            config says.
        """
        progress("checking the weights on disk")
        artifact = self.verify(launch)
        port, key = free_port(self.metrics_port(0)), secrets.token_urlsafe(24)
        began, scratch = time.monotonic(), "" if launch.container else self.scratch     # a container has its own
        with Process(self.runs(launch, port), self.variables(launch, key), log, cores.share()[0], scratch) as process:
            server = Server(self, launch, process, port, key, artifact)
            server.await_ready(began, progress)
            progress("proving what runs")
            server.prove()
            yield server


@dataclass
class Server:
    """A running, proven server."""

    engine: Engine
    launch: Launch
    process: Process
    port: int
    key: str
    artifact: dict[str, Any]            # the manifest of what it serves
    ready_seconds: float = float("nan")
    added_tokens: int = 0               # tokens the server puts before a prompt (BOS)
    version: str = ""
    family: int = 0                     # the process whose family is the engine, where it is not the one started
    _proof: list[dict[str, Any]] = field(default_factory=list)

    @property
    def wire(self) -> str:
        """Wire format of its answers."""
        return self.engine.wire

    @property
    def pid(self) -> int:
        """The process whose whole family is the engine."""
        return self.family or self.process.pid

    @property
    def model(self) -> str:
        """Name under which the model is served."""
        return self.launch.name

    @property
    def absent_metrics(self) -> Mapping[str, str]:
        """Metrics this engine does not have, with the reason."""
        return self.engine.absent_metrics

    def body(self, prompt: str, output_tokens: int, adapter: str | None = None) -> tuple[str, dict[str, Any]]:
        """Path and JSON body of a streamed completion of exactly `output_tokens` tokens, greedy."""
        path, body = self.engine.body(self.launch, prompt, output_tokens)
        return path, self.engine.adapted(self.launch, body, adapter) if adapter else body

    def check_alive(self) -> None:
        """Raise EngineError with the log's last lines if the server has ended."""
        self.process.check_alive()

    def proof(self) -> list[dict[str, Any]]:
        """Return what was proven at the start: dicts of what, expected, found, source, ok."""
        return self._proof

    def gauges(self) -> dict[str, float]:
        """Read the engine's own metrics, under common names; one it does not have is absent.

        Raises
        ------
        OSError : the server does not answer.
        """
        path, port = self.engine.metrics_path, self.engine.metrics_port(self.port)
        status, text = talk.ask(port, "GET", path, self.key, limit_s=5.0)
        if status != 200:
            raise OSError(f"{path} answered {status}")
        values = talk.prometheus(text)
        found = {name: [talk.value(values, n) for n in names] for name, names in self.engine.metrics.items()}
        known = {name: [v for v in said if v is not None] for name, said in found.items()}
        return {name: sum(said) for name, said in known.items() if len(said) == len(found[name])}

    def await_ready(self, began: float, progress: Tell) -> None:
        """Wait until one streamed completion of more than one token has come.

        Raises
        ------
        EngineError : the server died, or the launch's time limit passed.
        """
        said, limit = "nothing answers yet", self.launch.start_seconds
        while True:
            self.check_alive()
            left = limit - (time.monotonic() - began)
            if left <= 0:
                raise EngineError(
                    f"{self.model} was not ready within {limit:g} s ({said}). {self.process.why()} "
                    f"Raise start_seconds in its config on a slow computer; the whole log is {self.process.log}."
                )
            progress(f"starting {self.model}, at most {limit:g} s")
            try:
                status, _ = talk.ask(self.port, "GET", self.engine.health, self.key, limit_s=2.0)
                if status == 200:
                    path, body = self.body(READY_PROMPT, READY_TOKENS)
                    answer = self.engine.complete(self, body, path, min(left, 60.0))
                    if answer["usage"]["completion_tokens"] == READY_TOKENS:
                        break
                    said = f"asked for {READY_TOKENS} tokens it gave {answer['usage']['completion_tokens']}"
            except OSError as error:
                said = str(error)
            time.sleep(LOOK_S)
        self.ready_seconds = time.monotonic() - began
        try:
            self.added_tokens = answer["usage"]["prompt_tokens"] - self.engine.count(self, READY_PROMPT)
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise EngineError(f"{self.launch.name}: the server's tokenizer could not be asked ({error!r}).") from error

    def prove(self) -> None:
        """Collect the proof; end the launch on a mismatch or an unknown.

        Raises
        ------
        EngineError : names what was expected, what was found and where.
        """
        try:
            self.version = self.engine.version(self)
            path, body = self.body(READY_PROMPT, 1)
            rows = self.engine.claims(self) + reach.closed(self.engine, self.port, path, body)
        except (OSError, LookupError, TypeError, ValueError) as error:
            raise EngineError(f"{self.launch.name}: what runs could not be established ({error!r}). The log is "
                              f"{self.process.log}.") from error
        rows += [claim(f"sha256 of {f['path']}", f["sha256"], f["found"], f["checked"])
                 for f in self.artifact["files"]]
        self._proof = rows
        wrong = [row for row in rows if not row["ok"]]
        if wrong:
            says = [f"{r['what']} should be {r['expected']} and is {r['found']} ({r['source']})" for r in wrong]
            raise EngineError(
                f"{self.model} does not run what its config says: {'; '.join(says)}. Nothing was measured on it. Its "
                f"config must change, or remove artifacts/{self.launch.artifact} to have it built again; the log is "
                f"{self.process.log}."
            )
