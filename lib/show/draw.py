"""What figures share when they draw: logarithmic axes with plain numbers, the SLA's line, labels that keep apart.

Everything here takes an axes or a figure that has its data and changes only how it reads; looks are those of
lib.show.style.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from lib.show import style

# Ticks of a logarithmic axis that spans more than this factor.
TICKS: tuple[tuple[float, tuple[float, ...]], ...] = (
    (300.0, (1.0,)),
    (12.0, (1.0, 2.0, 5.0)),
    (0.0, (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0)),
)

HALO = {"facecolor": style.PANEL, "edgecolor": "none", "pad": 0.6}  # keeps a label readable across a line


def log_axis(ax: Axes, which: str, ticks: Sequence[float] | None = None) -> None:
    """Make an axis logarithmic with plain numbers; `ticks` names them. Call it when the data are drawn.

    An axis that spans less than a factor of three stays linear: a logarithm would show nothing and have no ticks.
    """
    axis = ax.xaxis if which == "x" else ax.yaxis
    low, high = ax.dataLim.intervalx if which == "x" else ax.dataLim.intervaly
    if ticks is None and not (low > 0 and high / low >= 3):
        axis.set_major_locator(MaxNLocator(6))
    else:
        getattr(ax, f"set_{which}scale")("log")
        if ticks is not None:
            axis.set_ticks(list(ticks))
        else:
            axis.set_major_locator(LogLocator(subs=next(subs for span, subs in TICKS if high / low > span)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def sla_line(ax: Axes, value: float, text: str, *, vertical: bool = False) -> None:
    """Draw an SLA bound: an assumed number, so it has that kind's line."""
    draw = ax.axvline if vertical else ax.axhline
    draw(value, color=style.SLA, linestyle=style.KINDS["assumed"].linestyle, linewidth=1.4, zorder=1.5)
    if vertical:
        ax.annotate(
            text,
            (value, 1),
            xycoords=("data", "axes fraction"),
            xytext=(3, -2),
            textcoords="offset points",
            color=style.SLA,
            fontsize=7.5,
            va="top",
        )
    else:
        ax.annotate(
            text,
            (0, value),
            xycoords=("axes fraction", "data"),
            xytext=(2, -4),
            textcoords="offset points",
            color=style.SLA,
            fontsize=7.5,
            va="top",
            bbox=HALO,
        )


def end_labels(ax: Axes, entries: Sequence[tuple[float, float, str, str]], *, gap_points: float = 10.0) -> None:
    """Write (x, y, text, colour) beside line ends, moved apart until none overlap; one twice is written once."""
    entries = list({(text, colour): (x, y, text, colour) for x, y, text, colour in entries}.values())
    if not entries:
        return
    scale = 72.0 / style.figure_of(ax).dpi
    places = sorted(
        (float(ax.transData.transform((x, y))[1]) * scale, x, y, text, colour) for x, y, text, colour in entries
    )
    heights = [place[0] for place in places]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + gap_points)
    shift = float(np.mean([h - place[0] for h, place in zip(heights, places, strict=True)]))
    for height, (own, x, y, text, colour) in zip(heights, places, strict=True):
        ax.annotate(
            text,
            (x, y),
            xytext=(8, height - shift - own),
            textcoords="offset points",
            color=colour,
            fontsize=7.5,
            va="center",
            annotation_clip=False,
        )


def legend(
    fig: Figure,
    pairs: Sequence[tuple[str, str]],
    of_kind: str = "measured",
    columns: int = 4,
    more: Sequence[Line2D] = (),
) -> None:
    """Legend below a figure: contenders (engine, precision), each once, in the order given, then `more` handles."""
    handles = [
        Line2D([], [], label=style.contender(e, p), **style.look(e, p, of_kind)) for e, p in dict.fromkeys(pairs)
    ] + list(more)
    if not handles:
        return
    fig.legend(handles=handles, loc="outside lower left", ncols=-(-len(handles) // -(-len(handles) // columns)))


def nothing(ax: Axes, reason: str) -> None:
    """Say on an empty panel why it is empty."""
    ax.text(
        0.5,
        0.5,
        style.wrapped(reason, style.figure_of(ax).get_figwidth() * 0.7),
        transform=ax.transAxes,
        ha="center",
        va="center",
        color=style.MUTED,
        fontsize=8.5,
    )
    # Ticks that panels share are the others' too.
    if len(ax.get_shared_x_axes().get_siblings(ax)) == 1:
        ax.set_xticks([])
    ax.tick_params(labelleft=False)
    if len(ax.get_shared_y_axes().get_siblings(ax)) == 1:
        ax.set_yticks([])
    ax.grid(False)


def empty(reason: str) -> Axes:
    """Draw the picture of a figure that has nothing to show, with the reason as its finding."""
    _, ax = style.grid(height=1.6)
    nothing(ax, f"{reason}.")
    return style.finding(ax, reason, "An empty picture, since there is nothing to show.")
