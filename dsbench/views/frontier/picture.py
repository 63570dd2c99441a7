"""Throughput against per-user speed: a panel a workload, a line an arm, a point a batch size, and who overtakes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.frontier import Point, crossings, dominators, envelope, fixed_arms, points_of
from dsbench.results.cells import StoredCell
from dsbench.results.labels import MIX, arm_names, arm_rank, workload_text
from dsbench.views.numbers import interval_of, reach, span
from dsbench.views.style import GREY, INK, LOUD, arm_styles, new_figure, plain_ticks, save, small_grid

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENVELOPE = "best fixed window at each R, in hindsight"
OR_NONE = "best fixed window or none"
CHAINS = "best mtp at each R"
ENVELOPES = (ENVELOPE, OR_NONE, CHAINS)
DARK, BROWN = "#00324f", "#7a4f00"
CLOSE = 0.25  # fast ends nearer than this, as a log ratio on both axes, get their labels apart
LEGEND, HANDLE = 135, 7  # letters that a row of the legend has room for, and that the line before a label takes


def draw_frontier(
    cells: Sequence[StoredCell], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """The picture of one setting, none where no cell has both speeds (answers of one token). Hollow: dominated."""
    names = arm_names(cells)
    cells = [c for c in cells if c.summary.get("user_speed") and c.summary.get("throughput")]
    if not cells:
        return []
    workloads = sorted({stored.cell.workload for stored in cells}, key=lambda name: (name.startswith(MIX), name))
    rows, columns = small_grid(len(workloads))
    prompts = span([stored.summary["prompts"] for stored in cells])
    note = (
        f"n = {prompts} prompts a point, bars: 95% intervals; dotted: equal batch size R; upper right is better; "
        "hollow: another point is better by more than 2% on one axis and not worse on the other; !: flagged"
    )
    figure, body = new_figure(4.7 * rows + 0.7, "Throughput against per-user speed", [*lines, note], loud)
    panels = iter(body.subplots(rows, columns, squeeze=False).flat)
    styles = arm_styles(sorted(set(names.values())))
    handles: dict[str, Any] = {}
    for workload, axes in zip(workloads, panels, strict=False):
        handles |= _panel(axes, [c for c in cells if c.cell.workload == workload], names, styles)
        axes.set_title(workload_text(workload))
    for axes in panels:
        axes.set_axis_off()
    order = sorted(handles, key=lambda arm: (arm in ENVELOPES, arm_rank(arm)))
    labels = [f"{arm} (upper bound)" if "oracle" in arm else arm for arm in order]
    body.legend(
        [handles[arm] for arm in order],
        labels,
        loc="outside lower center",
        frameon=False,
        ncols=legend_columns([len(label) for label in labels]),
    )
    return save(figure, out, name, formats)


def _panel(
    axes: Axes, cells: Sequence[StoredCell], names: Mapping[Path, str], styles: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """One workload's panel; returns legend handles by arm."""
    from matplotlib.patheffects import withStroke

    points = points_of(cells)
    beaten = {label for label, by in dominators(points).items() if by}
    handles: dict[str, Any] = {}
    for arm in sorted({names[c.folder] for c in cells}, key=arm_rank):
        line = sorted((c for c in cells if names[c.folder] == arm), key=lambda c: c.cell.batch)
        x, x_error = _with_bars(line, "user_speed")
        y, y_error = _with_bars(line, "throughput")
        handles[arm] = axes.errorbar(
            x, y, xerr=x_error, yerr=y_error, markersize=5.0, elinewidth=0.8, capsize=1.5, zorder=3, **styles[arm]
        )
        for i, stored in enumerate(line):
            if stored.flags:
                axes.annotate(
                    "!",
                    (x[i], y[i]),
                    xytext=(-7, 3),
                    textcoords="offset points",
                    color=LOUD,
                    fontweight="bold",
                    path_effects=[withStroke(linewidth=2.0, foreground="white")],
                    zorder=5,
                )
        hollow = [i for i, c in enumerate(line) if f"{arm} R={c.cell.batch}" in beaten]
        axes.plot(
            [x[i] for i in hollow],
            [y[i] for i in hollow],
            linestyle="",
            marker=styles[arm]["marker"],
            markersize=5.0,
            markerfacecolor="white",
            markeredgecolor=styles[arm]["color"],
            zorder=3.5,
        )
    handles |= _envelopes(axes, points, fixed_arms(cells))
    _batch_rays(axes, cells)
    plain_ticks(axes, "x", _ends(cells, "user_speed"))
    plain_ticks(axes, "y", _ends(cells, "throughput"))
    axes.set_xlabel("per-user speed [tokens/s]")
    axes.set_ylabel("throughput [tokens/s]")
    text = _turns(points)
    at_x, at_y, ha, va = free_corner(axes, [(p.speed[0], p.throughput[0]) for p in points])
    axes.text(at_x, at_y, text, transform=axes.transAxes, fontsize=8, color=INK, ha=ha, va=va, zorder=5)
    return handles


def legend_columns(letters: Sequence[int]) -> int:
    """The most columns, six at most and of two at least, in which labels of so many letters fit into the picture."""
    for columns in range(min(6, -(-len(letters) // 2)), 1, -1):
        widest = [int(part.max()) for part in np.array_split(np.array(letters), columns)]
        if sum(widest) + HANDLE * len(widest) <= LEGEND:
            return columns
    return 1


def free_corner(axes: Axes, points: Sequence[tuple[float, float]]) -> tuple[float, float, str, str]:
    """Where a short note hides the fewest points: lower left, or upper right. Axes fractions and alignments."""
    x, y = axes.transAxes.inverted().transform(axes.transData.transform(np.asarray(points, float))).T
    low, high = int(((x < 0.5) & (y < 0.17)).sum()), int(((x > 0.5) & (y > 0.83)).sum())
    return (0.03, 0.02, "left", "bottom") if low <= high else (0.97, 0.98, "right", "top")


def _envelopes(axes: Axes, points: Sequence[Point], fixed: Sequence[str]) -> dict[str, Any]:
    """The best fixed window at each batch size; the best of it and no drafts, where that is another line; of mtp."""
    best = envelope(points, lambda arm: arm in fixed) if len(fixed) > 1 else []
    every = envelope(points, lambda arm: arm in fixed or arm == "none") if best else []
    every = every if [p.label for p in every] != [p.label for p in best] else []
    chains = sorted({p.arm for p in points if p.arm.startswith("mtp:")})
    chain = envelope(points, lambda arm: arm in chains) if len(chains) > 1 else []
    looks = (
        (ENVELOPE, best, DARK, (6, 3), 0.9),
        (OR_NONE, every, DARK, (1, 2), 2.2),
        (CHAINS, chain, BROWN, (6, 3), 0.9),
    )
    found: dict[str, Any] = {}
    for label, line, colour, dashes, width in looks:
        if line:
            x, y = [p.speed[0] for p in line], [p.throughput[0] for p in line]
            (found[label],) = axes.plot(x, y, color=colour, linestyle=(0, dashes), linewidth=width, zorder=4)
    return found


def _turns(points: Sequence[Point]) -> str:
    """Where compact overtakes `none`, or falls behind it, as brackets of batch sizes; a line each."""
    arm, base = ([p for p in points if p.arm == name] for name in ("compact", "none"))
    if not arm or not base:
        return ""
    found, words = crossings(arm, base)
    if found:
        arrow = "\N{RIGHTWARDS ARROW}"
        facts = [f"{'overtakes' if c.gains else 'falls behind'}, R {c.low} {arrow} {c.high}" for c in found]
        return "compact, against none:\n" + "\n".join(facts)
    clear = sorted({word for word in words.values() if word in ("FASTER", "SLOWER")})
    where = ", ".join(str(batch) for batch, word in words.items() if clear and word == clear[0])
    fact = f"{clear[0]} at R {where},\nno crossing" if clear else "nowhere clearly apart"
    return f"compact, against none:\n{fact}"


def _ends(cells: Sequence[StoredCell], key: str) -> list[float]:
    """The values and the ends of their intervals."""
    rates = [stored.summary[key] for stored in cells]
    return [rate[end] for rate in rates for end in ("value", "low", "high") if rate[end] is not None]


def _batch_rays(axes: Axes, cells: Sequence[StoredCell]) -> None:
    """Joins the points of equal batch size by a dotted line, and writes the batch size at its fast end."""
    last: tuple[float, float] | None = None
    for batch in sorted({c.cell.batch for c in cells}):
        points = sorted(
            (c.summary["user_speed"]["value"], c.summary["throughput"]["value"]) for c in cells if c.cell.batch == batch
        )
        axes.plot(*zip(*points, strict=True), color=GREY, linestyle=":", linewidth=0.8, zorder=1)
        near = last is not None and np.abs(np.log(np.divide(points[-1], last))).max() < CLOSE
        last = points[-1]
        axes.annotate(
            f"R={batch}",
            points[-1],
            xytext=(7, 14 if near else 4),
            textcoords="offset points",
            fontsize=8.5,
            color=GREY,
            zorder=4,
            bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none", "alpha": 0.7},
        )


def _with_bars(line: Sequence[StoredCell], key: str) -> tuple[list[float], list[list[float]]]:
    """Values and the distances to the ends of their intervals, [2, points]."""
    rates = [rate for stored in line if (rate := interval_of(stored.summary[key])) is not None]
    return [rate.value for rate in rates], reach(rates)
