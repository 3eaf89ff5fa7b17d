"""The explorer in JupyterLab: the article's question with the same controls, and the raw records one click deeper.

Each function returns a widget that a notebook cell shows. Rules: it only reads and never saves; whatever a control
asks for and the records do not have is said in words in the widget's own place, never as a stack trace; nothing is
selected is a sentence too. All text from records is escaped.
"""

import functools
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import pandas as pd
from markupsafe import Markup, escape

from lib.analyse import asked, timeline, whatif
from lib.analyse.changes import Change, changes
from lib.analyse.floor import COMPARED
from lib.analyse.levels import SPECS
from lib.errors import NoValue, StudyError
from lib.metrics import METRICS
from lib.show import explorer, numbers, plots_explore, plots_time, style
from lib.show.figures import Study

Widget = Any  # ipywidgets has no types
WIDE = {"description_width": "13rem"}
ROWS = 12  # of a table of requests


def in_words(make: Callable[[Study], Widget]) -> Callable[[Study], Widget]:
    """Let a widget that cannot be made say why."""

    @functools.wraps(make)
    def guarded(study: Study) -> Widget:
        try:
            return make(study)
        except StudyError as refusal:
            return widgets.VBox([widgets.VBox([_text(str(refusal))])])

    return guarded


@in_words
def question(study: Study) -> Widget:
    """Ask the study's question under any promise and price: the same controls and answers as the article's explorer."""
    block = explorer.described(asked.block(study.facts))
    if not block["works"]:
        return _text("No level of this study can be asked about.")
    works = {f"{w['machine']}: {w['title']} ({w['mark']})": w for w in block["works"]}
    first = next(iter(works.values()))
    of: dict[str, Widget] = {
        "work": widgets.Dropdown(options=list(works), description="Machine and work", style=WIDE),
        "ttft_ms": _slider("First token within, ms", first, "ttft_ms"),
        "tpot_ms": _slider("Then a token every, ms", first, "tpot_ms"),
        "sessions": widgets.BoundedIntText(
            first["stated"]["sessions"], min=1, max=10**6, description="At once", style=WIDE
        ),
        "usd_per_hour": widgets.BoundedFloatText(
            first["stated"]["usd_per_hour"] or 0.0,
            min=0.0,
            max=1e4,
            step=0.01,
            description="USD per hour (0: none)",
            style=WIDE,
        ),
        "floor": widgets.BoundedFloatText(
            0.0, min=0.0, max=100.0, step=0.5, description="Same next token, % (0: any)", style=WIDE
        ),
        "engines": widgets.SelectMultiple(description="Engines", style=WIDE),
        "precisions": widgets.SelectMultiple(description="Precisions", style=WIDE),
        "medians": widgets.Checkbox(False, description="judge by medians, not the promise", style=WIDE),
    }

    def restate(*_: object) -> None:
        """Set every control to the promise as stated for the work."""
        work = works[of["work"].value]
        for name in ("ttft_ms", "tpot_ms", "sessions"):
            of[name].value = work["stated"][name]
        of["usd_per_hour"].value = work["stated"]["usd_per_hour"] or 0.0
        of["usd_per_hour"].description = f"USD per {work['unit']}-hour (0: none)"
        of["floor"].value, of["floor"].disabled = 0.0, not work["scored"]
        for name, key in (("engines", "engine"), ("precisions", "precision")):
            of[name].options = list(dict.fromkeys(c[key] for c in work["contenders"]))
            of[name].value = of[name].options
        of["medians"].value = False

    def show(**now: Any) -> Sequence[Widget]:
        work = works[now["work"]]
        asked_now = whatif.Question(
            work["key"],
            float(f"{now['ttft_ms']:.4g}"),
            float(f"{now['tpot_ms']:.4g}"),
            now["sessions"],
            now["usd_per_hour"] or None,
            frozenset(now["engines"]),
            frozenset(now["precisions"]),
            "p50" if now["medians"] else "p95",
            now["floor"] or None,
        )
        answer = whatif.answer(block, asked_now)
        said = Markup("").join(
            Markup("{}{}").format(text, numbers.mark(mark) if mark else "")
            for text, mark in explorer.said(answer, asked_now, work)
        )
        head = (
            "contender",
            "at once on one node",
            "kept on one node?",
            "nodes needed",
            "output, tok/s",
            "USD per million",
            "same next token as at 16 bit, %",
        )
        body = [explorer.cells(row, work) for row in answer.rows]
        pictures = [_picture(plots_explore.levels(block, asked_now))] if body else []
        told = [_text(text) for text in (study.outdated, work["about_floor"]) if text]
        return [*told, widgets.HTML(Markup("<p><b>{}</b></p>").format(said)), _table(head, body), *pictures]

    restate()
    of["work"].observe(restate, "value")
    return live(of, show)


@in_words
def requests(study: Study) -> Widget:
    """Look at single requests of one taking: the timeline, the batch beside the engine's own count, and the rows."""
    of = {
        "launch": _launches(study),
        "level": widgets.Dropdown(description="Level"),
        "taking": widgets.Dropdown(description="Taking"),
    }

    def takings(*_: object) -> None:
        if of["launch"].value is None:
            return
        entries = study.record(of["launch"].value).meta["takings"]
        levels = list(dict.fromkeys(t["level"] for t in entries))
        if list(of["level"].options) != levels:
            of["level"].options = levels
            of["level"].value = levels[0]
        keys = sorted((int(t["run"]), int(t["repeat"])) for t in entries if t["level"] == of["level"].value)
        of["taking"].options = [(f"run {run}, repeat {repeat}", (run, repeat)) for run, repeat in keys]
        of["taking"].value = keys[0] if keys else None

    def show(launch: str | None, level: str | None, taking: tuple[int, int] | None) -> Sequence[Widget]:
        if launch is None or level is None or taking is None:
            raise NoValue("Nothing is selected: choose a launch, a level and a taking.")
        record, who = study.record(launch), study.names[launch]
        rows = timeline.timeline(record, *taking, level)
        drawn = plots_time.timeline(rows, plots_time.tokens(record, *taking, level), *who)
        held = plots_time.load_over_time(*timeline.batch_over_time(record, *taking, level), *who)
        told = Markup("<p>{} requests; the first {}, in seconds since the taking began:</p>").format(len(rows), ROWS)
        return [_picture(drawn), _picture(held), widgets.HTML(told), widgets.HTML(rows.head(ROWS).to_html(index=False))]

    takings()
    for name in ("launch", "level"):
        of[name].observe(takings, "value")
    return live(of, show)


@in_words
def distributions(study: Study) -> Widget:
    """Compare the whole distribution of a metric over requests, between any launches at one level."""
    levels = list(dict.fromkeys(level for of in study.facts["launches"].values() for level in of["levels"]))
    of = {
        "launches": widgets.SelectMultiple(
            options=list(study.names), value=list(study.names)[:2], description="Launches"
        ),
        "level": widgets.Dropdown(options=levels, description="Level"),
        "metric": widgets.Dropdown(options=[(m.label, name) for name, m in METRICS.items()], description="Metric"),
    }

    def show(launches: tuple[str, ...], level: str | None, metric: str) -> Sequence[Widget]:
        if not launches or level is None:
            raise NoValue("Nothing is selected: choose at least one launch and a level.")
        rows = pd.concat([timeline.requests(study.record(name)) for name in launches], ignore_index=True)
        kept = rows[(rows["level"] == level) & (rows["phase"] == "measured") & (rows["status"] == "complete")]
        return [_picture(plots_explore.distribution(kept, metric, study.names))]

    return live(of, show)


@in_words
def pair(study: Study) -> Widget:
    """Hold any two launches against each other: ratios with intervals, corrected for their number, and the floor."""
    names = list(study.names)
    takings = pd.read_csv(study.tables / "takings.csv")
    of = {
        "a": widgets.Dropdown(options=names, value=names[0] if names else None, description="A"),
        "b": widgets.Dropdown(options=names, value=names[-1] if names else None, description="B"),
    }
    noise = study.facts["noise_floor"]
    known = {m: noise[m]["value"] / 100 if noise[m]["value"] is not None else None for m in COMPARED}

    def show(a: str | None, b: str | None) -> Sequence[Widget]:
        if a is None or b is None or a == b:
            raise NoValue("Nothing to compare: choose two different launches.")
        found = changes(takings, takings, [(a, b)], known)
        if not found:
            raise NoValue(f"{a} and {b} have no level in common with two takings each.")
        told = (
            f"{b} over {a}, {len(found)} comparisons, corrected for that number alone. "
            f"Noise floor: {'; '.join(f'{SPECS[m].label} {numbers.plain(noise[m])}' for m in COMPARED)}."
        )
        return [_text(told), _changes(found)]

    return live(of, show)


def live(of: Mapping[str, Widget], show: Callable[..., Sequence[Widget]]) -> Widget:
    """Put controls above what they show, shown anew whenever one changes; a refusal is shown as its paragraph."""
    shown = widgets.VBox([])

    def refresh(*_: object) -> None:
        try:
            shown.children = tuple(show(**{name: control.value for name, control in of.items()}))
        except StudyError as refusal:
            shown.children = (_text(str(refusal)),)

    for control in of.values():
        control.observe(refresh, "value")
    refresh()
    return widgets.VBox([*of.values(), shown])


def _launches(study: Study) -> Widget:
    return widgets.Dropdown(options=list(study.names), description="Launch")


def _slider(label: str, work: Mapping[str, Any], name: str) -> Widget:
    value = work["stated"][name]
    return widgets.FloatLogSlider(
        value,
        base=10,
        min=-1,
        max=6,
        step=0.01,
        description=label,
        readout_format=".4g",
        continuous_update=False,
        style=WIDE,
    )


def _text(text: str) -> Widget:
    return widgets.HTML(Markup("<p>{}</p>").format(text))


def _picture(drawn: Any) -> Widget:
    """Turn a figure into an image widget and forget it."""
    figure, file = style.figure_of(drawn), io.BytesIO()
    figure.savefig(file, format="png", dpi=110)
    plt.close(figure)
    return widgets.Image(value=file.getvalue(), format="png", layout=widgets.Layout(max_width="56rem"))


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> Widget:
    titles = Markup("").join(Markup("<th>{}</th>").format(title) for title in head)
    lines = Markup("").join(Markup("<tr>{}</tr>").format(Markup("").join(map(escape, row))) for row in rows)
    return widgets.HTML(Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(titles, lines))


def _changes(found: Sequence[Change]) -> Widget:
    head = ("level", "metric", "A", "B", "B / A", "95 % interval", "p, corrected", "what may explain it")
    rows = []
    for c in found:
        spec, why = SPECS[c.metric], {"chance": "chance", "floor": "the noise floor"}
        texts = [c.level, f"{spec.label}, {spec.unit}", *(numbers.digits(v * spec.scale) for v in (c.before, c.after))]
        texts += [
            numbers.digits(c.ratio),
            f"{numbers.digits(c.low)} to {numbers.digits(c.high)}",
            numbers.digits(c.p_holm),
        ]
        rows.append([Markup("<td>{}</td>").format(t) for t in [*texts, why.get(c.why or "", "neither")]])
    return _table(head, rows)
