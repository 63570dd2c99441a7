"""`simulate` once parsed: settings, from a measured run where they are not given; the run, its table, its errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dsbench.analysis.summary import SUMMARY, write_summary
from dsbench.deploy.replay import refuse_unlike, say_short
from dsbench.errors import UsageError
from dsbench.results.labels import LOUD, arm_rank, finished_cells
from dsbench.results.store import RunStore, write_atomically
from dsbench.settings import resolve
from dsbench.simulate.against import KEPT, Miss, as_json, misses
from dsbench.simulate.plan import plan_simulation, simulate
from dsbench.views.against import OFF, TITLE, arms_table, cells_table, total
from dsbench.views.show import print_summary
from dsbench.views.tables import console, on_terminal
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
UNPAIRED = "shared prompts 0: the cells were compared without pairing."


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
        _print_errors(misses(store.cells(), finished_cells(measured)), measured, store, as_json)


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


def _print_errors(found: list[Miss], measured: RunStore, store: RunStore, json_wanted: bool) -> None:
    body = as_json(found, measured.folder.name)
    write_atomically(store.folder / KEPT, json.dumps(body, indent=2) + "\n")
    if json_wanted:
        print(json.dumps(body, indent=2))
        return
    notes, loud = [OFF, UNPAIRED], LOUD["simulated"]
    for table in (cells_table(body), arms_table(body)):
        console().print(on_terminal(table, f"{TITLE}: {table.caption}", notes, loud=loud))
    print(total(body))
