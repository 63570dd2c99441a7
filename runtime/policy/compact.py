"""Chooses depth and rows together for the most throughput, from the survival that earlier rounds left. No torch.

A request's survival changes more from round to round than it keeps. Many requests are a fair sample of what comes; one
or two are not, so survivals of other recent rounds stand beside theirs. No-draft rounds leave no survival: until a
round that drafted is read, or requests are replaced, there is nothing new to choose by; now and then one drafts all the
same, to look. Shapes: R requests, G block, K sample sets, m candidate row totals.
"""

from __future__ import annotations

import numpy as np

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import Array, best_of, joined, outlook
from dsbench.runtime.policy.plan import Blind, VerifyPlan
from dsbench.runtime.policy.prices import Prices

SAMPLE = 64  # survivals that make a fair sample; four times as many change throughput by less than 0.3%, simulated
NEWS = 8  # one new request in so many makes it worth choosing anew
LOOK = 16  # no-draft rounds in a row; the next one drafts: a round that costs a tenth more is half a percent of these


class Compact(Blind):
    """The best of all depths and row totals, by the objective with `weight` (`best_of`)."""

    needs_table = True

    def __init__(self, prices: Prices, weight: float = 1.0) -> None:
        self.prices, self.weight, block = prices, weight, prices.block
        self._column = np.arange(block)
        self._within = -1.0 * (self._column < np.array(prices.depths)[:, None, None])  # [depths, 1, G]
        self._sample, self._read = np.zeros((0, block)), -1  # last survivals that were read, and the newest's round
        self._idle, self._newest = 0, 0  # no-draft rounds in a row; the newest residence that was chosen for

    def choose(self, history: History) -> VerifyPlan:
        rows = history.rows
        if self._nothing_new(history.seen[rows], history.residence[rows]):
            depth, budget = 0, 0
        else:
            limits = history.limits(self.prices.depths[-1])
            sets = self._sets(history.survival[rows], history.seen[rows], limits > 0)
            depth, budget = self.best(sets, limits, history.context, may_rest=self._idle < LOOK)
            self._newest = int(history.residence[rows].max(initial=0))
        self._idle = 0 if depth else self._idle + 1
        return VerifyPlan(depth=depth, budget=budget, reason="argmax", priors=history.priors, age=history.age)

    def best(self, survival: Array, limits: Array, context: int, *, may_rest: bool = True) -> tuple[int, int]:
        """Depth and budget. survival [R, G] non-increasing along a request, or sets of it [K, R, G]; limits [R].

        may_rest: whether the round may draft nothing.
        """
        priced, depths = self.prices.of(len(limits)), self.prices.depths
        seconds = priced.seconds + priced.per_token * context
        if not may_rest and depths[0] == 0:
            seconds[0] = np.inf
        if self.weight == 1:
            best = int(np.argmax(self._expected(survival, limits, priced.rows) / seconds))
        else:
            found = [outlook(survival[..., :depth], limits, priced.rows, self.weight) for depth in depths]
            best = best_of(joined(found), seconds.ravel(), self.weight)
        depth, at = divmod(best, len(priced.rows))
        return depths[depth], int(priced.rows[at]) - len(limits) if depths[depth] else 0

    def _expected(self, survival: Array, limits: Array, rows: Array) -> Array:
        """Tokens [depths, m] of each depth's likeliest drafts, as `outlook` has them; mean over the sets."""
        requests, depths = len(limits), self.prices.depths
        worth = np.where(self._column < limits[:, None], np.fmax(survival, 0.0), 0.0)
        lost = worth[..., None, :, :] * self._within  # below 0, so that the likeliest sort first
        lost = lost.reshape(-1, len(depths), lost.shape[-1] * requests)
        lost.sort(axis=-1)
        np.cumsum(lost, axis=-1, out=lost)
        lost = lost[0] if len(lost) == 1 else lost.mean(axis=0)
        expected = np.full((len(depths), len(rows)), float(requests))
        some = rows > requests
        expected[:, some] -= lost[:, (rows - requests)[some] - 1]
        return expected

    def _nothing_new(self, seen: Array, residences: Array) -> bool:
        """Whether the round drafts nothing as the one before did, because nothing was read since."""
        if not 0 < self._idle < LOOK or int(seen.max(initial=-1)) > self._read:
            return False
        return NEWS * int(np.count_nonzero(residences > self._newest)) <= len(residences)

    def _sets(self, survival: Array, seen: Array, drafting: Array) -> Array:
        """[K, R, G], each as likely as the others to be the round's: earlier survivals in place of the known ones.

        survival [R, G] is the newest, read in the rounds `seen` [R], below 0: never; drafting [R]: who may still draft.
        """
        known = (seen >= 0) & drafting
        self._sample = np.concatenate([self._sample, survival[known & (seen > self._read)]])[-SAMPLE:]
        self._read = max(self._read, int(seen.max(initial=-1)))
        many = int(np.count_nonzero(known))
        count = len(self._sample) // many if many else 0
        if count < 2:
            return survival[None]
        sets = np.repeat(survival[None], count, axis=0)
        sets[:-1, known] = self._sample[-count * many : -many].reshape(count - 1, many, -1)
        return sets
