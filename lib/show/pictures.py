"""Bring figures into the page: SVG files from disk become inline elements that cannot clash, load or run anything.

Kept: drawing elements and text. Removed: metadata, scripts, style sheets, links out, event handlers. Ids get the
figure's name in front, so that two figures on one page never share one. Colours of lib.show.style become CSS
variables, so that the page's light and dark themes reach into the picture. Refused: a file that is no SVG.
"""

import re
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup, escape

from lib.errors import RecordError
from lib.show import style

SVG = "{http://www.w3.org/2000/svg}"
XLINK = "{http://www.w3.org/1999/xlink}href"
DC = "{http://purl.org/dc/elements/1.1/}"
KEPT = {
    SVG + tag for tag in ("svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect", "circle", "image")
}
COORDINATE = re.compile(r"-?\d+\.\d{3,}")


@dataclass(frozen=True)
class Picture:
    """A figure ready for the page."""

    title: str  # the finding
    alt: str  # for those who do not see it
    svg: Markup


def read(path: Path) -> Picture:
    """Read a figure that `style.save` wrote.

    Raises
    ------
    RecordError : there is none, or it is no SVG.
    """
    name = path.stem
    try:
        root = ET.fromstring(path.read_bytes())
    except FileNotFoundError as error:
        raise RecordError(
            f"The article shows figure {name!r}, but {path} does not exist. Run `make report`, which draws it."
        ) from error
    except ET.ParseError as error:
        raise RecordError(
            f"{path} is no SVG ({error}). Delete it and run `make report`, which draws it again."
        ) from error
    if root.tag != SVG + "svg":
        raise RecordError(f"{path} is no SVG: its root is {root.tag!r}. Delete it and run `make report`.")
    title, alt = (root.findtext(f".//{DC}{tag}") or "" for tag in ("title", "description"))
    _untitled(root)
    _clean(root, name)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", alt)
    return Picture(title, alt, Markup(_themed(_text(root))))


def _untitled(root: ET.Element) -> None:
    """Take the finding out of the picture and close the gap: the page prints it as text above."""
    for parent in root.iter():
        for child in list(parent):
            if child.get("id") == style.FINDING:
                lines = sum(1 for _ in child.iter(SVG + "text"))
                left, top, width, height = (float(x) for x in root.get("viewBox", "0 0 0 0").split())
                cut = style.TITLE_POINTS * lines
                root.set("viewBox", f"{left:g} {top + cut:g} {width:g} {height - cut:g}")
                parent.remove(child)


def _clean(element: ET.Element, name: str) -> None:
    """Drop what is not drawing, from the element down, and make its ids the figure's own."""
    for child in list(element):
        if child.tag not in KEPT:
            element.remove(child)
        else:
            _clean(child, name)
    for key, value in list(element.attrib.items()):
        if key.rpartition("}")[2].lower().startswith("on"):
            del element.attrib[key]
        elif key == "id":
            element.set(key, f"{name}-{value}")
        elif key in (XLINK, "href"):
            del element.attrib[key]
            if value.startswith("#"):
                element.set("href", f"#{name}-{value[1:]}")
            elif value.startswith("data:image/png;base64,"):
                element.set("href", value)
        elif "url(" in value:
            element.set(key, value.replace("url(#", f"url(#{name}-") if "url(#" in value else "")


def _text(element: ET.Element) -> str:
    """Serialise without namespace prefixes, as HTML wants inline SVG; long coordinates lose digits nobody sees."""
    tag = element.tag.removeprefix(SVG)
    attributes = "".join(
        f' {key.rpartition("}")[2]}="{escape(COORDINATE.sub(lambda m: f"{float(m[0]):.2f}", value))}"'
        for key, value in element.attrib.items()
        if not key.startswith("{http://www.w3.org/XML")
    )
    inside = str(escape((element.text or "").strip())) + "".join(_text(child) for child in element)
    return f"<{tag}{attributes}>{inside}</{tag}>"


def _themed(text: str) -> str:
    for colour, variable in style.THEMED.items():
        text = text.replace(colour, f"var({variable})")
    return text
