"""What it costs to set a round's budget from confidences some rounds old: a trace on a virtual clock, age by age.

Two bases have the confidences of the round itself, as if waiting for them were free, and a seat that is free the moment
its request ends. The one foresees them before it chooses how deep to draft, which no engine can; the other is the
engine's own run of lag 0, which drafts as deep as the token-free head says and then chooses its rows. Beside the whole
cost of an age stands that of the budget alone, where seats are freed at once too. Prompts take no time and none waits
for another: theirs is the same for every age. No torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from dsbench.errors import UsageError
from dsbench.intervals import Interval, paired_ratio
from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.budget import DEPTHS
from dsbench.runtime.objective import Array
from dsbench.simulated_costs import Costs
from dsbench.simulated_loop import play
from dsbench.simulated_plan import Pace, PromptPasses
from dsbench.simulated_requests import Script, script_of
from dsbench.trace import Trace

LEAST = 64  # measured requests at least
AT_ONCE = PromptPasses(most=sys.maxsize, chunks=(sys.maxsize,), share=sys.maxsize)
WAITED = Pace(delay=0, age=0, waits=True, prompts=AT_ONCE)


@dataclass(frozen=True, slots=True, kw_only=True)
class LagCost:
    """Throughput at an age over that of foresight, and of the engine's lag 0, paired by prompt."""

    workload: str
    batch: int
    age: int
    free: bool  # the budget's confidences are the token-free ones
    budget: Interval  # the budget alone is late
    whole: Interval  # ended requests keep their seats too, until they are read
    budget_waiting: Interval  # the same two, over the run of lag 0
    whole_waiting: Interval
    tau: float  # tokens a round and request, seats freed at once
    base_tau: float


class PromptsFree(Costs):
    """Rounds at their cost; prompts take no time."""

    def prefill(self, requests: int, rows: int, context: int) -> float:
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """Tokens and seconds in a seat of the measured requests, by text, [texts] each; tokens a round and seat."""

    tokens: Array
    seconds: Array
    tau: float

    def over(self, base: Served) -> Interval:
        ratio = paired_ratio(self.tokens, self.seconds, base.tokens, base.seconds)
        assert ratio is not None, "texts were served"
        return ratio


def lag_costs(
    trace: Trace, table: CostTable, *, workloads: Sequence[str], batches: Sequence[int],
    sources: Sequence[tuple[int, bool]],
) -> Iterator[LagCost]:  # fmt: skip
    """Each workload, batch size and source, (age, free), in turn.

    Raises UsageError for a workload that the trace lacks, or of which nothing was drafted.
    """
    prior, costs = np.asarray(trace.calibrations().entries[0].prior_survival), PromptsFree(table=table)
    for workload in workloads:
        texts = _texts(trace, workload)
        for batch in batches:
            base = _serve(texts, costs, prior, batch, late_budget(0), free=False)
            waited = _serve(texts, costs, prior, batch, WAITED, free=False)
            for age, free in sources:
                early = _serve(texts, costs, prior, batch, late_budget(age), free=free)
                late = early if age < 2 else _serve(texts, costs, prior, batch, all_late(age), free=free)
                yield LagCost(
                    workload=workload, batch=batch, age=age, free=free, budget=early.over(base), whole=late.over(base),
                    budget_waiting=early.over(waited), whole_waiting=late.over(waited), tau=early.tau,
                    base_tau=base.tau,
                )  # fmt: skip


def late_budget(age: int) -> Pace:
    return Pace(delay=0, age=age, waits=False, prompts=AT_ONCE)


def all_late(age: int) -> Pace:
    """Of age 1 or more: the budget is late, and so is who has ended."""
    return Pace(delay=age - 1, age=age, waits=False, prompts=AT_ONCE)


def _texts(trace: Trace, workload: str) -> list[Script]:
    rows = [row for row in trace.rows if row.workload == workload]
    if not rows:
        held = ", ".join(dict.fromkeys(row.workload for row in trace.rows))
        raise UsageError(f"the trace holds no workload {workload!r}", hint=f"it holds: {held}")
    texts = [script_of(row, len(row.output)) for row in rows if len(row.output) > 1]
    if not texts:
        raise UsageError(f"nothing was drafted of workload {workload!r}", hint="its answers are of one token each")
    return texts


def _serve(texts: Sequence[Script], costs: Costs, prior: Array, batch: int, pace: Pace, *, free: bool) -> Served:
    """The texts in turn, again and again. Requests before the measured ones warm the seats, later ones fill them."""
    whole = -(-max(batch, LEAST) // len(texts)) * len(texts)  # every text as often
    wanted = range(batch, batch + whole)
    queue = (replace(texts[i % len(texts)], id=i) for i in count())
    played = play(
        queue, parse_arm("compact:free" if free else "compact"), texts[0].free.shape[1], costs, pace,
        concurrency=batch, until=frozenset(wanted), prior=prior, depths=DEPTHS,
    )  # fmt: skip
    tokens, seconds = np.zeros(len(texts)), np.zeros(len(texts))
    for one in played.requests:
        if one["request"] in wanted:
            text = one["request"] % len(texts)
            tokens[text] += one["output_tokens"]
            seconds[text] += one["finished"] - one["admitted"]
    delivered, seats = (sum(step[name] for step in played.steps) for name in ("delivered", "seats"))
    return Served(tokens=tokens, seconds=seconds, tau=delivered / seats)
