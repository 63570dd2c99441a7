"""The pictures of a run, a file a topic: `draw_all` draws what the run holds data for. Torch is never imported."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsbench.profiles.cost import load_cost_table
from dsbench.results.contamination import flag_note
from dsbench.results.labels import by_setting, conditions, finished_cells, loud_label
from dsbench.results.store import RunStore
from dsbench.views.budget.picture import draw_budgets
from dsbench.views.frontier.picture import draw_frontier
from dsbench.views.prediction import draw_prediction, draw_step_times
from dsbench.views.style import style


def draw_all(store: RunStore, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draws every picture that the run holds data for into `out`; returns their paths.

    Raises UsageError for a run without a finished cell, an unknown format, or a folder that cannot be written.
    """
    cells, run = finished_cells(store), store.read_run()
    table = store.folder / "cost.json"
    tiers = load_cost_table(table).tiers if table.exists() else None
    groups = by_setting(cells)
    paths: list[Path] = []
    with style():
        for number, (setting, group) in enumerate(groups.items(), start=1):
            suffix = f"-{number}" if len(groups) > 1 else ""
            lines = (conditions(run), setting, flag_note([stored.flags for stored in group]))
            paths += draw_frontier(group, out, f"frontier{suffix}", lines, loud_label(run), formats)
            paths += draw_budgets(group, out, f"budget{suffix}", lines, loud_label(run), formats, tiers)
            paths += draw_step_times(group, out, f"step-time{suffix}", lines, loud_label(run), formats)
            paths += draw_prediction(group, out, f"prediction{suffix}", lines, loud_label(run), formats)
    return paths
