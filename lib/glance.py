"""A small table for notebooks and terminals, without pandas: the measuring half shows what it did with this."""

from collections.abc import Sequence
from html import escape


class Table:
    """Rows of text under headings; shown as HTML in a notebook and as aligned text elsewhere."""

    def __init__(self, headings: Sequence[str], rows: Sequence[Sequence[object]], note: str = ""):
        self.headings = list(headings)
        self.rows = [["-" if cell is None else str(cell) for cell in row] for row in rows]
        self.note = note

    def _repr_html_(self) -> str:
        head = "".join(f"<th style='text-align:left'>{escape(h)}</th>" for h in self.headings)
        body = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{escape(c)}</td>" for c in row) + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(self.note)}</p>"

    def __repr__(self) -> str:
        columns = zip(*[self.headings, *self.rows], strict=True)
        widths = [max(len(cell) for cell in column) for column in columns]
        lines = [
            "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
            for row in [self.headings, *self.rows]
        ]
        return "\n".join([*lines, *([self.note] if self.note else [])])
