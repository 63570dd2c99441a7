"""A cost table: its fit against the cells it was made from, its residuals and draft curve in a picture, its errors.

Lines are the table; markers are measured medians; a ring marks a held-out cell, whose residual comes from a fit that
did not see it. Legend: `R` requests, `M` packed rows, `S` sum of context tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dsbench.profiles.cost import CostTable, load_cost_table
from dsbench.profiles.curve import FloatArray
from dsbench.profiles.fit import CellFit, FitReport, fit_cost_table
from dsbench.profiles.samples import load_samples, samples_path
from dsbench.results.store import RunStore
from dsbench.views.numbers import percent
from dsbench.views.style import GREY, LOUD, new_figure, plain_ticks, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import SubFigure

FACTS = ("device", "threads", "target", "dtype", "block", "executor", "date", "revision")
MOST_ROWS = 6  # row totals drawn as lines over R
MARKERS = "osD^vP<>X"


def print_fit(report: FitReport) -> None:
    """Error of the fit on cells it has not seen, beside the spread of the measurement itself."""

    for name, phase in (("verify", report.verify), ("draft", report.draft)):
        if phase is None:
            continue
        errors = f"error median {percent(phase.heldout_median, 1)}, 95% within {percent(phase.heldout_p95, 1)}"
        print(f"{name:<7} {phase.cells} cells, {phase.heldout_cells} held out: {errors}", end="")
        print(f" (repeats of a cell spread {percent(phase.spread_median, 1)})")
    if report.confounded:
        print(f"not told apart by these cells: {', '.join(report.confounded)}")


def draw_cost(table: CostTable, report: FitReport, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Draws the fit of `table` into `out` as cost-fit; returns the paths.

    Raises UsageError for an unknown format, or a folder that cannot be written.
    """
    facts = table.contract | table.provenance
    loud = "RANDOM WEIGHTS: times are real" if facts.get("random_weights", "").lower() in ("true", "1", "yes") else ""
    verify = [fit for fit in report.cells if fit.phase == "verify"]
    draft = [fit for fit in report.cells if fit.phase == "draft"]
    with style():
        from matplotlib import colormaps

        levels = sorted({fit.cell.requests for fit in report.cells})
        colours = dict(zip(levels, colormaps["viridis"](np.linspace(0, 0.9, len(levels))), strict=True))
        figure, body = new_figure(7.9, "Cost table: the fit against measured step times", _lines(table, report), loud)
        grid = body.subplots(2, 2, squeeze=False, gridspec_kw={"height_ratios": [1.35, 1]})
        _over_rows(grid[0][0], table, verify, colours)
        _over_requests(grid[0][1], table, verify)
        _residuals(grid[1][0], verify, colours)
        _draft(grid[1][1], table, draft, colours)
        _legend(body, colours, bool(report.verify.heldout_cells))
        return save(figure, out, "cost-fit", formats)


def _lines(table: CostTable, report: FitReport) -> list[str]:
    facts = table.contract | table.provenance
    known = [f"{name} {facts[name]}" for name in FACTS if facts.get(name, "-") != "-"]
    verify = report.verify
    errors = f"n = {verify.cells} verify cells; in-sample error median {percent(verify.insample_median, 1)}"
    if verify.heldout_median is not None and verify.heldout_p95 is not None:
        median, p95 = percent(verify.heldout_median, 1), percent(verify.heldout_p95, 1)
        errors += f"; {verify.heldout_cells} held out: median {median}, p95 {p95}"
    errors += f"; repeats differ by {percent(verify.spread_median, 1)}"
    loose = f"not determined by the cells: {', '.join(report.confounded)}" if report.confounded else ""
    return ["; ".join(known), errors, loose]


def _over_rows(axes: Axes, table: CostTable, verify: Sequence[CellFit], colours: dict[int, Any]) -> None:
    """Verify time over M, a line an R; the band spans the contexts that were measured at that R."""
    for requests, colour in colours.items():
        own = [fit for fit in verify if fit.cell.requests == requests]
        if not own:
            continue
        rows = np.array(sorted({fit.cell.rows for fit in own}), np.int64)
        dense = np.arange(rows[0], rows[-1] + 1, dtype=np.int64)
        low, middle, high = _contexts(own)
        curves = [table.verify_curve(requests, dense, context) * 1e3 for context in (low, middle, high)]
        axes.fill_between(dense, curves[0], curves[2], color=colour, alpha=0.15, linewidth=0)
        axes.plot(dense, curves[1], color=colour, linewidth=1.4)
        _cells(axes, [fit.cell.rows for fit in own], own, colour)
    axes.set_title("verify pass over packed rows; band: contexts measured")
    axes.set_xlabel("packed rows M")
    axes.set_ylabel("verify time [ms]")
    axes.set_ylim(bottom=0)


def _over_requests(axes: Axes, table: CostTable, verify: Sequence[CellFit]) -> None:
    """Verify time over R at the row totals that were measured at most R, a line an M."""
    from matplotlib import colormaps

    by_rows: dict[int, list[CellFit]] = {}
    for fit in verify:
        by_rows.setdefault(fit.cell.rows, []).append(fit)
    wide = {rows: len({fit.cell.requests for fit in own}) for rows, own in by_rows.items()}
    chosen = sorted(sorted(by_rows, key=lambda rows: (-wide[rows], rows))[:MOST_ROWS])
    shades = colormaps["plasma"](np.linspace(0, 0.85, len(chosen)))
    for rows, colour, marker in zip(chosen, shades, MARKERS, strict=False):
        own = sorted(by_rows[rows], key=lambda fit: (fit.cell.requests, fit.cell.context))
        levels = sorted({fit.cell.requests for fit in own})
        curve = []
        for requests in levels:
            context = _contexts([fit for fit in own if fit.cell.requests == requests])[1]
            curve.append(float(table.verify_curve(requests, np.array([rows]), context)[0]) * 1e3)
        axes.plot(levels, curve, color=colour, linewidth=1.4, marker=marker, markersize=0, label=f"M={rows}")
        _cells(axes, [fit.cell.requests for fit in own], own, colour)
    axes.set_title("verify pass over requests, at equal rows")
    axes.set_xlabel("requests R")
    axes.set_ylabel("verify time [ms]")
    plain_ticks(axes, "x", [float(fit.cell.requests) for fit in verify])
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, ncols=2, loc="lower right")


def _residuals(axes: Axes, verify: Sequence[CellFit], colours: dict[int, Any]) -> None:
    """Fitted over measured, -1: small dots in sample, rings by a fit that did not see the cell."""
    for fit in verify:
        colour = colours[fit.cell.requests]
        axes.plot(fit.cell.rows, fit.residual * 100, ".", color=colour, markersize=6)
        if fit.heldout_residual is not None:
            axes.plot(fit.cell.rows, fit.heldout_residual * 100, "o", markerfacecolor="none", color=LOUD, markersize=7)
    spread = float(np.median([fit.cell.spread for fit in verify])) * 100
    axes.axhspan(-spread, spread, color="#eeeeee", zorder=0)
    axes.axhline(0, color=GREY, linewidth=1.0)
    axes.set_title("residuals; band: what repeating alone changes")
    axes.set_xlabel("packed rows M")
    axes.set_ylabel("fitted / measured - 1 [%]")


def _draft(axes: Axes, table: CostTable, draft: Sequence[CellFit], colours: dict[int, Any]) -> None:
    """Draft time over R; the band spans the contexts that were measured."""
    axes.set_title("draft pass over requests")
    axes.set_xlabel("requests R")
    axes.set_ylabel("draft time [ms]")
    if not draft:
        axes.text(0.5, 0.5, "no draft samples", ha="center", va="center", transform=axes.transAxes, color=GREY)
        return
    levels = sorted({fit.cell.requests for fit in draft})
    spans = {r: _contexts([fit for fit in draft if fit.cell.requests == r]) for r in levels}
    low, middle, high = (np.array([table.draft_seconds(r, spans[r][end]) * 1e3 for r in levels]) for end in range(3))
    axes.fill_between(levels, low, high, color=GREY, alpha=0.2, linewidth=0)
    axes.plot(levels, middle, color=GREY, linewidth=1.4)
    for fit in draft:
        _cells(axes, [fit.cell.requests], [fit], colours[fit.cell.requests])
    plain_ticks(axes, "x", [float(r) for r in levels])
    axes.set_ylim(bottom=0)


def _contexts(fits: Sequence[CellFit]) -> tuple[int, int, int]:
    """Least, mean and most context tokens of the cells."""
    found = [fit.cell.context for fit in fits]
    return min(found), round(sum(found) / len(found)), max(found)


def _cells(axes: Axes, x: Sequence[int], fits: Sequence[CellFit], colour: Any) -> None:
    """Measured medians; a ring around those that were held out."""
    y: FloatArray = np.array([fit.cell.seconds * 1e3 for fit in fits])
    axes.plot(x, y, "o", color=colour, markersize=4, alpha=0.85, linestyle="none")
    apart = [i for i, fit in enumerate(fits) if fit.heldout_residual is not None]
    axes.plot(
        [x[i] for i in apart],
        y[apart],
        "o",
        markerfacecolor="none",
        markeredgecolor=LOUD,
        markersize=8,
        linestyle="none",
    )


def _legend(body: SubFigure, colours: dict[int, Any], held_out: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=colour, marker="o", markersize=4, label=f"R={r}") for r, colour in colours.items()]
    if held_out:
        ring: dict[str, Any] = {
            "markerfacecolor": "none",
            "markeredgecolor": LOUD,
            "markersize": 8,
            "linestyle": "none",
        }
        handles.append(Line2D([], [], marker="o", label="held out", **ring))
    body.legend(handles=handles, loc="outside lower center", ncols=9, frameon=False)


def draw_cost_of(store: RunStore, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """The fit of the table that a run was planned with, from the raw samples it kept; nothing where it kept none."""
    table = store.folder / "cost.json"
    if not samples_path(table).exists():
        return []
    kept = load_cost_table(table)
    fitted, report = fit_cost_table(
        load_samples(table),
        tiers=kept.tiers,
        contract=kept.contract,
        provenance=kept.provenance,
        seed=int(kept.provenance.get("seed", "0")),
    )
    return draw_cost(fitted, report, out, formats=formats)
