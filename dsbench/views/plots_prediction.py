"""The cost table's error on live steps: by tier, and over the run; a line an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsbench.analysis.prediction import Off, by_arm, by_tier, over_run
from dsbench.results.labels import arm_rank
from dsbench.results.store import StoredCell
from dsbench.views.plots_style import GREY, arm_styles, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST = 5  # steps of a tier or tenth below which it is not drawn
REACH, FURTHEST = 60.0, 200.0  # percent: the axes reach at least and at most as far, as medians lie


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
