"""A run's cells side by side: one row a cell with every declared column, as a data frame and as summary.csv."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.slo import goodput_of, slo_of
from dsbench.analysis.versus import BASES, Versus, compare_arms
from dsbench.results.column import Column, Source
from dsbench.results.columns import COLUMNS, value_of
from dsbench.results.labels import all_cells, arm_names
from dsbench.results.store import RunStore, write_atomically
from dsbench.stats.intervals import BAND

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.csv"


def summary_frame(store: RunStore, *, band: float = BAND, seed: int = 0) -> pd.DataFrame:
    """One row a cell: its arm and flags, and every column of `COLUMNS` that summary.csv has; those of goodput where the
    run has an SLO.

    Raises UsageError for a run without a finished cell.
    """
    import pandas as pd

    cells, run = all_cells(store), store.read_run()
    closed = [stored for stored in cells if not stored.cell.arrivals]
    names, found = arm_names(cells), compare_arms(closed, band=band, seed=seed)
    slo = slo_of(run)
    rows = []
    for stored in cells:
        good = {} if slo is None else goodput_of(stored, slo) | {"slo": str(slo)}
        versus = found.get(stored.folder, {})
        bodies: dict[Source, Mapping[str, Any]] = {
            "summary": stored.summary,
            "parameter": asdict(stored.cell),
            "run": run,
            "slo": good,
            "compared": _compared(versus),
        }
        row: dict[str, Any] = {"arm": names[stored.folder], "flags": "; ".join(stored.flags)}
        for column in COLUMNS:
            if column.csv_names and (slo is not None or column.source != "slo"):
                row |= dict(
                    zip(column.csv_names, _values(column, value_of(column, bodies[column.source])), strict=True)
                )
        rows.append(row)
    return pd.DataFrame(rows)


def _values(column: Column, found: Any) -> tuple[Any, ...]:
    """What stands in the column's fields of summary.csv."""
    if isinstance(found, Versus):
        return (*asdict(found.ratio).values(), found.word)
    if column.kind in ("rate", "quantile"):
        rate = found or {"value": np.nan, "low": np.nan, "high": np.nan}
        return rate["value"], rate["low"], rate["high"]
    return (None,) * 5 if column.kind == "ratio" else (found,)


def _compared(found: Mapping[str, Versus]) -> dict[str, Any]:
    """An arm's comparisons by the columns' names."""
    fixed = found.get("fixed")
    words = {"fixed_arm": fixed.base if fixed else None, "fixed_chosen_on": fixed.basis if fixed else None}
    return {f"vs_{base}": found.get(base) for base in BASES} | words


def write_summary(store: RunStore, *, band: float = BAND, seed: int = 0) -> Path:
    """Writes the frame to summary.csv in the run's folder. Raises UsageError for a run without a finished cell."""
    path = store.folder / SUMMARY
    write_atomically(path, summary_frame(store, band=band, seed=seed).to_csv(index=False))
    return path
