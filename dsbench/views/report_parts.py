"""What a report is made of: sections of sentences, pictures and tables, and the same values as text and as CSV."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

from dsbench.stats.intervals import Interval

Value = str | int | float | Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An SVG, whole, and what it says for those who do not see it."""

    name: str
    svg: str
    alt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`name`: of its CSV file. A row holds a value a head. `short`: also in the Markdown report."""

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    short: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """`id`: its anchor in the page. A section without a picture or table says in `text` why there is none."""

    id: str
    title: str
    text: tuple[str, ...] = ()
    pictures: tuple[Picture, ...] = ()
    tables: tuple[Table, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A run in words, pictures and tables. `loud`: what a reader must not overlook, repeated everywhere."""

    title: str
    where: str  # hardware, target and precision in a line
    loud: str
    headline: tuple[str, ...]
    conditions: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...]


def shown(value: Value) -> str:
    """About three significant figures; an interval in brackets behind its value; a dash where there is none."""
    if isinstance(value, Interval):
        if value.low is None or value.high is None:
            return shown(value.value)
        return f"{shown(value.value)} [{shown(value.low)}, {shown(value.high)}]"
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    return number(value)


def number(value: float) -> str:
    if not math.isfinite(value):
        return "–"
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    text = f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3}f}"
    return text.lstrip("-") if float(text) == 0 else text


def is_number(value: Value) -> bool:
    return value is not None and not isinstance(value, str)


def is_numeric(table: Table, column: int) -> bool:
    return any(is_number(row[column]) for row in table.rows)


def as_csv(table: Table) -> str:
    """Full precision; a column of intervals becomes three: the value, _low and _high."""
    wide = [any(isinstance(row[i], Interval) for row in table.rows) for i in range(len(table.heads))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for head, spread in zip(table.heads, wide, strict=True) for name in _columns(head, spread)])
    for row in table.rows:
        writer.writerow([cell for value, spread in zip(row, wide, strict=True) for cell in _cells(value, spread)])
    return out.getvalue()


def _columns(head: str, spread: bool) -> list[str]:
    return [head, f"{head}_low", f"{head}_high"] if spread else [head]


def _cells(value: Value, spread: bool) -> list[Value]:
    if isinstance(value, Interval):
        return [value.value, value.low, value.high]
    return [value, None, None] if spread else [value]


def interval_of(rate: dict[str, float | int | None] | None) -> Interval | None:
    """A rate of a cell's summary, {value, low, high, n}, as an Interval."""
    if rate is None or rate["value"] is None:
        return None
    n = rate.get("n")
    return Interval(float(rate["value"]), rate["low"], rate["high"], 0 if n is None else int(n))
