"""Fleets of the article's node: nodes and cost for a demand, per contender, from predictions and from records.

An SLA, a price, a workload and a demand are arguments with the article's and this study's defaults; each contender is
taken in its best layout under that SLA. `measured` is everywhere what `world.measured_from` gives, or None without
records. Refuses a contender that serves nobody under the SLA, with those that do.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from lib.analyse import capacity, fleet, h100_records, predict, published
from lib.analyse.h100_marks import NONE_KEEPS, PHYSICS, fact, key
from lib.analyse.h100_tables import PRICE, WORK, Measured, lowest_usd, node_usd_per_hour, target
from lib.analyse.predict import records
from lib.errors import NoValue

WORKLOAD = "filing excerpt"
SESSIONS = (500, 5_000, 50_000, 1_000_000)  # fleets that are shown beside that of the SLA's own sessions
ASKED_SESSIONS = 10_000  # mean load at which assumptions are varied
STRICTER, LOOSER = 0.75, 1.5  # times each limit of the SLA, where the SLA itself is varied


def _nodes(
    price_id: str, workload: str, measured: Measured | None, sla: capacity.Target
) -> list[tuple[dict[str, Any], fleet.Node]]:
    """Return what each contender serves on one node, from predictions in its best layout and from records."""
    usd, found = node_usd_per_hour(price_id), []
    for row, node in _predicted(price_id, workload, sla):
        about = {name: row[name] for name in ("config", "layout", "workload")} | {"kind": "predicted", "from": ""}
        about["bound_usd_per_million_tokens"] = lowest_usd(row["precision"], workload, sla, usd)
        found.append((about, node))
    for row in published.claims()["rows"]:
        own = _of_record((measured or {}).get(row["id"], {}), sla)
        if own.get("capacity", 0) > 0 and own.get("output_tok_s", 0) > 0:
            tokens = own["output_tok_s"] / own["requests_s"] if own.get("requests_s") else None
            about = {"config": f"{row['id']} record", "layout": "as recorded", "workload": own.get("workload", "")}
            about |= {"kind": "measured", "from": str(own.get("source", "record of this study"))}
            known = own.get("workload") in WORK
            least = lowest_usd(row["precision"], own["workload"], sla, usd) if known else float("nan")
            about["bound_usd_per_million_tokens"] = least
            found.append((about, fleet.Node(own["capacity"], own["output_tok_s"], usd, tokens)))
    return found


@lru_cache(maxsize=64)
def _predicted(price_id: str, workload: str, sla: capacity.Target) -> tuple[tuple[dict[str, Any], fleet.Node], ...]:
    """Return the row of capacities and the node of each contender that serves somebody, in its best layout."""
    table, usd = predict.load(), node_usd_per_hour(price_id)
    here = table[(table["workload"] == workload) & (table["policy"] == "chunked")]
    rows = records(capacity.best_layout(capacity.within(here, sla)))
    return tuple(
        (row, fleet.Node(row["capacity"], row["output_tok_s"], usd, row["osl"]))
        for row in rows
        if row["capacity"] > 0 and row["output_tok_s"] > 0
    )


def _of_record(own: Mapping[str, Any], sla: capacity.Target) -> dict[str, Any]:
    """Capacity and rates of a measured row: as the study judged it under the article's limits, from its levels else."""
    article = target()
    if (sla.ttft_ms, sla.itl_ms, sla.percentile) == (article.ttft_ms, article.itl_ms, article.percentile):
        rates = {name: own.get(f"{name}_at_capacity", 0) for name in ("output_tok_s", "requests_s")}
        return {**own, **rates}
    return {**own, "capacity": 0} | h100_records.capacity_within(own, sla.ttft_ms, sla.itl_ms, sla.percentile)


def fleet_table(
    price_id: str = PRICE,
    workload: str = WORKLOAD,
    demand: fleet.Demand | None = None,
    measured: Measured | None = None,
    sla: capacity.Target | None = None,
) -> list[dict[str, Any]]:
    """Nodes and cost per contender from the SLA's sessions to a million, each in its best layout under the SLA; from
    predictions and, where `measured` has a capacity, from records (`kind`, `from`). Beside the cost per million tokens
    stands the lowest that physics allows on the node, with no peak, spare node or headroom.
    """
    asked = sla or target()
    return [
        {**about, "capacity": node.capacity, **scaled}
        for about, node in _nodes(price_id, workload, measured, asked)
        for scaled in fleet.scales(node, demand or fleet.Demand(), (asked.sessions, *SESSIONS))
    ]


def fleet_by_rate(
    rates_s: Iterable[float] = (1, 10, 100, 1_000, 10_000),
    price_id: str = PRICE,
    workload: str = WORKLOAD,
    measured: Measured | None = None,
    sla: capacity.Target | None = None,
) -> list[dict[str, Any]]:
    """Return the same for demands stated in requests per second."""
    return [
        {**about, "capacity": node.capacity, "asked_requests_per_s": rate}
        | fleet.fleet(fleet.Demand(requests_per_s=rate), node)
        for about, node in _nodes(price_id, workload, measured, sla or target())
        if node.output_tokens
        for rate in rates_s
    ]


def fleet_sensitivity(
    config: str, price_id: str = PRICE, workload: str = WORKLOAD, sla: capacity.Target | None = None
) -> list[dict[str, Any]]:
    """Return what each assumption, the SLA's limits among them, does to the monthly cost of 10,000 sessions on one
    contender, widest swing first; a limit that nobody keeps has no cost at its end (NaN).

    NoValue where the contender serves nobody under the SLA.
    """
    asked, demand = sla or target(), fleet.Demand(sessions=ASKED_SESSIONS)
    nodes = {row["config"]: node for row, node in _predicted(price_id, workload, asked)}
    if config not in nodes:
        raise NoValue(
            f"'{config}' serves no {workload} under the SLA, so no fleet of it has a cost; {', '.join(nodes)} do."
        )
    rows = fleet.sensitivity(demand, nodes[config])
    for name in ("ttft_ms", "itl_ms"):
        ends = [getattr(asked, name) * times for times in (STRICTER, LOOSER)]
        cost = []
        for value in ends:
            at = _predicted(price_id, workload, replace(asked, **{name: value}))
            node = next((one for row, one in at if row["config"] == config), None)
            cost.append(fleet.fleet(demand, node)["usd_per_month"] if node else float("nan"))
        rows.append(fleet.swing(f"SLA {name}", ends, cost))
    return fleet.widest_first(rows)


def fleet_facts(source: str, measured: Measured) -> dict[str, Any]:
    """Fleets by contender and number of sessions, as marked facts; `source` is that of the predictions."""
    units = {
        "nodes": "nodes",
        "usd_per_month": "USD/month",
        "usd_per_million_tokens": "USD/million tokens",
        "requests_per_s": "requests/s",
    }
    out: dict[str, Any] = {}
    for row in fleet_table(measured=measured):
        sizes = out.setdefault(key(row["config"]), {"layout": row["layout"], "workload": row["workload"]})
        given = f"{row['from'] or source}; {PRICE}; demand as in lib/analyse/fleet.py"
        reason = "the record does not state the length of its answers"
        sizes[f"sessions_{row['sessions']:.0f}"] = {
            name: fact(row[name], unit, "assumed", given, reason) for name, unit in units.items()
        }
        least = row["bound_usd_per_million_tokens"]
        sizes["bound_usd_per_million"] = fact(least, "USD/million tokens", "bound", f"{PHYSICS}; {PRICE}", NONE_KEEPS)
    return out


def demand_facts() -> dict[str, Any]:
    """What is assumed of the demand."""
    units = {"growth_per_year": "share", "years": "years", "peak_to_mean": "ratio", "failures": "nodes"}
    units |= {"headroom": "share"}
    return {n: fact(getattr(fleet.Demand(), n), unit, "assumed", "lib/analyse/fleet.py") for n, unit in units.items()}


def sensitivity_facts(source: str) -> dict[str, Any]:
    """Return `fleet_sensitivity` of each contender as marked facts."""
    given, out = f"{source}; {PRICE}; ranges as in lib/analyse/fleet.py", {}
    for config in predict.meta()["contenders"]:
        out[key(config)] = [
            {"assumption": row["assumption"], "low": row["low"], "high": row["high"]}
            | {
                n: fact(row[n], "USD/month", "assumed", given, "it then serves nobody within the SLA")
                for n in ("usd_per_month_low", "usd_per_month_high")
            }
            for row in fleet_sensitivity(config)
        ]
    return out
