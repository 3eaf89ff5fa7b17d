"""Check a published site: its checksums, its links, its numbers against its facts, and how it opens in a browser.

    python -m lib.publish.verify [SITE]

Rules: every check runs, and all that is wrong is told at once; a number of the page that no fact gives is wrong; what
cannot be checked here (no browser) is said. Refused: a folder that is no site.
"""

import csv
import html
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from lib import paths, records
from lib.errors import NoValue, RecordError, StudyError, tell
from lib.publish.site import NOTEBOOKS, SITE, SUMS, listed, sources
from lib.show import article, browser, explorer, numbers, style
from lib.show.verdict import inverse

LINKS = ("href", "src", "srcset", "data", "poster")
INLINE = "data:"


class Reading(HTMLParser):
    """What a page links to, its anchors, and every number that stands in it: (title, text) of .n and td.num."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.numbers: list[tuple[str, str]] = []
        self._title: str | None = None  # of the number being read
        self._text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and links; a number begins, and its text ends with the first tag inside it."""
        of = {key: value or "" for key, value in attrs}
        self.ids |= {of["id"]} if "id" in of else set()
        self.links += [of[key] for key in LINKS if key in of]
        self._end()
        kinds = of.get("class", "").split()
        if {"td": "num", "span": "n"}.get(tag) in kinds and not {"missing", "unsupported"} & {*kinds}:
            self._title, self._text = of.get("title", ""), ""

    def handle_endtag(self, tag: str) -> None:
        """End a number that holds no tag."""
        self._end()

    def handle_data(self, data: str) -> None:
        """Collect a number's text."""
        self._text += data

    def _end(self) -> None:
        if self._title is not None and any(c.isdigit() for c in self._text):
            self.numbers.append((self._title, self._text.strip()))
        self._title = None


def verify(site: Path = SITE) -> tuple[list[str], list[str]]:
    """Check a site.

    Returns
    -------
    What was found to hold, and what was found wrong: one line each.

    Raises
    ------
    RecordError : no site there.
    """
    site = site.resolve()  # a link's target is held against it
    for name in (SUMS, "index.html", "tables/facts.json"):
        if not (site / name).exists():
            raise RecordError(f"{site} is no site of this study: it has no {name}. Run `make publish`.")
    facts = json.loads((site / "tables" / "facts.json").read_text(encoding="utf-8"))
    held, wrong = [], []
    for what, found in (
        ("checksums", _sums(site)),
        ("records behind the facts", _records(site, facts)),
        ("links", _links(site)),
        ("numbers", _numbers(site, facts)),
        ("the page as its facts give it", _again(site, facts)),
    ):
        problems = list(found)
        wrong += [f"{what}: {problem}" for problem in problems]
        held += [] if problems else [what]
    try:
        problems = list(_opens(site))
        wrong += [f"in a browser: {problem}" for problem in problems]
        held += [] if problems else ["opens without network and without an error in its console"]
    except NoValue as refusal:
        held.append(f"not checked in a browser: {refusal}")
    return held, wrong


def _sums(site: Path) -> Iterator[str]:
    lines = (line.partition("  ") for line in (site / SUMS).read_text().splitlines())
    said = {name: digest for digest, _, name in lines}
    there = listed(site)
    yield from (f"{name} is listed and not there" for name in sorted(set(said) - set(there)))
    yield from (f"{name} is there and not listed" for name in sorted(set(there) - set(said)))
    for name in sorted(set(said) & set(there)):
        if records.sha256(there[name]) != said[name]:
            yield f"{name} differs from its checksum"


def _records(site: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    for path, source in sources(facts, site / "records", site / "records"):
        if not path.exists():
            yield f"{path.name} is not there"
        elif not source.endswith(f"#{records.sha256(path)[:12]}"):
            yield f"{path.name} is not the record that the facts name, {source}"


def _links(site: Path) -> Iterator[str]:
    pages = {path: Reading(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    for page, reading in pages.items():
        for link in dict.fromkeys(reading.links):
            name, _, anchor = unquote(link).partition("#")
            if link.startswith(INLINE):
                continue
            target = (page.parent / name).resolve() if name else page
            if re.match(r"[a-z]+:|//", link):
                yield f"{page.name} asks for {link}"
            elif not target.is_relative_to(site) or not target.exists():
                yield f"{page.name} links to {link}, which is not there"
            elif anchor and anchor not in pages.get(target, reading).ids:
                yield f"{page.name} links to {link}, an anchor that is not there"


def _numbers(site: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """Hold every number of the page against facts and tables; the explorer's data and first answer by making them."""
    text = (site / "index.html").read_text(encoding="utf-8")
    made = explorer.make(facts)
    given, bare = _given(facts), _bare(facts, site / "tables")
    bare |= {cell.text for row in made.rows for cell in row}
    for title, shown in Reading(text).numbers:
        if title and (title, shown) not in given:
            yield f"{shown!r} ({title}) is given by no fact"
        elif not title and shown not in bare:
            yield f"{shown!r} is given by no fact and no table"
    carried = re.search(r'<script type="application/json" id="explorer-data">(.*?)</script>', text, flags=re.DOTALL)
    if made.work and (carried is None or json.loads(carried[1]) != json.loads(made.json)):
        yield "the explorer's data are not those of the facts"


def _given(facts: Any) -> set[tuple[str, str]]:
    """Every way in which the page may write a number of the facts: (where it comes from, text)."""
    found = set()
    for number in _walk(facts):
        if number["value"] is None:
            continue
        ways = [number, numbers.rounded(number)] + (
            [inverse(number)] if {"ratio", "high"} <= {number.get("unit"), *number} else []
        )
        for way in ways:
            value, unit = numbers.shown(way)
            digits, within = numbers.digits(value), numbers.limits(way)
            more = ["", f"{unit}", f"{unit} ({within})"]
            found |= {(numbers.origin(way), f"{digits}{tail}") for tail in more}
    return found


def _walk(value: Any) -> Iterator[Mapping[str, Any]]:
    """Every number of the facts."""
    if isinstance(value, Mapping):
        if "value" in value and value.get("mark") in style.KINDS:
            yield value
        for inner in value.values():
            yield from _walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(inner)


def _bare(facts: Any, tables: Path) -> set[str]:
    """Texts of numbers without an origin of their own: plain numbers of the facts, and the tables beside figures."""
    found: set[str] = set()

    def collect(value: Any) -> None:
        if isinstance(value, Mapping):
            for inner in value.values():
                collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.update((numbers.digits(float(value)), str(value)))

    collect(facts)
    for path in sorted(tables.glob("*.csv")):
        with path.open(newline="", encoding="utf-8") as file:
            for row in csv.reader(file):
                for text in row:
                    try:
                        collect(float(text))
                    except ValueError:
                        continue
    return found


def _again(site: Path, facts: Mapping[str, Any]) -> Iterator[str]:
    """Render the page once more from the site's own facts, tables and figures."""
    text = (site / "index.html").read_text(encoding="utf-8")
    card = dict(re.findall(r'<meta (?:name|property)="(?:og:)?(description|image|url)" content="([^"]*)"', text))
    card = {"url": "", **{key: html.unescape(value) for key, value in card.items()}}
    with tempfile.TemporaryDirectory() as folder:
        try:
            beside = sorted(path.stem for path in (site / NOTEBOOKS).glob("*.html"))
            made = article.render(
                facts, site / "figures", site / "tables", Path(folder) / "index.html", card=card, appendix=beside
            )
        except StudyError as refusal:
            yield str(refusal)
            return
        if made.read_text(encoding="utf-8") != text:
            yield "rendered again, the page is another; it was edited, or made by another version of this project"


def _opens(site: Path) -> Iterator[str]:
    with browser.Browser() as of:
        for page in sorted(site.rglob("*.html")):
            of.open(page)
            yield from (f"{page.name}: {error}" for error in of.errors)
            yield from (f"{page.name} asked for {request}" for request in of.requests)
            of.errors.clear()
            of.requests.clear()


def main() -> int:
    """Command line: the site, by default report/site."""
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else SITE
    held, wrong = verify(site)
    for line in held:
        print(f"  {line}")
    if wrong:
        more = f" and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        raise RecordError(
            f"{site} does not hold: {'; '.join(wrong[:20])}{more}. Run `make publish` again; where a record is named, "
            f"restore it first."
        )
    shown = site.relative_to(paths.ROOT) if site.is_relative_to(paths.ROOT) else site
    print(f"{shown} holds: {len(listed(site))} files")
    return 0


if __name__ == "__main__":
    tell(main)
