"""Which cells a run was to have and lacks, from the configuration that run.json keeps. No torch."""

from __future__ import annotations

from typing import Any

from dsbench.ranges import parse_modes, parse_range
from dsbench.results.cells import repeats_of
from dsbench.results.labels import arm_rank
from dsbench.results.store import RunStore

Place = tuple[str, int, str]  # workload, batch size, mode


def missing_cells(store: RunStore) -> list[Place]:
    """Cells of the last call's grid that are not finished, in the tables' order; none where run.json holds no grid.

    A batch size that was left to the machine counts where any of its cells is finished. Cells of the open loop are left
    out, as in a report.
    """
    run = store.read_run()
    config: dict[str, Any] = run.get("config") or {}
    finished = {(c.cell.workload, c.cell.batch, c.cell.mode) for c in store.cells() if not c.cell.arrivals}
    modes = parse_modes(str(config.get("mode", "")))
    workloads = [str(entry["name"]) for entry in run.get("workloads") or ()]
    sizes = parse_range(str(config["batch"])) if config.get("batch") else sorted({batch for _, batch, _ in finished})
    wanted = {(workload, batch, mode) for workload in workloads for batch in sizes for mode in modes}
    return sorted(wanted - finished, key=lambda place: (place[0], place[1], arm_rank(place[2])))


def begun(store: RunStore) -> int:
    """Cells that hold some repeats and no result."""
    return sum(
        bool(repeats_of(folder)) and not (folder / "cell.json").exists()
        for folder in (store.folder / "cells").glob("*")
    )


def missing_text(places: list[Place], most: int = 6) -> str:
    """`static at R=8 on math, ... and 3 more`."""
    named = [f"{mode} at R={batch} on {workload}" for workload, batch, mode in places[:most]]
    more = len(places) - len(named)
    return ", ".join(named) + (f" and {more} more" if more > 0 else "")
