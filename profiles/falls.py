"""Costs that fall: where more rows were measured to take less time, which a table's curves cannot show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

FALLS, NONE = "fit_falls", "none"  # in a table's provenance
NOTABLE = 0.10  # a fall by less than this is noise


class Cell(Protocol):
    """A measured shape."""

    @property
    def requests(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    @property
    def spread(self) -> float: ...


def falls(cells: Sequence[Cell]) -> tuple[str, ...]:
    """In words, each verify cell that took notably less time than one with fewer rows, all else the same."""
    found = []
    for place in sorted({(c.requests, c.context) for c in cells}):
        slowest: Cell | None = None
        for cell in sorted((c for c in cells if (c.requests, c.context) == place), key=lambda c: c.rows):
            if slowest is not None:
                least = 1 - max(NOTABLE, 3 * (cell.spread + slowest.spread))
                if cell.seconds < least * slowest.seconds:
                    change = cell.seconds / slowest.seconds - 1
                    found.append(f"R = {place[0]}, {slowest.rows} to {cell.rows} rows {change:+.0%}")
            if slowest is None or cell.seconds > slowest.seconds:
                slowest = cell
    return tuple(found)
