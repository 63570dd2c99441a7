"""From one arm's time a token to another's: floating bars that add up, their table, command and report section."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.waterfall import PARTS, Waterfall, waterfalls
from dsbench.errors import UsageError
from dsbench.results.labels import conditions, finished_cells, loud_label, workload_text
from dsbench.results.store import RunStore
from dsbench.views.numbers import number
from dsbench.views.report_parts import Picture, Scene, Section
from dsbench.views.style import GREY, INK, new_figure, save, style
from dsbench.views.tables import Table, chosen, print_of_run, setting_note

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
FALL = (
    "Milliseconds of a request per output token, in the first arm, the parts of the change, and in the second arm. The "
    "parts add up exactly; products are split at the midpoint, so no order was chosen."
)
PARTS_NOTE = (
    "±: half the 95% interval over prompts. accepted length: rounds a token, at the mean price of a round; draft, "
    "verify, padding (verify's time by the share of rows run for nobody) and host (plan, pack, idle): a round's time, "
    "at the mean number of rounds; prefill: waiting for one's own prompt and for others'."
)
LABELLED = 0.005  # a part smaller than this share of the first arm's time has no number


def show_waterfall(
    folder: Path, *, source: str, target: str, workload: str, batch: str, as_json: bool, plots: Path | None
) -> None:
    """Prints the waterfalls of a run on stdout, and draws them into `plots`."""
    store = RunStore(folder)
    falls = waterfalls(chosen(finished_cells(store), workload, batch), source, target)
    if as_json:
        print(json.dumps([fall.json() for fall in falls], indent=2))
    else:
        notes = [setting_note([fall.setting for fall in falls]), FALL, PARTS_NOTE]
        print_of_run(waterfall_table(falls), store, f"From {source} to {target}", notes)
    if plots is not None:
        for path in draw_waterfalls(falls, plots, store.read_run()):
            print(path, file=sys.stderr if as_json else sys.stdout)


def waterfall_table(falls: Sequence[Waterfall], *, suffix: str = "") -> Table:
    """A row a point: ms a token in the first arm, the parts of the change, ms a token in the second."""
    source, target = falls[0].source, falls[0].target
    rows = tuple(
        (
            workload_text(fall.workload),
            fall.batch,
            fall.before,
            *(fall.parts[part] for part in PARTS),
            fall.after,
            100 * (fall.after.value / fall.before.value - 1),
            "yes" if fall.flagged else "",
        )
        for fall in falls
    )
    return Table(
        name=f"waterfall-{source}-{target}{suffix}".replace(":", ""),
        caption=f"From {source} to {target}, ms a token",
        heads=("workload", "R", f"from {source}", *PARTS, f"to {target}", "change %", "flagged"),
        rows=rows,
        place=1,
        signed=frozenset({*PARTS, "change %"}),
        half=True,
    )


def waterfall_section(scene: Scene) -> Section:
    """The waterfalls of PAIRS that the setting has arms for."""
    pictures: list[Picture] = []
    tables: list[Table] = []
    for source, target in PAIRS:
        try:
            falls = waterfalls(scene.cells, source, target)
        except UsageError:  # an arm did not run
            continue
        alt = f"Floating bars from {source} to {target}, which add up: " + "; ".join(map(_fall_text, falls)) + "."
        drawn = scene.pictures(partial(draw_waterfalls, falls, run=scene.run, formats=("svg",)), alt)
        pictures += [Picture(name=f"{p.name}{scene.suffix}", svg=p.svg, alt=p.alt) for p in drawn]
        tables.append(waterfall_table(falls, suffix=scene.suffix))
    return Section(
        id=f"waterfall{scene.suffix}",
        title="Where the time goes",
        text=(FALL,) if tables else (f"The run lacks the arms: {' or '.join(f'{a} and {b}' for a, b in PAIRS)}.",),
        pictures=tuple(pictures),
        tables=tuple(tables),
    )


def _fall_text(fall: Waterfall) -> str:
    parts = ", ".join(f"{name} {number(part.value, sign=True)}" for name, part in fall.parts.items())
    place = f"{workload_text(fall.workload)} R={fall.batch}"
    return f"{place} {number(fall.before.value)} to {number(fall.after.value)} ms a token ({parts})"


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
        f"R={fall.batch}{' !' if fall.flagged else ''}\n{number(fall.before.value)} →\n{number(fall.after.value)} ms"
        for fall in falls
    ]
    axes.set_xticks(ticks, labels)
    bottom = low - 0.35 * (100 - low) - 10
    axes.set_ylim(bottom=bottom if low < 0 else max(0.0, bottom))
    axes.margins(x=0.01, y=0.12)
    axes.grid(axis="x", visible=False)
