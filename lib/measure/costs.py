"""What a launch takes of a rented node, before it runs: hours and money, with the assumptions that make them. Pure.

Rule: every number here is assumed; a record says what was taken. Refuses nothing: without a price there is no cost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lib.config import Launch, Study
from lib.engines import budget, build, registry
from lib.engines.gpu import GpuEngine
from lib.measure import serve, takings

START_SHARE = 1 / 3         # of a launch's time limit that a start is expected to take


@dataclass(frozen=True)
class Cost:
    """What a launch takes: seconds by what for, and the price of its nodes. Money is None without a price."""

    fetching_s: float
    making_s: float
    starting_s: float
    measuring_s: float
    gpus: int
    usd_per_hour: float | None

    @property
    def seconds(self) -> float:
        """Seconds of the node."""
        return self.fetching_s + self.making_s + self.starting_s + self.measuring_s

    @property
    def gpu_hours(self) -> float:
        """Hours of the node times its GPUs: a node is rented whole."""
        return self.seconds / 3600 * self.gpus

    @property
    def usd(self) -> float | None:
        """Price of its nodes for that time."""
        return None if self.usd_per_hour is None else self.seconds / 3600 * self.usd_per_hour


def measuring_s(study: Study) -> float:
    """Seconds of all takings of one launch with their warm-ups, and of the search for its capacity."""
    runs = range(study.statistics.runs)
    taken = sum(serve.expected_seconds(study, taking) for run in runs for taking in takings.order(study, run))
    return taken + (study.search.at_most_seconds if study.search else 0.0)


def starting_s(study: Study, launch: Launch) -> float:
    """Seconds of all starts of one launch."""
    return study.statistics.runs * launch.start_seconds * START_SHARE


def in_order(study: Study, launches: list[Launch]) -> Iterator[tuple[Launch, Cost]]:
    """Every launch with its cost where they run in this order: what one has fetched or made, the next finds."""
    there: set[Path | str] = set()
    for launch in launches:
        engine = registry.of(launch)
        artifacts = [name for name in dict.fromkeys((study.model.tokenizer, *build.of(launch))) if name not in there]
        making = 0.0
        if isinstance(engine, GpuEngine):
            for step, folder in zip(engine.steps(launch), engine.made(launch), strict=True):
                making += 0.0 if folder in there else step.expected_s
                there.add(folder)
        there.update(artifacts)
        yield launch, Cost(
            fetching_s=sum(build.recipe(name).seconds for name in artifacts),
            making_s=making,
            starting_s=starting_s(study, launch),
            measuring_s=measuring_s(study),
            gpus=study.hardware.gpus,
            usd_per_hour=budget.usd_per_hour(study, launch),
        )


def assumptions(study: Study, launches: list[Launch]) -> list[str]:
    """Return what the numbers rest on, a sentence each."""
    price = study.price
    said = [
        f"a start takes a third of its time limit, and there are {study.statistics.runs} of each server",
        "a level takes its stated seconds, its ramp, its warm-up and three seconds more",
        "models come at 40 MB/s; quantizing takes 30 to 40 minutes, building an engine 25",
        "the whole node is paid for, whatever a launch uses of it",
    ]
    if price:
        said.append(f"{price.usd_per_hour:g} USD per hour of the node ({price.source}; {price.date})")
        if any(launch.client for launch in launches):
            second = price.client_usd_per_hour
            said.append(f"{second:g} USD per hour of a client's own node" if second else
                        "a client's own node costs nothing: its price is not known (client_usd_per_hour in study.yaml)")
    return said
