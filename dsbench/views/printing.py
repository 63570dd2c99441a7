"""What the commands print: fits, calibrations, accepted lengths, plans. Plain lines on stdout, no computation."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dsbench.analysis.acceptance import Acceptance
from dsbench.profiles.calibration_report import CalibrationReport, Row
from dsbench.profiles.fit import FitReport
from dsbench.stats.intervals import Interval
from dsbench.sweep.traffic import measured_of

if TYPE_CHECKING:
    from dsbench.sweep.estimate import Estimate
    from dsbench.sweep.plan import SweepPlan

MOST_LINES = 24  # of a plan, a workload
KINDS = {
    "conditional": "draft k accepted, given that those before it were",
    "prefix": "the first k drafts all accepted (cumulative product)",
}


def print_fit(report: FitReport) -> None:
    """Error of the fit on cells it has not seen, beside the spread of the measurement itself."""

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}%"

    for name, phase in (("verify", report.verify), ("draft", report.draft)):
        if phase is None:
            continue
        errors = f"error median {percent(phase.heldout_median)}, 95% within {percent(phase.heldout_p95)}"
        print(f"{name:<7} {phase.cells} cells, {phase.heldout_cells} held out: {errors}", end="")
        print(f" (repeats of a cell spread {percent(phase.spread_median)})")
    if report.confounded:
        print(f"not told apart by these cells: {', '.join(report.confounded)}")


def print_report(report: CalibrationReport) -> None:
    """Conditioned head, on held-out rounds: a line an event and depth, for each kind of event; then workloads."""
    for kind, title in KINDS.items():
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


def print_lengths(lengths: Sequence[Acceptance]) -> None:
    """Accepted length, bonus included, with the whole block verified; conditional acceptance by depth."""
    print("event                      workload        tau [95% over prompts]  drafts  rounds  repetition  by depth")
    for row in lengths:
        print(f"{row.event!s:<26} {row.workload:<15} {length_text(row)}")


def length_text(row: Acceptance) -> str:
    depths = " ".join("-" if p is None else f"{p.value:.3f}" for p in row.conditional)
    return (
        f"{row.tau.value:.2f} {bounds(row.tau, '.2f'):<17} {row.drafts.value:>6.2f} {row.rounds:>7}"
        f"  {row.repetition:>10.2f}  {depths}"
    )


def bounds(value: Interval, form: str) -> str:
    """[low, high]; n where there is no interval."""
    if value.low is None or value.high is None:
        return f"(n = {value.n})"
    return f"[{value.low:{form}}, {value.high:{form}}]"


def print_plan(plan: SweepPlan, sources: Mapping[str, str], found: Estimate | None) -> None:
    """Cells, how long they may take, and where each setting came from."""
    tokens, arms = 0, ", ".join(arm.name for arm in plan.arms)
    points = list(itertools.product(plan.batches, plan.traffic.loads))
    for workload in plan.workloads:
        for batch, load in points:
            measured, size = measured_of(load, batch, plan.config.requests)
            tokens += size * plan.config.max_tokens * len(plan.arms) * plan.config.repeats
            place = f"batch {batch:<4}" + (f" {load.name} {load.rate:.4g}/s " if load else "")
            if len(points) <= MOST_LINES:
                print(f"{workload.name:<28} {place} {arms}  ({len(measured)} measured)")
        if len(points) > MOST_LINES:
            print(f"{workload.name:<28} {len(points)} loads, batch {plan.batches[0]} to {plan.batches[-1]}  {arms}")
    print(f"{plan.passes} passes, at most {tokens:,} tokens; ", end="")
    if found is None:
        first = ", and one is measured first" if any(arm.planned for arm in plan.arms) else ""
        print(f"at 100 tokens/s that is {tokens / 6000:.0f} minutes: no cost table here to tell the time by{first}")
    else:
        print(f"about {_span(found.seconds)}, prompts and loading not counted\n  by {found.basis}")
    for name, source in sources.items():
        if source != "default":
            print(f"  {name} = {getattr(plan.config, name)!r}  from {source}")


def _span(seconds: float) -> str:
    for unit, length in (("s", 1), ("min", 60)):
        if seconds < 100 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"
