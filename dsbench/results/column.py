"""What is declared of a number: `Column`. `columns` holds them all. Imports nothing that is slow to load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["rate", "quantile", "ratio", "number", "count", "text", "counts", "depths", "parts", "term"]
Source = Literal["summary", "parameter", "run", "slo", "compared", ""]
Place = Literal["show", "latency", "frontier", "reading"]
WITH_INTERVAL = ("rate", "quantile", "ratio")
SCALAR = ("number", "count", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A number of a cell, or (`kind` term) a word that the tables use and that needs a definition.

    `formula` as dsbench computes it; `others`: which tools define it how, "" where nobody else has it. `kind`: rate, a
    ratio of sums with its interval; quantile, likewise with an interval; ratio, against another arm, with a verdict;
    number, count or text; counts, depths, parts: lists and objects of cell.json. `always`: never null or absent.
    """

    name: str  # of the column of summary.csv
    unit: str
    kind: Kind
    formula: str
    others: str = ""
    also: tuple[str, ...] = ()  # other names
    source: Source = "summary"  # where it is: a cell's summary or parameters, run.json, or made when tables are
    path: tuple[str, ...] = ()  # keys that lead to it, () for its name
    shown: tuple[Place, ...] = ()  # where besides summary.csv, `explain` and docs/metrics.md
    head: str = ""  # of a table's column, "" for its name
    under: str = ""  # in `show`, the column below whose value it stands
    always: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        return self.path or (self.name,)

    @property
    def title(self) -> str:
        return self.head or self.name

    @property
    def csv_names(self) -> tuple[str, ...]:
        """Its columns in summary.csv; none for a term, a list or an object."""
        if self.kind not in (*WITH_INTERVAL, *SCALAR) or not self.source:
            return ()
        ends = {"ratio": ("", "_low", "_high", "_n", "_word"), "rate": ("", "_low", "_high")}
        ends["quantile"] = ends["rate"]
        return tuple(self.name + end for end in ends.get(self.kind, ("",)))

    @property
    def numeric(self) -> tuple[str, ...]:
        """Those of its columns in summary.csv that hold numbers."""
        return tuple(n for n in self.csv_names if self.kind != "text" and not n.endswith("_word"))
