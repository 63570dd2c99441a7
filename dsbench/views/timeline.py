"""Rounds on one time axis: a panel a run, rows for host and device, the device's idle gaps marked and summed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.timeline import View
from dsbench.views.numbers import number, percent
from dsbench.views.style import GREY, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "prefill": "#7a5195",
    "draft": "#0072B2",
    "verify": "#009E73",
    "plan": "#E69F00",
    "pack": "#F0E442",
    "accept": "#D55E00",
    "commit": "#56B4E9",
    "settle": "#8c564b",
    "wait": "#d9d9d9",
}
IDLE = "#e0606f"
HEIGHT = {"host": (1.0, 0.62), "device": (0.0, 0.62)}  # bottom and height of a row
LEAST_LABELLED = 0.02  # of the axis: narrower spans carry no name


def draw_timeline(
    views: Sequence[View], out: Path, lines: Sequence[str], loud: str, *, formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """timeline.png and .svg in `out`. Raises UsageError for a folder that cannot be written."""
    note = (
        "red: the device ran no prefill, draft or verify pass, copies between passes included; "
        "shares are of the time shown"
    )
    with style():
        figure, body = new_figure(1.75 * len(views) + 1.0, "Device and host, round by round", [*lines, note], loud)
        panels = body.subplots(len(views), 1, squeeze=False, sharex=True)[:, 0]
        longest = max(view.seconds for view in views) * 1e3
        handles: dict[str, Any] = {}
        for axes, view in zip(panels, views, strict=True):
            handles |= _panel(axes, view, longest)
        panels[-1].set_xlabel("time [ms]")
        order = [*(name for name in COLOURS if name in handles), "device idle"]
        body.legend([handles[n] for n in order], order, loc="outside lower center", ncols=9, frameon=False)
        return save(figure, out, "timeline", formats)


def _panel(axes: Axes, view: View, longest: float) -> dict[str, Any]:
    """One run; returns legend handles by phase."""
    from matplotlib.patches import Patch

    names = dict.fromkeys(s.name for s in view.spans)
    for name in names:
        for row, place in HEIGHT.items():
            mine = [(s.begin * 1e3, (s.end - s.begin) * 1e3) for s in view.row(row) if s.name == name]
            axes.broken_barh(mine, place, facecolors=COLOURS.get(name, GREY), linewidth=0)
            for begin, wide in mine:
                if row == "device" and wide > 3 * LEAST_LABELLED * longest:
                    axes.text(begin + wide / 2, 0.31, name, ha="center", va="center", fontsize=8, color="white")
    gaps = [(begin * 1e3, (end - begin) * 1e3) for begin, end in view.gaps]
    axes.broken_barh(gaps, HEIGHT["device"], facecolors=IDLE, linewidth=0)
    step, idle = view.seconds / view.rounds * 1e3, view.idle_a_round * 1e3
    summed = f"{number(view.idle * 1e3)} ms idle in {view.rounds} rounds: {number(idle)} of {number(step)} ms a round"
    axes.set_title(f"{view.name}: {summed}, {percent(view.idle_share, 1)}", fontsize=10.5, loc="left")
    axes.set_yticks([0.31, 1.31], ["device", "host"])
    axes.set(xlim=(0, longest), ylim=(-0.12, 1.75))
    axes.grid(visible=False, axis="y")
    drawn = {name: Patch(facecolor=COLOURS.get(name, GREY)) for name in names}
    return drawn | {"device idle": Patch(facecolor=IDLE)}
