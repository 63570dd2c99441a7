"""One `Table` a topic, written three ways: on a terminal, in a report, as CSV. Computes nothing."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dsbench.analysis.versus import Versus
from dsbench.errors import UsageError
from dsbench.ranges import parse_range, split_workloads
from dsbench.results.cells import StoredCell
from dsbench.results.labels import conditions, loud_label
from dsbench.results.store import RunStore
from dsbench.stats.intervals import Interval
from dsbench.views.numbers import NONE, ends, number, with_ends

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as RichTable

Value = str | int | float | Interval | Versus | None
WIDTH = 118  # columns where stdout is no terminal
WIDE_HEAD = 10  # letters of a head on a terminal before it breaks
SUFFIXES: dict[type, tuple[str, ...]] = {
    Interval: ("", "_low", "_high"),
    Versus: ("", "_low", "_high", "_word", "_over"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A row holds a value a head. `name`: of its CSV file; `short`: also in the Markdown report.

    The first `place` columns say where a row stands: on a terminal they are written once, and a line ends the rows of
    each. Heads in `signed` have a sign before their numbers. `half`: intervals as half their width on a terminal.
    """

    name: str
    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[Value, ...], ...]
    short: bool = False
    place: int = 0
    signed: frozenset[str] = frozenset()
    half: bool = False

    def text(self, value: Value, column: int) -> str:
        """A value on one line."""
        return shown(value, sign=self.heads[column] in self.signed)

    def lines(self, value: Value, column: int) -> str:
        """A value on lines of a terminal's cell."""
        sign = self.heads[column] in self.signed
        if isinstance(value, Versus):
            below = [ends(value.ratio, between="..", none="no interval"), value.base]
            return "\n".join([f"{number(value.ratio.value)} {value.word}", *(part for part in below if part)])
        if not isinstance(value, Interval) or value.low is None or value.high is None:
            return shown(value, sign=sign)
        wide = f"±{number((value.high - value.low) / 2)}" if self.half else ends(value, between="..")
        return f"{number(value.value, sign=sign)}\n{wide}"


def shown(value: Value, *, sign: bool = False) -> str:
    """About three significant figures; an interval in brackets behind its value; a dash where there is none."""
    if value is None or isinstance(value, str):
        return NONE if value is None else value
    if isinstance(value, Versus):
        return f"{with_ends(value.ratio)} {value.word}" + (f", {value.base}" if value.base else "")
    if isinstance(value, Interval):
        inside = ends(value)
        return number(value.value, sign=sign) + (f" [{inside}]" if inside else "")
    return number(value, sign=sign)


def is_number(value: Value) -> bool:
    return value is not None and not isinstance(value, str)


def is_numeric(table: Table, column: int) -> bool:
    return any(is_number(row[column]) for row in table.rows)


def as_csv(table: Table) -> str:
    """Full precision; a column of intervals becomes three: the value, _low and _high; of comparisons five."""
    wide = [
        max((SUFFIXES.get(type(row[i]), ("",)) for row in table.rows), key=len, default=("",))
        for i in range(len(table.heads))
    ]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([head + end for head, suffixes in zip(table.heads, wide, strict=True) for end in suffixes])
    for row in table.rows:
        writer.writerow([part for value, s in zip(row, wide, strict=True) for part in _parts(value, len(s))])
    return out.getvalue()


def _parts(value: Value, count: int) -> list[Any]:
    """A value's fields in a CSV file, `count` of them."""
    ratio = value.ratio if isinstance(value, Versus) else value
    parts: list[Any] = [ratio.value, ratio.low, ratio.high] if isinstance(ratio, Interval) else [ratio]
    parts += [value.word, value.base] if isinstance(value, Versus) else []
    return parts + [None] * (count - len(parts))


def console() -> Console:
    """Of stdout: as wide as the terminal, or WIDTH columns where there is none."""
    from rich.console import Console

    found = Console()
    return found if found.is_terminal else Console(width=WIDTH)


def on_terminal(table: Table, title: str = "", notes: Sequence[str] = (), *, loud: str = "") -> RichTable:
    """For a terminal, with the loud label and notes below. Names that come from a run are no markup."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table as RichTable

    drawn = RichTable(title=escape(title or table.caption), caption_justify="left", box=box.HORIZONTALS, padding=0)
    warning = [f"[bold red]{escape(loud)}[/bold red]"] if loud else []
    drawn.caption = "\n".join([*warning, *(escape(note) for note in notes if note)])
    for i, head in enumerate(table.heads):
        side, wide = ("right" if is_numeric(table, i) else "left"), head == "workload"
        drawn.add_column(
            textwrap.fill(head, WIDE_HEAD, break_long_words=False),
            justify=side,  # type: ignore[arg-type]
            overflow="fold",
            vertical="top",
            min_width=8 if wide else None,
            max_width=14 if wide else None,
        )
    for i, row in enumerate(table.rows):
        before = table.rows[i - 1][: table.place] if i else ()
        after = table.rows[i + 1][: table.place] if i + 1 < len(table.rows) else None
        again = bool(table.place) and before == row[: table.place]
        cells = [
            "" if again and column < table.place else escape(table.lines(value, column))
            for column, value in enumerate(row)
        ]
        drawn.add_row(*cells, end_section=bool(table.place) and after != row[: table.place])
    return drawn


def run_title(title: str, store: RunStore) -> str:
    """A table's title under the run's name and conditions."""
    return f"{title}, {store.folder.name}: {conditions(store.read_run())}".rstrip(": ")


def print_of_run(table: Table, store: RunStore, title: str, notes: Sequence[str]) -> None:
    """Prints the table on stdout under the run's conditions and loud label."""
    loud = loud_label(store.read_run())
    console().print(on_terminal(table, run_title(title, store), notes, loud=loud))


def setting_note(settings: Sequence[str]) -> str:
    """Acceptance rule, sampling and text of a table's rows."""
    names = list(dict.fromkeys(settings))
    return ("Setting: " if len(names) == 1 else "Settings, in this order: ") + "; or ".join(names) + "."


def chosen(cells: Sequence[StoredCell], workload: str, batch: str) -> list[StoredCell]:
    """Cells of the workloads and batch sizes named; all where nothing is. Raises UsageError where none is left."""
    kept = list(cells)
    if workload:
        wanted = split_workloads(workload)
        known = sorted({c.cell.workload for c in cells})
        for name in wanted:
            if name not in known:
                raise UsageError(f"no data: workload {name!r} is not in this run", hint=f"it has {', '.join(known)}")
        kept = [c for c in kept if c.cell.workload in wanted]
    if batch:
        sizes = parse_range(batch, what="batch")
        kept = [c for c in kept if c.cell.batch in sizes]
    if not kept:
        had = sorted({c.cell.batch for c in cells})
        raise UsageError(f"no data at batch {batch}", hint=f"this run has {', '.join(map(str, had))}")
    return kept
