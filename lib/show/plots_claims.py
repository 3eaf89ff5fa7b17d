"""Figures about the published table under audit: what follows from it by arithmetic alone, and what bounds, predictions
and other publications say of it.

Nothing here is measured by this study, so no line is solid and no marker is filled: published is dotted, predicted is
open, bounds are grey, the SLA is assumed.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lib.analyse import arithmetic, world
from lib.show import draw, style
from lib.show.numbers import digits


def implied_itl(claims: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Mean inter-token latency that each published row implies, over the output length it leaves unstated.

    `claims` is what `lib.analyse.published.claims` reads: rows with output_tok_s, ttft_p95_ms, max_concurrent; sla.
    Beneath each row lies its bound: the shortest step that gives each of its requests a token, prompts left out.
    """
    if ax is None:
        _, ax = style.grid(height=3.6)
    limit, shortest = float(claims["sla"]["inter_token_latency_ms"]), int(claims["thresholds"]["min_output_tokens"])
    lengths = np.array(arithmetic.OUTPUT_LENGTHS)
    ends, slow, pairs = [], [], []
    for row in claims["rows"]:
        values = [
            arithmetic.implied_itl_ms(row["max_concurrent"], row["output_tok_s"], int(n), row["ttft_p95_ms"])
            for n in lengths
        ]
        ax.plot(lengths, values, **style.look(row["engine"], row["precision"], "published"))
        floor = [1e3 * world.shortest_gap_s(claims, row, int(n)) for n in lengths]
        bound = {"linestyle": style.kind("bound").linestyle, "linewidth": 0.9}
        ax.plot(lengths, floor, color=style.engine(row["engine"]).colour, **bound)
        ends.append((float(lengths[-1]), values[-1], f"{digits(values[-1])} ms", style.engine(row["engine"]).colour))
        pairs.append((row["engine"], row["precision"]))
        if min(v for v, n in zip(values, lengths, strict=True) if n >= shortest) > limit:
            slow.append((row["engine"], row["precision"]))
    draw.log_axis(ax, "x", [int(n) for n in lengths])
    ax.set_xlim(lengths[0] * 0.85, lengths[-1] * 1.7)
    ax.set_ylim(bottom=0)
    ax.set_xlabel("output tokens per answer (the article does not say)")
    ax.set_title("Implied mean inter-token latency (ms)")
    draw.sla_line(ax, limit, f"the article's own limit, {digits(limit)} ms")
    draw.end_labels(ax, ends)
    key = Line2D([], [], color=style.GREY, **bound, label="bound of each")
    draw.legend(style.figure_of(ax), pairs, "published", more=[key])
    total = len(claims["rows"])
    who = (
        "none of the published rows keeps"
        if len(slow) == total
        else f"{style.contenders(slow)} cannot keep"
        if slow
        else "every published row can keep"
    )
    title = (
        f"If its throughput was read at its stated concurrency, {who} {digits(limit)} ms per token in answers of "
        f"{shortest} tokens or more"
    )
    alt = "; ".join(
        f"{style.contender(*pair)}: {end[2]} at {lengths[-1]} tokens" for pair, end in zip(pairs, ends, strict=True)
    )
    return style.finding(ax, title, f"By Little's law from published numbers: {alt}.")


def published_against_expected(rows: pd.DataFrame, peers: pd.DataFrame, axes: Any = None) -> Any:
    """Hold the article's rows against bound and prediction for each kind of work, and against what peers published.

    Parameters
    ----------
    rows : `lib.analyse.h100.article_rows`: row, engine, precision, workload, kind, ttft_p95_ms, output_tok_s.
    peers : `lib.analyse.published.references`: throughput of the same hardware, other loads.
    axes : 1 x 2: output throughput, TTFT.
    """
    names = list(dict.fromkeys(rows["row"]))
    # A record names the workload of its own profile, and stands beside the published value.
    workloads = list(dict.fromkeys(rows[rows["kind"].isin(("bound", "predicted"))]["workload"]))
    offline = peers[(peers["metric"] == "output_throughput") & (peers["gpus"] == 8)]
    step, ticks, labels = len(workloads) + 1.6, [], []
    if axes is None:
        _, axes = style.grid(1, 2, height=1.4 + 0.2 * step * len(names), sharey=True, width_ratios=(1.15, 1))
    within = 0
    for g, name in enumerate(names):
        of = rows[rows["row"] == name]
        look = style.look(str(of["engine"].iloc[0]), str(of["precision"].iloc[0]), "predicted") | {"linestyle": "none"}
        claimed = of[of["kind"] == "published"].iloc[0]
        span = (g * step - 0.7, g * step + len(workloads) - 0.3)
        for ax, column in zip(axes, ("output_tok_s", "ttft_p95_ms"), strict=True):
            ax.plot(
                [claimed[column]] * 2,
                span,
                color=look["color"],
                linestyle=style.kind("published").linestyle,
                linewidth=2.2,
            )
            ax.annotate(
                digits(claimed[column]),
                (claimed[column], span[0]),
                xytext=(3, 0),
                textcoords="offset points",
                fontsize=7.5,
                color=look["color"],
                va="center",
                fontweight="bold",
            )
            own = of[of["kind"] == "measured"][column].dropna()
            filled = {"markerfacecolor": look["color"], "markersize": 7}
            ax.plot(own, [span[0]] * len(own), **(look | filled), label="measured by this study")
        for i, workload in enumerate(workloads):
            here, y = of[of["workload"] == workload], g * step + i
            for ax, column in zip(axes, ("output_tok_s", "ttft_p95_ms"), strict=True):
                predicted = here[here["kind"] == "predicted"][column].dropna()
                ax.plot([predicted.min(), predicted.max()], [y, y], color=look["color"], linewidth=0.9, alpha=0.5)
                ax.plot(predicted, [y] * len(predicted), **(look | {"markersize": 3.6, "markeredgewidth": 0.8}))
                ax.plot(
                    here[here["kind"] == "bound"][column],
                    [y],
                    marker="<" if column == "output_tok_s" else ">",
                    color=style.GREY,
                    markersize=4.5,
                    linestyle="none",
                )
            ticks.append(y)
            labels.append(workload)
            spread = here[here["kind"] == "predicted"]["output_tok_s"]
            within += bool(spread.min() <= claimed["output_tok_s"] <= spread.max())
        axes[0].annotate(
            style.contender(claimed["engine"], claimed["precision"]) + f", {digits(claimed['concurrency'])} at once",
            (0, span[0]),
            xycoords=("axes fraction", "data"),
            xytext=(-4, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8,
            fontweight="bold",
            color=look["color"],
            annotation_clip=False,
        )
    y = len(names) * step
    for peer in offline.to_dict("records"):
        axes[0].plot(
            [peer["value"]],
            [y],
            **(style.look(peer["engine"], peer["precision"], "published") | {"linestyle": "none", "markersize": 4.5}),
        )
    ticks.append(y)
    labels.append("peers, offline maximum")
    axes[0].set_yticks(ticks, labels)
    axes[0].set_ylim(y + 0.8, -1.4)
    for ax, title in zip(axes, ("Output (tok/s)", "Time to first token, p95 (ms)"), strict=True):
        ax.set_title(title)
        draw.log_axis(ax, "x")
        ax.grid(axis="x")
        ax.grid(False, axis="y")
    figure = style.figure_of(axes[0])
    figure.legend(
        handles=[
            Line2D(
                [],
                [],
                color=style.GREY,
                linestyle=style.kind("published").linestyle,
                linewidth=2.2,
                label="the article's value (published)",
            ),
            Line2D(
                [],
                [],
                color=style.GREY,
                marker="o",
                markerfacecolor=style.PANEL,
                linestyle="none",
                label="predicted, one per reading",
            ),
            Line2D([], [], color=style.GREY, marker="<", linestyle="none", label="bound"),
            *_measured_key(rows),
        ],
        loc="outside lower left",
        ncols=4,
    )
    total = len(names) * len(workloads)
    fit = [w for w in workloads if all(_fits(rows[(rows["row"] == n)], w) for n in names)]
    title = (
        f"One workload would explain all {len(names)} published throughputs: {style.listed(fit)}"
        if fit
        else f"No single workload explains all {len(names)} published throughputs: "
        f"they lie inside the predicted range in {within} of {total} cases"
    )
    style.finding(
        axes[0],
        title,
        f"Peers: {len(offline)} published offline maxima on the same kind of node, "
        f"from {digits(offline['value'].min())} to "
        f"{digits(offline['value'].max())} tok/s.",
    )
    return axes


def _measured_key(rows: pd.DataFrame) -> list[Line2D]:
    """Entry of the legend for records, where there are any."""
    if not (rows["kind"] == "measured").any():
        return []
    return [Line2D([], [], color=style.GREY, marker="o", linestyle="none", label="measured by this study")]


def _fits(of: pd.DataFrame, workload: str) -> bool:
    """Whether a row's published throughput lies inside what is predicted for a workload."""
    claimed = of[of["kind"] == "published"]["output_tok_s"].iloc[0]
    spread = of[(of["workload"] == workload) & (of["kind"] == "predicted")]["output_tok_s"]
    return bool(spread.min() <= claimed <= spread.max())
