"""`sweep --dry-run`: cells, how long they may take, and where each setting came from."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dsbench.sweep.traffic import measured_of

if TYPE_CHECKING:
    from dsbench.sweep.estimate import Estimate
    from dsbench.sweep.plan import SweepPlan

MOST_LINES = 24  # of a plan, a workload


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
        print(f"about {_duration(found.seconds)}, prompts and loading not counted\n  by {found.basis}")
    for name, source in sources.items():
        if source != "default":
            print(f"  {name} = {getattr(plan.config, name)!r}  from {source}")


def _duration(seconds: float) -> str:
    for unit, length in (("s", 1), ("min", 60)):
        if seconds < 100 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"
