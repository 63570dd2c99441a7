"""What it costs to set a round's budget from confidences some rounds old: a trace on a virtual clock, age by age.

The base has the confidences of the round itself, as if waiting for them were free, and a seat that is free the moment
its request ends. Beside the whole cost of an age stands that of the budget alone, where seats are freed at once too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.errors import UsageError
from dsbench.intervals import Interval, paired_ratio
from dsbench.profiles.cost import CostTable
from dsbench.trace import Trace
from dsbench.virtual_clock import Clocked, Served, Texts

LEAST = 64  # measured requests at least


@dataclass(frozen=True, slots=True, kw_only=True)
class LagCost:
    """Throughput at an age over that at age 0, paired by prompt."""

    workload: str
    batch: int
    age: int
    free: bool  # the budget's confidences are the token-free ones
    budget: Interval  # the budget alone is late
    whole: Interval  # ended requests keep their seats too, until they are read
    tau: float  # tokens a round and request, seats freed at once
    base_tau: float


def lag_costs(
    trace: Trace, table: CostTable, *, workloads: Sequence[str], batches: Sequence[int],
    sources: Sequence[tuple[int, bool]],
) -> Iterator[LagCost]:  # fmt: skip
    """Each workload, batch size and source, (age, free), in turn. Raises UsageError for a workload the trace lacks."""
    prior = np.asarray(trace.calibrations().entries[0].prior_survival)
    for workload in workloads:
        rows = [row for row in trace.rows if row.workload == workload]
        if not rows:
            held = ", ".join(dict.fromkeys(row.workload for row in trace.rows))
            raise UsageError(f"the trace holds no workload {workload!r}", hint=f"it holds: {held}")
        texts = Texts.of(rows, prior)
        for batch in batches:
            base = _serve(texts, table, batch, 0, False, 0)
            for age, free in sources:
                early, late = (_serve(texts, table, batch, age, free, rounds) for rounds in (0, max(age - 1, 0)))
                yield LagCost(
                    workload=workload, batch=batch, age=age, free=free, budget=_over(early, base),
                    whole=_over(late, base), tau=_tau(early, batch), base_tau=_tau(base, batch),
                )  # fmt: skip


def _serve(texts: Texts, table: CostTable, batch: int, age: int, free: bool, late: int) -> Served:
    whole = -(-max(batch, LEAST) // len(texts.names)) * len(texts.names)  # every text as often
    return Clocked(texts, table, batch=batch, age=age, free=free, late=late).run(whole)


def _tau(served: Served, batch: int) -> float:
    return served.delivered / (served.rounds * batch)


def _over(served: Served, base: Served) -> Interval:
    ratio = paired_ratio(served.tokens, served.seconds, base.tokens, base.seconds)
    assert ratio is not None, "texts were served"
    return ratio
