"""The data beside a figure: a CSV table of the study as a folded HTML table, its columns in words.

Rules: a percentile that its sample does not support reads "unsupported" here too; the caption carries the mark of all
numbers. Refused: a table or a column that is not there.
"""

import csv
from collections.abc import Mapping
from pathlib import Path

from markupsafe import Markup

from lib.analyse.facts import unsupported
from lib.errors import NoValue, RecordError
from lib.show import numbers

HEADINGS = {
    "output_tok_s": "output, tok/s",
    "capacity": "capacity, requests",
    "capacity_next": "next level taken",
    "capacity_next_answer": "does that one keep the promise?",
    "meets_sla": "keeps the promise?",
    "kl": "KL from the reference, nats per token",
    "perplexity_ratio": "perplexity over the reference's",
    "agreement": "same next token, share",
    "weights": "weights, MB",
    "note": "what biases it",
    "n": "requests",
    "in_flight_mean": "in flight, mean",
    "decoding_mean": "receiving tokens at once, mean",
    "joined_share": "began amid others' answers, share",
    "kv_cache_usage_max": "KV cache in use, at most, share",
}


def folded(path: Path, columns: tuple[str, ...], kind: str) -> Markup:
    """Read a table and fold it away.

    Parameters
    ----------
    path : the CSV file.
    columns : those shown, in this order; all where empty.
    kind : the mark of its numbers.

    Raises
    ------
    RecordError : no such table.
    NoValue : no such column.
    """
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError as error:
        raise RecordError(
            f"The article shows table {path.name}, but {path} does not exist. Run `make report`."
        ) from error
    kept = columns or tuple(rows[0] if rows else ())
    absent = [column for column in kept if rows and column not in rows[0]]
    if absent:
        raise NoValue(
            f"The article shows column {', '.join(absent)} of {path.name}, which has: {', '.join(rows[0])}."
        )
    head = Markup("").join(Markup('<th scope="col">{}</th>').format(heading(column)) for column in kept)
    body = Markup("").join(
        Markup("<tr>{}</tr>").format(Markup("").join(_datum(row, column) for column in kept)) for row in rows
    )
    return Markup(
        '<details><summary>Data: {}</summary><div class="wide" tabindex="0" role="group" aria-label="Table {}">'
        "<table><caption>Every number here is {}{}.</caption><thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>"
        "</details>"
    ).format(path.name, path.name, kind, numbers.mark(kind), head, body)


def metric(column: str) -> str:
    """Put a metric's column in words without its unit: ttft_p50_s -> TTFT median."""
    return heading(column).rpartition(",")[0] or heading(column)


def heading(column: str) -> str:
    """Put a table's column in words.

    >>> heading("ttft_p50_s"), heading("tpot_p95_s_low"), heading("meets_sla"), heading("ttft_p95")
    ('TTFT median, s', 'lower limit', 'keeps the promise?', 'TTFT p95, ms')
    """
    if column.endswith(("_low", "_high")):
        return "lower limit" if column.endswith("_low") else "upper limit"
    if column in HEADINGS:
        return HEADINGS[column]
    name, _, statistic = column.removesuffix("_s").partition("_p")
    if not statistic:
        return column.replace("_", " ")
    unit = "s" if column.endswith("_s") else "ms"
    return f"{name.upper().replace('_', ' ')} {'median' if statistic == '50' else f'p{statistic}'}, {unit}"


def _datum(row: Mapping[str, str], column: str) -> Markup:
    value = row[column]
    if unsupported(row.get(f"{column}_reason")):
        return Markup('<td class="num unsupported">unsupported</td>')
    try:
        return Markup('<td class="num">{}</td>').format(numbers.digits(float(value)))
    except ValueError:
        return Markup("<td>{}</td>").format(value or "–")
