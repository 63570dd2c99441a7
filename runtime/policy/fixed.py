"""Verifies the same window in every round: the full block, its first drafts, or nothing. No torch."""

from __future__ import annotations

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.plan import Blind, VerifyPlan


class Fixed(Blind):
    """Drafts `depth` tokens a request and verifies the first `window` of them."""

    def __init__(self, depth: int, window: int) -> None:
        self.depth, self.window = depth, window

    def choose(self, history: History) -> VerifyPlan:
        return VerifyPlan(depth=self.depth, budget=len(history.rows) * self.window, reason="fixed")
