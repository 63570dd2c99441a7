"""The load that an SLO allows each arm: `dsbench slo`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.slo import Allowed, Slo, allowed, parse_slo, slo_of
from dsbench.errors import UsageError
from dsbench.results.labels import all_cells, loud_label, workload_text
from dsbench.results.store import RunStore
from dsbench.views.latency import flag_example
from dsbench.views.numbers import number, percent
from dsbench.views.tables import Table, console, on_terminal, run_title

if TYPE_CHECKING:
    from rich.table import Table as RichTable

HEADS = ("workload", "arm", "allowed", "tokens/s of good", "good requests by load")
LOADS = (
    "R: requests at a time; /s: requests that come a second, R at a time at most. ~: the share's 95% interval over "
    "prompts holds the target."
)


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
    else:
        console().print(slo_on_terminal(run_title("SLO", store), run, wanted, found))


def slo_table(found: Sequence[Allowed]) -> Table:
    """One row an arm: the largest load that ran and is allowed, and the share of good requests at each load."""
    return Table(name="slo", caption="What the SLO allows", heads=HEADS, rows=tuple(map(_row, found)), place=1)


def slo_on_terminal(title: str, run: Mapping[str, Any], slo: Slo, found: Sequence[Allowed]) -> RichTable:
    """The table with its notes."""
    notes = [
        f"SLO: {slo}, met by {percent(found[0].target)} of requests at the load and at every lower one that ran.",
        LOADS,
        *(f"Setting: {text}." for text in dict.fromkeys(one.setting for one in found)),
        flag_example([flags for one in found for flags in one.flags]),
    ]
    return on_terminal(slo_table(found), title, notes, loud=loud_label(run))


def _row(one: Allowed) -> tuple[str, ...]:
    rate = None if one.load is None else one.tokens[one.loads.index(one.load)]
    rows = zip(one.loads, one.shares, one.flags, strict=True)
    shares = [f"{_load(one, load)}: {_share(one, good)}{' !' * bool(flags)}" for load, good, flags in rows]
    return (
        workload_text(one.workload),
        one.arm if one.limit is None else f"{one.arm}, R <= {one.limit}",
        answer(one),
        number(rate),
        "  ".join(share.replace(" ", "\N{NO-BREAK SPACE}") for share in shares),
    )


def _share(one: Allowed, good: Mapping[str, Any]) -> str:
    unsure = good["low"] is not None and good["low"] < one.target <= good["high"]
    return percent(good["value"]) + (" ~" if unsure else "")


def answer(one: Allowed) -> str:
    """The allowed load in words; what did not run is no data."""
    if one.load is None:
        return f"none that ran: {_load(one, one.loads[0])} is too much"
    if one.over is None:
        return f"{_load(one, one.load)} or more: no data above"
    return f"{_load(one, one.load)} ({_load(one, one.over)} is too much)"


def _load(one: Allowed, load: float) -> str:
    return f"R {load:.0f}" if one.limit is None else f"{number(load)}/s"


def _record(one: Allowed, slo: Slo, label: str) -> dict[str, Any]:
    return asdict(one) | {"slo": dict(slo.limits), "load": one.load, "over": one.over, "label": label}
