"""From facts.json, figures and tables to one page: report/article.md is a template over facts, this module fills it.

Rules: no number is typed in the prose, each comes from facts with its unit and mark (lib.show.numbers); a fact or a
figure that the prose names and that does not exist stops the build with its name; whatever comes from facts is text,
never markup of HTML or Markdown. The page is one file that loads nothing: its content security policy forbids
every request and every script but the explorer's, by their hashes. Markdown is read by mistune, which nbconvert brings
anyway; mathematics becomes MathML.
"""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from lib import paths, records
from lib.errors import NoValue, RecordError, tell
from lib.show import datatables, explorer, levelwords, numbers, plots_h100, references, style, verdict
from lib.show.page import Page

ACTIVE = re.compile(r"[\\`*_{}\[\]()#+\-!|~$^:<>&\"'=]")  # what Markdown, mathematics or HTML would read
COMMAND = re.compile(r"&#96;(make [a-z]+)&#96;")  # the study's own commands in reasons, already made harmless
TYPED = re.compile(r"[\w.-]+")  # names in a command to type, which nothing can read as markup
CORES_APART = 4  # from here on the client has cores of its own


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
    facts: Mapping[str, Any],
    figures: Path,
    tables: Path,
    out: Path,
    card: Mapping[str, str] | None = None,
    appendix: Sequence[str] = (),
) -> Path:
    """Write the page.

    Parameters
    ----------
    facts : what facts.json holds.
    figures : folder of the study's SVG figures.
    tables : folder of its CSV tables.
    out : the HTML file.
    card : description, image and url of what others see when the page is shared; without it no page lies beside it.
    appendix : names of the executed notebooks that lie beside it, as notebooks/<name>.html.

    Raises
    ------
    NoValue : a fact that the prose needs and that is not there, by its full name.
    RecordError : a figure or table that is not there, or a page that cannot be written.
    """
    kind = "measured" if facts["study"]["kind"] == "measured" else "rehearsed"
    page, shown, world = Page(figures, tables, kind, limited(facts)), pathed(facts), templates()
    places = {"figure": page.figure, "see": page.see, "html": page.hold, "table": page.table}

    def doubted(row: Mapping[str, Any]) -> Markup:
        """Refer to a footnote with the warnings about the numbers of a row; nothing where there are none."""
        told = verdict.doubts(shown, row["launch"], row["level"])
        if not told:
            return Markup("")
        at = f" at {levelwords.words(row['level'])}" if row["level"] else ""
        who = style.contender(row["engine"], row["precision"])
        said = ". ".join(text[:1].upper() + text[1:] for text in told)
        return page.footnote(as_text(f"Warning about {who}{at}: {said}."))

    try:
        told = {
            "answer": verdict.judge(shown),
            "kind_of_study": kind,
            "of_article": shown["h100"].get("measured_rows", 0),
            "doubted": doubted,
            "taken": sorted({launch["started_utc"][:10] for launch in shown["launches"].values()}),
            "cores_apart": CORES_APART,
            "explorer": explorer.make(shown),
            "on_site": card is not None,
            "appendix": appendix,
            "notebooks": references.notebooks(),
            "references": references.listed(),
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
    world.tests |= {"of_notebook": lambda run, name: run == name or run.startswith(f"{name}-")}
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
