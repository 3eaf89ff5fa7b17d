"""A load client on another node: its agent, two clocks, what the record says, and every way that it can go away."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from lib import config, paths, records
from lib.analyse import way
from lib.engines import reach, registry
from lib.errors import ConfigError, MeasureError
from lib.measure import clientnode
from tests import mini_study

HOUR_NS = 3_600_000_000_000
SKEWED = (
    "import time; real = time.monotonic_ns; time.monotonic_ns = lambda: real() + {}; "
    "from lib.measure import clientnode; clientnode.agent()"
)


def take(root, launch, **variables):
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT)} | variables
    argv = [sys.executable, mini_study.__file__, str(root), launch]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def left_behind(root):
    return subprocess.run(["pgrep", "-f", str(root)], capture_output=True, text=True, check=False).stdout.split()


def agents(process):
    """The agents below a process of ours: others may be running on this computer."""
    below = psutil.Process(process.pid).children(recursive=True)
    return [p for p in below if "lib.measure.clientnode" in p.cmdline()]


def look_at(root, monkeypatch):
    for name, folder in (("CONFIG", "config"), ("ARTIFACTS", "artifacts"), ("RECORDS", "records")):
        monkeypatch.setattr(paths, name, root / folder)


@pytest.fixture(scope="module")
def taken(tmp_path_factory):
    """A launch whose client had an agent, with a clock said to be an hour ahead, beside one whose client ran here."""
    folder = tmp_path_factory.mktemp("apart")
    mini_study.prepare(folder, here={}, apart={"client": "other-node"})
    for name in ("here", "apart"):
        process = take(folder, name, AGENT=str(HOUR_NS))
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert not left_behind(folder)
    return folder


@pytest.fixture
def both(taken, monkeypatch):
    look_at(taken, monkeypatch)
    return [records.read(paths.record("mini", name)) for name in ("here", "apart")]


def test_the_record_is_that_of_any_client_and_says_where_it_ran(both):
    here, apart = both
    asked = [sorted(r["prompt_hash"] for r in one.table.to_pylist() if r["phase"] == "measured") for one in both]
    assert len(set(asked[0]) & set(asked[1])) >= 20  # the same list; a client gets as far down as its server lets it
    assert {r["status"] for r in apart.table.to_pylist() if r["phase"] == "measured"} == {"complete"}
    assert here.meta["client"] is None and here.meta["config_hash"] != apart.meta["config_hash"]
    assert apart.meta["client"]["where"] == "another node"
    assert apart.meta["client"]["machine"]["cores"] == len(os.sched_getaffinity(0))
    for note in apart.meta["takings"]:
        assert note["network"]["host"] == "another node" and len(note["network"]["round_trip_ns"]) >= 10
        assert note["client_cpu_s"] > 0 and note["network"]["clock_error_ns"] == 1


def test_what_is_sampled_here_is_moved_onto_the_clients_clock(both):
    spans = []
    for one in both:
        name = one.meta["launch"]
        sampled = records.read(paths.record("mini", name).with_suffix(".telemetry.parquet")).table["t_ns"].to_pylist()
        sent = [r["sent_ns"] for r in one.table.to_pylist() if r["sent_ns"]]
        spans.append((min(sampled) - min(sent)) / 1e9)
    assert abs(spans[0]) < 10 and abs(spans[1] - 3600) < 10


def test_the_page_says_on_which_computer(both):
    told = [way.facts([_Told(one)], "measured") for one in both]
    assert told[0]["where"] == "on the server's own computer, over the loopback"
    assert told[1]["where"].startswith("on another node of the cluster (") and "cores)" in told[1]["where"]
    assert way.facts([_Told(one) for one in both], "measured")["where"].count(", and ") == 1


class _Told:
    """As much of a collected record as the way's facts read."""

    def __init__(self, record):
        self.meta, self.source = record.meta, "x"


def test_two_clocks_are_brought_together():
    with clientnode.started(([sys.executable, "-c", SKEWED.format(HOUR_NS)], "127.0.0.1")) as node:
        offset, error = node.clock()
    assert 0 < error < 100_000_000 and abs(offset - HOUR_NS) <= error


def test_an_agent_that_dies_in_mid_level_ends_the_launch_and_keeps_what_was_finished(tmp_path, monkeypatch):
    look_at(tmp_path, monkeypatch)
    mini_study.prepare(tmp_path, apart={"client": "other-node"})
    process = take(tmp_path, "apart", AGENT="0")
    partial = paths.partial("mini", "apart")
    until(lambda: list(partial.glob("r*-p*-*.telemetry.parquet")) and list(partial.glob("r*.journal")))
    for agent in agents(process):
        agent.kill()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "client's node is gone" in said and "Traceback" not in said
    kept = records.read(paths.record("mini", "apart")).meta
    assert "client's node is gone" in kept["incomplete"] and kept["takings"]
    until(lambda: not left_behind(tmp_path))
    again = take(tmp_path, "apart", AGENT="0")
    _, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    assert records.read(paths.record("mini", "apart")).meta["incomplete"] is None


def test_a_killed_study_takes_its_agent_and_clients_along(tmp_path, monkeypatch):
    look_at(tmp_path, monkeypatch)
    mini_study.prepare(tmp_path, apart={"client": "other-node"})
    process = take(tmp_path, "apart", AGENT="0")
    until(lambda: list(paths.partial("mini", "apart").glob("r*.journal")))
    (agent,) = agents(process)
    process.kill()
    process.wait()
    until(lambda: not left_behind(tmp_path) and not agent.is_running())
    process.stderr.close()


def test_an_agent_tells_refusals_in_words_and_a_missing_program_is_named():
    with clientnode.started((list(clientnode.AGENT), "127.0.0.1")) as node:
        with pytest.raises(MeasureError, match="is not a client plan"):
            node.ask("run", plans=["/nowhere"])
        assert node.machine["cores"] > 0  # it goes on
    nobody = clientnode.started((["srun-that-is-not"], ""))
    with pytest.raises(MeasureError, match="srun-that-is-not: No such file"), nobody:
        pass


def test_a_client_elsewhere_needs_a_second_node(tmp_path, monkeypatch):
    look_at(tmp_path, monkeypatch)
    mini_study.prepare(tmp_path, apart={"client": "other-node"}, here={})
    monkeypatch.delenv("STUDY_JOB", raising=False)
    study = config.load_study("mini")
    assert clientnode.step(study, config.load_launch("mini", "here")) is None
    with pytest.raises(MeasureError, match="CLUSTER=slurm"):
        clientnode.step(study, config.load_launch("mini", "apart"))
    process = take(tmp_path, "apart")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2 and "there is none" in said
    assert not list(paths.RECORDS.glob("mini/*.parquet"))


def test_only_who_asks_for_a_key_can_be_reached_from_outside():
    launch = config.load_launch("h100-current", "vllm-fp8-tp8")
    apart = launch.model_copy(update={"client": "other-node"})
    engine = registry.of(launch)
    engine.check(apart)
    for one, address in ((launch, reach.LOOPBACK), (apart, reach.EVERYWHERE)):
        argv = engine.command(one, 8000)
        assert argv[argv.index("--host") + 1] == address
    other = config.load_launch("h100-current", "tensorrt-llm-fp8-tp8").model_copy(update={"client": "other-node"})
    with pytest.raises(ConfigError, match="asks for no key"):
        registry.of(other).check(other)
    small = config.load_launch("cpu", "llama-cpp-f16").model_copy(update={"client": "other-node"})
    with pytest.raises(ConfigError, match="on its own computer alone"):
        registry.of(small).check(small)


def until(true, within=60.0):
    limit = time.monotonic() + within
    while not (found := true()):
        assert time.monotonic() < limit, "it never came"
        time.sleep(0.02)
    return found
