"""The figure that answers: every contender at the SLA's own load, and how many sessions each is shown to carry.

Drawn from headline.csv. The record's hash stands in the picture, so that a copy elsewhere can be traced. Rule: a
capacity is a dot only where a level was shown to meet the SLA; the bar beyond it ends at the next level taken, which
failed or is undecided.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.config import Sla
from lib.show import draw, style
from lib.show.numbers import digits


def headline(rows: pd.DataFrame, sla: Sla, source: str, axes: Any = None) -> Any:
    """TTFT, output throughput and capacity of every contender, one line each. Axes: 1 x 3.

    Parameters
    ----------
    rows : headline.csv: times in ms, throughput in tok/s, capacity in requests.
    source : where the numbers come from, with the hash; small text in the picture.
    """
    # The second launch of an A/A pair is the same contender and serves the noise floor only.
    rows = (
        rows.drop_duplicates(["engine", "precision"])
        .sort_values(["capacity", "output_tok_s"], na_position="first")
        .reset_index(drop=True)
    )
    lines: list[dict[str, Any]] = [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]
    if rows.empty:
        return draw.empty("No launch of this study has a level to show")
    if axes is None:
        _, axes = style.grid(1, 3, height=1.75 + 0.33 * len(rows), sharey=True)
    which = "p95" if (rows["ttft_p95"].notna() & rows["ttft_p95_low"].notna()).all() else "p50"
    _dots(axes[0], lines, f"ttft_{which}")
    axes[0].set_title(f"First token, {'median' if which == 'p50' else which} (ms)")
    if which == "p95":
        draw.sla_line(axes[0], sla.ttft_p95_ms, f"SLA {digits(sla.ttft_p95_ms)}", vertical=True)
    _dots(axes[1], lines, "output_tok_s")
    axes[1].set_title("Output (tok/s)")
    for ax in axes[:2]:
        ax.set_xlim(left=0)
    _capacities(axes[2], lines, sla)
    axes[0].set_yticks(range(len(rows)), [style.contender(r["engine"], r["precision"]) for r in lines], color=style.INK)
    axes[0].set_ylim(-0.6, len(rows) - 0.2)
    figure = style.figure_of(axes[0])
    loads = listed_levels(rows)
    figure.supxlabel(f"First token and output at {loads}. {source}", x=0.01, ha="left", fontsize=6.5, color=style.MUTED)
    alt = "; ".join(
        f"{style.contender(r['engine'], r['precision'])}: {digits(r['output_tok_s'])} tok/s, capacity "
        f"{digits(r['capacity']) if pd.notna(r['capacity']) else 'not shown at any level'}"
        for r in reversed(lines)
    )
    style.finding(axes[0], headline_finding(rows, sla), alt + ".")
    return axes


def headline_finding(rows: pd.DataFrame, sla: Sla) -> str:
    """Say who carries the SLA's sessions; else who comes nearest; else that nobody is shown to."""

    def pairs(of: pd.DataFrame) -> list[tuple[str, str]]:
        return list(of[["engine", "precision"]].itertuples(index=False, name=None))[::-1]

    carry = rows[rows["capacity"] >= sla.sessions]
    bound = f"first token within {digits(sla.ttft_p95_ms)} ms, each next within {digits(sla.tpot_p95_ms)} ms"
    if len(carry):
        verb = "carries" if len(set(pairs(carry))) == 1 else "carry"
        return f"{style.contenders(pairs(carry))} {verb} {sla.sessions} sessions with the {bound}"
    if rows["capacity"].notna().any():
        best = pairs(rows[rows["capacity"] == rows["capacity"].max()])
        verb = "comes" if len(set(best)) == 1 else "come"
        return (
            f"Nobody is shown to carry {sla.sessions} sessions: {style.contenders(best)} {verb} nearest "
            f"with {digits(rows['capacity'].max())}"
        )
    undecided = (rows["meets_sla"] == "undecided").any()
    return f"Nobody is shown to carry {sla.sessions} sessions at any level taken" + (
        "; the samples leave it undecided" if undecided else ""
    )


def listed_levels(rows: pd.DataFrame) -> str:
    """Levels at which the rows were read, in words: 8 at once."""
    names = sorted(set(rows["level"].dropna()))
    return style.listed([f"{name.removeprefix('closed-')} at once" for name in names]) if names else "no level"


def _dots(ax: Axes, lines: list[dict[str, Any]], column: str) -> None:
    for y, row in enumerate(lines):
        value = row[column]
        if pd.isna(value):
            ax.text(
                0.02, y, "missing", transform=ax.get_yaxis_transform(), fontsize=7.5, color=style.MUTED, va="center"
            )
            continue
        error = np.nan_to_num(np.array([[value - row[f"{column}_low"]], [row[f"{column}_high"] - value]], dtype=float))
        look = style.look(row["engine"], row["precision"]) | {"linestyle": "none"}
        ax.errorbar([value], [y], xerr=np.clip(error, 0, None), elinewidth=1.2, capsize=2.5, **look)
        ax.annotate(
            digits(value),
            (value, y),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=style.INK,
            bbox=draw.HALO,
        )
    ax.margins(x=0.2)
    ax.grid(axis="x")


def _capacities(ax: Axes, lines: list[dict[str, Any]], sla: Sla) -> None:
    ax.set_title("Sessions within the SLA")
    for y, row in enumerate(lines):
        colour, beyond = style.engine(row["engine"]).colour, row["capacity_next"]
        if pd.notna(row["capacity"]):
            ax.plot([0, row["capacity"]], [y, y], color=colour, linewidth=2.4, solid_capstyle="butt")
            ax.plot([row["capacity"]], [y], **(style.look(row["engine"], row["precision"]) | {"linestyle": "none"}))
            word = digits(row["capacity"]) if pd.notna(beyond) else f"{digits(row['capacity'])} or more"
        else:
            word = "none shown"
        if pd.notna(beyond):
            ax.plot(
                [row["capacity"] if pd.notna(row["capacity"]) else 0, beyond],
                [y, y],
                color=colour,
                linewidth=0.9,
                alpha=0.6,
            )
            ax.plot([beyond], [y], marker="|", color=colour, markersize=7, linestyle="none")
            word += f", {digits(beyond)} {'fails' if row['capacity_next_answer'] == 'no' else 'undecided'}"
        ax.annotate(
            word, (0, y), xytext=(1, 6), textcoords="offset points", fontsize=7, color=style.INK, bbox=draw.HALO
        )
    draw.sla_line(ax, sla.sessions, f"SLA {digits(sla.sessions)}", vertical=True)
    ax.set_xlim(
        0, 1.15 * max([sla.sessions, *(v for r in lines for v in (r["capacity"], r["capacity_next"]) if pd.notna(v))])
    )
    ax.grid(axis="x")
