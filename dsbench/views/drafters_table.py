"""`drafters.csv` and what `dsbench drafters` prints. No torch."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dsbench.analysis.acceptance import ALL
from dsbench.drafting.results_file import Comparison, DrafterEntry
from dsbench.profiles.calibration import EventKey
from dsbench.stats.intervals import Interval
from dsbench.views.plots_draft_time import draw_times
from dsbench.views.plots_drafters import draw_decay
from dsbench.views.printing import bounds, length_text

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
    _print_times(comparison, width)


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


def _print_times(comparison: Comparison, width: int) -> None:
    if not any(d.times for d in comparison.drafters):
        return
    print("milliseconds, median [95% of the median]; propose: drafts made of the block, observe: rows taken in")
    print(f"{'drafter':<{width}} batch  call     depth    rows  context  milliseconds")
    times = [(d, t) for d in comparison.drafters for t in d.times]
    order = {"propose": 0, "observe": 1}
    for drafter, t in sorted(times, key=lambda pair: (pair[1].batch, order.get(pair[1].what, 2), pair[1].depth)):
        whole = " (whole block)" if t.what == "propose" and t.depth == drafter.block else ""
        alone = "" if len(t.together) > 1 else " (timed alone)"
        print(
            f"{drafter.name:<{width}} {t.batch:>5}  {t.what:<8} {t.depth or '-':>5} {t.rows:>7} {t.context:>8}"
            f"  {t.milliseconds.value:.3f} {bounds(t.milliseconds, '.3f')}{whole}{alone}"
        )


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
