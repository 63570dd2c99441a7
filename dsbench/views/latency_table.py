"""Latencies and goodput of a run's cells as a table, and the load that an SLO allows each arm."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsbench.analysis.slo import Allowed, Slo, allowed, goodput_of, parse_slo, slo_of
from dsbench.errors import UsageError
from dsbench.results.columns_latency import LATENCIES, SHARES
from dsbench.results.labels import all_cells, arm_names, arm_rank, conditions, loud_label, setting_text, workload_text
from dsbench.results.store import RunStore, StoredCell

WIDTH = 118
SHARE = 0.95


def latency_table(store: RunStore) -> Table:
    """Percentiles in ms a cell, and goodput where the run has an SLO. Raises UsageError for a run without a cell."""
    cells, run = all_cells(store), store.read_run()
    slo, names = slo_of(run), arm_names(cells)
    table = Table(title="Latencies in ms: p50 / p95 / p99", caption_justify="left", box=box.HORIZONTALS, padding=0)
    table.add_column("workload", overflow="fold", min_width=8, max_width=14)
    heads = ("R", "arrivals", "arm", *(name.upper() for name in LATENCIES), *(["goodput\ntok/s"] if slo else []))
    for head in heads:
        table.add_column(head, justify="left" if head in ("arrivals", "arm") else "right", overflow="fold")
    settings = dict.fromkeys(setting_text(replace(c.cell, rate=0.0)) for c in cells if c.cell.arrivals)
    ordered = sorted(cells, key=lambda c: (*_place(c), arm_rank(names[c.folder])))
    for stored, after in zip(ordered, [*ordered[1:], None], strict=True):
        cell, body = stored.cell, stored.summary
        came = f"{cell.rate:.3g}/s" if cell.arrivals else "-"
        good = [_good(goodput_of(stored, slo))] if slo else []
        table.add_row(
            escape(workload_text(cell.workload)),
            f"{'<=' if cell.arrivals else ''}{cell.batch}",
            came,
            names[stored.folder] + (" !" if stored.flags else ""),
            *(_points(body, name) for name in LATENCIES),
            *good,
            end_section=after is None or _place(after) != _place(stored),
        )
    notes = [
        f"[bold red]{loud_label(run)}[/bold red]" if loud_label(run) else "",
        "Latencies count from when a request came by the schedule; without arrivals, from when it took its slot. "
        f"{_itl_note(cells)} -: too few for that percentile (20 for p95, 100 for p99).",
        f"Goodput: share of requests with {slo}, and tokens/s of those alone." if slo else "",
        f"Open loop: {escape('; '.join(settings))}." if settings else "",
    ]
    flags = sorted({flag for stored in cells if stored.cell.arrivals for flag in stored.flags})
    notes.append(f"! flagged, e.g. {escape(flags[0])}" if flags else "")
    table.caption = "\n".join(note for note in notes if note)
    return table


def _itl_note(cells: Sequence[StoredCell]) -> str:
    if all(stored.summary.get("itl_p50") is None for stored in cells):
        return "ITL: this run kept no times of tokens."
    return "ITL: a value a token, tokens of one round come together."


def _place(stored: StoredCell) -> tuple[Any, ...]:
    cell = stored.cell
    return (cell.workload, cell.arrivals, cell.batch, cell.rate)


def _points(body: Mapping[str, Any], name: str) -> str:
    rates = [body.get(f"{name}_{point}") for point in SHARES]
    return " / ".join("-" if rate is None else _figure(1e3 * rate["value"]) for rate in rates)


def _good(found: Mapping[str, Any]) -> str:
    share, rate = found["goodput"], found["goodput_tokens"]
    return f"{share['value']:.0%}" + ("" if rate is None else f"\n{_figure(rate['value'])}")


def _figure(value: float) -> str:
    """About three significant figures."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def show_slo(folder: Path, *, slo: str, share: float, as_json: bool) -> None:
    """Prints the load that an SLO allows each arm of the run in `folder`; "" takes the run's own SLO.

    Raises UsageError for a folder without a run, a run without a finished cell, or an SLO that is none.
    """
    store = RunStore(folder)
    run = store.read_run()
    wanted = parse_slo(slo) if slo else slo_of(run)
    if wanted is None:
        raise UsageError("no SLO given", hint="e.g. --slo ttft:200ms,tpot:20ms")
    found = allowed(all_cells(store), wanted, target=share)
    if as_json:
        print(json.dumps([_record(one, wanted, loud_label(run)) for one in found], indent=2))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH)
    console.print(slo_table(store.folder.name, run, wanted, found))


def slo_table(name: str, run: Mapping[str, Any], slo: Slo, found: list[Allowed]) -> Table:
    """One row an arm: the largest load that ran and is allowed, and the share of good requests at each load."""
    title = f"{name}: {conditions(run)}".rstrip(": ")
    table = Table(title=escape(title), caption_justify="left", box=box.HORIZONTALS, padding=(0, 1))
    table.add_column("workload", overflow="fold", min_width=8, max_width=14)
    for head in ("arm", "allowed", "tokens/s of good", "good requests by load"):
        table.add_column(head, overflow="fold")
    for one, after in zip(found, [*found[1:], None], strict=True):
        last = after is None or (after.workload, after.setting) != (one.workload, one.setting)
        table.add_row(*_allowed_row(one), end_section=last)
    flags = sorted({flag for one in found for of_load in one.flags for flag in of_load})
    notes = [
        f"[bold red]{loud_label(run)}[/bold red]" if loud_label(run) else "",
        f"SLO: {slo}, met by {found[0].target:.0%} of requests at the load and at every lower one that ran.",
        "R: requests at a time; /s: requests that come a second, R at a time at most. ~: the share's 95% interval over "
        "prompts holds the target.",
        *(f"Setting: {text}." for text in dict.fromkeys(one.setting for one in found)),
        f"! flagged, e.g. {escape(flags[0])}" if flags else "",
    ]
    table.caption = "\n".join(note for note in notes if note)
    return table


def _allowed_row(one: Allowed) -> list[str]:
    rate = None if one.load is None else one.tokens[one.loads.index(one.load)]
    rows = zip(one.loads, one.shares, one.flags, strict=True)
    shares = [f"{_load(one, load)}: {_share(one, good)}{' !' * bool(flags)}" for load, good, flags in rows]
    return [
        escape(workload_text(one.workload)),
        one.arm if one.limit is None else f"{one.arm}, R <= {one.limit}",
        answer(one),
        "-" if rate is None else _figure(rate),
        "  ".join(share.replace(" ", "\N{NO-BREAK SPACE}") for share in shares),
    ]


def _share(one: Allowed, good: Mapping[str, Any]) -> str:
    unsure = good["low"] is not None and good["low"] < one.target <= good["high"]
    return f"{good['value']:.0%}" + (" ~" if unsure else "")


def answer(one: Allowed) -> str:
    """The allowed load in words; what did not run is no data."""
    if one.load is None:
        return f"none that ran: {_load(one, one.loads[0])} is too much"
    if one.over is None:
        return f"{_load(one, one.load)} or more: no data above"
    return f"{_load(one, one.load)} ({_load(one, one.over)} is too much)"


def _load(one: Allowed, load: float) -> str:
    return f"R {load:.0f}" if one.limit is None else f"{load:.3g}/s"


def _record(one: Allowed, slo: Slo, label: str) -> dict[str, Any]:
    return asdict(one) | {"slo": dict(slo.limits), "load": one.load, "over": one.over, "label": label}
