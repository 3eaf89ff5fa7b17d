"""MAX_COST stops before it is passed, whoever spends; a canary goes first."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from lib import config, depths, paths
from lib.engines import budget, prepare
from lib.errors import ConfigError, MeasureError
from lib.measure import canary
from tests import mini_study, synthetic

PRICED = config.Price(usd_per_hour=3600.0, source="a test", date="2026-11-30")  # a dollar a second


class Clock:
    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch, tmp_path):
    made = Clock()
    monkeypatch.setattr(budget, "time", made)
    monkeypatch.setattr(paths, "RECORDS", tmp_path)
    monkeypatch.setenv(budget.VARIABLE, "100")
    return made


def study():
    return synthetic.study().model_copy(update={"price": PRICED})


def launch(name):
    return config.Launch(name=name, engine="e", precision="p", artifact="a", environment="x", start_seconds=10)


def test_a_step_is_refused_when_it_could_pass_the_limit_and_not_before(clock):
    with budget.spending(study(), launch("a")) as account:
        account.reserve(60, "the first step")
        clock.now += 50
        account.reserve(50, "the second step")
        clock.now += 20
        with pytest.raises(MeasureError, match=r"the third step may cost \$31.00, and with the \$70.00"):
            account.reserve(31, "the third step")
        account.reserve(30, "a shorter one")
    assert budget.spent_usd(study()) == 70


def test_launches_that_run_at_once_cannot_pass_it_together(clock):
    one, two = budget.Budget(study(), launch("a")), budget.Budget(study(), launch("b"))
    one.reserve(60, "a step of a")
    with pytest.raises(MeasureError, match="MAX_COST"):
        two.reserve(60, "a step of b")
    one.close()
    two.reserve(60, "a step of b")


def test_a_later_try_counts_what_was_spent_before(clock):
    with budget.spending(study(), launch("a")) as account:
        account.reserve(40, "a step")
        clock.now += 40
    clock.now += 5000  # between the tries nothing is paid
    again = budget.Budget(study(), launch("a"))
    with pytest.raises(MeasureError):
        again.reserve(61, "a step")
    again.reserve(59, "a step")


def test_a_try_that_was_killed_counts_as_long_as_it_may_have_lasted(clock):
    budget.Budget(study(), launch("a")).reserve(80, "a step")  # never closed
    with pytest.raises(MeasureError):
        budget.Budget(study(), launch("a")).reserve(30, "a step")


def test_the_canary_the_builds_and_every_depth_count_together_but_no_rehearsal(clock):
    for depth, seconds in (("canary", 20), ("full", 30), ("rehearsal", 1000)):
        with budget.spending(study().model_copy(update={"depth": depth}), launch("a")) as account:
            with suppress(MeasureError):
                account.reserve(seconds, "a step")
            clock.now += seconds
    with budget.spending(study(), None) as account:
        account.reserve(10, "a build")
        clock.now += 10
    assert budget.spent_usd(study()) == 60
    with pytest.raises(MeasureError, match=r"with the \$60.00 that profile 'synthetic' has cost"):
        budget.Budget(study(), launch("b")).reserve(41, "a step")
    budget.Budget(study(), launch("b")).reserve(40, "a step")


def test_a_step_of_unknown_length_is_paid_by_the_minute_until_the_limit(clock):
    with budget.spending(study(), None) as account:
        began = clock.now
        with pytest.raises(MeasureError, match="one more minute of a fetch"):
            while True:
                account.keep_paying("a fetch")
                assert budget.spent_usd(study()) <= 100
                clock.now += 1
        assert 30 <= clock.now - began <= 100
    assert budget.spent_usd(study()) == clock.now - began


def test_what_asks_for_nothing_has_no_account(clock):
    with budget.spending(study(), None):
        clock.now += 10
    assert not list(paths.RECORDS.glob("*/*.json"))


def test_a_clients_own_node_is_paid_for_too(clock):
    priced = study().model_copy(update={"price": PRICED.model_copy(update={"client_usd_per_hour": 1800.0})})
    apart = launch("a").model_copy(update={"client": "other-node"})
    with budget.spending(priced, apart) as account:
        account.reserve(60, "a step")
        clock.now += 40
    assert budget.spent_usd(priced) == 60
    assert budget.spent_usd(study()) == 60  # an account keeps the price it was kept at


def test_a_build_stops_at_the_limit_and_keeps_what_is_made(clock, monkeypatch):
    """Two models of forty seconds each at a dollar a second, with a hundred dollars, a minute paid in advance."""
    of = study()
    made = []

    def build_one(name, progress):
        for _ in range(40):
            progress(f"building {name}")
            clock.now += 1
        made.append(name)
        return {"artifact": name}

    monkeypatch.setattr(prepare.config, "load_study", lambda *_: of)
    monkeypatch.setattr(prepare, "able", lambda *_: ([], {}))
    monkeypatch.setattr(prepare, "needed", lambda *_: ["one", "two"])
    monkeypatch.setattr(prepare, "AT_ONCE", 1)
    monkeypatch.setattr(prepare.build, "cached", lambda name: {} if name in made else None)
    monkeypatch.setattr(prepare.build, "recipe", lambda _: prepare.build.ARTIFACTS["smollm2-135m-bf16"])
    monkeypatch.setattr(prepare.build, "build", build_one)
    one, two = prepare.build_all("synthetic")
    assert made == ["one"] and one == {"artifact": "one"}
    assert two["artifact"] == "two" and "MAX_COST: one more minute of making what synthetic serves" in two["failed"]
    assert 40 < budget.spent_usd(of) <= 100


def test_without_a_price_nothing_is_counted_and_a_limit_is_refused(clock, monkeypatch):
    free = study().model_copy(update={"price": None})
    with pytest.raises(ConfigError, match="states no price"):
        budget.Budget(free, launch("a"))
    monkeypatch.setenv(budget.VARIABLE, "")
    with budget.spending(free, launch("a")) as account:
        account.reserve(1e9, "a step")
    assert not list(paths.RECORDS.glob("*/*.json"))


@pytest.mark.parametrize("text", ["ten", "-1", "0"])
def test_an_amount_that_is_none_is_refused(clock, monkeypatch, text):
    monkeypatch.setenv(budget.VARIABLE, text)
    with pytest.raises(ConfigError, match="no amount in USD"):
        budget.limit(study())


def test_a_launch_that_may_cost_too_much_is_not_begun_and_says_so(tmp_path):
    mini_study.prepare(tmp_path, good={})
    path = tmp_path / "config" / "mini" / "study.yaml"
    path.write_text(path.read_text().replace("price: null", "price: {usd_per_hour: 3600, source: x, date: 2026-11-30}"))
    path.write_text(path.read_text().replace("date: 2026-11-30}", 'date: "2026-11-30"}'))
    environment = os.environ | {"PYTHONPATH": str(paths.ROOT), budget.VARIABLE: "30"}
    command = [sys.executable, str(Path(mini_study.__file__)), str(tmp_path), "good"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "MAX_COST: level" in done.stderr and "Traceback" not in done.stderr
    outcome = json.loads((tmp_path / "records" / "mini" / "good.outcome.json").read_text())
    assert outcome["status"] == "failed" and "MAX_COST" in outcome["reason"]


# -- canary ----------------------------------------------------------------------------------------
def test_a_canary_is_one_short_level_at_the_promises_load():
    for profile in config.profiles():
        full, cut = config.load_study(profile), config.load_study(profile, depths.CANARY)
        (level,) = cut.levels
        closed = [x for x in full.levels if x.kind == "closed" and x.workload == full.headline_workload]
        if not closed:  # the light version of a profile without GPUs, which sends no canary
            assert not full.hardware.gpus
            continue
        nearest = min(abs(x.concurrency - full.sla.sessions) for x in closed)
        assert abs(level.concurrency - full.sla.sessions) == nearest and level.workload == full.headline_workload
        assert (cut.statistics.runs, cut.statistics.repeats, cut.kind) == (1, 1, "measured") and level.seconds <= 60
        assert cut.name == f"{profile}-canary"


def test_where_no_gpu_is_paid_for_there_is_none():
    assert canary.send("smoke") == "No GPU is paid for: no canary."


def test_a_profile_may_say_what_its_canary_is(tmp_path, monkeypatch):
    text = (paths.CONFIG / "smoke" / "study.yaml").read_text()
    own = "\ndepth:\n  canary:\n    levels: [{kind: closed, concurrency: 2, workload: news, seconds: 1}]\n"
    monkeypatch.setattr(paths, "CONFIG", tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "study.yaml").write_text(text + own)
    assert [level.id for level in config.load_study("own", "canary").levels] == ["closed-2"]
