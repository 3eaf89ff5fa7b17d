"""Every figure of a study by its name: what it needs from tables and records, and where it is written.

A notebook loads a study once and draws one figure per cell. Refused: a study without tables, and a name that is no
figure. Rule: which level and which contender a figure shows follows from the facts, never from a hand.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lib import config, paths, records
from lib.analyse import h100_tables, published, tables
from lib.analyse.timeline import batch_over_time, timeline, ttft_samples
from lib.errors import ConfigError, NoValue, RecordError
from lib.show import (
    plots,
    plots_claims,
    plots_h100,
    plots_headline,
    plots_inside,
    plots_quality,
    plots_time,
    style,
    verdict,
)
from lib.show.draw import empty as draw_empty


@dataclass(frozen=True)
class Study:
    """A study's tables and where its records and figures lie."""

    config: config.Study
    tables: Path
    folder: Path  # of its records
    figures: Path

    @cached_property
    def facts(self) -> dict[str, Any]:
        """What facts.json holds."""
        path = self.tables / "facts.json"
        if not path.exists():
            raise RecordError(
                f"Study {self.config.name!r} has no {path.name} in {self.tables}. "
                f"Run notebook 05_tables or `make report`, which make it. Studies that have it: {_built() or 'none'}."
            )
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    @cached_property
    def levels(self) -> pd.DataFrame:
        """levels.csv."""
        return pd.read_csv(self.tables / "levels.csv")

    @property
    def of_article(self) -> dict[str, dict[str, Any]]:
        """Records of this study that are of the article's configuration; none on any other machine."""
        return tables.of_article(self.facts)

    @property
    def names(self) -> dict[str, tuple[str, str]]:
        """Launch -> (engine, precision)."""
        return {name: (launch["engine"], launch["precision"]) for name, launch in self.facts["launches"].items()}

    @property
    def shown(self) -> tuple[str, str]:
        """Launch and level that stand for the study where one must: the best contender at the level of the results."""
        for row in verdict.contenders(self.facts):
            if row["level"]:
                return row["launch"], row["level"]
        raise NoValue(f"Study {self.config.name!r} has no closed level to show requests of.")

    def record(self, launch: str) -> records.Record:
        """Read the record of a launch, the one that the tables were made from.

        Raises
        ------
        RecordError : it was taken again since, or is gone or damaged.
        """
        found, said = records.read(self.folder / f"{launch}.parquet"), self.facts["launches"][launch]["source"]
        if not said.endswith(f"#{records.sha256(found.path)[:12]}"):
            raise RecordError(
                f"The tables of study {self.config.name!r} were made from {said}, and {found.path.name} is another "
                f"file now. Run `make report`, which makes tables, figures and page anew."
            )
        return found

    @property
    def outdated(self) -> str:
        """Say which records the tables are older than; empty where they are not."""
        of = {self.folder / f"{name}.parquet": launch["source"] for name, launch in self.facts["launches"].items()}
        newer = [p.name for p, said in of.items() if p.exists() and not said.endswith(f"#{records.sha256(p)[:12]}")]
        told = f"The tables are older than {', '.join(newer)}; `make report` makes them anew. What follows is theirs."
        return told if newer else ""


def load(profile: str, depth: str = "default") -> Study:
    """Find a study by its profile and depth."""
    study = config.load_study(profile, depth)
    return Study(study, paths.tables(study.name), paths.RECORDS / study.name, paths.figures(study.name))


def stamp(facts: Mapping[str, Any]) -> str:
    """Where a study's numbers come from, in one line, with a hash over the checksums of all its records."""
    sources = sorted(launch["source"] for launch in facts["launches"].values())
    digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:12]
    return f"records/{facts['study']['name']}, {len(sources)} records #{digest}"


def draw(study: Study, name: str) -> None:
    """Draw one figure and write it as SVG and PNG.

    Raises
    ------
    ConfigError : a name that is no figure.
    """
    if name not in FIGURES:
        raise ConfigError(f"There is no figure {name!r}; figures are {', '.join(FIGURES)}.")
    # Where every launch failed or was set aside, or only other kinds of load were taken, the page still stands, with
    # empty pictures that say why.
    own = name in ABOUT_H100 or name in ABOUT_INSIDE
    rows = [] if own else verdict.contenders(study.facts)
    if name in ABOUT_INSIDE and not study.facts["inside"][ABOUT_INSIDE[name]]:
        picture = draw_empty("No level of this study looks at this")
    elif own or any(row["level"] for row in rows):
        picture = FIGURES[name](study)
    else:
        plain = f"a closed loop of workload {study.config.headline_workload!r} without pauses and burst"
        picture = draw_empty("No launch of this study has " + (plain if rows else "a level to show"))
    qualifier = None if name in ABOUT_H100 else study.facts["study"].get("qualifier")
    style.save(picture, study.figures, name, kind=study.config.kind, qualifier=qualifier)


def _built() -> str:
    """Names of the studies whose tables are made."""
    return ", ".join(sorted(path.parent.name for path in (paths.REPORT / "tables").glob("*/facts.json")))


def _first_tokens(study: Study) -> Any:
    samples = pd.concat([ttft_samples(study.record(name)) for name in study.names], ignore_index=True)
    return plots.first_token_distribution(samples, study.names, study.shown[1], study.config.sla)


def _timeline(study: Study) -> Any:
    launch, level = study.shown
    record = study.record(launch)
    run, repeat = _first_taking(record, level)
    return plots_time.timeline(
        timeline(record, run, repeat, level), plots_time.tokens(record, run, repeat, level), *study.names[launch]
    )


def _batch(study: Study) -> Any:
    launch, level = study.shown
    record = study.record(launch)
    return plots_time.load_over_time(
        *batch_over_time(record, *_first_taking(record, level), level), *study.names[launch]
    )


def _first_taking(record: records.Record, level: str) -> tuple[int, int]:
    """Run and repeat of the first taking of a level."""
    return min((int(t["run"]), int(t["repeat"])) for t in record.meta["takings"] if t["level"] == level)


FIGURES: dict[str, Callable[[Study], Any]] = {
    "headline": lambda s: plots_headline.headline(pd.read_csv(s.tables / "headline.csv"), s.config.sla, stamp(s.facts)),
    "latency": lambda s: plots.latency(s.levels, s.config.sla),
    "frontier": lambda s: plots.frontier(
        s.levels, s.facts["comparisons"], (s.facts["noise_floor"]["pair"] or [None, None])[1]
    ),
    "tradeoff": lambda s: plots_quality.tradeoff(pd.read_csv(s.tables / "tradeoff.csv"), s.facts["quality"]["reason"]),
    "ttft_distribution": _first_tokens,
    "timeline": _timeline,
    "batch": _batch,
    "adapters": lambda s: plots_inside.adapters(s.facts["inside"]["lora"]),
    "turns": lambda s: plots_inside.turns(s.facts["inside"]["sessions"]),
    "intrusion": lambda s: plots_inside.intrusion(s.facts["inside"]["intrusion"]),
    "arithmetic": lambda s: plots_claims.implied_itl(published.claims()),
    "h100": lambda s: plots_claims.published_against_expected(
        pd.DataFrame(h100_tables.article_rows(s.of_article)), pd.DataFrame(published.references())
    ),
    "capacity": lambda s: plots_h100.capacity_by_configuration(
        h100_tables.capacities(), float(published.claims()["sla"]["concurrent_requests"])
    ),
    "cost": lambda s: plots_h100.cost_against_strictness(
        h100_tables.cost_curves(), float(published.claims()["sla"]["ttft_ms"])
    ),
    "factorial": lambda s: plots_h100.effects(
        h100_tables.factorial_table(s.of_article), float(s.facts["h100"]["ratio"]["own"]["value"])
    ),
}
ABOUT_INSIDE = {"adapters": "lora", "turns": "sessions", "intrusion": "intrusion"}  # shown where facts["inside"] has it
ABOUT_H100 = ("arithmetic", "h100", "capacity", "cost", "factorial")  # drawn from data/ alone
