"""From facts.json, figures and tables to one page: report/article.md is a template over facts, this module fills it.

Rules: no number is typed in the prose, each comes from facts with its unit and mark (lib.show.numbers); a fact or a
figure that the prose names and that does not exist stops the build with its name; whatever comes from facts is text,
never markup of HTML or Markdown. The page is one file that loads nothing: its content security policy forbids
every request and every script but the explorer's, by their hashes. Markdown is read by mistune, which nbconvert brings
anyway; mathematics becomes MathML.
"""

import html
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import mistune
from latex2mathml.converter import convert as mathml
from markupsafe import Markup, escape

from lib import paths, records
from lib.errors import NoValue, RecordError, tell
from lib.show import datatables, explorer, levelwords, numbers, pictures, plots_h100, style, verdict

ACTIVE = re.compile(r"[\\`*_{}\[\]()#+\-!|~$^:<>&\"'=]")  # what Markdown, mathematics or HTML would read
COMMAND = re.compile(r"&#96;(make [a-z]+)&#96;")  # the study's own commands in reasons, already made harmless
TYPED = re.compile(r"[\w.-]+")  # names in a command to type, which nothing can read as markup
HELD = re.compile(r"<!--held (\d+)-->")
CORES_APART = 4  # from here on the client has cores of its own
TABLE = re.compile(r"(<table[^>]*>\s*)(<caption>)?")
WHOLE_TABLE = re.compile(r"<table.*?</table>", re.DOTALL)
REFERENCE = re.compile(r"<!--figure ([\w-]+)-->")


class Facts(dict[str, Any]):
    """Facts that know their own path, so that a missing one can be named in full."""

    path = ""

    def __missing__(self, key: str) -> Any:
        """Name a fact that is not there in full."""
        raise KeyError(f"{self.path}.{key}".lstrip("."))


class Missing(jinja2.StrictUndefined):
    """A fact the prose asks for and facts.json does not have."""

    @property
    def _undefined_message(self) -> str:
        where = getattr(self._undefined_obj, "path", "")
        return f"{where}.{self._undefined_name}".lstrip(".")


def render(
    facts: Mapping[str, Any], figures: Path, tables: Path, out: Path, card: Mapping[str, str] | None = None
) -> Path:
    """Write the page.

    Parameters
    ----------
    facts : what facts.json holds.
    figures : folder of the study's SVG figures.
    tables : folder of its CSV tables.
    out : the HTML file.
    card : description, image and url of what others see when the page is shared; without it no page lies beside it.

    Raises
    ------
    NoValue : a fact that the prose needs and that is not there, by its full name.
    RecordError : a figure or table that is not there, or a page that cannot be written.
    """
    kind = "measured" if facts["study"]["kind"] == "measured" else "rehearsed"
    page, shown, world = Page(figures, tables, kind, limited(facts)), pathed(facts), templates()
    places = {"figure": page.figure, "see": page.see, "html": page.hold, "table": page.table}
    try:
        told = {
            "answer": verdict.judge(shown),
            "kind_of_study": kind,
            "of_article": shown["h100"].get("measured_rows", 0),
            "taken": sorted({launch["started_utc"][:10] for launch in shown["launches"].values()}),
            "cores_apart": CORES_APART,
            "explorer": explorer.make(shown),
        }
        prose = world.get_template("article.md").render(**shown, **places, **told, facts=shown)
        body, contents = page.compose(prose)
        whole = world.get_template("page.html.j2").render(
            title=shown["study"]["title"],
            study=shown["study"],
            body=Markup(body),
            explorer=told["explorer"],
            contents=contents,
            card=card,
            **dress(),
        )
    except (jinja2.UndefinedError, KeyError) as error:
        name = error.message if isinstance(error, jinja2.UndefinedError) else error.args[0]
        raise NoValue(
            f"report/article.md needs the fact {name!r}, which facts.json does not have. "
            f"Run `make report`, which makes it, or take the sentence out of the article."
        ) from error
    records.write_whole(out, whole.encode())
    return out


@cache
def templates() -> jinja2.Environment:
    """Read templates strictly: a fact that is not there raises, and all text from facts is made harmless."""
    sources = paths.REPORT_SOURCES
    world = jinja2.Environment(
        loader=jinja2.FileSystemLoader([sources, sources / "template"]),
        autoescape=True,
        undefined=Missing,
        finalize=as_text,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    world.filters |= {
        "number": numbers.number,
        "count": numbers.count,
        "interval": lambda n: numbers.number(n, interval=True),
        "digits": numbers.digits,
        "load": levelwords.words,
        "configured": configured,
        "fleet_name": fleet_name,
        "rounded": numbers.rounded,
        "metric": datatables.metric,
        "contenders": lambda rows: style.contenders([(r["engine"], r["precision"]) for r in rows]),
        "contrast": plots_h100.contrast,
        "contender": lambda row: style.contender(row["engine"], row["precision"]),
        "typed": lambda word: Markup(word) if TYPED.fullmatch(word) else word,
        "percent": lambda share: f"{numbers.digits(100 * share)}\u00a0%",
        "gigabytes": lambda n: f"{n / 1e9:.0f}\u00a0GB",
    }
    world.tests |= {"open_loop": levelwords.is_open, "no_rung": levelwords.no_rung, "session": levelwords.is_session}
    world.globals |= {
        "cell": numbers.cell,
        "notes": numbers.Notes,
        "mark": numbers.mark,
        "kinds": style.KINDS,
        "doubts": verdict.doubts,
    }
    return world


def dress() -> dict[str, Any]:
    """Return what every page wears: the colours of the figures as CSS variables, and the style sheet."""
    return {
        "themes": {variable: colour for colour, variable in style.THEMED.items()},
        "style": Markup((paths.REPORT_SOURCES / "template" / "style.css").read_text()),
    }


def pathed(value: Any, path: str = "") -> Any:
    """Facts whose mappings know where they stand."""
    if isinstance(value, Mapping):
        known = Facts({key: pathed(inner, f"{path}.{key}".lstrip(".")) for key, inner in value.items()})
        known.path = path
        return known
    if isinstance(value, list | tuple):
        return [pathed(inner, f"{path}[{i}]") for i, inner in enumerate(value)]
    return value


def as_text(value: Any) -> Any:
    """Turn an expression of the prose into page text: markup of this package as it is, all else made harmless.

    >>> as_text("<b>*x*</b>")
    Markup('&#60;b&#62;&#42;x&#42;&#60;/b&#62;')
    """
    if hasattr(value, "__html__"):
        return Markup(value.__html__())
    if isinstance(value, Mapping):
        raise NoValue(f"{value!r} stands in the article without a filter; write `| number` behind it.")
    return Markup(COMMAND.sub(r"<code>\1</code>", ACTIVE.sub(lambda m: f"&#{ord(m[0])};", str(value))))


def limited(facts: Mapping[str, Any]) -> dict[str, str]:
    """Words by which a table is known to hold numbers that are limited, each with what they are limited to."""
    return {
        str(word): str(launch["qualifier"])
        for name, launch in facts["launches"].items()
        if launch.get("qualifier")
        for word in (name, launch["precision"])
    }


def configured(key: str) -> str:
    """Put a contender's key of the H100 facts in words: tensorrt_llm_fp8 -> TensorRT-LLM fp8."""
    name = max((n for n in style.ENGINES if key.startswith(n.replace("-", "_") + "_")), key=len, default=None)
    if name is None:
        raise NoValue(f"{key!r} names no engine that lib/show/style.py knows: {', '.join(style.ENGINES)}.")
    precision, _, recipe = key[len(name) + 1 :].partition("_")
    return f"{style.contender(name, precision)}{f' ({recipe})' if recipe else ''}"


def fleet_name(key: str) -> str:
    """Put a row of the fleet in words: a predicted contender, or a record of this study."""
    return f"{key.removesuffix('_record').replace('_', ' ')}, record" if key.endswith("_record") else configured(key)


class Page:
    """One rendering: what was put aside for Markdown not to touch, and the figures in their order."""

    def __init__(self, figures: Path, tables: Path, kind: str, limited: Mapping[str, str] | None = None) -> None:
        self.figures, self.tables, self.kind, self.limited = figures, tables, kind, limited or {}
        self.held: list[str] = []
        self.order: list[str] = []

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
        self.held.append(
            f'<figure id="figure-{name}">'
            f'<p class="finding"><b>Figure {len(self.order)}.</b> {escape(picture.title)}</p>'
            f'<div class="picture" tabindex="0" role="group" aria-label="Figure {len(self.order)}">{picture.svg}</div>'
            f"<figcaption>{_inline(str(caller()))}</figcaption>{behind}</figure>"
        )
        return Markup(f"\n\n<!--held {len(self.held) - 1}-->\n\n")

    def see(self, name: str) -> Markup:
        """Refer to a figure by its number, wherever it stands."""
        return Markup(f"<!--figure {name}-->")

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
        text = WHOLE_TABLE.sub(self._stamped, text)
        return REFERENCE.sub(self._number, text), renderer.headings

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


def _inline(text: str) -> str:
    """Markdown of a caption, without its paragraph."""
    return str(mistune.create_markdown(escape=False)(text.strip())).strip().removeprefix("<p>").removesuffix("</p>")


def main() -> int:
    """Render the article of a study: `python -m lib.show.article PROFILE [DEPTH]`."""
    study = paths.study_name(*sys.argv[1:3])
    facts = paths.tables(study) / "facts.json"
    if not facts.exists():
        raise RecordError(
            f"Study {study!r} has no facts: {facts} does not exist. "
            f"Run `make report PROFILE=...`, which makes them first."
        )
    render(
        json.loads(facts.read_text()), paths.figures(study), paths.tables(study), paths.REPORT / study / "index.html"
    )
    return 0


if __name__ == "__main__":
    tell(main)
