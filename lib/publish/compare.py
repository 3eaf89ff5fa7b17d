"""Two runs on one page: what changed beyond the noise floor, what did not, and what else differs between them.

    python -m lib.publish.compare A B

A and B are names of studies (cpu, cpu-full) or folders with a run's tables, such as tables/ of a published site. Rules:
a change needs a corrected p below the threshold and a size beyond the larger of both floors; without any floor it is
called a difference beyond chance only. Refused: a folder without facts or takings, a rehearsal beside measurements.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lib import paths, records
from lib.analyse.changes import Change, changes
from lib.analyse.facts import number
from lib.analyse.floor import COMPARED
from lib.analyse.levels import SPECS
from lib.errors import RecordError, tell
from lib.show import article

# What else may differ between runs: in words, and where the facts have it.
SETTINGS = (
    ("processor", "machine", "cpu"),
    ("cores", "machine", "cores"),
    ("kernel", "machine", "kernel"),
    ("model", "study", "model"),
    ("depth", "study", "depth"),
)
OUT = paths.REPORT / "compare.html"


@dataclass(frozen=True)
class Run:
    """One side."""

    name: str
    facts: Mapping[str, Any]
    takings: pd.DataFrame


def load(name: str) -> Run:
    """Read one side.

    Raises
    ------
    RecordError : no tables there.
    """
    folder = Path(name) if Path(name).is_dir() else paths.tables(name)
    if not (folder / "facts.json").exists() and (folder / "tables" / "facts.json").exists():
        folder = folder / "tables"
    for wanted in ("facts.json", "takings.csv"):
        if not (folder / wanted).exists():
            raise RecordError(
                f"{name!r} is no run to compare: there is no {wanted} in {folder}. Give the name of a study that "
                f"`make report` has built, or a folder with its tables."
            )
    return Run(name, json.loads((folder / "facts.json").read_text()), pd.read_csv(folder / "takings.csv"))


def compare(a: Run, b: Run, out: Path = OUT) -> list[Change]:
    """Write the page and return every comparison.

    Raises
    ------
    RecordError : a rehearsal beside measurements, or tables of another version.
    """
    kinds = {run.facts["study"]["kind"] for run in (a, b)}
    if len(kinds) > 1:
        raise RecordError(f"{a.name!r} and {b.name!r} are of kinds {sorted(kinds)}; a rehearsal says nothing of a run.")
    both = [launch for launch in a.facts["launches"] if launch in b.facts["launches"]]
    found = changes(a.takings, b.takings, [(launch, launch) for launch in both], floor_of(a, b))
    mark = "measured" if kinds == {"measured"} else "rehearsed"
    page = article.templates().get_template("compare.html.j2")
    text = page.render(
        a=a.name,
        b=b.name,
        changed=[_line(c, a, b, mark) for c in found if c.why is None],
        same=[_line(c, a, b, mark) for c in found if c.why],
        floors={metric: share for metric, share in floor_of(a, b).items() if share is not None},
        only=[(run.name, sorted(set(run.facts["launches"]) - set(both))) for run in (a, b)],
        differs=differences(a, b, both),
        **article.dress(),
    )
    records.write_whole(out, text.encode())
    return found


def floor_of(a: Run, b: Run) -> dict[str, float | None]:
    """Return the larger noise floor of both runs per metric, as a share; None where neither has one."""
    floors: dict[str, float | None] = {}
    for metric in COMPARED:
        known = [run.facts["noise_floor"][metric]["value"] for run in (a, b)]
        floors[metric] = max((v / 100 for v in known if v is not None), default=None)
    return floors


def differences(a: Run, b: Run, launches: Sequence[str]) -> list[tuple[str, str, str]]:
    """Say what else differs: anything here may be why the numbers do."""
    told = []
    for what, section, key in SETTINGS:
        x, y = (run.facts[section][key] for run in (a, b))
        if x != y:
            told.append((what, str(x["name"] if key == "model" else x), str(y["name"] if key == "model" else y)))
    for launch in launches:
        x, y = a.facts["launches"][launch], b.facts["launches"][launch]
        if x["versions"]["engine"] != y["versions"]["engine"]:
            told.append((f"{launch}: engine", x["versions"]["engine"], y["versions"]["engine"]))
        if x["config_hash"] != y["config_hash"]:
            told.append((f"{launch}: configuration", x["config_hash"], y["config_hash"]))
    return told


def _line(c: Change, a: Run, b: Run, mark: str) -> dict[str, Any]:
    """Write one comparison down for the page, its numbers marked and sourced."""
    unit, scale = SPECS[c.metric].unit, SPECS[c.metric].scale
    old, new = (run.facts["launches"][launch]["source"] for run, launch in ((a, c.a), (b, c.b)))
    return {
        "launch": c.b,
        "level": c.level,
        "metric": SPECS[c.metric].label,
        "unit": unit,
        "before": number(c.before * scale, unit, mark, old),
        "after": number(c.after * scale, unit, mark, new),
        "ratio": number(c.ratio, "ratio", mark, f"{new}; {old}", low=c.low, high=c.high),
        "p": number(c.p_holm, "probability", mark, f"{new}; {old}"),
        "why": c.why,
    }


def main() -> None:
    """Command line: the two runs."""
    if len(sys.argv) != 3:
        raise RecordError("Two runs are compared: make compare A=cpu B=cpu-full, each a study or a folder of tables.")
    found = compare(load(sys.argv[1]), load(sys.argv[2]))
    changed = sum(c.why is None for c in found)
    print(f"{changed} of {len(found)} comparisons changed: {OUT.relative_to(paths.ROOT)}")


if __name__ == "__main__":
    tell(main)
