"""The verify budget in tables and as a section of a report: rows that ran, what came of the drafts, windows."""

from __future__ import annotations

from collections.abc import Sequence

from dsbench.analysis.budgets import drafts_of, rows_of
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, workload_text
from dsbench.views.budget.picture import draw_budgets, planned_cells
from dsbench.views.numbers import interval_of, number, percent
from dsbench.views.report_parts import Scene, Section
from dsbench.views.tables import Table, Value

BUDGET = (
    "Rows that the target ran, a request and round, and what came of the drafts. Drafts that fill a tier up stand "
    "behind its first row: they cost nothing once the tier is paid. Missed: trimmed, and would have been accepted."
)
RAN = ("anchor", "scheduled", "filler", "seen", "padding")
CAME = ("accepted", "rejected", "missed", "trimmed")
HEADS = ("anchor", "scheduled", "fill a tier", "past the window", "padding", *CAME, "delivered")


def budget_section(scene: Scene) -> Section:
    """Of the planned arm that sees most at each point."""
    name, cells = f"budget{scene.suffix}", planned_cells(scene.cells)
    if not cells:
        return Section(id=name, title="Verify budget", text=("No planned arm ran.",))
    names = arm_names(cells)
    means = {c.folder: f"window {_mean(c, 'window')}, delivered {_mean(c, 'tau')}" for c in cells}
    said = "; ".join(f"{c.cell.workload} R={c.cell.batch} {names[c.folder]}: {means[c.folder]}" for c in cells)
    alt = f"Rows that ran and what came of the drafts, a row a workload, a pair of bars a batch size. {said}."
    return Section(
        id=name,
        title="Verify budget",
        text=(BUDGET,),
        pictures=scene.pictures(
            lambda room: draw_budgets(scene.cells, room, name, scene.lines, scene.loud, ("svg",), scene.tiers), alt
        ),
        tables=(budget_table(scene, cells), windows_table(scene, cells)),
    )


def budget_table(scene: Scene, cells: Sequence[StoredCell]) -> Table:
    """Rows and drafts, a request and round."""
    rows: list[tuple[Value, ...]] = []
    for stored in cells:
        ran, body = rows_of(stored.table("steps"), scene.tiers), stored.summary
        counts = body.get("window_counts") or []
        drafts = drafts_of(body, len(counts) - 1) if counts else None
        rows.append(
            (
                *_place(stored, cells),
                *(getattr(ran, name, None) for name in RAN),
                *(getattr(drafts, name, None) for name in CAME),
                interval_of(body.get("tau")),
            )
        )
    return Table(
        name=f"budget{scene.suffix}",
        caption="Rows and drafts, a request and round",
        heads=("workload", "R", "arm", *HEADS),
        rows=tuple(rows),
        place=1,
    )


def windows_table(scene: Scene, cells: Sequence[StoredCell]) -> Table:
    """How windows spread."""
    deepest = max((len(c.summary.get("window_counts") or ()) for c in cells), default=1)
    rows: list[tuple[Value, ...]] = []
    for stored in cells:
        counts = stored.summary.get("window_counts") or []
        total = sum(counts)
        shares = [percent(count / total) for count in counts] if total else []
        rows.append((*_place(stored, cells), total, *shares, *[None] * (deepest - len(shares))))
    return Table(
        name=f"windows{scene.suffix}",
        caption="How windows spread: share of rounds by drafts verified",
        heads=("workload", "R", "arm", "rounds", *map(str, range(deepest))),
        rows=tuple(rows),
        place=1,
    )


def _place(stored: StoredCell, cells: Sequence[StoredCell]) -> tuple[str, int, str]:
    return (workload_text(stored.cell.workload), stored.cell.batch, arm_names(cells)[stored.folder])


def _mean(stored: StoredCell, name: str) -> str:
    rate = stored.summary.get(name)
    return "not recorded" if rate is None else number(rate["value"])
