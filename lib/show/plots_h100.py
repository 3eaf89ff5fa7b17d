"""Figures about what to expect of the article's node: capacity by configuration, cost against strictness, effects.

Nothing here is measured by this study unless a row says so: predictions are open and dashed, the SLA is assumed. A
value that no level gives is not drawn. Titles are computed from the table that is drawn.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from lib.show import draw, style
from lib.show.numbers import digits

RECIPES = ("transferred", "scaled")  # ends of the INT4 band, as data/predictions.csv calls them
TICKS = (0.1, 0.2, 0.3, 0.5, 0.7, 1, 1.5, 2, 3, 4)
COLUMNS = 3  # panels side by side


def capacity_by_configuration(table: pd.DataFrame, sessions: float, axes: Any = None) -> Any:
    """Sessions within the SLA by contender, one panel per kind of work; a line spans the layouts, the best is named.

    Parameters
    ----------
    table : `lib.analyse.h100_tables.capacities`: config, engine, precision, layout, policy, workload, capacity,
        at_least, bound_sessions; a tick is what memory holds in the best layout, where that lies on the axis.
    sessions : what the SLA asks for.
    axes : one per kind of work, at least.
    """
    rows = table[table["policy"] == "chunked"]
    configs, works = list(dict.fromkeys(rows["config"])), list(dict.fromkeys(rows["workload"]))
    if axes is None:
        axes = _panels(len(works), 0.62 + 0.21 * len(configs), sharex=True, sharey=True)
    best = _best(rows.dropna(subset=["capacity"]), "capacity", largest=True)
    end = 1.35 * float(rows["capacity"].max())
    for ax, work in zip(np.ravel(axes), works, strict=False):
        ax.set_title(work)
        for y, config in enumerate(configs):
            of = rows[(rows["config"] == config) & (rows["workload"] == work)]
            values = of["capacity"].dropna()
            if values.empty:
                _word(ax, y, "no prediction")
                continue
            look = style.look(of["engine"].iloc[0], of["precision"].iloc[0], "predicted") | {"linestyle": "none"}
            ax.plot([values.min(), values.max()], [y, y], color=look["color"], linewidth=0.9, alpha=0.5)
            ax.plot(values, [y] * len(values), **(look | {"markersize": 3, "alpha": 0.55}))
            top = best.loc[(config, work)]
            ax.plot([top["capacity"]], [y], **(look | {"markersize": 5.5}))
            if top["bound_sessions"] <= end:
                ax.plot([top["bound_sessions"]], [y], marker="|", markersize=8, color=style.MUTED, linestyle="none")
            word = f"{digits(float(np.floor(top['capacity'])))}{'+' if top['at_least'] else ''} {top['layout']}"
            ax.annotate(
                word, (top["capacity"], y), xytext=(6, 0), textcoords="offset points", fontsize=6.5, va="center",
                color=style.MUTED, bbox=draw.HALO,
            )  # fmt: skip
        draw.sla_line(ax, sessions, f"SLA {digits(sessions)}", vertical=True)
        ax.set_yticks(range(len(configs)), [_named(rows, config) for config in configs])
        ax.set_ylim(len(configs) - 0.4, -1.1)
        ax.set_xlim(0, end)
        ax.grid(axis="x")
        ax.grid(False, axis="y")
    _blank(axes, len(works))
    carry, tp8 = best["capacity"] >= sessions, best["layout"] == "TP8"
    title = (
        f"{int(carry.sum())} of {len(best)} predicted pairs of contender and work carry {digits(sessions)} sessions; "
        f"TP8 is the best layout in {int(tp8.sum())}"
    )
    alt = "; ".join(
        f"{_named(rows, of['config'])}, {of['workload']}: {digits(float(np.floor(of['capacity'])))} in {of['layout']}"
        for of in best.reset_index().to_dict("records")
    )
    return style.finding(np.ravel(axes)[0], title, f"Best layout each. {alt}.")


def cost_against_strictness(table: pd.DataFrame, ttft_ms: float, axes: Any = None) -> Any:
    """USD per million output tokens over the limit on the first token, each contender in its cheapest layout.

    Parameters
    ----------
    table : `lib.analyse.h100_tables.cost_curves`: config, engine, precision, layout, policy, workload, ttft_limit_s,
        usd_per_million, bound_usd_per_million; the bound of each precision is a grey line of its own.
    ttft_ms : the SLA's own limit.
    axes : one per kind of work, at least.
    """
    rows = table[(table["policy"] == "chunked") & table["usd_per_million"].notna()]
    works = list(dict.fromkeys(table["workload"]))
    if axes is None:
        axes = _panels(len(works), 1.9, sharex=True)
    limits = sorted(table["ttft_limit_s"].unique())
    for ax, work in zip(np.ravel(axes), works, strict=False):
        ax.set_title(work)
        here = rows[rows["workload"] == work]
        if here.empty:
            draw.nothing(ax, "No contender keeps the promise at any limit drawn.")
            continue
        bounds = table[(table["workload"] == work) & table["bound_usd_per_million"].notna()]
        for precision, of in bounds.groupby("precision", sort=False):
            least = of.groupby("ttft_limit_s")["bound_usd_per_million"].min().reindex(limits)
            ax.plot(np.array(limits) * 1e3, least, **(_bound_look(str(precision)) | {"markersize": 3}))
        for _, of in here.groupby("config", sort=False):
            line = of.groupby("ttft_limit_s")["usd_per_million"].min().reindex(limits)
            look = style.look(of["engine"].iloc[0], of["precision"].iloc[0], "predicted")
            ax.plot(np.array(limits) * 1e3, line, **(look | {"markersize": 3.5, "linewidth": 1.1}))
        ax.margins(y=0.18)
        draw.log_axis(ax, "y")
        draw.log_axis(ax, "x", [100, 200, 500, 1000])
        ax.set_xlim(limits[0] * 900, limits[-1] * 1100)
        draw.sla_line(ax, ttft_ms, f"SLA {digits(ttft_ms)} ms", vertical=True)
    _blank(axes, len(works))
    figure = style.figure_of(axes)
    figure.supylabel("USD per million output tokens", fontsize=8.5, color=style.MUTED)
    np.ravel(axes)[len(works) - 1].set_xlabel("limit on the first token, p95 (ms)")
    pairs = list(rows[["engine", "precision"]].drop_duplicates().itertuples(index=False, name=None))
    known = dict.fromkeys(str(p) for p in table.loc[table["bound_usd_per_million"].notna(), "precision"])
    keys = [Line2D([], [], label=f"bound, {p}", **_bound_look(p)) for p in known]
    draw.legend(figure, pairs, "predicted", more=keys)
    title, alt = _cost_finding(rows, ttft_ms / 1e3, float(limits[-1]))
    least = table.loc[np.isclose(table["ttft_limit_s"], ttft_ms / 1e3), "bound_usd_per_million"].min()
    alt += f" Physics allows no less than {digits(least)}." if least == least else ""
    return style.finding(np.ravel(axes)[0], title, alt)


def effects(table: pd.DataFrame, claimed: float, ax: Axes | None = None) -> Axes:
    """Ratios of output throughput that one change alone makes: range and median, by kind of evidence.

    Parameters
    ----------
    table : `lib.analyse.h100_tables.factorial_table`: effect, contrast, kind, n, low, median, high.
    claimed : the article's one ratio.
    """
    rows = table.sort_values("effect", key=lambda names: names.map(_first_seen(table["effect"])), kind="stable")
    if ax is None:
        _, ax = style.grid(height=1.3 + 0.24 * (len(rows) + rows["effect"].nunique()))
    y, ticks, labels = 0.0, [], []
    for effect, of in rows.groupby("effect", sort=False):
        ax.annotate(
            str(effect), (0, y), xycoords=("axes fraction", "data"), xytext=(-4, 0), textcoords="offset points",
            ha="right", va="center", fontsize=8, fontweight="bold", color=style.INK, annotation_clip=False,
        )  # fmt: skip
        for row in of.to_dict("records"):
            y += 1
            kind = style.kind(row["kind"])
            colour = {"predicted": style.BLUE, "published": style.PURPLE}.get(row["kind"], style.GREEN)
            ax.plot([row["low"], row["high"]], [y, y], color=colour, linestyle=kind.linestyle, linewidth=1.4)
            face = colour if kind.filled else style.PANEL
            ax.plot([row["median"]], [y], marker="D", markersize=5, markerfacecolor=face, markeredgecolor=colour)
            ticks.append(y)
            labels.append(f"{contrast(row['contrast'])} ({digits(row['n'])})")
        y += 1.2
    ax.set_yticks(ticks, labels, fontsize=7.5)
    ax.set_ylim(y - 0.4, -0.9)
    draw.log_axis(ax, "x", [t for t in TICKS if t > 0.85 * float(rows["low"].min())])
    ax.set_xlim(min(0.6, float(rows["low"].min()) * 0.9), max(4.0, float(rows["high"].max()) * 1.1))
    ax.axvline(1, color=style.MUTED, linewidth=0.9)
    ax.axvline(claimed, color=style.VERMILION, linestyle=style.kind("published").linestyle, linewidth=1.6)
    ax.annotate(
        f"the article: {digits(claimed)}×", (claimed, 1), xycoords=("data", "axes fraction"), xytext=(3, -2),
        textcoords="offset points", color=style.VERMILION, fontsize=7.5, va="top",
    )  # fmt: skip
    ax.set_xlabel("ratio of output throughput")
    ax.grid(axis="x")
    ax.grid(False, axis="y")
    style.figure_of(ax).legend(handles=_kinds(rows), loc="outside lower left", ncols=3)
    return style.finding(ax, _effects_finding(rows, claimed), _effects_alt(rows))


def contrast(text: str) -> str:
    """Put a contrast of the factorial in words, engines by their names.

    >>> contrast("FP8 / 16 bit, tensorrt_llm"), contrast("128 / 64 in flight, vllm-bf16")
    ('FP8 / 16 bit, TensorRT-LLM', '128 / 64 in flight, vLLM bf16')
    """
    for name in sorted(style.ENGINES, key=len, reverse=True):
        for written in (name.replace("-", "_"), name):
            label = style.ENGINES[name].label
            text = text.replace(f", {written}-", f", {label} ").replace(f", {written}", f", {label}")
    return text


def _effects_finding(rows: pd.DataFrame, claimed: float) -> str:
    parts = []
    for effect in ("engine", "precision"):
        of = rows[(rows["effect"] == effect) & (rows["kind"] == "predicted")]
        if len(of):
            parts.append(f"{effect} alone {digits(of['low'].min())} to {digits(of['high'].max())}×")
    reached = rows[(rows["kind"] == "predicted") & (rows["high"] >= claimed)]
    verdict = "No single" if reached.empty else f"{len(reached)} of {(rows['kind'] == 'predicted').sum()}"
    tail = f" (predicted: {', '.join(parts)})" if parts else ""
    return f"{verdict} change explains the article's {digits(claimed)}× by itself{tail}"


def _effects_alt(rows: pd.DataFrame) -> str:
    said = [
        f"{contrast(row['contrast'])}, {row['kind']}: {digits(row['median'])} "
        f"({digits(row['low'])} to {digits(row['high'])})"
        for row in rows.to_dict("records")
    ]
    return "; ".join(said) + ". In brackets behind a name: how many ratios."


def _cost_finding(rows: pd.DataFrame, limit_s: float, loosest_s: float) -> tuple[str, str]:
    best = rows.groupby(["config", "workload", "ttft_limit_s"])["usd_per_million"].min().unstack()
    if limit_s not in best or loosest_s not in best:
        return "No contender keeps the promise at its own limit", "Nothing to compare."
    ratios = (best[limit_s] / best[loosest_s]).dropna().groupby("workload").median()
    if ratios.empty:
        return "No contender keeps the promise at its own limit", "Nothing to compare."
    most, least = str(ratios.idxmax()), str(ratios.idxmin())
    title = (
        f"Asking for the first token within {digits(limit_s * 1e3)} instead of {digits(loosest_s * 1e3)} ms is "
        f"predicted to multiply the cost by {_short(ratios[most])} for {most}, by {_short(ratios[least])} for {least}"
    )
    at = best[limit_s].dropna()
    return title, (
        f"At the SLA's limit the cheapest is {digits(at.min())} and the dearest {digits(at.max())} USD per million "
        "output tokens."
    )


def _bound_look(precision: str) -> dict[str, Any]:
    """Look of a bound: grey, since no engine is behind it."""
    look = {"color": style.GREY, "markeredgecolor": style.GREY, "linewidth": 1.0}
    return look | {
        "marker": style.marker(precision), "linestyle": style.kind("bound").linestyle, "markerfacecolor": style.PANEL
    }  # fmt: skip


def _short(ratio: float) -> str:
    return f"{ratio:.2g}"


def _best(rows: pd.DataFrame, column: str, *, largest: bool) -> pd.DataFrame:
    """Row of the best layout per contender and work."""
    ordered = rows.sort_values([column, "output_tok_s"], ascending=not largest, kind="stable")
    return ordered.drop_duplicates(["config", "workload"]).set_index(["config", "workload"]).sort_index()


def _named(rows: pd.DataFrame, config: str) -> str:
    of = rows[rows["config"] == config].iloc[0]
    recipe = config.rpartition("-")[2]
    return style.contender(of["engine"], of["precision"]) + (f" ({recipe})" if recipe in RECIPES else "")


def _panels(count: int, height: float, **options: Any) -> Any:
    rows = -(-count // COLUMNS)
    return style.grid(rows, min(COLUMNS, count), height=0.9 + height * rows, **options)[1]


def _blank(axes: Any, used: int) -> None:
    for ax in np.ravel(axes)[used:]:
        ax.set_visible(False)


def _word(ax: Axes, y: float, word: str) -> None:
    ax.text(0.02, y, word, transform=ax.get_yaxis_transform(), fontsize=6.5, color=style.MUTED, va="center")


def _first_seen(names: pd.Series) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _kinds(rows: pd.DataFrame) -> list[Line2D]:
    colours = {"predicted": style.BLUE, "published": style.PURPLE, "measured": style.GREEN}
    return [
        Line2D(
            [], [], color=colours[kind], linestyle=style.kind(kind).linestyle, marker="D",
            markerfacecolor=colours[kind] if style.kind(kind).filled else style.PANEL,
            label=f"{kind}: range and median",
        )
        for kind in dict.fromkeys(rows["kind"])
    ]  # fmt: skip
