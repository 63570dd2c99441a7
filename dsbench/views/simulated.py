"""`simulate` once parsed: settings, from a measured run where they are not given; the run, its table, its errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dsbench.analysis.summary import SUMMARY, write_summary
from dsbench.analysis.waterfall import PARTS
from dsbench.deploy.replay import refuse_unlike, say_short
from dsbench.errors import UsageError
from dsbench.results.labels import LOUD, arm_rank, finished_cells, workload_text
from dsbench.results.store import RunStore, write_atomically
from dsbench.settings import resolve
from dsbench.simulate.against import KEPT, Errors, Miss, as_json, by_arm, errors, misses
from dsbench.simulate.plan import plan_simulation, simulate
from dsbench.views.summary import print_summary
from dsbench.writing import note

TAKEN = (
    "temperature",
    "top_k",
    "top_p",
    "max_tokens",
    "requests",
    "draft",
    "lag",
    "seed",
    "acceptance",
    "trace",
    "start",
)
NOTE = (
    "Error: simulated / measured throughput - 1. Parts: change of the time a token from measured to simulated, in "
    "percent of the measured, which add up; + means that the simulation takes longer there. Prefill and rounds of arms "
    "without samples of their own are priced by verify passes of as many rows. * shares no prompt with the run."
)


def run_simulation(given: Mapping[str, Any], *, against: Path | None, out: Path, as_json: bool) -> None:
    """Checks, plays, prints. Raises UsageError for what makes no sense; nothing is left behind then."""
    if as_json and against is None:
        raise UsageError("--json prints the errors against a measured run", hint="name it with --against RUN")
    measured = RunStore(against) if against is not None else None
    taken = _of_run(measured, given) if measured else {}
    config, sources = resolve({**taken, **given})
    sources |= {name: f"the run {against}" for name in taken if name not in given}
    target = str((measured.read_run().get("labels") or {}).get("target", "")) if measured else ""
    plan = plan_simulation(config, target=target)
    if measured is not None:
        refuse_unlike(plan.trace, measured.read_run(), f"the run {against}")
    say_short(plan.trace, config)
    _clear(out)
    fresh = not out.exists()
    store = RunStore(out, create=True)
    try:
        simulate(plan, store, sources, note)
    except BaseException:
        if fresh:
            shutil.rmtree(out, ignore_errors=True)
        raise
    write_summary(store)
    if not as_json:
        print_summary(out)
    if measured is not None:
        _tell(misses(store.cells(), finished_cells(measured)), measured, store, as_json)


def _clear(out: Path) -> None:
    """Removes what a simulation left that was stopped midway. Raises UsageError for any other run."""
    if not (out / "run.json").exists():
        return
    labels = RunStore(out).read_run().get("labels") or {}
    if not labels.get("simulated") or (out / SUMMARY).exists():  # which is written last
        raise UsageError(f"{out} already holds a run", hint="name another --out")
    shutil.rmtree(out / "cells", ignore_errors=True)
    (out / "run.json").unlink()


def _of_run(store: RunStore, given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a measured run, whose arms and batch sizes are those of its finished cells."""
    cells, config = finished_cells(store), {"start": "together"} | (store.read_run().get("config") or {})
    modes = sorted({c.cell.mode for c in cells if not c.cell.mode.startswith("mtp")}, key=arm_rank)
    found = {key: config[key] for key in TAKEN if config.get(key) not in ("", None)}
    found |= {
        "mode": ",".join(modes),
        "batch": ",".join(map(str, sorted({c.cell.batch for c in cells}))),
        "workload": ",".join(sorted({c.cell.workload for c in cells})),
    }
    table = store.folder / "cost.json"
    if table.exists():
        found["cost"] = str(table)
    elif "cost" not in given:
        raise UsageError(f"{store.folder} keeps no cost table", hint="name one with --cost")
    return found


def _tell(found: list[Miss], measured: RunStore, store: RunStore, json_wanted: bool) -> None:
    body = as_json(found, measured.folder.name)
    write_atomically(store.folder / KEPT, json.dumps(body, indent=2) + "\n")
    if json_wanted:
        print(json.dumps(body, indent=2))
        return
    console = Console()
    console = console if console.is_terminal else Console(width=118)
    console.print(errors_table(found, measured.folder.name))
    whole = errors(found)
    print(
        f"simulated against {measured.folder.name}: {whole.cells} cells, median error {whole.median:.1%}, 95% within "
        f"{whole.p95:.1%}, bias {whole.bias:+.1%}"
    )


def errors_table(found: list[Miss], name: str) -> Table:
    """A row a cell, then one an arm."""
    table = Table(
        title=escape(f"Simulated against {name}"),
        box=box.HORIZONTALS,
        padding=0,
        caption_justify="left",
        caption=f"[bold red]{LOUD['simulated']}[/bold red]\n{NOTE}",
    )
    table.add_column("workload", overflow="fold", min_width=8, max_width=14)
    for head in ("R", "arm", "measured\ntokens/s", "simulated", "error", *(p.replace(" ", "\n") for p in PARTS)):
        table.add_column(head, justify="left" if head == "arm" else "right")
    for i, one in enumerate(found):
        closes = i + 1 == len(found) or (found[i + 1].workload, found[i + 1].batch) != (one.workload, one.batch)
        table.add_row(
            escape(workload_text(one.workload)),
            str(one.batch),
            one.arm + ("" if one.prompts else " *"),
            f"{one.measured:,.0f}",
            f"{one.simulated:,.0f}",
            f"{one.error:+.1%}",
            *_parts(one.parts),
            end_section=closes,
        )
    for arm, mean in by_arm(found).items():
        table.add_row("all", "", arm, "", f"{mean.cells} cells", _size(mean), *_parts(mean.parts))
    return table


def _size(one: Errors) -> str:
    return f"{one.median:.1%}\np95 {one.p95:.1%}"


def _parts(parts: Mapping[str, float]) -> list[str]:
    return [f"{100 * parts[name]:+.1f}" for name in PARTS]
