"""From one arm's time a token to another's: floating bars that add up, a panel a workload, a group a batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.waterfall import PARTS, Waterfall, waterfalls
from dsbench.errors import UsageError
from dsbench.results.labels import conditions, finished_cells, loud_label, workload_text
from dsbench.results.store import RunStore
from dsbench.views.plots_style import GREY, INK, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "accepted length": "#D55E00",
    "draft": "#E69F00",
    "verify": "#0072B2",
    "padding": "#56B4E9",
    "host": "#CC79A7",
    "prefill": "#009E73",
    "residual": "#999999",
}
PAIRS = (("static", "compact"), ("none", "compact"))
LABELLED = 0.005  # a part smaller than this share of the first arm's time has no number


def draw_run(store: RunStore, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """The waterfalls of PAIRS that the run has arms for."""
    cells, paths = finished_cells(store), []
    for source, target in PAIRS:
        try:
            falls = waterfalls(cells, source, target)
        except UsageError:  # an arm did not run
            continue
        paths += draw_waterfalls(falls, out, store.read_run(), formats=formats)
    return paths


def draw_waterfalls(
    falls: Sequence[Waterfall], out: Path, run: Mapping[str, Any], *, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """One picture a setting, of waterfalls between the same two arms."""
    settings = list(dict.fromkeys(fall.setting for fall in falls))
    paths: list[Path] = []
    with style():
        for number, setting in enumerate(settings, start=1):
            mine = [fall for fall in falls if fall.setting == setting]
            ends = "-".join(name.replace(":", "").replace(" ", "-") for name in (mine[0].source, mine[0].target))
            suffix = f"-{number}" if len(settings) > 1 else ""
            lines = (conditions(run), setting)
            paths += _draw(mine, out, f"waterfall-{ends}{suffix}", lines, loud_label(run), formats)
    return paths


def _draw(
    falls: Sequence[Waterfall], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    from matplotlib.patches import Patch

    source, target = falls[0].source, falls[0].target
    workloads = list(dict.fromkeys(fall.workload for fall in falls))
    note = (
        f"time a token in percent of {source}'s, below 100: {target} is faster; the parts add up; bars: 95% intervals "
        "over prompts, paired; axes need not start at 0; below: ms a token of a request; !: a cell is flagged"
    )
    title = f"Where the time goes: from {source} to {target}"
    figure, body = new_figure(2.7 * len(workloads) + 0.6, title, [*lines, note], loud)
    panels = body.subplots(len(workloads), 1, squeeze=False)[:, 0]
    ends = {source: GREY, target: INK}
    for axes, workload in zip(panels, workloads, strict=True):
        _panel(axes, [fall for fall in falls if fall.workload == workload], list(ends.values()))
        axes.set_title(workload_text(workload), loc="left", fontweight="bold")
        axes.set_ylabel(f"% of {source}")
    handles = [Patch(color=colour, label=arm) for arm, colour in ends.items()]
    handles += [Patch(color=COLOURS[part], label=part) for part in PARTS]
    body.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, columnspacing=1.2)
    return save(figure, out, name, formats)


def _panel(axes: Axes, falls: Sequence[Waterfall], ends: Sequence[str]) -> None:
    """A group of bars a batch size: the first arm, the parts from there, the second arm."""
    from matplotlib.patheffects import withStroke

    halo = [withStroke(linewidth=1.5, foreground="white")]  # a label may reach over the next bar
    width, reach, low = 1.0, len(PARTS) + 3.5, 100.0
    ticks: list[float] = []
    size = 7.5 if len(falls) <= 4 else 6.0
    for group, fall in enumerate(falls):
        left, level = group * reach, 100.0
        percent = 100 / fall.before.value
        axes.bar(left, 100, width, color=ends[0])
        for at, part in enumerate(PARTS, start=1):
            rate = fall.parts[part]
            change = percent * rate.value
            axes.bar(left + at, change, width, bottom=level, color=COLOURS[part])
            axes.plot([left + at - 0.5, left + at + 1.5], [level + change] * 2, color=GREY, linewidth=0.5)
            if rate.low is not None and rate.high is not None:
                span = [level + percent * rate.low, level + percent * rate.high]
                axes.plot([left + at] * 2, span, color=INK, linewidth=0.7)
            if abs(change) >= 100 * LABELLED:
                ends_at = [level + percent * (end or rate.value) for end in (rate.low, rate.high)]
                y, va = (max(ends_at) + 0.6, "bottom") if change > 0 else (min(ends_at) - 0.6, "top")
                axes.text(left + at, y, f"{change:+.0f}", ha="center", va=va, fontsize=size, path_effects=halo)
            low, level = min(low, level + change), level + change
        at = len(PARTS) + 1
        axes.bar(left + at, level, width, color=ends[1])
        axes.text(left + at, level + 0.6, f"{level:.0f}", ha="center", va="bottom", fontsize=size, fontweight="bold")
        ticks.append(left + at / 2)
    labels = [
        f"R={fall.batch}{' !' if fall.flagged else ''}\n{fall.before.value:.3g} →\n{fall.after.value:.3g} ms"
        for fall in falls
    ]
    axes.set_xticks(ticks, labels)
    bottom = low - 0.35 * (100 - low) - 10
    axes.set_ylim(bottom=bottom if low < 0 else max(0.0, bottom))
    axes.margins(x=0.01, y=0.12)
    axes.grid(axis="x", visible=False)
