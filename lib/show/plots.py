"""Figures over load: latency against concurrency, the latency-throughput frontier, the distribution of first tokens.

Each function takes a tidy table and draws on the axes it is given (or on new ones of its own size) and returns them;
none touches the disk. Titles state the finding and are computed from the same table that is drawn. A value that its
sample does not support is not drawn, and a panel without any value says why. Tables hold seconds, axes show ms.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from lib.config import Sla
from lib.show import draw, style
from lib.show.numbers import digits


def supported(levels: pd.DataFrame, column: str) -> pd.DataFrame:
    """Rows whose value in `column` exists and has an interval."""
    kept: pd.DataFrame = levels[levels[column].notna() & levels[f"{column}_low"].notna()]
    return kept


def closed(levels: pd.DataFrame) -> pd.DataFrame:
    """Closed-loop levels of the workload that most of them have, in order of launch and concurrency."""
    kept: pd.DataFrame = levels[levels["kind"] == "closed"].sort_values(["launch", "load"])
    if "workload" in kept and kept["workload"].nunique() > 1:  # others are taken at single loads: no line through them
        kept = kept[kept["workload"] == kept["workload"].mode()[0]]
    return kept


def against_load(levels: pd.DataFrame, ax: Axes, column: str, sla_ms: float | None = None) -> Axes:
    """One statistic of latency against concurrency, one line per launch, 95 % intervals drawn."""
    scale, ends = style.metric_scale(column), []
    ax.set_title(style.metric_label(column))
    drawn = supported(closed(levels), column)
    if drawn.empty:
        reasons = levels.get(f"{column}_reason", pd.Series(dtype=str)).dropna()
        draw.nothing(
            ax, "Unsupported at every level: " + str(reasons.iloc[0] if len(reasons) else "no interval exists") + "."
        )
        return ax
    for _, line in drawn.groupby("launch", sort=True):
        engine, precision = _pair(line)
        _with_intervals(ax, line["load"], line, column, scale, engine, precision)
        ends.append(
            (float(line["load"].iloc[-1]), float(line[column].iloc[-1]) * scale, precision, style.engine(engine).colour)
        )
    loads = sorted(closed(levels)["load"].unique())
    draw.log_axis(ax, "y")
    draw.log_axis(ax, "x", loads)
    ax.set_xlim(loads[0] * 0.85, loads[-1] * (1.6 if len(loads) > 1 else 1.2))
    if sla_ms is not None:
        draw.sla_line(ax, sla_ms, f"SLA {digits(sla_ms)} ms")
    draw.end_labels(ax, ends)
    return ax


def latency(levels: pd.DataFrame, sla: Sla, axes: Any = None) -> Any:
    """TTFT and TPOT against concurrency: medians on the left, p95 with the SLA's lines on the right. Axes: 2 x 2."""
    if axes is None:
        _, axes = style.grid(2, 2, height=5.6, sharex=True)
    for row, (name, limit) in enumerate((("ttft", sla.ttft_p95_ms), ("tpot", sla.tpot_p95_ms))):
        against_load(levels, axes[row, 0], f"{name}_p50_s")
        against_load(levels, axes[row, 1], f"{name}_p95_s", limit)
    for ax in axes[1]:
        ax.set_xlabel("requests at once")
    _legend_below(axes[1, 0], levels)
    best = {
        str(k): float(v) for k, v in closed(levels).query("meets_sla == 'yes'").groupby("launch")["load"].max().items()
    }
    style.finding(axes[0, 0], latency_finding(levels, best), _latency_alt(levels))
    return axes


def latency_finding(levels: pd.DataFrame, best: dict[str, float]) -> str:
    """Say which contenders meet the SLA up to which concurrency; `best`: largest such level per launch."""
    every = {launch: _pair(rows) for launch, rows in levels.groupby("launch", sort=True)}
    if not best:
        undecided = (levels["meets_sla"] == "undecided").any()
        return "No contender is shown to meet the SLA at any load" + (
            ": its p95 leaves some levels undecided" if undecided else ""
        )
    top = max(best.values())
    leaders = [every[launch] for launch in sorted(best) if best[launch] == top]
    total, met = set(every.values()), {every[launch] for launch in best}
    rest = f"; {len(total - met)} of {len(total)} contenders at none" if met != total else ""
    verb = "meets" if len(set(leaders)) == 1 else "meet"
    return f"{style.contenders(leaders)} {verb} the SLA up to {digits(top)} at once{rest}"


def frontier(
    levels: pd.DataFrame, comparisons: Sequence[Mapping[str, Any]] = (), spare: str | None = None, axes: Any = None
) -> Any:
    """Median latency against output throughput, one line per launch through its concurrencies. Axes: 1 x 2.

    `comparisons` are those of facts.json and decide what the title may rank; `spare`, the second launch of the A/A
    pair, is drawn and not ranked.
    """
    if axes is None:
        _, axes = style.grid(1, 2, height=3.9)
    rows = closed(levels)
    rows = rows[rows["output_tok_s"].notna()]
    for ax, column in zip(axes, ("ttft_p50_s", "tpot_p50_s"), strict=True):
        scale = style.metric_scale(column)
        ax.set_title(style.metric_label(column))
        ax.set_xlabel("output tokens per second, all requests together")
        drawn = rows[rows[column].notna()]
        if drawn.empty:
            draw.nothing(ax, "No level has both a latency and a throughput.")
            continue
        named: set[tuple[str, str]] = set()
        for _, line in drawn.groupby("launch", sort=True):
            engine, precision = _pair(line)
            ax.errorbar(
                line["output_tok_s"],
                line[column] * scale,
                xerr=_error(line, "output_tok_s", 1.0),
                fmt="none",
                ecolor=style.engine(engine).colour,
                elinewidth=0.9,
                alpha=0.6,
            )
            _with_intervals(ax, line["output_tok_s"], line, column, scale, engine, precision)
            for _, point in line.iloc[[0, -1] if (engine, precision) not in named else []].iterrows():
                ax.annotate(
                    digits(point["load"]),
                    (point["output_tok_s"], point[column] * scale),
                    xytext=(4, 5),
                    textcoords="offset points",
                    fontsize=7,
                    color=style.MUTED,
                )
            named.add((engine, precision))
        draw.log_axis(ax, "y")
        ax.set_xlim(left=0)
        ax.margins(x=0.1)
    _legend_below(axes[0], levels)
    style.finding(
        axes[0],
        _frontier_finding(rows[rows["launch"] != spare], comparisons),
        "Small numbers at the first and last point of a line are requests at once. Lower and further right is better.",
    )
    return axes


def first_token_distribution(
    samples: pd.DataFrame, names: Mapping[str, tuple[str, str]], level: str, sla: Sla, ax: Axes | None = None
) -> Axes:
    """Share of requests whose first token has come, over time since sending, at one level; all its takings pooled.

    Parameters
    ----------
    samples : launch, level, load, ttft_s of every request (`lib.analyse.timeline.ttft_samples`, any launches).
    names : launch -> (engine, precision).
    """
    if ax is None:
        _, ax = style.grid(height=3.8)
    rows = samples[(samples["level"] == level) & samples["ttft_s"].notna()]
    ax.set_ylabel("share of requests")
    ax.set_xlabel(style.metric_label("ttft_p50_s").split(",")[0] + " (ms)")
    if rows.empty:
        draw.nothing(ax, f"No complete request at level {level}.")
        return style.finding(ax, f"No request at {level} gave a first token in its steady window", "Empty.")
    pooled = {str(launch): np.sort(of["ttft_s"].to_numpy()) * 1e3 for launch, of in rows.groupby("launch", sort=True)}
    for launch, values in pooled.items():
        look = style.look(*names[launch])
        share = np.arange(1, len(values) + 1) / len(values)
        ax.step(values, share, where="post", color=look["color"], linewidth=1.4)
        shown = np.searchsorted(share, (0.25, 0.5, 0.75, 0.95)).clip(max=len(values) - 1)
        ax.plot(values[shown], share[shown], **(look | {"linestyle": "none"}))
    draw.sla_line(ax, sla.ttft_p95_ms, f"SLA at p95: {digits(sla.ttft_p95_ms)} ms", vertical=True)
    draw.log_axis(ax, "x")
    ax.set_xlim(right=max(ax.get_xlim()[1], 1.3 * sla.ttft_p95_ms))
    ax.set_ylim(0, 1.12)
    ax.set_yticks([0, 0.25, 0.5, 0.75, 0.95], ["0", "25 %", "50 %", "75 %", "95 %"])
    draw.legend(style.figure_of(ax), [names[launch] for launch in pooled])
    middle = {launch: float(np.median(values)) for launch, values in pooled.items()}
    fast, slow = min(middle, key=lambda k: middle[k]), max(middle, key=lambda k: middle[k])
    title = (
        f"At {digits(float(rows['load'].iloc[0]))} at once, half of {style.contender(*names[fast])}'s first tokens "
        f"come within {digits(middle[fast])} ms"
    )
    if names[fast] != names[slow]:
        title += f", of {style.contender(*names[slow])}'s within {digits(middle[slow])} ms"
    alt = "; ".join(
        f"{style.contender(*names[k])}: median {digits(v)} ms, {len(pooled[k])} requests" for k, v in middle.items()
    )
    return style.finding(ax, title, f"Markers stand at 25, 50, 75 and 95 %. {alt}.")


def name_of(levels: pd.DataFrame, launch: str) -> str:
    """Say what a launch is called."""
    row = levels[levels["launch"] == launch].iloc[0]
    return style.contender(row["engine"], row["precision"])


def _pair(rows: pd.DataFrame) -> tuple[str, str]:
    """Engine and precision of a launch's rows."""
    return str(rows["engine"].iloc[0]), str(rows["precision"].iloc[0])


def _error(line: pd.DataFrame, column: str, scale: float) -> np.ndarray:
    """Distances to the limits as errorbar wants them; 0 where a limit is missing. Shape: (2, rows)."""
    low, high = line[column] - line[f"{column}_low"], line[f"{column}_high"] - line[column]
    return np.clip(np.nan_to_num(np.array([low, high], dtype=float) * scale), 0, None)


def _with_intervals(
    ax: Axes, x: Any, line: pd.DataFrame, column: str, scale: float, engine: str, precision: str
) -> None:
    look = style.look(engine, precision)
    # A log axis has no place for a limit at or below zero: the bar ends at a tenth of the value.
    error = np.minimum(
        _error(line, column, scale), np.array([line[column] * scale * 0.9, np.full(len(line), np.inf)], dtype=float)
    )
    ax.errorbar(x, line[column] * scale, yerr=error, elinewidth=0.9, capsize=2, **look)


def _legend_below(ax: Axes, levels: pd.DataFrame) -> None:
    draw.legend(
        style.figure_of(ax),
        list(levels.sort_values("launch")[["engine", "precision"]].itertuples(index=False, name=None)),
    )


def _latency_alt(levels: pd.DataFrame) -> str:
    parts = []
    for launch, line in closed(levels).groupby("launch", sort=True):
        first, last = line.iloc[0], line.iloc[-1]
        parts.append(
            f"{name_of(levels, str(launch))}: median time to first token from "
            f"{digits(first['ttft_p50_s'] * 1e3)} ms at "
            f"{digits(first['load'])} at once to {digits(last['ttft_p50_s'] * 1e3)} ms at {digits(last['load'])}"
        )
    return "Four panels over requests at once. " + "; ".join(parts) + "."


def _frontier_finding(rows: pd.DataFrame, comparisons: Sequence[Mapping[str, Any]]) -> str:
    if rows.empty:
        return "No level gave a throughput"
    peaks = rows.loc[rows.groupby("launch")["output_tok_s"].idxmax()].sort_values("output_tok_s", ascending=False)
    top = peaks.iloc[0]
    lead = (
        f"{style.contender(top['engine'], top['precision'])} delivers the most, {digits(top['output_tok_s'])} tok/s "
        f"at {digits(top['load'])} at once"
    )
    if len(peaks) == 1:
        return lead
    second = peaks.iloc[1]
    name = style.contender(second["engine"], second["precision"])
    told = {
        c["verdict"]
        for c in comparisons
        if c["metric"] == "output_tok_s"
        and c["level"] == top["level"] == second["level"]
        and {c["a"], c["b"]} == {top["launch"], second["launch"]}
    }
    if "not distinguishable" in told:
        return f"{lead}, which is not distinguishable from the {digits(second['output_tok_s'])} of {name}"
    at = "" if top["level"] == second["level"] else f" at {digits(second['load'])}"
    return f"{lead}; {name} follows with {digits(second['output_tok_s'])}{at}"
