"""The appendix: every notebook as it was executed, one page each that loads nothing and runs nothing.

nbconvert turns cells into HTML and cleans what they put out; the frame is this project's own, with a policy that
forbids every script and request. Rules: a failed or unfinished copy is no appendix; no folder of this computer is told.
Refused: a file that is no notebook.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
from markupsafe import Markup
from nbconvert import HTMLExporter
from nbconvert.preprocessors.sanitize import SanitizeHTML

from lib import paths, records
from lib.errors import RecordError
from lib.show import article

# All that an output may hold.
TABLES = ["table", "caption", "thead", "tbody", "tr", "th", "td", "p", "div", "span", "b", "em", "strong", "code", "br"]
OWN_STYLE = re.compile(r"<style.*?</style>", re.DOTALL)  # pandas brings one with every table
ANCHOR = re.compile(r'<a class="anchor-link".*?</a>')
LINK = re.compile(r'<a href="(?!#)([^"]*)">(.*?)</a>', re.DOTALL)
CORNER = "<th></th>"  # above the row names of a pandas table: it heads nothing
SCROLLED = re.compile(r'<(pre|div class="output_html[^"]*")')  # reached by keys where they are wider than the page


def executed(build: Path) -> dict[str, Path]:
    """Name -> file of every notebook executed for a study, in the order of their numbers.

    Parameters
    ----------
    build : build/<study>.
    """
    found = {path.stem: path for path in build.glob("*.ipynb") if not path.stem.endswith((".failed", ".tmp"))}
    return {name: found[name] for name in sorted(found)}


def write(build: Path, out: Path, title: str) -> list[str]:
    """Write the pages into a folder and return their names.

    Parameters
    ----------
    build : build/<study>.
    out : where they go, as <name>.html; beside the folder lies the article.
    title : of the article.

    Raises
    ------
    RecordError : a file that is no notebook.
    """
    found = executed(build)
    for name, path in found.items():
        records.write_whole(out / f"{name}.html", page(path, found, title).encode())
    return list(found)


def page(path: Path, beside: Mapping[str, Path], title: str) -> str:
    """Make the page of one notebook; links to notebooks `beside` it stay, all others become plain text.

    Raises
    ------
    RecordError : it is no notebook.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except (OSError, ValueError, KeyError, AttributeError, nbformat.ValidationError) as error:
        raise RecordError(f"{path} is no notebook ({error}). Delete it and run `make report`.") from error
    clean = SanitizeHTML(tags=TABLES, attributes={"*": ["scope", "colspan", "rowspan"]}, strip=True)
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "text/html" in data:
                data["text/html"] = OWN_STYLE.sub("", data["text/html"])
            if "image/png" in data:
                output.setdefault("metadata", {}).setdefault("image/png", {})["alt"] = f"Picture made by: {cell.source}"
        clean.preprocess_cell(cell, {}, 0)
    body, _ = HTMLExporter(template_name="basic").from_notebook_node(notebook)
    body = LINK.sub(lambda m: _linked(m, beside), ANCHOR.sub("", body)).replace(f"{paths.ROOT}/", "")
    body = SCROLLED.sub(r'<\1 tabindex="0"', body.replace(CORNER, "<td></td>"))
    return article.templates().get_template("notebook.html.j2").render(
        name=path.stem, title=title, body=Markup(body), **article.dress()
    )


def _linked(found: re.Match[str], beside: Mapping[str, Path]) -> str:
    name = found[1].rpartition("/")[2].removesuffix(".ipynb")
    return f'<a href="{name}.html">{found[2]}</a>' if name in beside else found[2]
