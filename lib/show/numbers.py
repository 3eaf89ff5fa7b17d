"""The only place where a number becomes text: value, unit, interval and the mark of its kind.

A number is a mapping of facts.json: {"value", "unit", "mark", "low", "high", "n", "reason", "source"}. Rules: no
value without its unit and mark; a percentile that its sample cannot support is called unsupported, with the reason;
a value that does not exist is called missing, with the reason, and is never 0. Refused: a number without a mark, and
a missing one without a reason.

>>> plain({"value": 171.25, "unit": "ms", "mark": "measured", "low": 160.0, "high": 183.0})
'171 ms (160 to 183)'
"""

import math
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from lib.analyse.facts import unsupported
from lib.errors import NoValue
from lib.show import style

Number = Mapping[str, Any]
NOTES_OPEN = 5  # notes beneath a table that stand open; more are folded
WIDE = 10_000  # times its lower end: an interval beyond that tells nothing
DIGITS = 3  # significant digits on the page; tables on disk keep all


def digits(value: float, like: float | None = None) -> str:
    """Write a value in three significant digits with thousands separators; whole numbers stay whole.

    `like` is a value whose decimals are taken, so that an interval is as fine as its middle.

    >>> digits(1424.3), digits(24.633), digits(0.01234), digits(8.0), digits(160.0, like=24.6)
    ('1,424', '24.6', '0.0123', '8', '160.0')
    """
    scale = abs(value if like is None else like)
    if like is None and math.isclose(value, round(value), rel_tol=1e-9, abs_tol=1e-12):
        return f"{value:,.0f}"
    decimals = 0 if scale >= 100 else DIGITS - 1 - math.floor(math.log10(scale)) if scale > 0 else DIGITS - 1
    return f"{value:,.{max(0, decimals)}f}"


def state(number: Number) -> str:
    """Say `supported`, `unsupported` or `missing`.

    Raises
    ------
    NoValue : what is no number of this study: without a kind, or missing without a reason.
    """
    # Plain formatting, not !r: a fact that a template lacks then raises its own error, which names it.
    if not isinstance(number, Mapping) or "value" not in number or number.get("mark") not in style.KINDS:
        raise NoValue(
            f"{number} is no number of this study: it needs a value and a mark, one of {', '.join(style.KINDS)}."
        )
    if number["value"] is None:
        if not number.get("reason"):
            raise NoValue(
                f"A number ({number.get('unit')}, {number['mark']}) is missing and does not say why; give it a reason."
            )
        return "missing"
    return "unsupported" if unsupported(number.get("reason")) else "supported"


def shown(number: Number) -> tuple[float, str]:
    """Value and unit as they stand on the page: shares in per cent, ratios as multiples, one request singular."""
    value, unit = float(number["value"]), str(number.get("unit") or "")
    if unit == "share":
        return 100 * value, "\u00a0%"
    if unit == "ratio":
        return value, "×"
    if unit == "requests" and value == 1:
        unit = "request"
    return value, unit and f"\u00a0{unit}"


def plain(number: Number, *, interval: bool = True) -> str:
    """Write a number as bare text: for figures' titles and texts that stand in for figures."""
    if state(number) == "missing":
        return f"missing ({number['reason']})"
    if state(number) == "unsupported":
        return f"unsupported ({number['reason']})"
    value, unit = shown(number)
    return f"{digits(value)}{unit}".replace("\u00a0", " ") + (
        f" ({limits(number)})" if interval and limits(number) else ""
    )


def limits(number: Number) -> str:
    """Write the 95 % interval as `low to high`, empty where there is none.

    Two takings that differ bound next to nothing; an interval that ends beyond `WIDE` times its beginning says so.

    >>> limits({"value": 2.0, "low": 1.5, "high": 3.0, "unit": "ms"})
    '1.50 to 3'
    >>> limits({"value": 191.0, "low": 0.001, "high": 1e13, "unit": "ms"})
    'hardly bounded'
    """
    low, high = number.get("low"), number.get("high")
    if low is None or high is None or number["value"] is None:
        return ""
    if 0 < low * WIDE < high:
        return "hardly bounded"
    value = shown(number)[0]
    scale = value / number["value"] if number["value"] else 1.0
    like = value if not value.is_integer() or abs(value) >= 100 else None
    return f"{digits(low * scale, like)} to {digits(high * scale, like)}"


def mark(kind: str) -> Markup:
    """Write the mark of a kind, readable aloud."""
    look = style.kind(kind)
    return Markup(
        '<span class="mark {}" title="{}: {}"><span aria-hidden="true">{}</span><span class="aloud"> ({})</span></span>'
    ).format(kind, kind, look.means, look.mark, kind)


def origin(number: Number) -> str:
    """Say what stands behind a number, in one line: kind, interval, sample, source."""
    parts = [str(number["mark"])]
    if limits(number):
        parts.append(f"95 % interval {limits(number)}{shown(number)[1]}")
    if number.get("n"):
        parts.append(f"n = {number['n']:,}")
    parts += [str(number[key]) for key in ("reason", "source") if number.get(key)]
    return "; ".join(parts)


def number(number: Number, *, interval: bool = False) -> Markup:
    """Write a number in prose: value, unit, mark, and on request its interval; an absent one with its reason."""
    if state(number) != "supported":
        return _absent(number)
    value, unit = shown(number)
    within = f" ({limits(number)})" if interval and limits(number) else ""
    return Markup('<span class="n" title="{}">{}{}{}</span>{}').format(
        origin(number), digits(value), unit, within, mark(number["mark"])
    )


def rounded(number: Number) -> Number:
    """Round a number to the digits that the page shows, where thousands would pretend to more.

    >>> rounded({"value": 1992998488.0, "unit": "USD/month", "mark": "assumed"})["value"]
    1990000000.0
    """
    value = number["value"]
    return number if value is None else {**number, "value": float(f"{value:.{DIGITS}g}")}


def _absent(number: Number) -> Markup:
    """Write an unsupported or missing number, with its reason."""
    how = state(number)
    return Markup('<span class="n {}">{} ({})</span>').format(how, how, number["reason"])


def count(number: Number) -> Markup:
    """Write a number whose unit the sentence says: value and mark."""
    if state(number) != "supported":
        return _absent(number)
    return Markup('<span class="n" title="{}">{}</span>{}').format(
        origin(number), digits(shown(number)[0]), mark(number["mark"])
    )


class Notes:
    """Reasons collected from a table's cells, printed once each beneath it."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def letter(self, reason: str) -> str:
        """Give the letter of a reason: a, b, ... z, aa, ab, ..."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        place, letters = self.reasons.index(reason) + 1, ""
        while place:
            place, rest = divmod(place - 1, 26)
            letters = chr(97 + rest) + letters
        return letters

    def __html__(self) -> Markup:
        """Write the notes as a list, folded where it is long, nothing where there are none."""
        if not self.reasons:
            return Markup("")
        rows = Markup("").join(Markup("<li><sup>{}</sup> {}</li>").format(self.letter(r), r) for r in self.reasons)
        if len(self.reasons) <= NOTES_OPEN:
            return Markup('<ul class="notes">{}</ul>').format(rows)
        last = self.letter(self.reasons[-1])
        return Markup('<details class="notes"><summary>Notes a to {}</summary><ul>{}</ul></details>').format(last, rows)


def cell(number: Number, notes: Notes) -> Markup:
    """Write a number in a table: value and mark, its interval beneath; the unit stands in the column's head.

    Unsupported and missing cells say so and leave their reason in `notes`.
    """
    how = state(number)
    if how != "supported":
        # A capacity that no level taken shows is an answer, not a gap.
        word = "none shown" if "next_level" in number else how
        return Markup('<td class="num {}">{}<sup>{}</sup></td>').format(how, word, notes.letter(str(number["reason"])))
    within = Markup('<span class="ci">{}</span>').format(limits(number)) if limits(number) else Markup("")
    noted = Markup("<sup>{}</sup>").format(notes.letter(str(number["reason"]))) if number.get("reason") else Markup("")
    return Markup('<td class="num" title="{}">{}{}{}{}</td>').format(
        origin(number), digits(shown(number)[0]), mark(number["mark"]), noted, within
    )
