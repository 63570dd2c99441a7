"""Drafters against each other: `drafters.csv`, what `dsbench drafters` prints, and suffix decay as a picture.

Suffix decay: conditional acceptance against depth, a line a drafter, a panel an event. No torch, no pyplot.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.analysis.acceptance import ALL, Acceptance
from dsbench.drafting.results_file import Comparison, DrafterEntry
from dsbench.profiles.calibration import EventKey
from dsbench.stats.intervals import Interval
from dsbench.views.draft_time import draw_times, print_times
from dsbench.views.numbers import bounds, span
from dsbench.views.style import drafter_look, new_figure, save, small_grid, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RARE = 50  # trials of a depth below which its point is hollow: there the interval is too narrow
FEW = 16  # prompts below which the picture says so loudly
Line = tuple[str, Acceptance]  # a drafter's name and its numbers
COLUMNS = (
    "drafter",
    "digest",
    "minus",
    "rule",
    "temperature",
    "workload",
    "quantity",
    "batch",
    "depth",
    "value",
    "low",
    "high",
    "n",
    "prompts",
)


def show_comparison(comparison: Comparison, out: Path) -> list[Path]:
    """Prints the comparison, writes its CSV and pictures into `out`, and returns their paths."""
    write_csv(comparison, out / "drafters.csv")
    print_comparison(comparison)
    return [out / "drafters.csv", *draw_decay(comparison, out), *draw_times(comparison, out)]


def write_csv(comparison: Comparison, path: Path) -> None:
    """One number a row. `minus` names the drafter that was taken off; n counts rounds, trials, prompts or repeats."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(csv_rows(comparison))


def csv_rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    for drafter, row in comparison.acceptances():
        head = _head(drafter, row.event, row.workload)
        yield head | _value("tau", row.tau) | {"n": row.rounds, "prompts": row.tau.n}
        yield head | _value("drafts", row.drafts) | {"n": row.rounds, "prompts": row.drafts.n}
        yield head | {"quantity": "repetition", "value": row.repetition, "n": row.tau.n, "prompts": row.tau.n}
        for depth, (n, found) in enumerate(zip(row.trials, row.conditional, strict=True), start=1):
            yield head | _value("conditional", found) | {"depth": depth, "n": n, "prompts": row.tau.n}
    for other, gap in comparison.differences():
        head = _head(comparison.drafters[0], gap.event, gap.workload) | {"minus": other.name}
        for quantity, value in (("tau", gap.tau), ("drafts", gap.drafts)):
            yield head | _value(quantity, value) | {"n": value.n, "prompts": value.n}
        for depth, found in enumerate(gap.conditional, start=1):
            yield head | _value("conditional", found) | {"depth": depth, "n": gap.tau.n, "prompts": gap.tau.n}
    for drafter in comparison.drafters:
        for t in drafter.times:
            head = {"drafter": drafter.name, "digest": drafter.digest, "batch": t.batch, "depth": t.depth}
            yield head | _value(f"{t.what}_ms", t.milliseconds) | {"n": t.milliseconds.n}


def print_comparison(comparison: Comparison) -> None:
    """Accepted lengths; by depth over all workloads with what the first drafter has over the others; draft times."""
    width = max(len(d.name) for d in comparison.drafters)
    print(
        f"{'event':<26} {'workload':<15} {'drafter':<{width}} tau [95% over prompts]  drafts  rounds"
        "  repetition  by depth"
    )
    for drafter, row in sorted(
        comparison.acceptances(), key=lambda pair: _place(comparison, pair[1].event, pair[1].workload)
    ):
        print(f"{row.event!s:<26} {row.workload:<15} {drafter.name:<{width}} {length_text(row)}")
    if len(comparison.drafters) > 1:
        _print_differences(comparison, width)
    _print_depths(comparison, width)
    print_times(comparison, width)


def _print_differences(comparison: Comparison, width: int) -> None:
    first = comparison.drafters[0].name
    print(f"tau of {first} less that of the other, same prompts")
    for other, gap in comparison.differences():
        interval = bounds(gap.tau, "+.3f")
        print(f"{gap.event!s:<26} {gap.workload:<15} {other.name:<{width}} {gap.tau.value:+.3f} {interval}")


def _print_depths(comparison: Comparison, width: int) -> None:
    first = comparison.drafters[0]
    gaps = {(d.digest, g.event): g for d, g in comparison.differences() if g.workload == ALL}
    beside = f"  {first.name} less this one" if len(comparison.drafters) > 1 else ""
    print(f"conditional acceptance by depth, {', '.join(comparison.workloads())} together")
    print(f"{'event':<26} {'drafter':<{width}} depth  trials  accepted [95% over prompts]{beside}")
    for drafter, row in comparison.acceptances():
        if row.workload != ALL:
            continue
        gap = gaps.get((drafter.digest, row.event))
        for k, (n, found) in enumerate(zip(row.trials, row.conditional, strict=True)):
            if found is None:
                continue
            other = gap.conditional[k] if gap is not None and k < len(gap.conditional) else None
            less = "" if other is None else f"  {other.value:+.3f} {bounds(other, '+.3f')}"
            text = f"{found.value:.3f} {bounds(found, '.3f'):<20}"
            print(f"{row.event!s:<26} {drafter.name:<{width}} {k + 1:>5} {n:>7}  {text}{less}".rstrip())


def _place(comparison: Comparison, event: EventKey, workload: str) -> tuple[int, int]:
    order = [*comparison.workloads(), ALL]
    return comparison.events().index(event), order.index(workload)


def _head(drafter: DrafterEntry, event: EventKey, workload: str) -> dict[str, Any]:
    return {
        "drafter": drafter.name,
        "digest": drafter.digest,
        "rule": event.rule,
        "temperature": event.temperature,
        "workload": workload,
    }


def _value(quantity: str, found: Interval | None) -> dict[str, Any]:
    if found is None:
        return {"quantity": quantity}
    return {"quantity": quantity, "value": found.value, "low": found.low, "high": found.high}


def print_lengths(lengths: Sequence[Acceptance]) -> None:
    """Accepted length, bonus included, with the full block verified; conditional acceptance by depth."""
    print("event                      workload        tau [95% over prompts]  drafts  rounds  repetition  by depth")
    for row in lengths:
        print(f"{row.event!s:<26} {row.workload:<15} {length_text(row)}")


def length_text(row: Acceptance) -> str:
    depths = " ".join("-" if p is None else f"{p.value:.3f}" for p in row.conditional)
    return (
        f"{row.tau.value:.2f} {bounds(row.tau, '.2f'):<17} {row.drafts.value:>6.2f} {row.rounds:>7}"
        f"  {row.repetition:>10.2f}  {depths}"
    )


def draw_decay(comparison: Comparison, out: Path, *, formats: Sequence[str] = ("png", "svg")) -> list[Path]:
    """Over all workloads together; a drafter that did not run them all is left out. Nothing where none did."""
    panels: dict[EventKey, list[Line]] = {}
    for drafter, row in comparison.acceptances():
        if row.workload == ALL:
            panels.setdefault(row.event, []).append((drafter.name, row))
    if not panels:
        return []
    names = [d.name for d in comparison.drafters]
    prompts = [row.tau.n for lines in panels.values() for _, row in lines]
    deepest = max(len(row.conditional) for lines in panels.values() for _, row in lines)
    facts = comparison.conditions
    alike = all(
        comparison.alike(d, event, ALL)
        for event in panels
        for d in comparison.drafters
        if ALL in comparison.counts(d, event)
    )
    same = "the same for every drafter" if alike else "NOT the same for every drafter"
    lines = [
        f"{facts['device']}; {facts['target_name']}; {facts['dtype']}; {', '.join(comparison.workloads())}; at most"
        f" {facts['max_tokens']} tokens; full block verified; seed {facts['seed']}",
        f"n = {span(prompts)} prompts a line, {same}; bands: 95% intervals over prompts; beside"
        f" each name its trials at the first and the last depth; hollow: under {RARE} trials, too few for the band",
    ]
    loud = f"FEW PROMPTS (n = {min(prompts)}): intervals are rough" if min(prompts) < FEW else ""
    lanes, columns = small_grid(len(panels))
    tall = 3.6 + 0.2 * max(map(len, panels.values()))
    with style():
        figure, body = new_figure(tall * lanes, "Suffix decay: conditional acceptance by depth", lines, loud)
        grid = list(body.subplots(lanes, columns, squeeze=False, sharex=True, sharey=True).flat)
        for axes, (event, own) in zip(grid, panels.items(), strict=False):
            _panel(axes, event, own, names, deepest)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        return save(figure, out, "suffix-decay", formats)


def _panel(axes: Axes, event: EventKey, lines: Sequence[Line], names: Sequence[str], deepest: int) -> None:
    for name, row in lines:
        known = [(k, p) for k, p in enumerate(row.conditional, start=1) if p is not None]
        depths, values = [k for k, _ in known], [p.value for _, p in known]
        look = drafter_look(names.index(name))
        trials = f"{row.trials[0]} to {row.trials[depths[-1] - 1]} trials" if depths else "no trials"
        axes.plot(depths, values, label=f"{name} ({trials})", linewidth=1.8, markersize=5, **look)
        rare = [(k, p.value) for k, p in known if row.trials[k - 1] < RARE]
        for k, value in rare:
            axes.plot(k, value, markerfacecolor="white", markersize=5, linestyle="none", **look)
        banded = [(k, p.low, p.high) for k, p in known if p.low is not None and p.high is not None]
        if banded:
            at_depth, low, high = zip(*banded, strict=True)
            axes.fill_between(at_depth, low, high, color=look["color"], alpha=0.16, linewidth=0)
    axes.set_title(str(event))
    axes.set_xlabel("depth in the block")
    axes.set_ylabel("accepted, given those before")
    axes.tick_params(labelleft=True, labelbottom=True)
    axes.set_xticks(range(1, deepest + 1))
    axes.set_ylim(-0.02, 1.02)
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.17), fontsize=9)  # below: clear of lines
