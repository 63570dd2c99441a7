"""Draft latency: milliseconds of a whole block over the batch size, and of its first drafts; a line a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.drafting.results_file import Comparison, DrafterEntry, Timing
from dsbench.views.plots_drafters import COLOURS, MARKERS
from dsbench.views.plots_style import new_figure, plain_ticks, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_times(comparison: Comparison, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Nothing where no drafter was timed."""
    timed = [(d, [t for t in d.times if t.what == "propose"]) for d in comparison.drafters]
    timed = [(drafter, times) for drafter, times in timed if times]
    if not timed:
        return []
    every = [t for _, times in timed for t in times]
    batches = sorted({t.batch for t in every})
    shown = sorted({batches[0], batches[-1]})
    contexts = sorted({t.context for t in every})
    facts, executors = comparison.conditions, sorted({t.executor for t in every})
    lines = [
        f"{facts['device']}; {facts['target_name']}; {facts['dtype']}; {' or '.join(executors)}; "
        f"{_span(contexts)} context tokens a request; coupled rule, T=1; seed {facts['seed']}",
        f"n = {_span(sorted({t.milliseconds.n for t in every}))} calls a point, drafters in turn; bars: 95% intervals "
        "of the median",
    ]
    together = {t.together for t in every}
    loud = "" if len(together) == 1 and len(next(iter(together))) >= len(timed) else "NOT ALL TIMED TOGETHER"
    with style():
        figure, body = new_figure(4.2, "Draft latency", lines, loud)
        panels: list[Axes] = list(body.subplots(1, 1 + len(shown), squeeze=False)[0])
        names = [d.name for d in comparison.drafters]
        for drafter, times in timed:
            look = _look(names.index(drafter.name))
            whole = sorted((t for t in times if t.depth == drafter.block), key=lambda t: t.batch)
            _line(panels[0], [t.batch for t in whole], whole, _label(drafter), look)
            for axes, batch in zip(panels[1:], shown, strict=True):
                own = sorted((t for t in times if t.batch == batch), key=lambda t: t.depth)
                _line(axes, [t.depth for t in own], own, _label(drafter), look)
        panels[0].set_title("whole block, over requests", loc="left")
        panels[0].set_xlabel("requests R")
        plain_ticks(panels[0], "x", [float(b) for b in batches])
        for axes, batch in zip(panels[1:], shown, strict=True):
            axes.set_title(f"first drafts of the block, R={batch}", loc="left")
            axes.set_xlabel("drafts made")
        for axes in panels:
            axes.set_ylabel("milliseconds to draft")
            axes.set_ylim(bottom=0)
        handles, labels = panels[0].get_legend_handles_labels()
        body.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        return save(figure, out, "draft-time", formats)


def _label(drafter: DrafterEntry) -> str:
    return f"{drafter.name} (block of {drafter.block})"


def _look(at: int) -> dict[str, Any]:
    return {"color": COLOURS[at % len(COLOURS)], "marker": MARKERS[at % len(MARKERS)]}


def _line(axes: Axes, x: Sequence[int], times: Sequence[Timing], label: str, look: dict[str, Any]) -> None:
    """Medians and the distances to the ends of their intervals."""
    if not times:
        return
    found = [t.milliseconds for t in times]
    below = [0.0 if m.low is None else max(0.0, m.value - m.low) for m in found]
    above = [0.0 if m.high is None else max(0.0, m.high - m.value) for m in found]
    axes.errorbar(
        x, [m.value for m in found], yerr=[below, above], label=label, linewidth=1.8, markersize=5, capsize=2, **look
    )


def _span(values: Sequence[int]) -> str:
    return f"{values[0]}" if values[0] == values[-1] else f"{values[0]} to {values[-1]}"
