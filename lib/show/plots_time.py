"""Figures over time: every request of one taking, and what the engine held while it ran.

The number of requests in flight comes from the client's stamps and is laid over the engine's own gauge: two
instruments that share nothing. Times are seconds since the taking began. Frames come from lib.analyse.timeline.
"""

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from numpy.typing import NDArray

from lib import metrics, records
from lib.analyse.takings import of_record
from lib.analyse.timeline import Agreement
from lib.errors import NoValue
from lib.show import draw, style
from lib.show.numbers import digits

ANSWERS_SHOWN = 3.5  # median answers that fit into a timeline: with more its tokens run into a block
LANES_SHOWN = 16


def lanes(requests: pd.DataFrame) -> NDArray[np.int64]:
    """Give every request (in the order sent) the lowest lane that is free, so that a closed loop of 8 fills 8 lanes."""
    free: list[float] = []
    taken = []
    for sent, end in zip(requests["sent_s"], requests["end_s"], strict=True):
        lane = next((i for i, until in enumerate(free) if until <= sent), len(free))
        free[lane : lane + 1] = [end if np.isfinite(end) else np.inf]
        taken.append(lane)
    return np.array(taken, dtype=np.int64)


def tokens(record: records.Record, run: int, repeat: int, level: str) -> pd.DataFrame:
    """Token events of one taking: index (of its request) and t_s since the taking began.

    Raises
    ------
    NoValue : the record has no such taking.
    """
    for taking in of_record(record):
        if taking.key == (run, repeat, level):
            c = taking.columns
            return pd.DataFrame(
                {
                    "index": np.repeat(c["index"].astype(int), np.diff(c["event_offsets"])),
                    "t_s": (c["event_ns"] - float(taking.entry["issue_start_ns"])) / metrics.NS,
                }
            )
    raise NoValue(f"{record.path.name} holds no taking of level {level!r} in run {run}, repeat {repeat}.")


def timeline(requests: pd.DataFrame, events: pd.DataFrame, engine: str, precision: str, ax: Axes | None = None) -> Axes:
    """One lane per client: a thin line while it waits for the first token, then a tick per token event.

    Parameters
    ----------
    requests : index, sent_s, first_s, last_s, end_s, status, in the order sent (`lib.analyse.timeline.timeline`).
    events : index, t_s (`tokens`).
    """
    rows = requests[requests["sent_s"].notna()].reset_index(drop=True)
    rows = rows.assign(lane=lanes(rows)) if len(rows) else rows.assign(lane=[])
    shown_lanes = int(min(LANES_SHOWN, rows["lane"].max() + 1)) if len(rows) else 1
    if ax is None:
        _, ax = style.grid(height=1.7 + 0.2 * shown_lanes)
    whole = (rows["end_s"] - rows["sent_s"]).median()
    # From the middle on: neither the ramp nor the drain is typical.
    begin = float(rows["sent_s"].median()) if len(rows) else 0.0
    end = begin + ANSWERS_SHOWN * (float(whole) if np.isfinite(whole) else 1.0)
    shown = rows[
        ((rows["end_s"] > begin) | rows["end_s"].isna()) & (rows["sent_s"] < end) & (rows["lane"] < LANES_SHOWN)
    ]
    until = shown["first_s"].fillna(shown["end_s"]).fillna(end)
    waits = np.stack(
        [np.column_stack([shown["sent_s"], shown["lane"]]), np.column_stack([until, shown["lane"]])], axis=1
    )
    ax.add_collection(LineCollection(list(waits), colors=style.MUTED, linewidths=1.0))
    ticks = events.merge(shown[["index", "lane"]], on="index")
    ticks = ticks[ticks["t_s"].between(begin, end)]
    ax.plot(
        ticks["t_s"],
        ticks["lane"],
        linestyle="none",
        marker="|",
        markersize=8,
        markeredgewidth=0.8,
        color=style.engine(engine).colour,
    )
    bad = shown[(shown["status"] != "complete") & shown["end_s"].notna()]
    ax.plot(bad["end_s"], bad["lane"], linestyle="none", marker="x", color=style.SLA, markersize=7, markeredgewidth=1.6)
    ax.set_xlim(begin, end)
    ax.set_ylim(shown_lanes - 0.4, -0.6)
    ax.set_xlabel("seconds since the level began")
    ax.set_ylabel("client")
    ax.set_yticks(range(0, shown_lanes, max(1, shown_lanes // 8)))
    ax.yaxis.set_major_formatter(lambda value, _: f"{value + 1:.0f}")
    ax.grid(False)
    return style.finding(
        ax,
        _timeline_finding(rows, engine, precision),
        f"Grey lines are waiting for the first token, each coloured tick is a token event; {len(shown)} requests in "
        f"{digits(end - begin)} s, {len(bad)} of them not complete (red crosses).",
    )


def load_over_time(
    frame: pd.DataFrame, agreement: Agreement | None, engine: str, precision: str, axes: Any = None
) -> Any:
    """Draw requests by the stamps against the engine's gauge (top), KV-cache use (bottom). Axes: 2 x 1.

    Parameters
    ----------
    frame, agreement : of `lib.analyse.timeline.batch_over_time`.
    """
    if axes is None:
        _, axes = style.grid(2, 1, height=4.4, sharex=True, height_ratios=(1.7, 1))
    top, colour = axes[0], style.engine(engine).colour
    top.set_title("Requests in the engine")
    top.fill_between(
        frame["t_s"],
        frame["batch"],
        frame["in_flight"],
        step="post",
        color=colour,
        alpha=0.25,
        linewidth=0,
        label="waiting for the first token, by the stamps",
    )
    top.step(
        frame["t_s"], frame["batch"], where="post", color=colour, linewidth=1.0, label="receiving tokens, by the stamps"
    )
    sampled = frame[frame["running"].notna()]
    sampled = sampled[
        sampled["t_s"].floordiv(1.0).diff() != 0
    ]  # the frame repeats the last sample; once a second is enough
    if len(sampled):
        top.plot(
            sampled["t_s"],
            sampled["running"],
            linestyle="none",
            marker=style.marker(precision),
            markersize=4,
            markerfacecolor=style.PANEL,
            markeredgecolor=style.INK,
            label="running, by the engine's own gauge",
        )
    top.set_ylim(0, 1.08 * max(1.0, float(np.nanmax(frame[["in_flight", "running"]].to_numpy(dtype=float)))))
    style.figure_of(top).legend(*top.get_legend_handles_labels(), loc="outside lower left", ncols=2)
    axes[1].set_title("KV cache in use (% of its blocks)")
    axes[1].set_xlabel("seconds since the level began")
    usage = 100 * frame["kv_cache_usage"]
    if usage.isna().all():
        draw.nothing(axes[1], "This engine does not say how much of its KV cache is in use.")
        peak = "not reported"
    else:
        axes[1].step(frame["t_s"], usage, where="post", color=colour)
        axes[1].set_ylim(0, max(1.0, 1.15 * float(usage.max())))
        peak = f"at most {digits(round(float(usage.max()), 6))} %"
    style.finding(
        top,
        f"{style.contender(engine, precision)}: {_agreement(agreement)}",
        "The shaded band lies between the requests that receive tokens and all those in flight, by the client's "
        "stamps; "
        f"open "
        f"markers are the engine's own count. KV cache in use: {peak}.",
    )
    return axes


def _agreement(agreement: Agreement | None) -> str:
    if agreement is None:
        return "the engine reports no count of its own to check the stamps against"
    share = f"{digits(round(100 * (1 - agreement.outside_share), 6))} % of {agreement.samples} samples"
    if agreement.outside_share <= 0.05:
        return f"the engine's own count is within one request of the stamps in {share}"
    return f"the engine's own count is within one request of the stamps in only {share}"


def _timeline_finding(rows: pd.DataFrame, engine: str, precision: str) -> str:
    complete = rows[(rows["status"] == "complete") & (rows["phase"] == "measured") & (rows["output_tokens"] > 1)]
    name = f"{style.contender(engine, precision)}, {int(rows['lane'].max()) + 1 if len(rows) else 0} at once"
    if complete.empty:
        return f"{name}: no complete request with two tokens"
    first = (complete["first_s"] - complete["sent_s"]).median() * 1e3
    each = ((complete["last_s"] - complete["first_s"]) / (complete["output_tokens"] - 1)).median() * 1e3
    return f"{name}: {digits(first)} ms to the first token, then one every {digits(each)} ms (medians)"
