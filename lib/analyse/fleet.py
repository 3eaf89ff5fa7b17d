"""From one node to a fleet: how many nodes a demand needs, what they cost, and which assumption matters most.

A node is an independent server behind an even balancer; it carries `capacity` requests in flight (or sessions) under
the SLA, taken from predictions or from a record. Refuses a capacity or price that is not above zero. Every assumption
is a field with its unit, none is hidden.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from lib.errors import NoValue

HOURS_PER_MONTH = 365.25 * 24 / 12


@dataclass(frozen=True)
class Demand:
    """What must be served: mean load now and how it moves. All assumed.

    With `requests_per_s` the load is that rate, and the requests in flight follow from the node by Little's law;
    `sessions` then plays no part.
    """

    sessions: float = 50.0  # mean concurrent sessions (requests in flight) today
    requests_per_s: float | None = None  # mean arrivals today, instead of sessions
    growth_per_year: float = 0.5  # share
    years: float = 1.0  # until the fleet must still suffice
    peak_to_mean: float = 2.0  # ratio, at the market's open
    failures: int = 1  # nodes that may be down at the peak
    headroom: float = 0.1  # share of a node's capacity left free


@dataclass(frozen=True)
class Node:
    """What one node carries under the SLA and costs."""

    capacity: float  # requests in flight (or sessions)
    output_tok_s: float  # at that capacity
    usd_per_hour: float  # the whole node
    output_tokens: float | None = None  # mean tokens an answer; needed for requests per second

    def requests_per_s(self) -> float:
        """Requests a second that the node answers at its capacity; NoValue without the length of an answer."""
        if not self.output_tokens:
            raise NoValue(
                "a load in requests per second needs the tokens of an answer to become requests in flight; state "
                "output_tokens of the node."
            )
        return self.output_tok_s / self.output_tokens


def fleet(demand: Demand, node: Node) -> dict[str, float]:
    """Nodes, USD a month, USD per million output tokens at the mean load, peak sessions and mean requests a second
    (NaN where the node states no length of answers) of a fleet that serves the demand.

    Output per session at the mean load is taken as at capacity, so the price per token is an upper limit where nodes
    run less full.
    """
    if not (node.capacity > 0 and node.output_tok_s > 0 and node.usd_per_hour > 0):
        raise NoValue(
            f"a node with capacity {node.capacity}, {node.output_tok_s} tok/s at {node.usd_per_hour} "
            "USD an hour serves nobody under this SLA; "
            "no fleet of them does."
        )
    today = demand.sessions
    if demand.requests_per_s is not None:
        today = demand.requests_per_s / node.requests_per_s() * node.capacity
    mean = today * (1 + demand.growth_per_year) ** demand.years
    peak = mean * demand.peak_to_mean
    serving = ceil(round(peak / (node.capacity * (1 - demand.headroom)), 9))
    nodes = serving + demand.failures
    usd = nodes * node.usd_per_hour * HOURS_PER_MONTH
    tokens = mean / node.capacity * node.output_tok_s * 3600 * HOURS_PER_MONTH
    return {
        "requests_per_s": mean / node.capacity * node.requests_per_s() if node.output_tokens else float("nan"),
        "peak_sessions": peak,
        "nodes": float(nodes),
        "usd_per_month": usd,
        "usd_per_million_tokens": usd / tokens * 1e6,
        "utilisation": mean / (nodes * node.capacity),
    }


def sensitivity(
    demand: Demand, node: Node, ranges: Mapping[str, tuple[float, float]] | None = None
) -> list[dict[str, Any]]:
    """USD a month with each assumption at its low and its high value, the others unchanged; widest swing first.

    Ranges: field of Demand or Node -> (low, high); without them every field that the cost depends on is varied by a
    stated default.
    """
    load = "sessions" if demand.requests_per_s is None else "requests_per_s"
    chosen = dict(
        ranges
        or {
            load: (getattr(demand, load) * 0.8, getattr(demand, load) * 1.2),
            "years": (0.0, 3.0),
            "growth_per_year": (0.0, 1.0),
            "peak_to_mean": (1.5, 4.0),
            "failures": (0, 2),
            "headroom": (0.0, 0.3),
            "capacity": (node.capacity * 0.8, node.capacity * 1.2),
            "usd_per_hour": (node.usd_per_hour * 0.5, node.usd_per_hour * 2),
        }
    )
    rows = []
    for name, ends in chosen.items():
        cost = []
        for value in ends:
            change: dict[str, Any] = {name: value}
            one, two = (replace(demand, **change), node) if hasattr(demand, name) else (demand, replace(node, **change))
            cost.append(fleet(one, two)["usd_per_month"])
        rows.append(swing(name, ends, cost))
    return widest_first(rows)


def swing(name: str, ends: Sequence[float], cost: Sequence[float]) -> dict[str, Any]:
    """Return one row of a sensitivity: an assumption, its low and high value, and USD a month at both."""
    return {
        "assumption": name,
        "low": ends[0],
        "high": ends[1],
        "usd_per_month_low": cost[0],
        "usd_per_month_high": cost[1],
        "swing": abs(cost[1] - cost[0]),
    }


def widest_first(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a sensitivity by their swing; one without a cost at an end comes first, since nothing matters more."""
    return sorted(rows, key=lambda row: -row["swing"] if row["swing"] == row["swing"] else float("-inf"))


def scales(
    node: Node, demand: Demand, sessions: tuple[float, ...] = (50, 500, 5_000, 50_000, 1_000_000)
) -> list[dict[str, float]]:
    """Return the same demand at growing numbers of sessions: one dict of `fleet` each, with `sessions`."""
    return [{"sessions": float(n), **fleet(replace(demand, sessions=n), node)} for n in sessions]
