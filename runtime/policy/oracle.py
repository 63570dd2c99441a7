"""Knows which drafts the recorded text accepts: an upper bound of a round, given its prices. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.plan import Blind, Looks, Seen, VerifyPlan
from dsbench.runtime.policy.prices import Prices


class Oracle(Blind):
    """Depth and budget with the most tokens a second, where it is known which drafts are accepted."""

    looks: ClassVar[Looks] = "text"
    needs_table = True

    def __init__(self, prices: Prices) -> None:
        self.prices = prices

    def choose(self, history: History) -> VerifyPlan:
        """The full block, which is drafted first, off the clock, to be looked at."""
        depth = self.prices.depths[-1]
        return VerifyPlan(depth=depth, budget=len(history.rows) * depth, reason="oracle")

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan:
        """seen.survival: 1 for each draft that the text accepts within the limits."""
        requests, depths = len(seen.limits), self.prices.depths
        priced = self.prices.of(requests)
        seconds = priced.seconds + priced.per_token * seen.context
        accepted = np.concatenate([[0], seen.survival.sum(axis=0).cumsum()])  # of drafts to depths 0..G
        tokens = requests + accepted[list(depths)]
        best = int(np.argmax(np.minimum(priced.rows, tokens[:, None]) / seconds))
        depth, at = divmod(best, len(priced.rows))
        rows = min(int(priced.rows[at]), int(tokens[depth]))
        return replace(plan, depth=depths[depth], budget=rows - requests)
