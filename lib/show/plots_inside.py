"""Figures about the engines' insides: requests spread over adapters, sessions over a shared document, long prompts.

Each function takes a list of facts["inside"] and draws on the axes it is given, or on new ones, and returns them; none
touches the disk. Titles state the finding and are computed from what is drawn. A number without a value is not drawn.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lib.show import draw, levelwords, style
from lib.show.numbers import digits

Rows = Sequence[Mapping[str, Any]]


def adapters(rows: Rows, axes: Any = None) -> Any:
    """Throughput and first token against adapters in use, as multiples of the model itself. Axes: 1 x 2.

    Parameters
    ----------
    rows : facts["inside"]["lora"]; levels with a skewed spread are drawn as lone markers.
    """
    if axes is None:
        _, axes = style.grid(1, 2, height=3.4)
    shown = (("output_tok_ratio", "Output throughput"), ("ttft_p50_ratio", "Time to first token, median"))
    for ax, (key, title) in zip(axes, shown, strict=True):
        ax.set_title(title)
        ax.set_xlabel("adapters that requests are spread over")
        ends = []
        for row in rows:
            look = style.look(row["engine"], row["precision"])
            even, skewed = (
                [
                    (level["adapters"]["value"], level[key]["value"])
                    for level in row["levels"]
                    if level["skewed"] is which and _has(level[key])
                ]
                for which in (False, True)
            )
            if even:
                ax.plot(*zip(*sorted(even), strict=True), **look)
                ends.append((*max(even), f"rank {row['rank']}", look["color"]))
            if skewed:
                ax.plot(*zip(*skewed, strict=True), **(look | {"linestyle": "none", "markerfacecolor": style.PANEL}))
        ax.axhline(1.0, color=style.MUTED, linewidth=0.8, zorder=1)
        if not ends:
            draw.nothing(ax, "No level over adapters can be held against the model itself.")
            continue
        ax.set_ylim(bottom=0)
        ax.margins(x=0.2)
        ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}×")
        draw.end_labels(ax, ends)
    draw.legend(style.figure_of(axes[0]), [(row["engine"], row["precision"]) for row in rows])
    style.finding(
        axes[0],
        adapters_finding(rows),
        "Lines run through levels whose requests are spread evenly; open markers are levels where some adapters are "
        "asked more than others. One is the model itself on the same server.",
    )
    return axes


def adapters_finding(rows: Rows) -> str:
    """Say what is left of the throughput with the most adapters, by engine."""
    said = []
    for engine in dict.fromkeys(row["engine"] for row in rows):
        of = [
            (level["adapters"]["value"], level["output_tok_ratio"]["value"])
            for row in rows
            if row["engine"] == engine
            for level in row["levels"]
            if not level["skewed"] and _has(level["output_tok_ratio"])
        ]
        if of:
            most = max(count for count, _ in of)
            worst = min(ratio for count, ratio in of if count == most)
            name = style.engine(engine).label
            said.append(f"{name} keeps {digits(worst)}× of its throughput over {digits(most)} adapters")
    return "; ".join(said) or "No level over adapters can be held against the model itself"


def turns(rows: Rows, axes: Any = None) -> Any:
    """First token by turn of a session, prefix cache off on the left and on on the right. Axes: 1 x 2."""
    if axes is None:
        _, axes = style.grid(1, 2, height=3.2, sharey=True)
    for ax, on in zip(axes, (False, True), strict=True):
        ax.set_title(f"Prefix cache {'on' if on else 'off'}")
        ax.set_xlabel("turn of the session")
        ends = []
        several = len({row["level"] for row in rows}) > 1
        for row in (r for r in rows if r["cache"] is on):
            points = [(i + 1, n["value"]) for i, n in enumerate(row["by_turn"]) if _has(n)]
            if points:
                look = style.look(row["engine"], row["precision"])
                ax.plot(*zip(*points, strict=True), **look)
                ends.append((*points[-1], levelwords.words(row["level"]) if several else "", look["color"]))
        if not ends:
            draw.nothing(ax, "No launch of this study has it so.")
        else:
            ax.xaxis.set_major_locator(MaxNLocator(integer=True))
            if several:
                draw.end_labels(ax, ends)
    axes[0].set_ylabel("time to first token, median (ms)")
    highest = max((n["value"] for row in rows for n in row["by_turn"] if _has(n)), default=1.0)
    axes[0].set_ylim(0, 1.08 * highest)  # of both: they share the axis
    draw.legend(style.figure_of(axes[0]), [(row["engine"], row["precision"]) for row in rows])
    style.finding(
        axes[0],
        turns_finding(rows),
        "Each line follows a session: its first turn reads the document, each later one repeats all that went before.",
    )
    return axes


def turns_finding(rows: Rows) -> str:
    """Say what the last turn's first token takes with the cache, against without it, by engine."""
    said = []
    for engine in dict.fromkeys(row["engine"] for row in rows):
        last = {
            on: [r["by_turn"][-1]["value"] for r in rows if r["engine"] == engine and r["cache"] is on and r["by_turn"]]
            for on in (False, True)
        }
        known = {on: [v for v in values if v is not None] for on, values in last.items()}
        if known[False] and known[True]:
            share = min(known[True]) / min(known[False])
            name = style.engine(engine).label
            said.append(f"{name}'s last turn waits {digits(share)}× as long with its prefix cache")
    return "; ".join(said) or "The prefix cache was not taken both off and on"


def intrusion(rows: Rows, ax: Axes | None = None) -> Axes:
    """Gaps between a neighbour's tokens while a long prompt is read, otherwise, and the longest; a line per launch."""
    if ax is None:
        _, ax = style.grid(height=1.5 + 0.42 * len(rows))
    for y, row in enumerate(rows):
        look = style.look(row["engine"], row["precision"]) | {"linestyle": "none"}
        points = {key: row[key]["value"] for key in ("gap_else", "gap_within", "gap_longest") if _has(row[key])}
        if points:
            ax.plot([min(points.values()), max(points.values())], [y, y], color=look["color"], linewidth=0.9, alpha=0.5)
        if "gap_else" in points:
            ax.plot([points["gap_else"]], [y], **(look | {"markerfacecolor": style.PANEL}))
        if "gap_within" in points:
            ax.plot([points["gap_within"]], [y], **look)
        if "gap_longest" in points:
            ax.plot([points["gap_longest"]], [y], marker="|", markersize=10, color=look["color"], linestyle="none")
    ax.set_yticks(range(len(rows)), [r["launch"] for r in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("gap between two tokens of a neighbour (ms)")
    ax.grid(True, axis="x")
    draw.log_axis(ax, "x")
    return style.finding(
        ax,
        intrusion_finding(rows),
        "Open markers: median gap while no long prompt is read; filled: while one is; bars: the longest such gap.",
    )


def read(row: Mapping[str, Any]) -> str:
    """How a launch reads a prompt, in words."""
    if not row["chunked"]:
        return "whole prompts"
    return f"{row['step_tokens']} tokens a step" if row["step_tokens"] else "its own step"


def intrusion_finding(rows: Rows) -> str:
    """Name the launches whose neighbours stall longest and shortest."""
    known = sorted((r for r in rows if _has(r["gap_longest"])), key=lambda r: float(r["gap_longest"]["value"]))
    if not known:
        return "Nobody was receiving tokens while a long prompt was read"
    best, worst = known[0], known[-1]
    text = (
        f"A long prompt stops its neighbours for up to {digits(worst['gap_longest']['value'])} ms on {worst['launch']} "
        f"({read(worst)})"
    )
    if best is worst:
        return text
    return (
        f"{text}, for up to {digits(best['gap_longest']['value'])} ms on {best['launch']} ({read(best)})"
    )


def _has(number: Mapping[str, Any]) -> bool:
    return number["value"] is not None
