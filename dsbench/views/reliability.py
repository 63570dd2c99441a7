"""A calibration report: observed against predicted in pictures by depth, workload and event, and its scores in lines.

Numbers come from the report's bins; nothing is computed of rounds here. Neither torch nor pyplot is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.profiles.calibration import EventKey
from dsbench.profiles.calibration_report import POOLED, Bin, CalibrationReport, Row
from dsbench.views.style import GREY, INK, LOUD, new_figure, save, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LOOKS = {"raw": ("#767676", "s", "raw"), "sts": ("#0072B2", "^", "STS"), "platt": ("#D55E00", "o", "Platt")}
TITLES = {"conditional": "draft k accepted, given those before it", "prefix": "the first k drafts all accepted"}
LEAST = 10  # observations of a bin that is drawn as a point
FEW = 500  # observations of a panel below which it says so loudly

Panel = tuple[str, list[Row]]  # its title, and the rows of the three maps


def draw_reliability(
    report: CalibrationReport, out: Path, *, head: str = "conditioned", formats: Sequence[str] = ("png", "svg")
) -> list[Path]:
    """Per event a picture by depth and one by workload, and one by event, of each kind; returns their paths."""
    facts = report.provenance
    machine = "; ".join(facts[key] for key in ("device", "workloads", "split") if key in facts)
    digest = report.contract.get("drafter", "")
    lines = [f"{machine}; drafter {digest}" if digest else machine]
    paths: list[Path] = []
    with style():
        for kind, title in TITLES.items():
            own = report.select(kind=kind, head=head)
            for event in report.events():
                here = [row for row in own if row.event == event]
                by_depth = _panels([r for r in here if r.workload == "all" and r.depth != POOLED], "depth", "depth ")
                by_workload = _panels([r for r in here if r.depth == POOLED], "workload", "")
                for name, panels in (("depth", by_depth), ("workload", by_workload)):
                    about = f"Reliability by {name}: {title}"
                    file = f"reliability-{name}-{kind}-{slug(event)}"
                    paths += _draw(panels, about, [*lines, f"{event}; {head} head"], out, file, formats)
            panels = _panels([r for r in own if r.depth == POOLED and r.workload == "all"], "event", "")
            about = f"Reliability by event: {title}"
            paths += _draw(panels, about, [*lines, f"{head} head"], out, f"reliability-event-{kind}", formats)
    return paths


def slug(event: EventKey) -> str:
    """The event in a file name, e.g. coupled-0.7."""
    limits = (f"-k{event.top_k}" if event.top_k else "") + (f"-p{event.top_p:g}" if event.top_p < 1 else "")
    return f"{event.rule}-{event.temperature:g}{limits}"


def wilson(hits: int, n: int) -> tuple[float, float]:
    """95% interval of a binomial share, as if the observations were independent."""
    z = 1.959964
    middle, wide = hits + z * z / 2, z * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, (middle - wide) / (n + z * z)), min(1.0, (middle + wide) / (n + z * z))


def _panels(rows: Sequence[Row], by: str, word: str) -> list[Panel]:
    """Rows by one field, a panel each; those without an observation are left out."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        if row.scores.n:
            found.setdefault(word + _name(getattr(row, by)), []).append(row)
    return list(found.items())


def _name(value: object) -> str:
    return f"{value.rule}, T={value.temperature:g}" if isinstance(value, EventKey) else str(value)


def _draw(
    panels: Sequence[Panel], title: str, lines: Sequence[str], out: Path, name: str, formats: Sequence[str]
) -> list[Path]:
    if not panels:
        return []
    note = (
        f"points: bins of 0.05 with at least {LEAST} observations, bars: 95% binomial intervals as if rounds were"
        " independent; below: observations a bin; grey numbers: ECE raw/STS/Platt [what perfect calibration shows at"
        f" this n, 5% to 95%]; red: fewer than {FEW} observations"
    )
    columns = len(panels) if len(panels) < 5 else min(4, -(-len(panels) // 2))
    lanes = -(-len(panels) // columns)
    figure, body = new_figure(3.75 * lanes + 0.4, title, [*lines, note])
    grid = body.subplots(2 * lanes, columns, squeeze=False, sharex=True, height_ratios=[3.2, 1] * lanes)
    handles: Mapping[str, Any] = {}
    for place in range(lanes * columns):
        lane, column = divmod(place, columns)
        upper, lower = grid[2 * lane, column], grid[2 * lane + 1, column]
        if place >= len(panels):
            upper.set_axis_off()
            lower.set_axis_off()
            continue
        handles = _panel(upper, lower, panels[place])
        if column == 0:
            upper.set_ylabel("observed share")
            lower.set_ylabel("count")
        lower.set_xlabel("predicted probability")
        lower.tick_params(labelbottom=True)
    body.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=4, frameon=False)
    return save(figure, out, name, formats)


def _panel(upper: Axes, lower: Axes, panel: Panel) -> dict[str, Any]:
    """Points and counts of the three maps; returns the legend's handles."""
    title, rows = panel
    handles: dict[str, Any] = {}
    (handles["perfect"],) = upper.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1.0, zorder=1)
    for row in rows:
        colour, marker, label = LOOKS[row.method]
        x, y, down, up = _points(row.bins)
        handles[label] = upper.errorbar(
            x,
            y,
            yerr=(down, up),
            color=colour,
            marker=marker,
            markersize=3.6,
            linewidth=1.1,
            elinewidth=0.8,
            label=label,
            zorder=3 if row.method == "platt" else 2,
        )
        counts = [0] * 20
        for b in row.bins:
            counts[b.index] = b.n
        lower.stairs(counts, [i / 20 for i in range(21)], color=colour, linewidth=1.2)
    scores = rows[0].scores
    few = scores.n < FEW
    upper.set_title(f"{title}   n = {scores.n}", color=LOUD if few else INK, fontsize=10.5, pad=16)
    upper.text(0.5, 1.025, _eces(rows), transform=upper.transAxes, ha="center", fontsize=8.5, color=GREY)
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1.02)
    lower.set_ylim(bottom=0)
    lower.locator_params(axis="y", nbins=3)
    return handles


def _points(bins: Sequence[Bin]) -> tuple[list[float], list[float], list[float], list[float]]:
    """Mean prediction, observed share, and the interval's reach below and above it, of bins with enough in them."""
    shown = [b for b in bins if b.n >= LEAST]
    shares = [b.hits / b.n for b in shown]
    ends = [wilson(b.hits, b.n) for b in shown]
    down = [max(0.0, y - low) for y, (low, _) in zip(shares, ends, strict=True)]
    up = [max(0.0, high - y) for y, (_, high) in zip(shares, ends, strict=True)]
    return [b.mean_probability for b in shown], shares, down, up


def _eces(rows: Sequence[Row]) -> str:
    """The ECE of each map, and the band of the last one."""
    values, band = "/".join(f"{row.scores.ece:.3f}" for row in rows), rows[-1].scores.ece_null
    return f"{values} [{band[0]:.3f}, {band[1]:.3f}]" if band else values


def print_report(report: CalibrationReport) -> None:
    """Conditioned head, on held-out rounds: a line an event and depth, for each kind of event; then workloads."""
    for kind, title in TITLES.items():
        print(f"{title}; conditioned head, all workloads, held-out rounds")
        print(_heading("depth"))
        for event in report.events():
            rows = report.select(event=event, kind=kind, workload="all", head="conditioned", method="raw")
            for raw in rows:
                if raw.depth and raw.scores.n:
                    print(_report_line(report, raw, f"{raw.depth:>5}"))
    print("by workload, all depths of the conditional event together")
    print(_heading("workload"))
    for raw in report.select(kind="conditional", head="conditioned", method="raw", depth=0):
        if raw.scores.n:
            print(_report_line(report, raw, raw.workload))
    print(
        "noise band: ECE of a perfectly calibrated Platt map at this n, 5% to 95%; Brier, AUC and log loss: after Platt"
    )
    print("the report has raw and STS of these too, and the free head")


def _heading(place: str) -> str:
    width = 15 if place == "workload" else 5
    return (
        f"{'event':<28} {place:<{width}} {'n':>6}  {'base':>5}  {'ECE raw/STS/Platt':<17} "
        f"{'[noise band]':<13}  {'Brier skill of these':<20}  {'Brier':>5}   {'AUC':>5}  log loss"
    )


def _report_line(report: CalibrationReport, raw: Row, place: str) -> str:
    width = 15 if not raw.depth else 5
    rows = [raw] + [
        report.select(
            event=raw.event, workload=raw.workload, head=raw.head, kind=raw.kind, depth=raw.depth, method=method
        )[0]
        for method in ("sts", "platt")
    ]

    def each(name: str, form: str, rows: Sequence[Row] = rows) -> str:
        values = [getattr(row.scores, name) for row in rows]
        return "/".join("-" if value is None else format(value, form) for value in values)

    band, last = rows[-1].scores.ece_null, rows[-1:]
    noise = "" if band is None else f"[{band[0]:.3f},{band[1]:.3f}]"
    return (
        f"{raw.event!s:<28} {place:<{width}} {raw.scores.n:>6}  {raw.scores.base_rate:.3f}  {each('ece', '.3f'):<17} "
        f"{noise:<13}  {each('skill', '+.3f'):<20}  {each('brier', '.3f', last):>5}   {each('auc', '.3f', last):>5}  "
        f"{each('log_loss', '.3f', last):>5}"
    )
