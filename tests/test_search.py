"""The search on servers whose capacity is known: noisy, drifting, autocorrelated, some with a fault at some loads.

A server's latencies grow with its load and spread log-normally, so its p95, and with it its capacity, is exact. What
the search sees of it is not: requests of one batch share their fate, the machine drifts by 1 to 2 % within minutes,
a probe in thirty meets a busy machine, and every eighth server is slow at some loads below its capacity.
"""

import itertools
import math

import numpy as np
import pytest

from lib import config
from lib.errors import ConfigError
from lib.measure.search import Probe, Result, Search

SERVERS = 200
LEVELS, REPEATS = 10, 3  # the grid that the search is held against
TAKING_S, WARM_UP_S, RAMP = 60.0, 10.0, 0.25
TOKENS = 128
DRAIN_S = 60.0  # longer requests are cut
P95 = 1.6449  # standard deviations


class Server:
    """A server with a capacity of `truth`, and a clock of what measuring it takes."""

    def __init__(self, seed: int, kind: str) -> None:
        self.rng = r = np.random.default_rng(seed)
        self.kind, self.seen = kind, set()
        self.lowest, self.highest = (1, 256) if kind == "closed" else (0.5, 128.0)
        star = math.exp(r.uniform(math.log(3 if kind == "closed" else 2), math.log(200 if kind == "closed" else 60)))
        self.star = star
        self.power = r.choice([1.5, 2.5, 4, 8]), r.choice([1.0, 1.5, 3])
        growth = r.uniform(0.5, 8), r.uniform(0.3, 3)  # of TTFT and TPOT, from one request alone to the capacity
        self.knee = [star / g ** (1 / p) for g, p in zip(growth, self.power, strict=True)]
        self.spread = r.uniform(0.1, 0.35), r.uniform(0.04, 0.12)  # of the logarithm, over requests
        self.shared = r.uniform(0, 0.3)  # of that variance, what requests of one batch share
        self.drift = r.uniform(0.005, 0.02)
        self.now = 0.0  # how far it has drifted, in standard deviations
        self.fault = star * r.uniform(0.15, 0.85) if seed % 8 == 0 else math.inf
        slack = [1.0, r.uniform(1.03, 1.5)]
        if r.random() < 0.5:
            slack.reverse()
        self.limit = [self.median(i, star * slack[i], sound=True) * math.exp(P95 * self.spread[i]) for i in (0, 1)]
        self.truth = math.floor(star) if kind == "closed" else star

    def median(self, i: int, load: float, sound: bool = False) -> float:
        """Seconds to the first token (0) or per further token (1)."""
        fault = 1.4 if self.fault <= load < 1.12 * self.fault and not sound else 1.0
        return (0.15, 0.02)[i] * (1 + (load / self.knee[i]) ** self.power[i]) * fault

    def request_s(self, load: float) -> float:
        return min(DRAIN_S, self.median(0, load) + TOKENS * self.median(1, load))

    def took(self, load: float, seconds: float) -> float:
        """Ramp, issuing, and the drain of the last requests."""
        return seconds * (1 + RAMP * (self.kind == "closed")) + self.request_s(load)

    def probe(self, asked: Probe) -> Result:
        r = self.rng
        load = asked.load
        seconds = max(asked.seconds, min(asked.at_most_seconds, asked.requests * self.request_s(load) / load))
        took = self.took(load, seconds) + (0 if load in self.seen else WARM_UP_S)
        self.seen.add(load)
        kept = math.exp(-took / 120)
        self.now = kept * self.now + math.sqrt(1 - kept**2) * r.normal()
        shift = self.drift * self.now + 0.007 * r.normal() + (0.26 if r.random() < 0.03 else 0)
        n = int(load / self.request_s(load) * seconds) if self.kind == "closed" else r.poisson(load * seconds)
        batch = max(1, int(load * (1 if self.kind == "closed" else self.request_s(load))))
        counts = []
        for i in (0, 1):
            common = np.repeat(r.normal(size=n // batch + 1), batch)[:n]
            noise = math.sqrt(self.shared) * common + math.sqrt(1 - self.shared) * r.normal(size=n)
            late = math.log(self.median(i, load)) + shift + self.spread[i] * noise > math.log(self.limit[i])
            counts.append((n, int(late.sum())))
        return Result(load, tuple(counts), False, asked.seconds, took)

    def grid_s(self) -> float:
        """Measuring time of ten levels, each warmed up once and taken three times."""
        levels = np.geomspace(self.lowest, self.highest, LEVELS)
        return sum(REPEATS * self.took(load, TAKING_S) + WARM_UP_S for load in levels)


def searched(server, seconds):
    one = Search(server.kind, server.lowest, server.highest, seconds)
    while (probe := one.ask()) is not None:
        one.tell(server.probe(probe))
    return one


@pytest.fixture(scope="module", params=["closed", "poisson"])
def outcomes(request):
    """Every simulated server of a kind, its search, and the share of the grid's time that it took."""
    found = []
    for seed in range(SERVERS):
        server = Server(seed, request.param)
        grid = server.grid_s()
        one = searched(server, grid / 4)
        found.append((seed, server, one.found(), one.seconds / grid))
    return request.param, found


def off(server, value):
    """How far a capacity is off: 0 within 5 % or, of whole requests, one step; else its sign."""
    value = value or 0.0
    near = abs(value - server.truth) <= max(1.0 if server.kind == "closed" else 0.0, 0.05 * server.truth)
    return 0 if near else 1 if value > server.truth else -1


def told(outcomes):
    kind, found = outcomes
    limit = [off(server, one.low) for _, server, one, _ in found]
    likely = [off(server, one.likely) for _, server, one, _ in found]
    share = [s for *_, s in found]
    print(
        f"{kind}: of {len(found)} servers the limit is right for {limit.count(0)}, above for {limit.count(1)}; the "
        f"best estimate right for {likely.count(0)}, above for {likely.count(1)}; measuring time {np.mean(share):.1%} "
        f"of the grid's in the mean, {max(share):.1%} at most",
        *(f"\n  {seed}: {server.truth:.4g}, {one}" for seed, server, one, _ in found if off(server, one.low)),
    )
    return [x / len(found) for x in (limit.count(0), limit.count(1), likely.count(0))], share


def test_capacities_of_simulated_servers(outcomes):
    (right, above, likely), share = told(outcomes)
    assert likely >= 0.95  # within 5 % or one step
    assert right >= 0.88 and above <= 0.05  # the limit errs low
    assert np.mean(share) <= 0.22 and round(max(share), 2) <= 0.25


def exact(load, capacity, n=80, beyond=None):
    """What a server shows whose requests are all within the limits up to its capacity, and all beyond them above it."""
    return (n, 0), (n, (n if load > capacity else 0) if beyond is None else beyond)


def failed(probe):
    return Result(probe.load, ((0, 0), (0, 0)), True, probe.seconds, probe.seconds + 3.0)


def run(one, answer):
    asked = []
    while (probe := one.ask()) is not None:
        asked.append(probe.load)
        told = answer(probe.load, len(asked))
        one.tell(Result(probe.load, told, False, probe.seconds, probe.seconds + 3.0) if told else failed(probe))
    return asked


def test_a_sharp_edge_is_found_between_two_neighbours():
    one = Search("closed", 1, 64, 400.0)
    run(one, lambda load, _: exact(load, 23))
    assert (one.found().low, one.found().high, one.found().answer) == (23.0, 24.0, "no")
    assert one.seconds < 200


def test_it_starts_low_and_never_more_than_doubles():
    one = Search("closed", 2, 64, 400.0)
    asked = run(one, lambda load, _: exact(load, 64))
    assert asked[0] == 2 and all(b <= 2 * a for a, b in itertools.pairwise(asked))
    assert one.found().low == 64 and one.found().high is None and "highest" in one.found().reason


def test_levels_taken_before_are_where_it_starts():
    one = Search("closed", 1, 64, 400.0)
    for load in (1.0, 4.0, 16.0):
        one.tell(Result(load, ((80, 0), (80, 0)), False))
    assert 16 < one.ask().load <= 32 and one.seconds == 0


def test_a_stray_probe_is_contradicted_by_the_next():
    one = Search("closed", 1, 64, 400.0)
    asked = run(one, lambda load, i: exact(load, 23, beyond=60) if i == 5 else exact(load, 23))
    assert asked[4] < 23 and one.found().low == 23  # the machine was busy during the fifth probe, well below the edge


def test_a_fault_at_some_loads_does_not_hide_what_lies_above():
    one = Search("closed", 1, 64, 600.0)
    asked = run(one, lambda load, _: exact(load, 40, beyond=80) if 6 <= load < 8 else exact(load, 40))
    assert any(6 <= load < 8 for load in asked) and one.found().low == 40


def test_failures_beyond_the_budget_count_as_a_load_that_is_not_carried():
    one = Search("closed", 1, 8, 400.0)
    run(one, lambda load, _: exact(load, 8) if load <= 5 else None)
    assert one.found().low == 5


def test_nothing_meets_the_sla():
    one = Search("closed", 1, 64, 400.0)
    run(one, lambda load, _: exact(load, 0))
    assert one.found().low is None and one.found().high == 1 and "lowest" in one.found().reason


def test_out_of_time_it_keeps_its_bracket_and_says_so():
    one = Search("closed", 1, 64, 20.0)
    run(one, lambda load, _: exact(load, 23))
    found = one.found()
    assert found.low < 23 and found.reason == "its time was spent" and one.seconds <= 20


def test_the_same_results_give_the_same_proposals():
    server = Server(3, "closed")
    one = searched(server, 300.0)
    again = Search("closed", server.lowest, server.highest, 300.0)
    for result in one.results:
        assert again.ask().load == result.load
        again.tell(result)
    assert again.ask() is None and again.found() == one.found()


def test_config_refuses_a_search_that_cannot_be(tmp_path):
    for wrong, why in (
        ({"lowest": 4, "highest": 4}, "nowhere to go"),
        ({"highest": 8.5}, "whole numbers"),
        ({"at_most_seconds": 0}, "greater than 0"),
    ):
        data = {"kind": "closed", "workload": "news", "lowest": 1, "highest": 8, "at_most_seconds": 60} | wrong
        with pytest.raises(ConfigError, match=why):
            config.validated(config.Search, data, "study.yaml")
