"""Draft latency: milliseconds of a full block over the batch size, and of its first drafts; lines and a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.drafting.results_file import Comparison, DrafterEntry, Timing
from dsbench.views.numbers import bounds, reach, span
from dsbench.views.style import drafter_look, new_figure, plain_ticks, save, style

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
        f"{span(contexts)} context tokens a request; coupled rule, T=1; seed {facts['seed']}",
        f"n = {span(sorted({t.milliseconds.n for t in every}))} calls a point, drafters in turn; bars: 95% intervals "
        "of the median",
    ]
    together = {t.together for t in every}
    loud = "" if len(together) == 1 and len(next(iter(together))) >= len(timed) else "NOT ALL TIMED TOGETHER"
    with style():
        figure, body = new_figure(4.2, "Draft latency", lines, loud)
        panels: list[Axes] = list(body.subplots(1, 1 + len(shown), squeeze=False)[0])
        names = [d.name for d in comparison.drafters]
        for drafter, times in timed:
            look = drafter_look(names.index(drafter.name))
            full = sorted((t for t in times if t.depth == drafter.block), key=lambda t: t.batch)
            _line(panels[0], [t.batch for t in full], full, _label(drafter), look)
            for axes, batch in zip(panels[1:], shown, strict=True):
                own = sorted((t for t in times if t.batch == batch), key=lambda t: t.depth)
                _line(axes, [t.depth for t in own], own, _label(drafter), look)
        panels[0].set_title("full block, over requests", loc="left")
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


def _line(axes: Axes, x: Sequence[int], times: Sequence[Timing], label: str, look: dict[str, Any]) -> None:
    """Medians and the distances to the ends of their intervals."""
    if not times:
        return
    found = [t.milliseconds for t in times]
    axes.errorbar(
        x, [m.value for m in found], yerr=reach(found), label=label, linewidth=1.8, markersize=5, capsize=2, **look
    )


def print_times(comparison: Comparison, width: int) -> None:
    """Median milliseconds of each call; `width`: of the longest drafter's name."""
    if not any(d.times for d in comparison.drafters):
        return
    print("milliseconds, median [95% of the median]; propose: drafts made of the block, observe: rows taken in")
    print(f"{'drafter':<{width}} batch  call     depth    rows  context  milliseconds")
    times = [(d, t) for d in comparison.drafters for t in d.times]
    order = {"propose": 0, "observe": 1}
    for drafter, t in sorted(times, key=lambda pair: (pair[1].batch, order.get(pair[1].what, 2), pair[1].depth)):
        full = " (full block)" if t.what == "propose" and t.depth == drafter.block else ""
        alone = "" if len(t.together) > 1 else " (timed alone)"
        print(
            f"{drafter.name:<{width}} {t.batch:>5}  {t.what:<8} {t.depth or '-':>5} {t.rows:>7} {t.context:>8}"
            f"  {t.milliseconds.value:.3f} {bounds(t.milliseconds, '.3f')}{full}{alone}"
        )
