"""Admits drafts by survival and stops at the first that does not raise throughput (arXiv 2607.05147, Algorithm 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import allocate, bounded
from dsbench.runtime.policy.plan import Blind, Looks, Seen, VerifyPlan
from dsbench.runtime.policy.prices import Prices


class EarlyStop(Blind):
    """Looks at the round's own confidences; it stops by what it has admitted, so no draft decides on itself."""

    looks: ClassVar[Looks] = "confidence"
    needs_table = True

    def __init__(self, prices: Prices) -> None:
        self.prices = prices

    def choose(self, history: History) -> VerifyPlan:
        depth = self.prices.block
        return VerifyPlan(depth=depth, budget=len(history.rows) * depth, reason="early-stop")

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan:
        table, requests = self.prices.table, len(seen.limits)
        assert table is not None
        ranked = np.sort(bounded(seen.survival, seen.limits), axis=None)[::-1]
        ranked = ranked[ranked > 0]
        rows = requests + np.arange(len(ranked) + 1)
        seconds = table.verify_curve(requests, rows, seen.context) + table.draft_seconds(requests, seen.context)
        rate = (requests + np.concatenate([[0.0], np.cumsum(ranked)])) / seconds
        drops = np.flatnonzero(rate[1:] <= rate[:-1])
        budget = int(drops[0]) if len(drops) else len(ranked)
        return replace(plan, budget=budget, window=allocate(seen.survival, seen.limits, budget))
