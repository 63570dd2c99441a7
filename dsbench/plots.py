"""A run's pictures: the frontier, predicted against measured step time, and (plots_budget) the verify budgets.

`draw_all` draws what the run holds data for. Numbers come from the cells' summaries and records; nothing is measured
here, and torch is never imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.plots_budget import draw_budgets
from dsbench.plots_labels import (
    MIX,
    arm_names,
    arm_rank,
    by_setting,
    conditions,
    finished_cells,
    is_fixed,
    loud_label,
    workload_text,
)
from dsbench.plots_style import GREY, arm_styles, new_figure, plain_ticks, save, small_grid, style
from dsbench.store import RunStore, StoredCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 1500  # steps drawn a cell


def draw_all(store: RunStore, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draws every picture that the run holds data for into `out`; returns their paths.

    Raises UsageError for a run without a finished cell, an unknown format, or a folder that cannot be written.
    """
    cells, run = finished_cells(store), store.read_run()
    groups = by_setting(cells)
    paths: list[Path] = []
    with style():
        for number, (setting, group) in enumerate(groups.items(), start=1):
            suffix = f"-{number}" if len(groups) > 1 else ""
            lines = (conditions(run), setting)
            paths += draw_frontier(group, out, f"frontier{suffix}", lines, loud_label(run), formats)
            paths += draw_budgets(group, out, f"budget{suffix}", lines, loud_label(run), formats)
            paths += draw_step_times(group, out, f"step-time{suffix}", lines, loud_label(run), formats)
    return paths


def draw_frontier(
    cells: Sequence[StoredCell], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """Throughput against per-user speed, a panel a workload, a line an arm, a point a batch size."""
    names = arm_names(cells)
    workloads = sorted({stored.cell.workload for stored in cells}, key=lambda name: (name.startswith(MIX), name))
    rows, columns = small_grid(len(workloads))
    prompts = sorted({stored.summary["prompts"] for stored in cells})
    count = f"{prompts[0]}" if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
    note = f"n = {count} prompts a point, bars: 95% intervals; dotted: equal batch size R; upper right is better"
    figure, body = new_figure(4.3 * rows + 0.5, "Throughput against per-user speed", [*lines, note], loud)
    panels = iter(body.subplots(rows, columns, squeeze=False).flat)
    styles = arm_styles(sorted(set(names.values())))
    handles: dict[str, Any] = {}
    for workload, axes in zip(workloads, panels, strict=False):
        handles |= _frontier_panel(axes, [c for c in cells if c.cell.workload == workload], names, styles)
        axes.set_title(workload_text(workload))
    for axes in panels:
        axes.set_axis_off()
    order = sorted(handles, key=lambda arm: (arm == ENVELOPE, arm_rank(arm)))
    body.legend(
        [handles[arm] for arm in order], order, loc="outside lower center", ncols=min(6, len(order)), frameon=False
    )
    return save(figure, out, name, formats)


ENVELOPE = "best fixed window at each R, in hindsight"


def _frontier_panel(
    axes: Axes, cells: Sequence[StoredCell], names: Mapping[Path, str], styles: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """One workload's panel; returns legend handles by arm."""
    handles: dict[str, Any] = {}
    for arm in sorted({names[c.folder] for c in cells}, key=arm_rank):
        line = sorted((c for c in cells if names[c.folder] == arm), key=lambda c: c.cell.batch)
        x, x_error = _with_bars(line, "user_speed")
        y, y_error = _with_bars(line, "throughput")
        handles[arm] = axes.errorbar(
            x, y, xerr=x_error, yerr=y_error, markersize=5.5, elinewidth=0.8, capsize=1.5, zorder=3, **styles[arm]
        )
    if len({names[c.folder] for c in cells if is_fixed(c.cell)}) > 1:
        best = _envelope(cells)
        x, y = _with_bars(best, "user_speed")[0], _with_bars(best, "throughput")[0]
        (handles[ENVELOPE],) = axes.plot(x, y, color="#00324f", linestyle=(0, (6, 3)), linewidth=0.9, zorder=4)
    _batch_rays(axes, cells)
    plain_ticks(axes, "x", _ends(cells, "user_speed"))
    plain_ticks(axes, "y", _ends(cells, "throughput"))
    axes.set_xlabel("per-user speed [tokens/s]")
    axes.set_ylabel("throughput [tokens/s]")
    return handles


def _ends(cells: Sequence[StoredCell], key: str) -> list[float]:
    """The values and the ends of their intervals."""
    rates = [stored.summary[key] for stored in cells]
    return [rate[end] for rate in rates for end in ("value", "low", "high") if rate[end] is not None]


def _envelope(cells: Sequence[StoredCell]) -> list[StoredCell]:
    """At each batch size the fixed window with the highest throughput."""
    best: dict[int, StoredCell] = {}
    for stored in (c for c in cells if is_fixed(c.cell)):
        rival = best.get(stored.cell.batch)
        if rival is None or stored.summary["throughput"]["value"] > rival.summary["throughput"]["value"]:
            best[stored.cell.batch] = stored
    return [best[batch] for batch in sorted(best)]


def _batch_rays(axes: Axes, cells: Sequence[StoredCell]) -> None:
    """Joins the points of equal batch size by a dotted line, and writes the batch size at its fast end."""
    for batch in sorted({c.cell.batch for c in cells}):
        points = sorted(
            (c.summary["user_speed"]["value"], c.summary["throughput"]["value"]) for c in cells if c.cell.batch == batch
        )
        axes.plot(*zip(*points, strict=True), color=GREY, linestyle=":", linewidth=0.8, zorder=1)
        axes.annotate(
            f"R={batch}", points[-1], xytext=(7, 4), textcoords="offset points", fontsize=8.5, color=GREY, zorder=4
        )


def _with_bars(line: Sequence[StoredCell], key: str) -> tuple[list[float], Any]:
    """Values and the distances to the ends of their intervals, [2, points]."""
    rates = [stored.summary[key] for stored in line]
    values = [rate["value"] for rate in rates]
    below = [0.0 if r["low"] is None else max(0.0, r["value"] - r["low"]) for r in rates]
    above = [0.0 if r["high"] is None else max(0.0, r["high"] - r["value"]) for r in rates]
    return values, np.array([below, above])


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
        good = steps[np.isfinite(steps["predicted_seconds"].to_numpy(float)) & (steps["seconds"] > 0)]
        good = good.sample(min(len(good), MOST_POINTS), random_state=0)
        pair = (good["seconds"].to_numpy(float) * 1e3, good["predicted_seconds"].to_numpy(float) * 1e3)
        points.setdefault(names[stored.folder], []).append((stored.cell.batch, *pair))
    if not points:
        return []
    rows, columns = small_grid(len(points))
    batches = sorted({batch for arm in points.values() for batch, _, _ in arm})
    colours = dict(zip(batches, colormaps["viridis"](np.linspace(0, 0.9, len(batches))), strict=True))
    note = "one point a decode step, all workloads; line: predicted = measured; band: within 10%"
    figure, body = new_figure(4.4 * rows + 0.4, "Step time: the cost table against the clock", [*lines, note], loud)
    panels = iter(body.subplots(rows, columns, squeeze=False).flat)
    every = np.concatenate([part for arm in points.values() for _, x, y in arm for part in (x, y)])
    handles: dict[int, Any] = {}
    for arm, axes in zip(sorted(points, key=arm_rank), panels, strict=False):
        for batch, x, y in points[arm]:
            handles[batch] = axes.scatter(x, y, s=9, alpha=0.45, linewidths=0, color=colours[batch])
        ratio = np.concatenate([y / x for _, x, y in points[arm]]) - 1
        _identity(axes, float(every.min()), float(every.max()))
        text = f"median error {np.median(np.abs(ratio)):.1%}, bias {np.median(ratio):+.1%}, n = {len(ratio)} steps"
        axes.set_title(f"{arm}\n{text}", fontsize=10)
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
