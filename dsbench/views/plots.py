"""A run's pictures: predicted against measured step time, and those of plots_frontier, plots_budget, plots_prediction.

`draw_all` draws what the run holds data for. Numbers come from the cells' summaries and records; nothing is measured
here, and torch is never imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.profiles.cost import load_cost_table
from dsbench.results.contamination import flag_note
from dsbench.results.labels import arm_names, arm_rank, by_setting, conditions, finished_cells, loud_label
from dsbench.results.metrics import round_seconds
from dsbench.results.store import RunStore, StoredCell
from dsbench.views.plots_budget import draw_budgets
from dsbench.views.plots_frontier import draw_frontier
from dsbench.views.plots_prediction import draw_prediction
from dsbench.views.plots_style import GREY, new_figure, plain_ticks, save, small_grid, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1500  # steps drawn a cell
SHOWN = (0.0, 0.995)  # quantiles of step time at the axes' ends: a stall does not squeeze the rest


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


def draw_step_times(
    cells: Sequence[StoredCell], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """Predicted against measured step time, a panel an arm that plans by a cost table, a colour a batch size."""
    from matplotlib import colormaps

    names = arm_names(cells)
    points: dict[str, list[tuple[int, Any, Any]]] = {}
    for stored in cells:
        if stored.summary.get("predicted_error") is None:
            continue
        steps = stored.table("steps")
        good = steps[np.isfinite(steps["predicted_seconds"].to_numpy(float)) & (round_seconds(steps) > 0)]
        good = good.sample(min(len(good), MOST_POINTS), random_state=0)
        pair = (round_seconds(good) * 1e3, good["predicted_seconds"].to_numpy(float) * 1e3)
        points.setdefault(names[stored.folder], []).append((stored.cell.batch, *pair))
    if not points:
        return []
    rows, columns = small_grid(len(points))
    batches = sorted({batch for arm in points.values() for batch, _, _ in arm})
    colours = dict(zip(batches, colormaps["viridis"](np.linspace(0, 0.9, len(batches))), strict=True))
    every = np.concatenate([part for arm in points.values() for _, x, y in arm for part in (x, y)])
    ends = np.quantile(every, SHOWN)
    note = (
        "one point a decode step without the prompts in it, all workloads; line: predicted = measured; band: within "
        f"10%; {np.mean((every < ends[0]) | (every > ends[1])):.1%} of the values lie outside the axes"
    )
    figure, body = new_figure(
        (4.4 if columns < 3 else 3.9) * rows + 0.4, "Step time: the cost table against the clock", [*lines, note], loud
    )
    panels = iter(body.subplots(rows, columns, squeeze=False).flat)
    handles: dict[int, Any] = {}
    for arm, axes in zip(sorted(points, key=arm_rank), panels, strict=False):
        for batch, x, y in points[arm]:
            handles[batch] = axes.scatter(x, y, s=9, alpha=0.45, linewidths=0, color=colours[batch], rasterized=True)
        ratio = np.concatenate([y / x for _, x, y in points[arm]]) - 1
        _identity(axes, float(ends[0]), float(ends[1]))
        text = f"median error {np.median(np.abs(ratio)):.1%}, bias {np.median(ratio):+.1%}\nn = {len(ratio)} steps"
        axes.set_title(f"{arm}: {text}", fontsize=9.5)
        axes.set_xlabel("measured step time [ms]")
        axes.set_ylabel("predicted step time [ms]")
    for axes in panels:
        axes.set_axis_off()
    labels = [f"R={batch}" for batch in sorted(handles)]
    legend = body.legend(
        [handles[b] for b in sorted(handles)],
        labels,
        loc="outside lower center",
        ncols=9,
        frameon=False,
        markerscale=2.5,
    )
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1.0)
    return save(figure, out, name, formats)


def _identity(axes: Axes, low: float, high: float) -> None:
    """The line of perfect prediction, on equal axes around the steps' times."""
    ends = np.array([low / 1.15, high * 1.15])
    axes.plot(ends, ends, color=GREY, linewidth=1.0, zorder=1)
    axes.fill_between(ends, ends * 0.9, ends * 1.1, color="#eeeeee", zorder=0)
    for axis in "xy":
        plain_ticks(axes, axis, [low, high])
    axes.set(xlim=ends, ylim=ends)
    axes.set_box_aspect(1)
