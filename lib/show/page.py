"""Compose the article's page from its prose: headings with anchors, figures with number, caption and table, footnotes.

The template calls `Page` while it is filled; what is HTML already is put aside so that Markdown cannot touch it, and
comes back afterwards. Rules: a figure's finding is its title; every caption leads on to the records or the sources, and
to the notebook it names; a footnote is printed once, however often it is referred to. Refused: a reference to a figure
that is not shown.
"""

import html
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import mistune
from latex2mathml.converter import convert as mathml
from markupsafe import Markup, escape

from lib.errors import NoValue
from lib.show import datatables, pictures

HELD = re.compile(r"<!--held (\d+)-->")
TABLE = re.compile(r"(<table[^>]*>\s*)(<caption>)?")
WHOLE_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
REFERENCE = re.compile(r"<!--figure ([\w-]+)-->")
BEHIND = re.compile(r'href="#(records|references)"')
NOTEBOOK = re.compile(r"([Nn]otebook) <code>(\w+)</code>")


class Page:
    """One rendering: what was put aside for Markdown not to touch, the figures in their order, and the footnotes."""

    def __init__(self, figures: Path, tables: Path, kind: str, limited: Mapping[str, str] | None = None) -> None:
        self.figures, self.tables, self.kind, self.limited = figures, tables, kind, limited or {}
        self.held: list[str] = []
        self.order: list[str] = []
        self.footnotes: dict[str, list[str]] = {}  # text -> ids of the places that refer to it

    def hold(self, *, caller: Callable[[], str]) -> Markup:
        """Keep a block of HTML out of Markdown's reach: {% call html() %}...{% endcall %}."""
        self.held.append(str(caller()))
        return Markup(f"\n\n<!--held {len(self.held) - 1}-->\n\n")

    def figure(
        self, name: str, table: str | None = None, columns: tuple[str, ...] = (), *, caller: Callable[[], str]
    ) -> Markup:
        """Place a figure with its number, its finding as title, its caption and the table behind it."""
        picture = pictures.read(self.figures / f"{name}.svg")
        self.order.append(name)
        behind = self.table(table, columns) if table else Markup("")
        caption = NOTEBOOK.sub(_linked, _inline(str(caller())))
        caption += "" if BEHIND.search(caption) else ' <a href="#records">Records</a>.'
        self.held.append(
            f'<figure id="figure-{name}">'
            f'<p class="finding"><b>Figure {len(self.order)}.</b> {escape(picture.title)}</p>'
            f'<div class="picture" tabindex="0" role="group" aria-label="Figure {len(self.order)}">{picture.svg}</div>'
            f"<figcaption>{caption}</figcaption>{behind}</figure>"
        )
        return Markup(f"\n\n<!--held {len(self.held) - 1}-->\n\n")

    def see(self, name: str) -> Markup:
        """Refer to a figure by its number, wherever it stands."""
        return Markup(f"<!--figure {name}-->")

    def footnote(self, text: str) -> Markup:
        """Refer to a footnote, its text made harmless; the same text is one note, with a way back to each place."""
        places = self.footnotes.setdefault(text, [])
        number = list(self.footnotes).index(text) + 1
        places.append(f"note-{number}-from-{len(places) + 1}")
        return Markup('<sup class="warn"><a id="{}" href="#note-{}" aria-label="Footnote {}">{}</a></sup>').format(
            places[-1], number, number, number
        )

    def table(self, name: str, columns: tuple[str, ...] = ()) -> Markup:
        """Place a CSV table, folded away: the data beside a figure."""
        return datatables.folded(self.tables / name, columns, self.kind)

    def compose(self, prose: str) -> tuple[str, list[tuple[str, str]]]:
        """Turn Markdown into HTML and put back what was held. Returns the body and its contents: (anchor, heading)."""
        renderer = Renderer()
        text = str(
            mistune.create_markdown(renderer=renderer, plugins=["table", "footnotes", "math", "def_list"])(prose)
        )
        while HELD.search(text):
            text = HELD.sub(lambda m: self.held[int(m[1])], text)
        text = WHOLE_TABLE.sub(self._stamped, text) + str(self._notes())
        return REFERENCE.sub(self._number, text), renderer.headings

    def _notes(self) -> Markup:
        """Write the footnotes, each with links back to where it is referred to."""
        back = Markup('<a href="#{}" aria-label="Back">↩</a>')
        lines = Markup("\n").join(
            Markup('<li id="note-{}">{} {}</li>').format(number, text, Markup(" ").join(map(back.format, places)))
            for number, (text, places) in enumerate(self.footnotes.items(), start=1)
        )
        return Markup('<ol class="footnotes" aria-label="Footnotes">{}</ol>').format(lines) if lines else Markup("")

    def _stamped(self, table: re.Match[str]) -> str:
        """Put into a table's caption that it is a rehearsal's, and what its numbers are limited to."""
        text, words = table[0], ["REHEARSAL"] * (self.kind == "rehearsed")
        read = html.unescape(text) if self.limited else ""
        words += sorted({said for word, said in self.limited.items() if re.search(rf"\b{re.escape(word)}\b", read)})
        if not words:
            return text
        said = Markup(" ").join(Markup("<b>{}</b>").format(word) for word in words)
        return TABLE.sub(lambda m: f"{m[1]}<caption>{said} {'' if m[2] else '</caption>'}", text, count=1)

    def _number(self, found: re.Match[str]) -> str:
        if found[1] not in self.order:
            raise NoValue(
                f"report/article.md refers to figure {found[1]!r}, which it does not show; it shows "
                f"{', '.join(self.order)}."
            )
        return f'<a href="#figure-{found[1]}">Figure {self.order.index(found[1]) + 1}</a>'


class Renderer(mistune.HTMLRenderer):
    """HTML with anchors at headings and mathematics as MathML; HTML of the template passes, facts arrive escaped."""

    def __init__(self) -> None:
        super().__init__(escape=False)
        self.headings: list[tuple[str, str]] = []

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        """Heading with an anchor of its own words; second-level ones make the contents."""
        anchor = re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]+>|&\w+;", "", text).lower()).strip("-")
        if level == 2:
            self.headings.append((anchor, re.sub(r"<[^>]+>", "", text)))
        link = f'<a class="anchor" href="#{anchor}" aria-label="Link to this section">#</a>'
        return f'<h{level} id="{anchor}">{text} {link}</h{level}>\n'

    def inline_math(self, text: str) -> str:
        """$x$"""
        return str(mathml(text))

    def block_math(self, text: str) -> str:
        """$$x$$"""
        return f'<div class="wide">{mathml(text.strip(), display="block")}</div>\n'


def _linked(found: re.Match[str]) -> str:
    """Lead on to the notebook, in the list at the end of the page."""
    return f'<a href="#notebook-{found[2]}">{found[1]} <code>{found[2]}</code></a>'


def _inline(text: str) -> str:
    """Markdown of a caption, without its paragraph."""
    return str(mistune.create_markdown(escape=False)(text.strip())).strip().removeprefix("<p>").removesuffix("</p>")
