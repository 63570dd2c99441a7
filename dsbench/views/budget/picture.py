"""The verify budget: the rows that ran, what came of the block that was drafted, and how windows spread.

A row a workload, two stacked bars a batch size; the members of a mixed cell are split by each request's own workload.
From the cap-accept arm where it ran, since it sees the full block's ceiling; else from compact. A cell without rounds
has its rows alone, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.analysis.budgets import LEAST_SEEN, Rows, drafts_of, rows_of
from dsbench.results.cells import StoredCell
from dsbench.results.labels import MIX, arm_names, workload_text
from dsbench.views.numbers import percent
from dsbench.views.style import INK, new_figure, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

ROWS = (
    ("anchor", "#5b5b5b", "anchor: one row a request"),
    ("scheduled", "#0072B2", "drafts scheduled"),
    ("filler", "#56B4E9", "drafts that fill a tier up"),
    ("seen", "#CC79A7", "drafts verified past the window"),
    ("padding", "#dddddd", "padding: rows for nobody"),
)
DRAFTS = (
    ("bonus", "#8c8c8c", "bonus token"),
    ("accepted", "#009E73", "drafts accepted"),
    ("rejected", "#D55E00", "rejected"),
    ("missed", "#E69F00", "trimmed, would have been accepted"),
    ("trimmed", "#f3ead2", "trimmed, of no use or not known"),
)
NO_ROUNDS = "no rounds"
LIGHT = ("padding", "trimmed", "filler", "missed")


@dataclass(frozen=True, slots=True)
class Item:
    """A batch size of a workload: its numbers, and the rows that ran (None inside a mix, whose rows are shared)."""

    batch: int
    body: Mapping[str, Any]
    rows: Rows | None


Row = tuple[str, list[Item]]


def draw_budgets(
    cells: Sequence[StoredCell],
    out: Path,
    name: str,
    lines: Sequence[str],
    loud: str,
    formats: Sequence[str],
    tiers: Sequence[int] | None = None,
) -> list[Path]:
    """One picture of the unmixed workloads and one a mix; none where no planned arm ran. `tiers` of the cost table."""
    pages: dict[str, list[StoredCell]] = {}
    for stored in planned_cells(cells):
        workload = stored.cell.workload
        pages.setdefault(workload if workload.startswith(MIX) else "", []).append(stored)
    paths: list[Path] = []
    for page, chosen in pages.items():
        rows = _rows(chosen, tiers)
        if not any(item.rows or item.body.get("window") for _, items in rows for item in items):
            continue
        suffix = "-" + re.sub(r"[^a-z0-9]+", "-", page.lower()) if page else ""
        title = "Verify budget" + (f" inside {workload_text(page)}" if page else " by workload")
        arms = ", ".join(sorted(set(arm_names(chosen).values())))
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


def _rows(cells: Sequence[StoredCell], tiers: Sequence[int] | None) -> list[Row]:
    found: dict[str, list[Item]] = {}
    for stored in cells:
        cell, body = stored.cell, stored.summary
        parts = body.get("workloads") if cell.workload.startswith(MIX) else None
        title = "all of it" if cell.workload.startswith(MIX) else cell.workload
        found.setdefault(title, []).append(Item(cell.batch, body, rows_of(stored.table("steps"), tiers)))
        for workload, part in (parts or {}).items():
            found.setdefault(workload, []).append(Item(cell.batch, part, None))
    return [(workload, sorted(found[workload], key=lambda item: item.batch)) for workload in sorted(found)]


def _draw(
    rows: Sequence[Row], out: Path, name: str, title: str, lines: Sequence[str], loud: str, formats: Sequence[str]
) -> list[Path]:
    every = [item for _, items in rows for item in items]
    counts = [item.body["rounds"] for item in every if item.body.get("rounds")]
    said = f"n = {min(counts)} to {max(counts)} rounds a batch size" if counts else "no rounds were recorded"
    dark = [item for item in every if item.body.get("window") and (item.body.get("ceiling_seen") or 0) < LEAST_SEEN]
    said += (
        f"; what trimming missed is not known where fewer than {percent(LEAST_SEEN)} of rounds show it" if dark else ""
    )
    said += "; rows of a pass are known of all of a mix alone" if any(item.rows is None for item in every) else ""
    note = f"left bars: rows the target ran; right bars: what came of the drafts; line: delivered, 95% interval; {said}"
    figure, body = new_figure(2.75 * len(rows) + 1.25, title, [*lines, note], loud)
    grid = body.subplots(len(rows), 2, squeeze=False, gridspec_kw={"width_ratios": [1.6, 1]})
    block = max((len(item.body.get("window_counts") or ()) for item in every), default=1) - 1
    for (workload, items), (left, right) in zip(rows, grid, strict=True):
        _bars(left, items, block)
        _windows(right, items, max(block, 1))
        left.set_title(workload, loc="left", fontweight="bold")
        left.set_ylabel("rows, drafts, tokens\na request and round")
        right.set_ylabel("share of rounds")
    grid[0][1].set_title("windows granted", loc="left")
    for axes in grid[-1]:
        axes.set_xlabel("requests in the batch, R")
    _legends(body, every, max(block, 1))
    return save(figure, out, name, formats)


def _bars(axes: Axes, items: Sequence[Item], block: int) -> None:
    """Two stacks a batch size: rows, and drafts with the bonus."""
    highest = 1.0
    for place, item in enumerate(items):
        drafts = drafts_of(item.body, block)
        for at, kinds, found in ((-0.21, ROWS, item.rows), (0.21, DRAFTS, drafts)):
            if found is None:
                if at > 0:
                    axes.text(place + at, 0.1, NO_ROUNDS, rotation=90, fontsize=7.5, ha="center", va="bottom")
                continue
            values = [(kind, colour, getattr(found, kind) or 0.0) for kind, colour, _ in kinds]
            highest = max(highest, _stack(axes, place + at, values, len(items)))
        rate = item.body.get("tau")
        if rate and rate["low"] is not None:
            axes.plot([place + 0.375] * 2, [rate["low"], rate["high"]], color=INK, linewidth=1.4)
    axes.set_ylim(0, highest * 1.06)
    axes.set_xticks(range(len(items)), [str(item.batch) for item in items])
    axes.set_xlim(-0.6, len(items) - 0.4)
    axes.grid(axis="x", visible=False)


def _stack(axes: Axes, x: float, values: Sequence[tuple[str, str, float]], many: int) -> float:
    """One stacked bar, its larger parts with their numbers; returns its height."""
    bottom, total = 0.0, sum(value for _, _, value in values)
    for kind, colour, value in values:
        axes.bar(x, value, 0.38, bottom=bottom, color=colour, edgecolor="white", linewidth=0.4)
        if value >= 0.055 * max(total, 8.0) and kind not in ("anchor", "bonus"):
            ink = INK if kind in LIGHT else "white"
            size = 7.5 if many <= 6 else 6.0
            axes.text(x, bottom + value / 2, f"{value:.2f}", ha="center", va="center", fontsize=size, color=ink)
        bottom += value
    return bottom


def _windows(axes: Axes, items: Sequence[Item], block: int) -> None:
    """Stacked shares of the windows 0 .. block for each batch size; short windows lie at the bottom."""
    counts = np.zeros((len(items), block + 1))
    for place, item in enumerate(items):
        found = item.body.get("window_counts") or []
        counts[place, : len(found)] = found
        if not sum(found):
            axes.text(place, 0.03, NO_ROUNDS, rotation=90, fontsize=7.5, ha="center", va="bottom")
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
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
    axes.set_xticks(range(len(items)), [str(item.batch) for item in items])
    axes.grid(visible=False)


def _window_colours(block: int) -> list[tuple[float, float, float]]:
    from matplotlib import colormaps

    colours = colormaps["cividis"](np.linspace(0.02, 0.98, block + 1))
    return [(float(red), float(green), float(blue)) for red, green, blue, _ in colours]


def _legends(body: SubFigure, items: Sequence[Item], block: int) -> None:
    """Left: the kinds that occur, rows first; right: the windows."""
    from matplotlib.patches import Patch

    found = [part for item in items for part in (item.rows, drafts_of(item.body, block)) if part is not None]
    kinds = [
        Patch(color=colour, label=text)
        for kind, colour, text in (*ROWS, *DRAFTS)
        if any(getattr(part, kind, None) for part in found)
    ]
    body.legend(handles=kinds, loc="outside lower left", ncols=2, frameon=False, fontsize=8.5, columnspacing=1.2)
    right = [Patch(color=colour, label=str(window)) for window, colour in enumerate(_window_colours(block))]
    body.legend(
        handles=right,
        loc="outside lower right",
        ncols=min(9, block + 1),
        frameon=False,
        title="window: drafts sent",
        columnspacing=0.8,
        handlelength=1.0,
        fontsize=8.5,
    )
