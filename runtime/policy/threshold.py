"""Verifies each request's drafts before the first whose conditional confidence is below a threshold. No torch."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.plan import Blind, Looks, Seen, VerifyPlan


class Threshold(Blind):
    """Knows nothing of cost."""

    looks: ClassVar[Looks] = "confidence"

    def __init__(self, depth: int, threshold: float) -> None:
        self.depth, self.threshold = depth, threshold

    def choose(self, history: History) -> VerifyPlan:
        return VerifyPlan(depth=self.depth, budget=len(history.rows) * self.depth, reason="threshold")

    def within(self, plan: VerifyPlan, seen: Seen) -> VerifyPlan:
        window = threshold_windows(seen.survival, seen.limits, self.threshold)
        return replace(plan, budget=int(window.sum()), window=window)


def threshold_windows(survival: Array, limits: Array, threshold: float) -> Array:
    """window [R] of survival [R, G], whose ratios are the conditional confidences."""
    before = np.concatenate([np.ones_like(survival[:, :1]), survival[:, :-1]], axis=1)
    kept = np.cumprod(survival >= threshold * before, axis=1).sum(axis=1)
    return np.asarray(np.minimum(kept, limits))
