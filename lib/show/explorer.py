"""The explorer in the page: its data, its first answer in words and cells, its scripts and the policy that lets only
these run.

The answer to the question as stated is written here, so that the section says something true where no script runs;
the script then says the same in the same pieces and takes over. Rules: data enter the page as JSON without a character
that HTML could read; a script runs only by the hash of its bytes. Refused: nothing of its own.
"""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from lib import paths
from lib.analyse import asked, whatif
from lib.analyse.facts import weakest
from lib.show import numbers, style

SOURCES = paths.REPORT_SOURCES / "template"
LIBRARY = SOURCES / "uplot"  # see its README.md for version, licence and checksum
GLYPHS = {"o": "\u25cf", "h": "\u2b22", "s": "\u25a0", "D": "\u25c6", "^": "\u25b2", "v": "\u25bc"}
CRITERION = "assumed"  # mark of the promise and of a price that a reader moves
ACTIVE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}

Part = tuple[str, str]  # text, and the mark of the number it ends in or ""


@dataclass(frozen=True)
class Cell:
    """One cell of the answer: text, mark, a smaller second line, and the class that gives its look."""

    text: str
    mark: str = ""
    small: str = ""
    of: str = ""
    look: Mapping[str, Any] | None = None
    source: str = ""

    def __html__(self) -> Markup:
        """Write the cell as the script writes it."""
        tag, scope, swatch = "td", Markup(""), Markup("")
        of = Markup(' class="{}"').format(self.of) if self.of else Markup("")
        if self.look:
            tag, scope = "th", Markup(' scope="row" title="{}"').format(self.source)
            swatch = Markup('<span class="swatch {}" aria-hidden="true">{}</span>').format(
                self.look["colour"].removeprefix("--"), self.look["glyph"]
            )
        small = Markup('<span class="ci">{}</span>').format(self.small) if self.small else Markup("")
        mark = numbers.mark(self.mark) if self.mark else Markup("")
        return Markup("<{}{}{}>{}{}{}{}</{}>").format(tag, of, scope, swatch, self.text, mark, small, tag)


@dataclass(frozen=True)
class Explorer:
    """What the page's template needs."""

    data: dict[str, Any]
    work: Mapping[str, Any] | None  # the one shown first
    said: Sequence[Part]
    rows: Sequence[Sequence[Cell]]
    scripts: tuple[Markup, ...]
    style: Markup

    @property
    def json(self) -> Markup:
        """Return the data as text that an HTML parser cannot leave."""
        return as_json(self.data)

    @property
    def policy(self) -> str:
        """Return the hashes of the scripts, as a content security policy names them."""
        digests = (hashlib.sha256(script.encode()).digest() for script in self.scripts)
        return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def make(facts: Mapping[str, Any]) -> Explorer:
    """Make the explorer of a study from its facts. Without anything to ask about it has no work and no script."""
    data = described(asked.block(facts))
    if not data["works"]:
        return Explorer(data, None, [], [], (), Markup(""))
    work = data["works"][0]
    question = whatif.stated(work)
    answer = whatif.answer(data, question)
    return Explorer(
        data,
        work,
        said(answer, question, work),
        [cells(row, work) for row in answer.rows],
        (_source(LIBRARY / "uPlot.iife.min.js"), _source(SOURCES / "explorer.js")),
        _source(LIBRARY / "uPlot.min.css"),
    )


def described(block: Mapping[str, Any]) -> dict[str, Any]:
    """Add to a block how everything in it is called and looks."""
    works = []
    for work in block["works"]:
        mark = work["mark"]
        prices = {"stated": work["price_mark"], "moved": CRITERION}
        works.append(
            dict(work)
            | {
                "subject": f"On {work['machine']}",
                "weakest": {k: mark if mark == "rehearsed" else weakest([mark, v]) for k, v in prices.items()},
                "contenders": [_described(contender) for contender in work["contenders"]],
            }
        )
    kinds = {name: {"mark": kind.mark, "means": kind.means} for name, kind in style.KINDS.items()}
    engines = {name: engine.label for name, engine in style.ENGINES.items()}
    return dict(block) | {"works": works, "kinds": kinds, "engines": engines}


def said(answer: whatif.Answer, q: whatif.Question, work: Mapping[str, Any]) -> list[Part]:
    """Put an answer in words."""
    rows, mark = answer.rows, work["mark"]
    if not rows:
        return [("No contender is selected: choose at least one engine and one precision.", "")]
    parts = [
        (f"Asked: a first token within {numbers.digits(q.ttft_ms)} ms", CRITERION),
        (f" and then a token every {numbers.digits(q.tpot_ms)} ms", CRITERION),
        (f", for {numbers.digits(q.sessions)} at once", CRITERION),
    ]
    if q.floor is not None:
        parts += [(f", and {numbers.digits(q.floor)} % of next tokens as the 16-bit model has them", CRITERION)]
    parts += [(f". {work['subject']}: ", "")]
    keep, some = [r for r in rows if r.answer == "yes"], [r for r in rows if r.carries]
    if keep:
        verb = "keeps" if len(keep) == 1 else "keep"
        parts += [(f"{style.listed([_name(r) for r in keep])} {verb} it on one node", mark), (".", "")]
        priced = [(r.cost[0], r) for r in keep if r.cost and r.cost[0] is not None]
        if priced:
            usd, least = min(priced, key=lambda p: p[0])
            cost = f" Lowest cost: {_name(least)}, {numbers.digits(usd)} USD per million output tokens"
            parts += [(cost, least.cost_mark), (".", "")]
    elif some:
        nodes, fewest = min(((r.nodes or 0, r) for r in some), key=lambda p: p[0])
        parts += [("no contender is shown to keep it on one node. Fewest nodes: ", "")]
        parts += [(f"{_name(fewest)}, {numbers.digits(nodes)}", mark)]
        parts += [(f" with {numbers.digits(fewest.carries or 0)} at once on each", mark), (".", "")]
    elif any(r.answer == "undecided" for r in rows):
        parts += [("no level is shown to keep it, and some are undecided.", "")]
    else:
        parts += [("no contender keeps it.", "")]
    if q.by == "p50":
        parts += [(" Judged by medians, which are not the promise.", "")]
    return parts


def cells(row: whatif.Row, work: Mapping[str, Any]) -> list[Cell]:
    """Lay an answer's row out: contender, at once on one node, kept there?, nodes, output, cost, quality.

    Warnings about the level that the numbers are read at stand beneath the verdict.
    """
    mark, none = work["mark"], Cell("none shown", of="num missing")
    why = ". ".join(filter(None, (row.why, row.doubts and f"Warning: {row.doubts}")))
    quality = row.contender["quality"]
    return [
        Cell(row.contender["name"], small=row.layout, look=row.contender, source=row.source),
        Cell(numbers.digits(row.carries), mark, of="num") if row.carries else none,
        Cell(row.answer, small=why, of=row.answer),
        Cell(numbers.digits(row.nodes), mark, of="num") if row.nodes else none,
        _number(row.out, mark) if row.out else none,
        _number(row.cost, row.cost_mark) if row.cost else Cell("no price", of="num missing") if row.out else none,
        _number(quality[:3], mark) if quality[0] is not None else Cell("not scored", of="num missing"),
    ]


def as_json(data: Any) -> Markup:
    r"""Write data as JSON for a script element.

    >>> as_json({"a": "</script>&"})
    Markup('{"a":"\\u003c/script\\u003e\\u0026"}')
    """
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Markup(text.translate({ord(character): code for character, code in ACTIVE.items()}))


def _source(path: Path) -> Markup:
    return Markup(path.read_text(encoding="utf-8"))


def _described(contender: Mapping[str, Any]) -> dict[str, Any]:
    recipe = f" ({contender['recipe']})" if contender["recipe"] else ""
    shape = style.marker(contender["precision"])
    return dict(contender) | {
        "name": style.contender(contender["engine"], contender["precision"]) + recipe,
        "colour": style.THEMED[style.engine(contender["engine"]).colour],
        "shape": shape,
        "glyph": GLYPHS[shape],
    }


def _number(of: Sequence[float | None], mark: str) -> Cell:
    value, low, high = of
    number = {"value": value, "low": low, "high": high, "mark": mark}
    return Cell(numbers.digits(value or 0.0), mark, numbers.limits(number), "num")


def _name(row: whatif.Row) -> str:
    return str(row.contender["name"]) + (f" in {row.layout}" if row.layout else "")
