"""Suffix decay: conditional acceptance against depth, a line a drafter, a panel an event. No torch, no pyplot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.acceptance import ALL, Acceptance
from dsbench.drafting.results_file import Comparison
from dsbench.profiles.calibration import EventKey
from dsbench.views.plots_style import new_figure, save, small_grid, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = "osD^vPX"
RARE = 50  # trials of a depth below which its point is hollow: there the interval is too narrow
FEW = 16  # prompts below which the picture says so loudly

Line = tuple[str, Acceptance]  # a drafter's name and its numbers


def draw_decay(comparison: Comparison, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Over all workloads together; a drafter that did not run them all is left out. Nothing where none did."""
    panels: dict[EventKey, list[Line]] = {}
    for drafter, row in comparison.acceptances():
        if row.workload == ALL:
            panels.setdefault(row.event, []).append((drafter.name, row))
    if not panels:
        return []
    names = [d.name for d in comparison.drafters]
    prompts = [row.tau.n for lines in panels.values() for _, row in lines]
    deepest = max(len(row.conditional) for lines in panels.values() for _, row in lines)
    facts = comparison.conditions
    alike = all(
        comparison.alike(d, event, ALL)
        for event in panels
        for d in comparison.drafters
        if ALL in comparison.counts(d, event)
    )
    same = "the same for every drafter" if alike else "NOT the same for every drafter"
    lines = [
        f"{facts['device']}; {facts['target_name']}; {facts['dtype']}; {', '.join(comparison.workloads())}; at most"
        f" {facts['max_tokens']} tokens; whole block verified; seed {facts['seed']}",
        f"n = {_span(prompts)} prompts a line, {same}; bands: 95% intervals over prompts; beside"
        f" each name its trials at the first and the last depth; hollow: under {RARE} trials, do not trust the band",
    ]
    loud = f"FEW PROMPTS (n = {min(prompts)}): intervals are rough" if min(prompts) < FEW else ""
    lanes, columns = small_grid(len(panels))
    tall = 3.6 + 0.2 * max(map(len, panels.values()))
    with style():
        figure, body = new_figure(tall * lanes, "Suffix decay: conditional acceptance by depth", lines, loud)
        grid = list(body.subplots(lanes, columns, squeeze=False, sharex=True, sharey=True).flat)
        for axes, (event, own) in zip(grid, panels.items(), strict=False):
            _panel(axes, event, own, names, deepest)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        return save(figure, out, "suffix-decay", formats)


def _panel(axes: Axes, event: EventKey, lines: Sequence[Line], names: Sequence[str], deepest: int) -> None:
    for name, row in lines:
        known = [(k, p) for k, p in enumerate(row.conditional, start=1) if p is not None]
        depths, values = [k for k, _ in known], [p.value for _, p in known]
        at = names.index(name)
        look: dict[str, Any] = {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)]}
        trials = f"{row.trials[0]} to {row.trials[depths[-1] - 1]} trials" if depths else "no trials"
        axes.plot(depths, values, label=f"{name} ({trials})", linewidth=1.8, markersize=5, **look)
        rare = [(k, p.value) for k, p in known if row.trials[k - 1] < RARE]
        for k, value in rare:
            axes.plot(k, value, markerfacecolor="white", markersize=5, linestyle="none", **look)
        banded = [(k, p.low, p.high) for k, p in known if p.low is not None and p.high is not None]
        if banded:
            at_depth, low, high = zip(*banded, strict=True)
            axes.fill_between(at_depth, low, high, color=look["color"], alpha=0.16, linewidth=0)
    axes.set_title(str(event))
    axes.set_xlabel("depth in the block")
    axes.set_ylabel("accepted, given those before")
    axes.tick_params(labelleft=True, labelbottom=True)
    axes.set_xticks(range(1, deepest + 1))
    axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize=9)  # below: clear of lines


def _span(values: Sequence[int]) -> str:
    return str(values[0]) if min(values) == max(values) else f"{min(values)} to {max(values)}"
