"""The waterfall and the ledger on a terminal, and their commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsbench.analysis.waterfall import PARTS, Entry, Waterfall, ledger, waterfalls
from dsbench.errors import UsageError
from dsbench.ranges import parse_range, split_workloads
from dsbench.results.labels import conditions, finished_cells, loud_label, workload_text
from dsbench.results.store import RunStore, StoredCell
from dsbench.stats.intervals import Interval

WIDTH = 118  # columns where stdout is no terminal
FALL_NOTE = (
    "Milliseconds of a request per output token; ±: half the 95% interval over prompts. The parts of the change add "
    "up to `to` - `from` (products split at the midpoint). accepted length: rounds a token, at the mean price of a "
    "round; draft, verify, padding (verify's time by the share of rows run for nobody) and host (plan, pack, "
    "idle): a round's time, at the mean number of rounds; prefill: waiting for one's own prompt and for others'."
)
LEDGER_NOTE = (
    "Milliseconds a round. plain: a round of arm none; saved: delivered x plain - the round, above 0 drafting pays "
    "(prefill left out); needed: tokens delivered a round at which it breaks even; accept.: share of scheduled drafts "
    "accepted, and the share that breaks even: above 100% no acceptance would do at this window. ±: half the 95% "
    "interval over prompts."
)
FLAG_NOTE = "! a cell is flagged: `dsbench show` and summary.csv say why"


def show_waterfall(
    folder: Path, *, source: str, target: str, workload: str, batch: str, as_json: bool, plots: Path | None
) -> None:
    """Prints the waterfalls of a run on stdout, and draws them into `plots`."""
    store = RunStore(folder)
    cells = chosen(finished_cells(store), workload, batch)
    falls = waterfalls(cells, source, target)
    if as_json:
        print(json.dumps([fall.json() for fall in falls], indent=2))
    else:
        show(waterfall_table(falls, store))
    if plots is not None:
        from dsbench.views.plots_waterfall import draw_waterfalls

        for path in draw_waterfalls(falls, plots, store.read_run()):
            print(path, file=sys.stderr if as_json else sys.stdout)


def show_ledger(folder: Path, *, workload: str, batch: str, as_json: bool) -> None:
    """Prints the break-even ledger of a run on stdout."""
    store = RunStore(folder)
    entries = ledger(chosen(finished_cells(store), workload, batch))
    if as_json:
        print(json.dumps([entry.json() for entry in entries], indent=2))
    else:
        show(ledger_table(entries, store))


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


def show(table: Table) -> None:
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH)).print(table)


def new_table(title: str, store: RunStore, notes: Sequence[str]) -> Table:
    """An empty table under the run's conditions, its notes below."""
    run = store.read_run()
    where = f"{title}, {store.folder.name}: {conditions(run)}".rstrip(": ")
    loud = loud_label(run)
    caption = "\n".join(note for note in (f"[bold red]{loud}[/bold red]" if loud else "", *notes) if note)
    table = Table(title=escape(where), caption=caption, caption_justify="left", box=box.HORIZONTALS, padding=0)
    table.add_column("workload", overflow="fold", min_width=8, max_width=14)
    table.add_column("R", justify="right")
    return table


def waterfall_table(falls: Sequence[Waterfall], store: RunStore) -> Table:
    """A row a point: ms a token in the first arm, the parts of the change, ms a token in the second."""
    source, target = falls[0].source, falls[0].target
    notes = [*_settings(falls), FALL_NOTE, FLAG_NOTE if any(fall.flagged for fall in falls) else ""]
    table = new_table(f"From {source} to {target}", store, notes)
    for head in (f"from\n{source}", *(part.replace(" ", "\n") for part in PARTS), f"to\n{target}"):
        table.add_column(head, justify="right", overflow="fold", vertical="top")
    table.add_column("change", justify="right")
    for i, fall in enumerate(falls):
        opens = i == 0 or falls[i - 1].workload != fall.workload
        closes = i + 1 == len(falls) or falls[i + 1].workload != fall.workload
        change = fall.after.value / fall.before.value - 1
        table.add_row(
            escape(workload_text(fall.workload)) if opens else "",
            f"{fall.batch}{' !' if fall.flagged else ''}",
            interval_text(fall.before),
            *(interval_text(fall.parts[part], sign=True) for part in PARTS),
            interval_text(fall.after),
            f"{change:+.1%}",
            end_section=closes,
        )
    return table


def ledger_table(entries: Sequence[Entry], store: RunStore) -> Table:
    """A row an arm that drafts at a point."""
    notes = [*_settings(entries), LEDGER_NOTE, FLAG_NOTE if any(entry.flagged for entry in entries) else ""]
    table = new_table("Break-even ledger", store, notes)
    table.add_column("arm", overflow="fold")
    for head in ("draft", "verify", "host", "plain", "saved", "delivered", "needed", "accept.\nneeded"):
        table.add_column(head, justify="right", vertical="top")
    for i, entry in enumerate(entries):
        place = (entry.workload, entry.batch)
        opens = i == 0 or (entries[i - 1].workload, entries[i - 1].batch) != place
        closes = i + 1 == len(entries) or (entries[i + 1].workload, entries[i + 1].batch) != place
        table.add_row(
            *((escape(workload_text(place[0])), str(place[1])) if opens else ("", "")),
            entry.arm + (" !" if entry.flagged else ""),
            *(interval_text(rate) for rate in (entry.draft, entry.verify, entry.host, entry.plain)),
            interval_text(entry.saved, sign=True),
            interval_text(entry.delivered),
            interval_text(entry.needed),
            f"{_share(entry.had)}\n{needed_text(entry.acceptance_needed)}",
            end_section=closes,
        )
    return table


def _settings(points: Sequence[Waterfall] | Sequence[Entry]) -> list[str]:
    names = list(dict.fromkeys(point.setting for point in points))
    return [("Setting: " if len(names) == 1 else "Settings, in this order: ") + escape("; or ".join(names)) + "."]


def _share(value: float | None) -> str:
    return "no data" if value is None else f"{value:.0%}"


def needed_text(acceptance: float | None) -> str:
    """The acceptance at which drafting breaks even; any where it would even if no draft were accepted."""
    return "any" if acceptance is not None and acceptance <= 0 else _share(acceptance)


def interval_text(rate: Interval | None, *, sign: bool = False) -> str:
    """The value, half its interval's width on a second line; "no data" where there is none."""
    if rate is None:
        return "no data"
    if rate.low is None or rate.high is None:
        return figure(rate.value, sign)
    return f"{figure(rate.value, sign)}\n±{figure((rate.high - rate.low) / 2)}"


def figure(value: float, sign: bool = False) -> str:
    """About three significant figures, three decimals at most; no sign before a zero."""
    size = abs(value)
    places = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:{'+' if sign else ''}.{places}f}"
    return text.lstrip("+-") if float(text) == 0 else text
