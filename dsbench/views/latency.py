"""Latencies and goodput of a run's cells as a table. Columns and percentiles are those of `results.columns`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dsbench.analysis.slo import goodput_of, slo_of
from dsbench.results.cells import StoredCell
from dsbench.results.columns import shown_in, value_of
from dsbench.results.labels import all_cells, arm_names, arm_rank, loud_label, setting_text, workload_text
from dsbench.results.store import RunStore
from dsbench.views.numbers import NONE, number, percent
from dsbench.views.tables import Table, Value, on_terminal

if TYPE_CHECKING:
    from rich.table import Table as RichTable

TITLE = "Latencies in ms: p50 / p95 / p99"
COUNTED = (
    "Latencies count from when a request came by the schedule; without arrivals, from when it took its slot. {itl} "
    f"{NONE}: too few for that percentile (20 for p95, 100 for p99)."
)


def latency_table(store: RunStore) -> Table:
    """Percentiles in ms a cell, and goodput where the run has an SLO. Raises UsageError for a run without a cell."""
    cells, slo = all_cells(store), slo_of(store.read_run())
    names = arm_names(cells)
    heads = tuple(dict.fromkeys(column.title for column in shown_in("latency")))
    rows: list[tuple[Value, ...]] = []
    for stored in sorted(cells, key=lambda c: (*_place(c), arm_rank(names[c.folder]))):
        cell = stored.cell
        rows.append(
            (
                workload_text(cell.workload),
                f"{'<=' if cell.arrivals else ''}{cell.batch}",
                f"{number(cell.rate)}/s" if cell.arrivals else NONE,
                names[stored.folder] + (" !" if stored.flags else ""),
                *(_points(stored.summary, head) for head in heads),
                *([_good(goodput_of(stored, slo))] if slo else []),
            )
        )
    return Table(
        name="latency",
        caption=TITLE,
        heads=("workload", "R", "arrivals", "arm", *heads, *(["goodput tok/s"] if slo else [])),
        rows=tuple(rows),
        place=3,
    )


def latency_on_terminal(store: RunStore) -> RichTable:
    """The table with its notes."""
    cells, run = all_cells(store), store.read_run()
    slo = slo_of(run)
    opened = [stored for stored in cells if stored.cell.arrivals]
    settings = dict.fromkeys(setting_text(replace(stored.cell, rate=0.0)) for stored in opened)
    notes = [
        COUNTED.format(itl=_itl_note(cells)),
        f"Goodput: share of requests with {slo}, and tokens/s of those alone." if slo else "",
        f"Open loop: {'; '.join(settings)}." if settings else "",
        flag_example([stored.flags for stored in opened]),
    ]
    return on_terminal(latency_table(store), notes=notes, loud=loud_label(run))


def flag_example(flags_by_cell: Sequence[Sequence[str]]) -> str:
    """What `!` stands for, with one flag; "" where no cell is flagged."""
    flags = sorted({flag for flags in flags_by_cell for flag in flags})
    return f"! flagged, e.g. {flags[0]}" if flags else ""


def _itl_note(cells: Sequence[StoredCell]) -> str:
    if all(stored.summary.get("itl_p50") is None for stored in cells):
        return "ITL: this run kept no times of tokens."
    return "ITL: a value a token, tokens of one round come together."


def _place(stored: StoredCell) -> tuple[Any, ...]:
    cell = stored.cell
    return (cell.workload, cell.arrivals, cell.batch, cell.rate)


def _points(body: Mapping[str, Any], head: str) -> str:
    """The percentiles of one quantity in ms."""
    rates = [value_of(column, body) for column in shown_in("latency") if column.title == head]
    return " / ".join(NONE if rate is None else number(1e3 * rate["value"]) for rate in rates)


def _good(found: Mapping[str, Any]) -> str:
    share, rate = found["goodput"], found["goodput_tokens"]
    return percent(share["value"]) + ("" if rate is None else f"\n{number(rate['value'])}")
