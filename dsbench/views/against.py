"""A simulated run against a measured one: the picture, tables, and the section of a simulated run's report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.waterfall import PARTS
from dsbench.errors import UsageError
from dsbench.results.labels import arm_rank, workload_text
from dsbench.results.store import RunStore
from dsbench.simulate.against import KEPT
from dsbench.views.numbers import percent
from dsbench.views.report_parts import Scene, Section
from dsbench.views.style import GREY, INK, arm_styles, new_figure, plain_ticks, save
from dsbench.views.tables import Table, Value
from dsbench.views.waterfall import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLE = "Simulated against measured"
ALONE = (
    "Times come from a cost table on a virtual clock; plans are the real planner's, acceptance is recorded. Nothing "
    "was measured here. `dsbench simulate --against RUN` says how far such a run is off a measured one."
)
OFF = (
    "Error: simulated / measured throughput - 1. Parts: change of the time a token from measured to simulated, in "
    "percent of the measured; they add up. Prompts have no times of their own in a table: verify passes of as "
    "many rows stand for them. A table from before depths were timed prices shallow drafts as full blocks."
)
SIGNED = frozenset({"error %", "bias %", *PARTS})
NEAR = 0.05  # half the band's width


def simulated_section(scene: Scene, store: RunStore) -> Section:
    """How far the run is off the measured one that it was compared with, or that it was not."""
    path, suffix = store.folder / KEPT, scene.suffix
    if not path.exists():
        return Section(id=f"simulated{suffix}", title=TITLE, text=(ALONE,))
    try:
        body: dict[str, Any] = json.loads(path.read_text())
        tables = (arms_table(body, suffix=suffix), cells_table(body, suffix=suffix))
        said = total(body)
    except (ValueError, KeyError, TypeError) as problem:
        raise UsageError(f"{path} is damaged: {problem}", hint="simulate it again") from None
    arms = "; ".join(f"{arm} {percent(one['median'], 1)}" for arm, one in body["by_arm"].items())
    pictures = scene.pictures(
        lambda room: draw_against(body, room, f"against{suffix}", scene.lines, scene.loud, ("svg",)),
        f"Simulated over measured throughput, a point a cell. {said} Median error by arm: {arms}.",
    )
    return Section(id=f"simulated{suffix}", title=TITLE, text=(said, OFF), pictures=pictures, tables=tables)


def total(body: Mapping[str, Any]) -> str:
    """The errors over all cells in a sentence."""
    every = body["all"]
    return (
        f"Simulated against {body['against']}: {every['cells']} cells, median error {percent(every['median'], 1)}, "
        f"95% within {percent(every['p95'], 1)}, bias {percent(every['bias'], 1, sign=True)}."
    )


def arms_table(body: Mapping[str, Any], *, suffix: str = "") -> Table:
    """A row an arm, all of them first."""
    rows: list[tuple[Value, ...]] = [
        (arm, one["cells"], 100 * one["median"], 100 * one["p95"], 100 * one["bias"], *_part_values(one))
        for arm, one in [("all", body["all"]), *body["by_arm"].items()]
    ]
    heads = ("arm", "cells", "median error %", "95% within %", "bias %", *PARTS)
    return Table(
        name=f"against-arms{suffix}", caption="By arm", heads=heads, rows=tuple(rows), short=True, signed=SIGNED
    )


def cells_table(body: Mapping[str, Any], *, suffix: str = "") -> Table:
    """A row a cell; shared prompts: that both runs served."""
    rows: list[tuple[Value, ...]] = [
        (
            workload_text(c["workload"]),
            c["batch"],
            c["arm"],
            float(c["measured"]),
            float(c["simulated"]),
            100 * c["error"],
            *_part_values(c),
            c["prompts"],
            c["flags"],
        )
        for c in body["cells"]
    ]
    heads = ("workload", "R", "arm", "measured tokens/s", "simulated", "error %", *PARTS, "shared prompts", "flags")
    return Table(name=f"against{suffix}", caption="By cell", heads=heads, rows=tuple(rows), place=2, signed=SIGNED)


def _part_values(one: Mapping[str, Any]) -> list[Value]:
    return [100 * float(one["parts"][name]) for name in PARTS]


def draw_against(
    body: Mapping[str, Any], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """The picture of what `simulate_against.as_json` says."""
    note = (
        f"{total(body)} Band: within {percent(NEAR)}; bars: mean change of the time a token from measured to "
        "simulated, they add up to its error"
    )
    figure, body_part = new_figure(4.3, "Simulated against measured throughput", [*lines, note], loud)
    left, right = body_part.subplots(1, 2, squeeze=False)[0]
    _points(left, body["cells"])
    _parts(right, body["by_arm"])
    return save(figure, out, name, formats)


def _points(axes: Axes, cells: Sequence[Mapping[str, Any]]) -> None:
    arms = sorted({c["arm"] for c in cells}, key=arm_rank)
    styles = arm_styles(arms)
    for arm in arms:
        own = [c for c in cells if c["arm"] == arm]
        axes.plot(
            [c["measured"] for c in own],
            [c["simulated"] for c in own],
            linestyle="",
            label=arm,
            markersize=5,
            marker=styles[arm]["marker"],
            color=styles[arm]["color"],
            alpha=0.8,
        )
    every = [c[key] for c in cells for key in ("measured", "simulated")]
    ends = np.array([min(every) / 1.2, max(every) * 1.3])
    axes.plot(ends, ends, color=GREY, linewidth=1.0, zorder=1)
    axes.fill_between(ends, ends * (1 - NEAR), ends * (1 + NEAR), color="#eeeeee", zorder=0)
    plain_ticks(axes, "x", every)
    plain_ticks(axes, "y", every)
    axes.set_xlabel("measured [tokens/s]")
    axes.set_ylabel("simulated [tokens/s]")
    axes.legend(frameon=False, loc="upper left")


def _parts(axes: Axes, arms: Mapping[str, Mapping[str, Any]]) -> None:
    """Positive parts stack to the right, negative ones to the left; a mark where they sum to."""
    names = sorted(arms, key=arm_rank)
    for place, arm in enumerate(reversed(names)):
        right = left = 0.0
        for part in PARTS:
            value = 100 * arms[arm]["parts"][part]
            axes.barh(place, value, left=right if value > 0 else left, color=COLOURS[part], height=0.6)
            right, left = (right + value, left) if value > 0 else (right, left + value)
        axes.plot([right + left], [place], marker="|", markersize=16, color=INK)
    axes.set_yticks(range(len(names)), list(reversed(names)))
    axes.axvline(0, color=GREY, linewidth=1.0)
    axes.set_xlabel("change of the time a token [% of measured]")
    handles = [axes.barh(0, 0, color=COLOURS[part]) for part in PARTS]
    axes.legend(handles, PARTS, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=4, fontsize=9)
    axes.grid(axis="y", visible=False)
