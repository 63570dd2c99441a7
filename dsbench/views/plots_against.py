"""Simulated against measured throughput, a point a cell; and which part of the time is off, a bar an arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.waterfall import PARTS
from dsbench.results.labels import arm_rank
from dsbench.views.plots_style import GREY, INK, arm_styles, new_figure, plain_ticks, save
from dsbench.views.plots_waterfall import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEAR = 0.05  # half the band's width


def draw_against(
    body: Mapping[str, Any], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """The picture of what `simulate_against.as_json` says."""
    whole = body["all"]
    note = (
        f"against {body['against']}: n = {whole['cells']} cells, median error {whole['median']:.1%}, 95% within "
        f"{whole['p95']:.1%}, bias {whole['bias']:+.1%}; band: within {NEAR:.0%}; bars: mean change of the time a "
        "token from measured to simulated, they add up to its error"
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
