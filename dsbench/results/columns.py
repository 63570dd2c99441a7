"""Every number of a cell, declared once: what is read, checked, shown, written and explained is in `COLUMNS`.

A new number that the records already hold is declared in one of the `columns_*` files and computed in `metrics`. The
schema check of cell.json, summary.csv, the tables, `explain` and docs/metrics.md follow from that. No torch, no tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsbench.results.column import Column, Place, Source
from dsbench.results.columns_cell import COMPARED, PARAMETERS, RUN
from dsbench.results.columns_latency import LATENCY
from dsbench.results.columns_rounds import ROUNDS
from dsbench.results.columns_speed import SPEED
from dsbench.results.columns_steps import STEPS
from dsbench.results.columns_terms import TERMS

TOPICS: dict[str, tuple[Column, ...]] = {
    "What ran": PARAMETERS,
    "Speed": SPEED,
    "Latency and goodput": LATENCY,
    "Rounds and acceptance": ROUNDS,
    "Steps": STEPS,
    "The run": RUN,
    "Comparisons": COMPARED,
    "Words": TERMS,
}
COLUMNS: tuple[Column, ...] = tuple(column for topic in TOPICS.values() for column in topic)
BY_NAME: dict[str, Column] = {column.name: column for column in COLUMNS}


def from_source(source: Source) -> tuple[Column, ...]:
    """The columns that a source holds, in their order."""
    return tuple(column for column in COLUMNS if column.source == source)


def shown_in(place: Place) -> tuple[Column, ...]:
    """The columns of a table, in their order."""
    return tuple(column for column in COLUMNS if place in column.shown)


def value_of(column: Column, body: Mapping[str, Any]) -> Any:
    """What a summary (or a workload's part of it) holds under the column; None where it holds nothing."""
    found: Any = body
    for key in column.keys:
        found = None if found is None else found.get(key)
    return found
