"""The trade-off in one picture: nats lost per token against speed, memory and, where an hour has a price, cost.

Takes the table tradeoff.csv, draws on the axes it is given or on new ones, returns them; nothing touches the disk. The
title is computed. A contender without a value on an axis is not drawn in that panel and is named in the text for those
who do not see; where 4-bit weights are flattered by how the reference came about, the picture says so.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.show import draw, style
from lib.show.numbers import digits

AXES = (("output_tok_s", "output tokens per second", "more is better"), ("weights", "weights, MB", "less is better"),
        ("cost", "USD per million output tokens", "less is better"))
CROWDED = (0.2, 0.07)       # of a panel's width and height: so near, two labels would lie on each other


def tradeoff(table: pd.DataFrame, reason: str | None = None, axes: Any = None) -> Any:
    """Draw one panel per axis that any contender has a value on.

    Parameters
    ----------
    table : tradeoff.csv.
    reason : why nobody was scored; then the picture is empty and says so.
    """
    known = table[table["kl"].notna()]
    panels = [axis for axis in AXES if known[axis[0]].notna().any()]
    if known.empty or not panels:
        return draw.empty(f"Quality was not judged: {reason or 'no contender has a record of it'}")
    if axes is None:
        _, axes = style.grid(1, len(panels), height=3.7, sharey=True, squeeze=False)
    least = float(known.loc[known["kl"] > 0, "kl"].min()) if (known["kl"] > 0).any() else 1.0
    for ax, (column, label, better) in zip(np.ravel(axes), panels, strict=True):
        _panel(ax, known[known[column].notna()], column)
        ax.set_xlabel(f"{label} ({better})")
        ax.set_yscale("symlog", linthresh=least)
        ax.set_ylim(bottom=-0.4 * least, top=max(2.0 * float(known["kl"].max()), 2 * least))
        _labels(ax, known[known[column].notna()], column)
    first = np.ravel(axes)[0]
    first.set_ylabel("KL from the 16-bit reference,\nnats per token (less is better)")
    draw.legend(style.figure_of(first), list(known[["engine", "precision"]].itertuples(index=False, name=None)))
    return style.finding(first, tradeoff_finding(known), _alt(table, known))


def tradeoff_finding(known: pd.DataFrame) -> str:
    """Say what the most lossy contender that nobody dominates loses and gains, and who is dominated."""
    judged = known[known["judged"].astype(bool)]
    if judged.empty:
        return "Quality was judged, but no contender has both a quality and a speed"
    beaten = judged[judged["dominated_by"].notna() & (judged["dominated_by"] != "")]
    free = judged[~judged["launch"].isin(beaten["launch"])].sort_values("kl")
    last = free.iloc[-1]
    star = "*" if isinstance(last["note"], str) else ""
    said = f"{_name(last)} gives up {digits(last['kl'])}{star} nats per token"
    base = judged.loc[(judged["engine"] == last["engine"]) & (judged["kl"] < last["kl"])].sort_values("kl")
    if len(base):
        ratio = float(last["output_tok_s"] / base.iloc[0]["output_tok_s"])
        said += f" and delivers {digits(ratio)} times what {_name(base.iloc[0])} does"
    if len(beaten):
        pairs = list(beaten[["engine", "precision"]].itertuples(index=False, name=None))
        said += f"; dominated on every axis: {style.contenders(pairs)}"
    return said


def _panel(ax: Axes, rows: pd.DataFrame, column: str) -> None:
    ax.margins(x=0.12)
    for _, row in rows.iterrows():
        look = style.look(row["engine"], row["precision"]) | {"linestyle": "none"}
        ax.errorbar([row[column]], [row["kl"]], xerr=_error(row, column), yerr=_error(row, "kl"), elinewidth=0.9,
                    capsize=2, **look)
    ax.grid(axis="x")


def _labels(ax: Axes, rows: pd.DataFrame, column: str) -> None:
    """Write each precision beside its marker: towards the middle, and below it where another one's is above."""
    low, high = ax.get_xlim()
    places = ax.transAxes.inverted().transform(ax.transData.transform(rows[[column, "kl"]].to_numpy(dtype=float)))
    above: list[np.ndarray] = []
    for (_, row), place in zip(rows.iterrows(), places, strict=True):
        crowded = any((np.abs(place - other) < CROWDED).all() for other in above)
        above += [] if crowded else [place]
        beaten = isinstance(row["dominated_by"], str) and row["dominated_by"] != ""
        left = row[column] > (low + high) / 2
        ax.annotate(f"{row['precision']}{'*' if isinstance(row['note'], str) else ''}{', dominated' if beaten else ''}",
                    (row[column], row["kl"]), xytext=(-5 if left else 5, -6 if crowded else 5),
                    textcoords="offset points", fontsize=7, color=style.MUTED if beaten else style.INK,
                    ha="right" if left else "left", va="top" if crowded else "bottom")


def _error(row: pd.Series, column: str) -> np.ndarray | None:
    if pd.isna(row[f"{column}_low"]) or pd.isna(row[f"{column}_high"]):
        return None
    low, high = row[column] - row[f"{column}_low"], row[f"{column}_high"] - row[column]
    return np.array([[max(low, 0.0)], [max(high, 0.0)]], dtype=float)


def _name(row: pd.Series) -> str:
    return style.contender(row["engine"], row["precision"])


def _alt(table: pd.DataFrame, known: pd.DataFrame) -> str:
    parts = []
    for _, row in known.iterrows():
        fast = f"{digits(row['output_tok_s'])} tokens per second" if pd.notna(row["output_tok_s"]) else "speed missing"
        parts.append(f"{_name(row)}: {digits(row['kl'])} nats, {fast}")
    unscored = [str(name) for name in table.loc[table["kl"].isna(), "launch"]]
    more = f" Not scored: {', '.join(unscored)}." if unscored else ""
    notes = sorted({str(note) for note in known["note"].dropna()})
    return f"{'; '.join(parts)}.{more}" + "".join(f" *: {note}." for note in notes)
