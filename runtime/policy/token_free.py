"""Sets budget and depth by the round's token-free confidences, which are known before any draft is drawn. No torch.

No draft has a say in whether it is admitted, so nothing is biased under any rule, though nothing here is old.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import allocate, best_of, outlook
from dsbench.runtime.policy.plan import Blind, Looks, Seen, VerifyPlan
from dsbench.runtime.policy.prices import Prices


class TokenFree(Blind):
    """Drafts for all as deep as for the deepest: the drafts then made compete for the rows."""

    looks: ClassVar[Looks] = "token-free"
    needs_table = True

    def __init__(self, prices: Prices, weight: float = 1.0) -> None:
        self.prices, self.weight = prices, weight

    def choose(self, history: History) -> VerifyPlan:
        depth = self.prices.block
        return VerifyPlan(depth=depth, budget=len(history.rows) * depth, reason="token-free")

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan:
        table, requests = self.prices.table, len(seen.limits)
        assert table is not None
        rows = table.candidates(requests, self.prices.block)
        seconds = table.verify_curve(requests, rows, seen.context) + table.draft_seconds(requests, seen.context)
        best = best_of(outlook(seen.survival, seen.limits, rows, self.weight), seconds, self.weight)
        budget = int(rows[best]) - requests
        depth = int(allocate(seen.survival, seen.limits, budget).max(initial=0))
        return replace(plan, depth=depth, budget=budget)
