"""What the article leans on: whose publications its numbers of others are from, and which notebooks made its own.

Rules: a reference is a source that some row of data/ names, said once; no address stands here that data/ does not have.
Refused: nothing of its own.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from lib import paths
from lib.analyse import published


def listed() -> list[dict[str, str]]:
    """Every source of a published number: who, when, what, and which file of data/ holds its rows; sorted by who."""
    article = published.claims()["article"]
    found: dict[tuple[str, str], tuple[str, set[str]]] = {
        ("The article under study", article["title"]): ("claims.yaml", {"no date given"})
    }
    for name, rows in (("references.csv", published.references()), ("prices.csv", published.prices())):
        for row in rows:
            found.setdefault((row["who"], row["source"]), (name, set()))[1].add(str(row["date"]))
    for gpu in published.gpu_names():
        found.setdefault((gpu, published.gpu_entry(gpu)["source"]), ("hardware.yaml", set()))
    return [
        {"who": who, "what": what, "file": f"data/{name}", "when": ", ".join(sorted(dates))}
        for (who, what), (name, dates) in sorted(found.items(), key=lambda item: (item[1][0] != "claims.yaml", item[0]))
    ]


def notebooks() -> dict[str, str]:
    """Name of each notebook -> its title, in the order of their numbers."""
    return {path.stem: _title(json.loads(path.read_text("utf-8"))) for path in sorted(paths.NOTEBOOKS.glob("*.ipynb"))}


def _title(notebook: Mapping[str, Any]) -> str:
    """First heading of a notebook, without its number."""
    first = next("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    return re.sub(r"^# *(\d+ )?", "", first.splitlines()[0])
