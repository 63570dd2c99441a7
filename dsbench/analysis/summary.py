"""A run's cells side by side: one row a cell with paired comparisons, as a data frame, a CSV and a terminal table.

Arms are compared at the same workload, batch size and setting, over the prompts that both served. The best fixed
window is chosen on one half of the data and compared on the other, both ways round: its choice gains nothing by luck.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.slo import goodput_of, slo_of
from dsbench.results.column import Column, Source
from dsbench.results.columns import COLUMNS, value_of
from dsbench.results.labels import all_cells, arm_names, by_setting, is_fixed
from dsbench.results.metrics import held_in
from dsbench.results.store import RunStore, StoredCell, write_atomically
from dsbench.stats.best_member import against_best
from dsbench.stats.intervals import BAND, Held, Interval, paired_ratio, verdict

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "summary.csv"
BASES = ("static", "fixed", "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Versus:
    """An arm's throughput over a base arm's, with its word; `basis` says on which data the base arm was chosen."""

    base: str
    ratio: Interval
    word: str
    basis: str = ""


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


def compare_arms(cells: Sequence[StoredCell], *, band: float = BAND, seed: int = 0) -> dict[Path, dict[str, Versus]]:
    """Each cell's comparisons by base ("static", "fixed", "none"), by its folder; an absent base has no entry."""
    found: dict[Path, dict[str, Versus]] = {stored.folder: {} for stored in cells}
    names = arm_names(cells)
    for group in by_setting(cells).values():
        for place in sorted({(c.cell.workload, c.cell.batch) for c in group}):
            rivals = [c for c in group if (c.cell.workload, c.cell.batch) == place]
            held = {c.folder: held_in(c) for c in rivals}
            fixed = [c.folder for c in rivals if is_fixed(c.cell)]
            for stored in rivals:
                mine = found[stored.folder]
                for base in ("static", "none"):
                    other = next((c.folder for c in rivals if c.cell.mode == base), stored.folder)
                    ratio = None if other == stored.folder else _ratio(held[stored.folder], held[other], seed)
                    if ratio is not None:
                        mine[base] = Versus(base=base, ratio=ratio, word=verdict(ratio, band=band))
                best = _best_fixed(held, stored.folder, fixed, band, seed, names)
                if best is not None:
                    mine["fixed"] = best
    return found


def _ratio(arm: Held, base: Held, seed: int) -> Interval | None:
    """Throughput of one arm over another's, over the prompts that both served, repeats averaged."""
    common = sorted(set(arm.names) & set(base.names))
    (tokens, seconds), (base_tokens, base_seconds) = arm.only(common).means(), base.only(common).means()
    return paired_ratio(tokens, seconds, base_tokens, base_seconds, seed=seed)


def _best_fixed(
    held: Mapping[Path, Held], arm: Path, fixed: Sequence[Path], band: float, seed: int, names: Mapping[Path, str]
) -> Versus | None:
    """Against the fixed windows that are fastest on a half each; None where there is none, or the arm is it."""
    found = against_best(held, arm, fixed, seed=seed)
    if found is None:
        return None
    base, word = " or ".join(names[best] for best in found.best), verdict(found.ratio, band=band)
    return Versus(base=base, ratio=found.ratio, word=word, basis=found.basis)
