"""`dsbench show`: a run's cells side by side on a terminal. Which numbers stand there, `results.columns` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.versus import Versus, compare_arms
from dsbench.results.cells import StoredCell
from dsbench.results.column import Column
from dsbench.results.columns import shown_in, value_of
from dsbench.results.completeness import missing_cells, missing_text
from dsbench.results.contamination import flag_note
from dsbench.results.labels import all_cells, arm_names, arm_rank, by_setting, finished_cells, loud_label, workload_text
from dsbench.results.store import RunStore
from dsbench.stats.intervals import BAND
from dsbench.views.latency import latency_on_terminal
from dsbench.views.memory import memory_table
from dsbench.views.numbers import NONE, ends, interval_of, number, percent
from dsbench.views.tables import Table, Value, console, on_terminal, run_title, setting_note

if TYPE_CHECKING:
    from rich.table import Table as RichTable

LEAST_SEEN = 0.8  # a ceiling seen in fewer rounds than this is not shown: what is seen is not a fair sample


def show_table(
    cells: Sequence[StoredCell], names: Mapping[Path, str], found: Mapping[Path, Mapping[str, Versus]]
) -> Table:
    """Per workload and batch size R each arm's numbers and paired ratios; cells of one setting, their arms' names."""
    columns = [column for column in shown_in("show") if not column.under]
    below = {column.under: column for column in shown_in("show") if column.under}
    heads = [c.title + (f" {below[c.name].title}" if c.name in below else "") for c in columns]
    rows: list[tuple[Value, ...]] = []
    for stored in sorted(cells, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(names[c.folder]))):
        rows.append(
            (
                workload_text(stored.cell.workload),
                stored.cell.batch,
                names[stored.folder] + (" !" if stored.flags else ""),
                *(_value(c, below.get(c.name), stored.summary, found[stored.folder]) for c in columns),
            )
        )
    return Table(name="summary", caption="Cells", heads=("workload", "R", "arm", *heads), rows=tuple(rows), place=2)


def _value(column: Column, below: Column | None, body: Mapping[str, Any], found: Mapping[str, Versus]) -> Value:
    """A number, with the one that stands below it, else with its interval."""
    if column.source == "compared":
        return _versus(column.name.removeprefix("vs_"), found)
    if column.kind not in ("rate", "quantile"):
        value: Value = value_of(column, body)
        return value
    rate = interval_of(value_of(column, body))
    if below is None or rate is None:
        return rate
    return f"{number(rate.value)}\n{_below(below, body)}"


def _below(column: Column, body: Mapping[str, Any]) -> str:
    seen = column.name != "ceiling" or (body.get("ceiling_seen") or 0.0) >= LEAST_SEEN
    rate = value_of(column, body) if seen else None
    return NONE if rate is None else number(rate["value"])


def _versus(base: str, found: Mapping[str, Versus]) -> str:
    """`1.23 FASTER`, its interval, and which windows were best."""
    one = found.get(base)
    if one is None:
        return NONE
    windows = " or ".join(name.partition(":")[2] or "G" for name in one.base.split(" or "))
    inside = ends(one.ratio, between="..", none="one prompt")
    return f"{number(one.ratio.value)} {one.word}\n{inside}" + (f" k={windows}" if base == "fixed" else "")


def summary_tables(store: RunStore, *, band: float = BAND, seed: int = 0) -> list[RichTable]:
    """The terminal's tables, one a setting, with footnotes. Raises UsageError for a run without a finished cell."""
    cells, loud = finished_cells(store), loud_label(store.read_run())
    names, found = arm_names(cells), compare_arms(cells, band=band, seed=seed)
    tables = []
    for setting, group in by_setting(cells).items():
        notes = _footnotes(setting, group, found, band)
        tables.append(on_terminal(show_table(group, names, found), run_title("Cells", store), notes, loud=loud))
    return tables


def _footnotes(
    setting: str, cells: Sequence[StoredCell], found: Mapping[Path, Mapping[str, Versus]], band: float
) -> list[str]:
    bases = sorted({versus.basis for stored in cells for versus in found[stored.folder].values() if versus.basis})
    flagged = flag_note([stored.flags for stored in cells])
    chosen = f"chosen on {' or '.join(bases)}, compared on the other, both ways round"
    return [
        setting_note([setting]),
        "tau: tokens a verify round, bonus included; rep.: share of the output's 4-grams seen before in it; window: "
        "drafts that could be committed; ceiling: tau had all drafts been verified, over the rounds that show it; "
        "second lines: 95% intervals over prompts. Ratios of throughput are paired by prompt; their words stand "
        f"against a noise band of {percent(band, 1)}. `dsbench explain NAME` says more.",
        f"Best fixed: window k (G: the full block), {chosen}." if bases else "",
        f"!: {flagged}." if flagged else "",
    ]


def print_summary(folder: Path) -> None:
    """Prints the tables of the run in `folder` on stdout.

    Raises UsageError for a folder without a run or a run without a finished cell.
    """
    store, out = RunStore(folder), console()
    if any(not stored.cell.arrivals for stored in all_cells(store)):
        for table in summary_tables(store):
            out.print(table)
    out.print(latency_on_terminal(store))
    memory = store.read_run().get("memory")
    if memory:
        out.print(on_terminal(memory_table(memory)))
    lacking = missing_cells(store)
    if lacking:
        out.print("[bold red]INCOMPLETE[/bold red]: ", end="")
        out.print(f"this run lacks {missing_text(lacking)} (`--resume` goes on)", markup=False)
