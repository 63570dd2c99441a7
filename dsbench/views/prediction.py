"""The cost table's step time against the clock's: two pictures, tables by cell and by tier, the report's section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.prediction import Off, by_arm, by_tier, off, over_run, steps_of
from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, arm_rank, workload_text
from dsbench.results.step_numbers import round_seconds
from dsbench.results.store import RunStore
from dsbench.views.cost import draw_cost_of
from dsbench.views.numbers import percent
from dsbench.views.report_parts import Scene, Section
from dsbench.views.style import GREY, arm_styles, new_figure, plain_ticks, save, small_grid
from dsbench.views.tables import Table, Value

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Predicted against live step time"
PREDICTED = (
    "The cost table's step time against the clock's, prompts left out. Error: predicted / measured - 1; bias: its "
    "median; a planner that follows a biased table still chooses well where the bias is the same at every row total."
)
HEADS = ("steps", "median error %", "bias %", "95% within %", "10% quantile %", "90% quantile %")
SIGNED = frozenset({"bias %", "10% quantile %", "90% quantile %"})
MOST_POINTS = 1500  # steps drawn a cell
SHOWN = (0.0, 0.995)  # quantiles of step time at the axes' ends: a stall does not squeeze the rest
LEAST = 5  # steps of a tier or tenth below which it is not drawn
REACH, FURTHEST = 60.0, 200.0  # percent: the axes reach at least and at most as far, as medians lie


def prediction_section(scene: Scene, store: RunStore) -> Section:
    """Pictures and tables of one setting, and the fit of the table that the run was planned with."""
    cells, name = scene.cells, f"prediction{scene.suffix}"
    by_cell = cell_table(scene)
    if not by_cell.rows:
        return Section(id=name, title=TITLE, text=("No step of this run was priced by a cost table.",))
    found = {arm: one for arm, steps in by_arm(cells).items() if (one := off(steps.error)) is not None}
    said = "; ".join(
        f"{arm}: median error {percent(one.median, 1)}, bias {percent(one.bias, 1, sign=True)}, n = {one.n}"
        for arm, one in sorted(found.items(), key=lambda item: arm_rank(item[0]))
    )
    same = (scene.lines, scene.loud, ("svg",))
    pictures = scene.pictures(
        lambda room: draw_step_times(cells, room, f"step-time{scene.suffix}", *same),
        f"Predicted against measured step time, a panel an arm, a colour a batch size. {said}.",
    )
    pictures += scene.pictures(
        lambda room: draw_prediction(cells, room, name, *same),
        f"The cost table's error by tier and over the run, a line an arm. {said}.",
    )
    pictures += scene.pictures(
        lambda room: draw_cost_of(store, room, formats=("svg",)),
        "The cost table's fit against the step times it was made from, its residuals and the draft curve.",
    )
    tables = (by_cell, tier_table(scene))
    return Section(id=name, title=TITLE, pictures=pictures, text=(PREDICTED, f"{said}."), tables=tables)


def cell_table(scene: Scene) -> Table:
    """A row a cell whose steps were priced."""
    names = arm_names(scene.cells)
    rows: list[tuple[Value, ...]] = []
    for stored in scene.ordered():
        one = off(steps_of(stored).error)
        if one is not None:
            place = (workload_text(stored.cell.workload), stored.cell.batch, names[stored.folder])
            rows.append((*place, *_numbers(one), percent(stored.summary.get("extrapolated_share"))))
    return Table(
        name=f"prediction{scene.suffix}",
        caption="By cell",
        heads=("workload", "R", "arm", *HEADS, "extrapolated"),
        rows=tuple(rows),
        place=2,
        signed=SIGNED,
    )


def tier_table(scene: Scene) -> Table:
    """A row an arm and tier, all workloads together."""
    arms = by_arm(scene.cells)
    rows = tuple(
        (arm, tier, *_numbers(one)) for arm in sorted(arms, key=arm_rank) for tier, one in by_tier(arms[arm]).items()
    )
    return Table(
        name=f"prediction-tier{scene.suffix}",
        caption="By tier, all workloads",
        heads=("arm", "tier", *HEADS),
        rows=rows,
        place=1,
        signed=SIGNED,
    )


def _numbers(one: Off) -> tuple[Value, ...]:
    return (one.n, *(100 * value for value in (one.median, one.bias, one.p95, one.low, one.high)))


def draw_prediction(
    cells: Sequence[StoredCell], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """The picture of one setting; none where no step has a prediction."""
    arms = by_arm(cells)
    if not arms:
        return []
    count = sum(len(steps.error) for steps in arms.values())
    tiers, spans = ({arm: by(steps) for arm, steps in arms.items()} for by in (by_tier, over_run))
    reach = _reach([*tiers.values(), *spans.values()])
    note = (
        f"n = {count} decode steps, prompts left out, all workloads and batch sizes; points: median; bars: the 10% to "
        f"the 90% quantile; band: within 10%; fewer than {LEAST} steps are not drawn, nor what lies beyond {reach:.0f}%"
    )
    figure, body = new_figure(3.9, "The cost table's error on live steps", [*lines, note], loud)
    left, right = body.subplots(1, 2, squeeze=False, sharey=True)[0]
    _panel(left, tiers, reach, spread=True)
    left.set_xscale("log", base=2)
    left.xaxis.set_major_formatter("{x:g}")
    left.set_xlabel("rows of the executed shape (tier)")
    left.set_ylabel("predicted / measured - 1 [%]")
    left.set_title("by tier", loc="left")
    _panel(right, spans, reach, spread=False)
    right.set_xlabel("share of the repeat's steps")
    right.set_title("over the run", loc="left")
    right.set_xlim(0, 1)
    handles, labels = right.get_legend_handles_labels()
    body.legend(handles, labels, loc="outside lower center", ncols=7, frameon=False)
    return save(figure, out, name, formats)


def _reach(series: Sequence[Mapping[int, Off] | Mapping[float, Off]]) -> float:
    """Percent that the axes go up and down: every median lies within, as far as FURTHEST."""
    medians = [abs(100 * one.bias) for items in series for one in items.values() if one.n >= LEAST]
    return min(max([REACH, *(1.05 * value for value in medians)]), FURTHEST)


def _panel(
    axes: Axes, arms: Mapping[str, Mapping[int, Off] | Mapping[float, Off]], reach: float, *, spread: bool
) -> None:
    styles = arm_styles(sorted(arms))
    for place, arm in enumerate(sorted(arms, key=arm_rank)):
        kept = [(at, one) for at, one in arms[arm].items() if one.n >= LEAST]
        x, y = [float(at) for at, _ in kept], [100 * one.bias for _, one in kept]
        axes.plot(x, y, label=arm, markersize=4, **styles[arm])
        if spread:
            shifted = [at * 1.02 ** (place - len(arms) / 2) for at in x]
            low, high = [100 * one.low for _, one in kept], [100 * one.high for _, one in kept]
            axes.vlines(shifted, low, high, color=styles[arm]["color"], linewidth=0.8, alpha=0.6)
    axes.axhspan(-10, 10, color="#eeeeee", zorder=0)
    axes.axhline(0, color=GREY, linewidth=1.0, zorder=1)
    least, most = axes.get_ylim()
    axes.set_ylim(max(least, -reach), min(most, reach))


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
        f"10%; {percent(float(np.mean((every < ends[0]) | (every > ends[1]))), 1)} of the values lie outside the axes"
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
        error, bias = float(np.median(np.abs(ratio))), float(np.median(ratio))
        text = f"median error {percent(error, 1)}, bias {percent(bias, 1, sign=True)}\nn = {len(ratio)} steps"
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
