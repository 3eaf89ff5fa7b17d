"""Figures of the explorer in JupyterLab: the levels that answer a question, and any metric's distribution.

They are for a person at a screen: nothing here is saved or enters the article. Looks are those of lib.show.style;
what they show was computed below. Refused: an engine or precision without a look.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.analyse import whatif
from lib.metrics import METRICS
from lib.show import draw, style
from lib.show.numbers import digits


def levels(block: Mapping[str, Any], question: whatif.Question, ax: Axes | None = None) -> Axes:
    """Every level of the contenders chosen: output against first token; full where it keeps what is asked.

    Parameters
    ----------
    block : of `explorer.described`.
    """
    if ax is None:
        _, ax = style.grid(height=3.6)
    answer = whatif.answer(block, question)
    chosen = {row.contender["key"]: row.contender for row in answer.rows}
    place: dict[tuple[str, str, float], tuple[float, float]] = {}
    for contender in chosen.values():
        look = style.look(contender["engine"], contender["precision"]) | {"linestyle": "none"}
        for variant in contender["variants"]:
            for level in variant["levels"]:
                x, y = level["out"][0], level["ttft"]["p50"][0]
                if not (x and y):
                    continue
                speed = whatif.judge(level, question, block["budget"])
                keeps = whatif.both(whatif.faithful(contender, question), speed)[0] == "yes"
                ax.plot(x, y, **(look if keeps else look | {"markerfacecolor": style.PANEL, "alpha": 0.6}))
                place[contender["key"], variant["name"], level["load"]] = (x, y)
    front = [place[who] for who in answer.frontier]
    ax.plot(*np.array(front).reshape(-1, 2).T, color=style.INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1)
    for who in answer.frontier:
        ax.annotate(digits(who[2]), place[who], (5, 4), textcoords="offset points", fontsize=7.5, color=style.MUTED)
    ax.set_xlabel("output of one node (tok/s)")
    ax.set_ylabel("TTFT, median (ms)")
    if place:
        draw.log_axis(ax, "x")
        draw.log_axis(ax, "y")
        draw.legend(style.figure_of(ax), [(c["engine"], c["precision"]) for c in chosen.values()])
    names = list(dict.fromkeys(chosen[who[0]]["name"] for who in answer.frontier))
    found = f"On the frontier of what keeps it: {style.listed(names)}" if names else "No level shown keeps it"
    return style.finding(ax, found, "Filled markers keep what is asked; numbers say how many at once.")


def distribution(
    samples: pd.DataFrame, metric: str, names: Mapping[str, tuple[str, str]], ax: Axes | None = None
) -> Axes:
    """Share of requests within a time, one line per launch; several takings pooled.

    Parameters
    ----------
    samples : launch and `metric` (seconds), one row per request.
    names : launch -> (engine, precision).
    """
    if ax is None:
        _, ax = style.grid(height=3.6)
    scale, medians = METRICS[metric].scale, []
    for launch, of in samples.groupby("launch", sort=True):
        values = np.sort(of[metric].dropna().to_numpy(dtype=float)) * scale
        if not len(values):
            continue
        look = style.look(*names[str(launch)]) | {"markevery": max(1, len(values) // 6), "markersize": 4}
        ax.step(values, np.arange(1, len(values) + 1) / len(values), where="post", label=str(launch), **look)
        medians.append(f"{launch} {digits(float(np.median(values)))} (n = {len(values)})")
    ax.set_xlabel(f"{METRICS[metric].label} ({METRICS[metric].unit})")
    ax.set_ylabel("share of requests")
    if medians:
        draw.log_axis(ax, "x")
        ax.legend(loc="lower right")
    found = f"Medians in {METRICS[metric].unit}: {', '.join(medians)}" if medians else "No request gave a value"
    return style.finding(ax, found, "One line per launch, all takings pooled.")
