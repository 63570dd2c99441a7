"""A run's cells side by side on a terminal. Computes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsbench.results.completeness import missing_cells, missing_text
from dsbench.results.contamination import flag_note
from dsbench.results.labels import (
    all_cells,
    arm_names,
    arm_rank,
    by_setting,
    conditions,
    finished_cells,
    loud_label,
    workload_text,
)
from dsbench.results.store import RunStore, StoredCell
from dsbench.stats.intervals import BAND
from dsbench.views.latency_table import latency_table
from dsbench.views.memory_table import memory_table

if TYPE_CHECKING:
    pass
from dsbench.analysis.summary import BASES, Versus, compare_arms

HEADS = (
    "R",
    "arm",
    "tau",
    "rep.",
    "window\nceiling",
    "tokens/s",
    "per user\np10",
    "vs static",
    "vs best fixed",
    "vs none",
)


LEAST_SEEN = 0.8  # a ceiling seen in fewer rounds than this is not shown: what is seen is not a fair sample


def summary_table(store: RunStore, *, band: float = BAND, seed: int = 0) -> Table:
    """The terminal's table: per workload and batch size R each arm's numbers and paired ratios, with footnotes.

    Raises UsageError for a run without a finished cell.
    """
    cells, run = finished_cells(store), store.read_run()
    names, found = arm_names(cells), compare_arms(cells, band=band, seed=seed)
    title = f"{store.folder.name}: {conditions(run)}".rstrip(": ")
    table = Table(title=escape(title), caption_justify="left", box=box.HORIZONTALS, padding=0)
    table.add_column("workload", overflow="fold", min_width=8, max_width=14)
    for head in HEADS:
        left = head == "arm" or head.startswith("vs")
        table.add_column(head, justify="left" if left else "right", overflow="fold", vertical="top")
    groups = by_setting(cells)
    for setting, group in groups.items():
        if len(groups) > 1:
            table.add_row(*[""] * 2, f"[bold]{escape(setting)}[/bold]", end_section=False)
        ordered = sorted(group, key=lambda c: (c.cell.workload, c.cell.batch, arm_rank(names[c.folder])))
        for i, stored in enumerate(ordered):
            place = (stored.cell.workload, stored.cell.batch)
            opens = i == 0 or (ordered[i - 1].cell.workload, ordered[i - 1].cell.batch) != place
            closes = i + 1 == len(ordered) or (ordered[i + 1].cell.workload, ordered[i + 1].cell.batch) != place
            first = (escape(workload_text(place[0])), str(place[1])) if opens else ("", "")
            table.add_row(*first, *_row(stored, names[stored.folder], found[stored.folder]), end_section=closes)
    table.caption = "\n".join(_footnotes(run, groups, found, band))
    return table


def _row(stored: StoredCell, name: str, found: Mapping[str, Versus]) -> list[str]:
    body = stored.summary
    repetition = body.get("repetition")
    ceiling = body.get("ceiling") if (body.get("ceiling_seen") or 0.0) >= LEAST_SEEN else None
    return [
        name + (" !" if stored.flags else ""),
        _spread(body.get("tau")),
        "-" if repetition is None else f"{repetition:.2f}",
        f"{_plain(body.get('window'))}\n{_plain(ceiling)}",
        _spread(body.get("throughput")),
        f"{_plain(body.get('user_speed'))}\n{_plain(body.get('user_speed_p10'))}",
        *(_versus_text(base, found.get(base)) for base in BASES),
    ]


def _versus_text(base: str, found: Versus | None) -> str:
    if found is None:
        return "-"
    windows = " or ".join(name.partition(":")[2] or "G" for name in found.base.split(" or "))
    partner = f" k={windows}" if base == "fixed" else ""
    low, high = found.ratio.low, found.ratio.high
    spread = "one prompt" if low is None or high is None else f"{low:.2f}..{high:.2f}"
    return f"{found.ratio.value:.2f} {found.word}\n{spread}{partner}"


def _spread(rate: Mapping[str, Any] | None) -> str:
    if rate is None or rate["low"] is None:
        return _plain(rate)
    return f"{_plain(rate)}\n{_figure(rate['low'])}..{_figure(rate['high'])}"


def _plain(rate: Mapping[str, Any] | None) -> str:
    return "-" if rate is None else _figure(rate["value"])


def _figure(value: float) -> str:
    """About three significant figures."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _footnotes(
    run: Mapping[str, Any],
    groups: Mapping[str, Sequence[StoredCell]],
    found: Mapping[Path, Mapping[str, Versus]],
    band: float,
) -> list[str]:
    loud = loud_label(run)
    bases = sorted({v.basis for arm in found.values() for v in arm.values() if v.basis})
    flagged = flag_note([stored.flags for cells in groups.values() for stored in cells])
    notes = [f"[bold red]{loud}[/bold red]"] if loud else []
    notes.append(("Setting: " if len(groups) == 1 else "Settings: ") + escape("; or ".join(groups)) + ".")
    notes.append(
        "tau: tokens a verify round, bonus included; rep.: share of the output's 4-grams seen before in it; window: "
        "drafts that could be committed; ceiling: tau had all drafts been verified, over the rounds that show it; "
        "second lines: 95% intervals over prompts. Ratios of throughput are paired by prompt; their words stand "
        f"against a noise band of {band:.1%}."
    )
    chosen = f"chosen on {' or '.join(bases)}, compared on the other, both ways round"
    notes.append(f"Best fixed: window k (G: the whole block), {chosen}." if bases else "")
    notes.append(f"!: {escape(flagged)}." if flagged else "")
    return [note for note in notes if note]


def print_summary(folder: Path) -> None:
    """Prints the tables of the run in `folder` on stdout, as wide as the terminal, or 118 columns where there is none.

    Raises UsageError for a folder without a run or a run without a finished cell.
    """
    console = Console()
    if not console.is_terminal:
        console = Console(width=118)
    store = RunStore(folder)
    if any(not stored.cell.arrivals for stored in all_cells(store)):
        console.print(summary_table(store))
    console.print(latency_table(store))
    memory = store.read_run().get("memory")
    if memory:
        console.print(memory_table(memory))
    lacking = missing_cells(store)
    if lacking:
        console.print(
            f"[bold red]INCOMPLETE[/bold red]: this run lacks {escape(missing_text(lacking))} (`--resume` goes on)"
        )
