"""What a node will run and what it will cost, before it does."""

import shlex
from pathlib import Path

import pytest

from lib import config
from lib.engines import registry
from lib.measure import costs, nodeplan, slurm, takings


def study_of(profile="h100", **changes):
    return config.load_study(profile).model_copy(update=changes)


def launches(study):
    return [config.load_launch(study.profile, name) for name in config.run_order(study)]


def test_cost_is_the_whole_nodes_time():
    cost = costs.Cost(fetching_s=600, making_s=1200, starting_s=900, measuring_s=900, gpus=8, usd_per_hour=32.0)
    assert (cost.seconds, cost.gpu_hours, cost.usd) == (3600, 8.0, 32.0)
    assert costs.Cost(0, 0, 0, 3600, 8, None).usd is None


def test_starts_take_a_third_of_their_limit_and_levels_their_seconds():
    study = study_of()
    launch = launches(study)[0]
    assert costs.starting_s(study, launch) == study.statistics.runs * launch.start_seconds / 3
    stated = sum(takings.seconds(level) for level in study.levels) * study.statistics.runs
    assert stated < costs.measuring_s(study) < 2 * stated


def test_what_one_launch_fetches_and_makes_the_next_one_finds():
    study = study_of("h100-current")
    by_name = {launch.name: cost for launch, cost in costs.in_order(study, launches(study))}
    first, second, third = (by_name[f"tensorrt-llm-fp8-{layout}"] for layout in ("tp8", "tp2x4", "tp4x2"))
    assert first.making_s == 2400 and second.making_s == third.making_s == 0
    assert first.fetching_s == 3600 and second.fetching_s == 0
    assert by_name["vllm-bf16-tp8"].fetching_s == 0         # the 16-bit weights are there already


@pytest.mark.parametrize("profile", ["h100", "h100-current", "h100-lora", "h100-sessions", "h100-inside"])
def test_the_plan_prints_every_command_word_for_word(profile):
    study = study_of(profile)
    text = "\n".join(nodeplan.lines(study))
    for launch in launches(study):
        engine = registry.of(launch)
        assert shlex.join(engine.runs(launch, nodeplan.PORT)) in text
        for _, argv in engine.commands(launch):
            assert shlex.join(argv) in text
    for said in costs.assumptions(study, launches(study)):
        assert said in text
    assert "GPU-hours" in text and "USD" in text and "s3cret" not in text


def test_without_a_price_there_is_no_cost():
    text = "\n".join(nodeplan.lines(study_of(price=None)))
    assert "GPU-hours" in text and "in all" in text and " USD;" not in text


def test_a_clients_own_node_is_paid_for_too_or_said_not_to_be():
    study = study_of()
    apart = [one.model_copy(update={"client": "other-node"}) for one in launches(study)]
    price = study.price.model_copy(update={"client_usd_per_hour": 2.0})
    (_, without), *_ = costs.in_order(study, apart)
    (_, priced), *_ = costs.in_order(study.model_copy(update={"price": price}), apart)
    assert priced.usd == pytest.approx(without.usd + 2.0 * priced.seconds / 3600)
    (_, beside), *_ = costs.in_order(study.model_copy(update={"price": price}), launches(study))
    assert beside.usd == without.usd
    assert "its price is not known" in " ".join(costs.assumptions(study, apart))
    assert "2 USD per hour of a client" in " ".join(costs.assumptions(study.model_copy(update={"price": price}), apart))


def test_a_build_gets_the_time_that_models_take_to_come_and_to_be_made():
    of = study_of()
    expected = sum(cost.fetching_s + cost.making_s for _, cost in costs.in_order(of, launches(of))) / 60
    build = slurm.Work(of, None, Path("build.x"), ("python",))
    assert expected > 180 and slurm.minutes(build, slurm.Cluster()) == pytest.approx(1.5 * expected, abs=1)


def test_slurm_starts_first_what_teaches_most_per_dollar():
    of, nice = study_of(), []
    for launch in launches(of):
        given = slurm.options(slurm.Work(of, launch, Path("x"), ("python",)), slurm.Cluster())
        nice.append(sum(int(option.partition("=")[2]) for option in given if option.startswith("--nice=")))
    assert nice == sorted(set(nice)) and nice[0] == 0


def test_a_study_without_gpus_has_no_node():
    assert nodeplan.lines(config.load_study("cpu")) == []
