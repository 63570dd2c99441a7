"""The verify budget: what could have been accepted, what was asked for, what was delivered, and how windows spread.

A row a workload; the members of a mixed cell are split by each request's own workload. From the cap-accept arm where it
ran, since it sees the whole block's ceiling; else from compact.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.plots_labels import MIX, arm_names, workload_text
from dsbench.plots_style import new_figure, save
from dsbench.store import StoredCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

BARS = (("ceiling", "#999999", "ceiling: delivered had all drafts been verified"),
        ("window", "#56B4E9", "window + 1: the most a round could deliver"),
        ("delivered", "#D55E00", "delivered: accepted drafts and the bonus"))  # fmt: skip
LEAST_SEEN = 0.8

Row = tuple[str, list[tuple[int, Mapping[str, Any]]]]  # a workload; its batch sizes with the numbers of each


def draw_budgets(
    cells: Sequence[StoredCell], out: Path, name: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    """One picture of the plain workloads and one a mix; none where no planned arm ran."""
    pages: dict[str, list[StoredCell]] = {}
    for stored in planned_cells(cells):
        workload = stored.cell.workload
        pages.setdefault(workload if workload.startswith(MIX) else "", []).append(stored)
    paths: list[Path] = []
    for page, chosen in pages.items():
        rows = _rows(chosen)
        if not rows:
            continue
        suffix = "-" + re.sub(r"[^a-z0-9]+", "-", page.lower()) if page else ""
        title = "Verify budget" + (f" inside {workload_text(page)}" if page else " by workload")
        names = arm_names(chosen)
        arms = ", ".join(sorted(set(names.values())))
        paths += _draw(rows, out, name + suffix, title, [*lines, f"arm: {arms}"], loud, formats)
    return paths


def planned_cells(cells: Sequence[StoredCell]) -> list[StoredCell]:
    """Per workload and batch size the cell to draw: cap-accept or a variant of it, else compact or a variant."""
    best: dict[tuple[str, int], tuple[int, str, StoredCell]] = {}
    for stored in cells:
        head, _, detail = stored.cell.mode.partition(":")
        if head not in ("cap-accept", "compact"):
            continue
        rank = (2 * (head == "compact") + bool(detail), stored.cell.mode)
        place = (stored.cell.workload, stored.cell.batch)
        if place not in best or rank < best[place][:2]:
            best[place] = (*rank, stored)
    return [best[place][2] for place in sorted(best)]


def _rows(cells: Sequence[StoredCell]) -> list[Row]:
    found: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for stored in cells:
        parts = stored.summary.get("workloads") if stored.cell.workload.startswith(MIX) else None
        for workload, body in (parts or {stored.cell.workload: stored.summary}).items():
            if body.get("window"):
                found.setdefault(workload, []).append((stored.cell.batch, body))
    return [(workload, sorted(found[workload], key=lambda item: item[0])) for workload in sorted(found)]


def _draw(
    rows: Sequence[Row], out: Path, name: str, title: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    counts = [body["rounds"] for _, items in rows for _, body in items]
    note = f"n = {min(counts)} to {max(counts)} rounds a batch size; bars: 95% intervals over prompts"
    figure, body = new_figure(2.75 * len(rows) + 0.75, title, [*lines, note], loud)
    grid = body.subplots(len(rows), 2, squeeze=False, gridspec_kw={"width_ratios": [1.45, 1]})
    block = max(len(numbers["window_counts"]) for _, items in rows for _, numbers in items) - 1
    for (workload, items), (left, right) in zip(rows, grid, strict=True):
        _bars(left, items)
        _windows(right, items, block)
        left.set_title(workload, loc="left", fontweight="bold")
        left.set_ylabel("tokens a round")
        right.set_ylabel("share of rounds")
        left.set_ylim(0, (block + 1) * 1.17)
    grid[0][1].set_title("windows granted", loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("requests in the batch, R")
    _legends(body, grid, block)
    return save(figure, out, name, formats)


def _bars(axes: Axes, items: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
    """Three bars a batch size, each with its value and interval."""
    size = 8.0 if len(items) <= 6 else 6.5
    for at, (key, colour, _) in enumerate(BARS):
        for place, (_, body) in enumerate(items):
            rate = body.get("tau" if key == "delivered" else key)
            if rate is None or (key == "ceiling" and body["ceiling_seen"] < LEAST_SEEN):
                text = f"seen in {body['ceiling_seen']:.0%}"
                axes.text(place + (at - 1) * 0.28, 0.08, text, rotation=90, fontsize=7.5, ha="center", va="bottom")
                continue
            shift = 1.0 if key == "window" else 0.0
            value = rate["value"] + shift
            x = place + (at - 1) * 0.28
            axes.bar(x, value, 0.26, color=colour)
            high = value
            if rate["low"] is not None:
                low, high = rate["low"] + shift, max(value, rate["high"] + shift)
                axes.plot([x, x], [low, high], color="#333333", linewidth=0.9)
            label = f"{value:.1f}" if len(items) > 4 else f"{value:.2f}"
            axes.text(x, high + 0.08, label, ha="center", va="bottom", fontsize=size)
    axes.set_xticks(range(len(items)), [str(batch) for batch, _ in items])
    axes.grid(axis="x", visible=False)


def _windows(axes: Axes, items: Sequence[tuple[int, Mapping[str, Any]]], block: int) -> None:
    """Stacked shares of the windows 0 .. block for each batch size; short windows lie at the bottom."""
    counts = np.zeros((len(items), block + 1))
    for place, (_, body) in enumerate(items):
        counts[place, : len(body["window_counts"])] = body["window_counts"]
    shares = counts / counts.sum(1, keepdims=True)
    bottom = np.zeros(len(items))
    for window, colour in enumerate(_window_colours(block)):
        axes.bar(
            range(len(items)), shares[:, window], 0.75, bottom=bottom, color=colour, edgecolor="white", linewidth=0.4
        )
        for place, share in enumerate(shares[:, window]):
            if share >= 0.09:
                dark = sum(colour) < 1.5
                middle = bottom[place] + share / 2
                text: dict[str, Any] = {
                    "ha": "center",
                    "va": "center",
                    "fontsize": 7.5,
                    "color": "white" if dark else "black",
                }
                axes.text(place, middle, str(window), **text)
        bottom += shares[:, window]
    axes.set_ylim(0, 1)
    axes.set_xticks(range(len(items)), [str(batch) for batch, _ in items])
    axes.grid(visible=False)


def _window_colours(block: int) -> list[tuple[float, float, float]]:
    from matplotlib import colormaps

    colours = colormaps["cividis"](np.linspace(0.02, 0.98, block + 1))
    return [(float(red), float(green), float(blue)) for red, green, blue, _ in colours]


def _legends(body: SubFigure, grid: Any, block: int) -> None:
    from matplotlib.patches import Patch

    left = [Patch(color=colour, label=text) for _, colour, text in BARS]
    body.legend(handles=left, loc="outside lower left", ncols=1, frameon=False)
    right = [Patch(color=colour, label=str(window)) for window, colour in enumerate(_window_colours(block))]
    body.legend(
        handles=right, loc="outside lower right", ncols=min(9, block + 1), frameon=False, title="window: drafts sent",
        columnspacing=1.0, handlelength=1.2,
    )  # fmt: skip
