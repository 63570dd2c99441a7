"""What the commands print: fits, calibrations, accepted lengths, plans. Plain lines on stdout, no computation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dsbench.profiles.fit import FitReport

if TYPE_CHECKING:
    from dsbench.sweep import SweepPlan


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


def print_calibrations(everything: Sequence[Any]) -> None:
    """ECE of the cumulative product before and after, AUC of the conditional event, by depth, on held-out rounds."""
    print(
        "event                      head        method depth       n   ECE before  after [noise band]  Brier skill  AUC"
    )
    for c in everything:
        for depth, (before, after, single) in enumerate(
            zip(c.before.prefix, c.after.prefix, c.after.conditional, strict=True), start=1
        ):
            if after.n == 0 or after.ece is None:
                continue
            band = "" if after.ece_null is None else f"[{after.ece_null[0]:.3f}, {after.ece_null[1]:.3f}]"
            skill = "-" if after.skill is None else f"{after.skill:+.3f}"
            auc = "-" if single.auc is None else f"{single.auc:.3f}"
            print(
                f"{c.event!s:<26} {c.head:<11} {c.method:<6} {depth:>5} {after.n:>7}   {before.ece:>10.3f}"
                f"  {after.ece:.3f} {band:<16} {skill:>9}     {auc}"
            )


def print_lengths(lengths: Sequence[Any]) -> None:
    """Accepted length, bonus included, with the whole block verified; conditional acceptance by depth."""
    print("event                      workload        tau [95% over prompts]  rounds  4-gram repetition  by depth")
    for row in lengths:
        bounds = "" if row.tau.low is None else f"[{row.tau.low:.2f}, {row.tau.high:.2f}]"
        depths = " ".join(f"{p:.3f}" for p in row.conditional)
        print(
            f"{row.event!s:<26} {row.workload:<15} {row.tau.value:.2f} {bounds:<17} {row.rounds:>7}"
            f"  {row.repetition:>17.2f}  {depths}"
        )


def print_plan(plan: SweepPlan, sources: Mapping[str, str]) -> None:
    """Cells and where each setting came from."""
    tokens = 0
    for workload in plan.workloads:
        for batch in plan.batches:
            measured = max(plan.config.requests, batch)
            tokens += (batch + measured + batch // 2) * plan.config.max_tokens * len(plan.arms) * plan.config.repeats
            print(f"{workload.name:<28} batch {batch:<4} {', '.join(a.name for a in plan.arms)}  ({measured} measured)")
    print(f"{plan.passes} passes, at most {tokens:,} tokens; at 100 tokens/s that is {tokens / 6000:.0f} minutes")
    for name, source in sources.items():
        if source != "default":
            print(f"  {name} = {getattr(plan.config, name)!r}  from {source}")
