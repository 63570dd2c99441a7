"""What a simulated round does: the real planner over recorded confidences, as old as the pace says. Pure.

Shapes: R requests, G block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import CHUNKS, LAG, PATIENCE, PROMPTS, SHARE
from dsbench.runtime.policy.budget import Budgets, early_stop, want_tier
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.recent import Recent
from dsbench.simulate.requests import Seat


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptPasses:
    """Captured passes over prompts: requests of one at most, its sizes, and how long prompts wait for each other."""

    most: int = PROMPTS
    chunks: tuple[int, ...] = CHUNKS
    share: int = SHARE
    patience: int = PATIENCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How far the host is behind.

    delay: rounds launched before one is read; until then nobody leaves a seat. age: how many rounds back the
    confidences lie that set a budget, which knows of no token since; 0: the round's own. waits: prompts run while no
    round does, and depth and rows are chosen within the round, as by the engine that waits for each phase.
    """

    delay: int
    age: int
    waits: bool
    prompts: PromptPasses = PromptPasses()

    def told(self, number: int) -> int:
        """The last round that the budget of round `number` knows of."""
        return number - max(self.age, self.delay + 1)


OVERLAPPED = Pace(delay=LAG - 1, age=LAG, waits=False)
WAITING = Pace(delay=0, age=0, waits=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Slots drafted [R], windows [R], drafts sent to the target [R], rows launched, survival [R, G].

    priors: requests whose budget came from one; age: of the confidences behind the budget, 0 where none are.
    """

    depth: Array
    window: Array
    sent: Array
    rows: int
    survival: Array
    priors: int = 0
    age: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chooser:
    """An arm's policy. prior: survival [G] of a request that nothing is known of.

    budgets: of an arm that chooses depth and rows before a round is launched, by `recent` ones. full: it drafts the
    whole block always.
    """

    arm: Arm
    block: int
    table: CostTable
    pace: Pace
    prior: Array
    budgets: Budgets | None
    full: bool
    recent: Recent

    def choose(self, seats: Sequence[Seat], number: int) -> Choice:
        """Of round `number`, for everybody that sits, zombies included."""
        n, cap = len(seats), self.arm.depth(self.block)
        limits = np.clip(np.array([s.left for s in seats], np.int64), 0, cap)
        if self.arm.policy in ("full", "fixed"):
            exact = self.pace.waits and self.arm.layout == "packed"
            rows = n + int(limits.sum()) if exact else n * (cap + 1)
            every = np.full(n, cap)
            sent = every if self.pace.waits and self.arm.layout == "rectangular" else limits
            return Choice(depth=every, window=limits, sent=sent, rows=rows, survival=np.tile(self.prior, (n, 1)))
        conditional = np.stack([s.row(s.script.conditional) for s in seats])
        free = np.stack([s.row(s.script.token_free) for s in seats])
        if self.budgets is not None:
            return self._before(self.budgets, seats, number, limits, conditional, free)
        return self._within(seats, number, limits, conditional, free)

    def _before(
        self, budgets: Budgets, seats: Sequence[Seat], number: int, limits: Array, conditional: Array, free: Array
    ) -> Choice:
        """Depth and rows from what the host has read; windows from the round's own confidences.

        An oracle's windows, and the rows for them, are what the text takes of the block.
        """
        n, read = len(seats), self.pace.told(number)
        known = np.array([s.emitted(read) for s in seats])
        left = np.array([s.ended is None or s.ended > read for s in seats])
        prompts = np.array([s.script.prompt_tokens for s in seats])
        context = int((prompts + known - 1)[left].sum())
        room = np.array([s.script.room for s in seats])
        open_to = np.where(left, np.clip(room - known - 1, 0, self.block), 0)
        if self.arm.policy == "oracle":
            return self._foreseen(budgets, seats, limits, context)
        past, seen = self._past(seats, number, np.cumprod(conditional, axis=1), np.cumprod(free, axis=1))
        stays = np.array([s.joined for s in seats])
        if self.recent.rests(seen, stays):
            depth, rows = 0, n
            self.recent.chose(depth)
        else:
            sets = self.recent.sets(past, seen, open_to > 0) if self.pace.age else past
            chosen = budgets.choose(sets, open_to, context, plain=not self.recent.due)
            depth, rows = chosen.depth, chosen.rows
            self.recent.chose(depth, stays)
        own = np.where(np.arange(self.block) < depth, conditional, free)
        survival, cap = np.cumprod(own, axis=1), np.minimum(limits, depth)
        window, whole = best_windows(survival, cap, rows - n), self.arm.commit == "window"
        return Choice(
            depth=np.full(n, depth),
            window=window,
            sent=cap if whole else window,
            survival=survival,
            rows=n * (depth + 1) if whole else rows,
            priors=int((seen < 0).sum()),
            age=self._age(seats, number),
        )

    def _foreseen(self, budgets: Budgets, seats: Sequence[Seat], limits: Array, context: int) -> Choice:
        n, match = len(seats), np.array([s.match for s in seats])
        taken = np.minimum(match, limits)[:, None]
        chosen = budgets.certain(np.minimum(taken, np.arange(1, self.block + 1)).sum(axis=0), n, context)
        survival = (np.arange(self.block) < match[:, None]).astype(np.float64)
        limits = np.minimum(limits, chosen.depth)
        window, whole = best_windows(survival, limits, chosen.rows - n), self.arm.commit == "window"
        return Choice(
            depth=np.full(n, chosen.depth),
            window=window,
            sent=limits if whole else window,
            survival=survival,
            rows=n * (chosen.depth + 1) if whole else chosen.rows,
        )

    def _within(self, seats: Sequence[Seat], number: int, limits: Array, conditional: Array, free: Array) -> Choice:
        """Depth by the token-free head, then windows by the round's confidences."""
        n, policy, context = len(seats), self.arm.policy, sum(s.context for s in seats)
        depth = np.full(n, self.block)
        seen = np.cumprod(free, axis=1)
        if policy in ("argmax", "free", "early-stop") and self.arm.commit == "all" and not self.full:
            depth = best_windows(seen, limits, want_tier(seen, limits, self.table, context, self.arm.weight).rows - n)
            depth = np.full(n, depth.max()) if policy == "free" else depth
        column = np.arange(self.block)
        own = np.where(column < depth[:, None], conditional, free)
        survival, cap, seen_in = np.cumprod(own, axis=1), np.minimum(limits, depth), np.zeros(n, np.int64)
        if policy == "threshold":
            window = np.minimum(np.cumprod(own >= self.arm.threshold, axis=1).sum(axis=1), cap)
        elif policy == "early-stop":
            window = best_windows(survival, cap, early_stop(survival, cap, self.table, context))
        else:
            if policy == "oracle":
                survival = (column < np.array([s.match for s in seats])[:, None]).astype(np.float64)
            past, seen_in = self._past(seats, number, survival, seen)
            window = best_windows(survival, cap, want_tier(past, cap, self.table, context, self.arm.weight).rows - n)
        sent = cap if self.arm.commit == "window" else window
        rows = n + int(sent.sum())
        age = self.pace.age if policy == "argmax" else 0
        return Choice(
            depth=depth,
            window=window,
            sent=sent,
            rows=rows,
            survival=survival,
            priors=int((seen_in < 0).sum()),
            age=age,
        )

    def _age(self, seats: Sequence[Seat], number: int) -> int:
        """Rounds since the oldest confidences behind the budget."""
        read = self.pace.told(number)
        found = [s.seen(number - self.pace.age) for s in seats if s.ended is None or s.ended > read]
        return max((number - f for f in found if f is not None), default=0)

    def _past(self, seats: Sequence[Seat], number: int, own: Array, free: Array) -> tuple[Array, Array]:
        """Survival [R, G] that sets the budget, and the round it is of, -1 where it is a prior. [R]

        Of the round itself it is `free` for an arm that asks for it, and `own` else.
        """
        if self.pace.age == 0 or self.arm.policy in ("free", "oracle"):
            return free if self.arm.policy == "free" else own, np.full(len(seats), number)
        found = [s.survival(number - self.pace.age) for s in seats]
        seen = [s.seen(number - self.pace.age) for s in seats]
        past = np.stack([self.prior if f is None else f for f in found])
        return past, np.array([-1 if n is None else n for n in seen])


def best_windows(survival: Array, limits: Array, budget: int) -> Array:
    """Drafts [R] of the `budget` best within limits; ties go to the shallower, then to the request that is first."""
    requests, block = survival.shape
    score = np.where(np.arange(block) < limits[:, None], np.minimum.accumulate(survival, axis=1), -1.0)
    best = np.argsort(-score.T.ravel(), kind="stable")[:budget]
    best = best[score.T.ravel()[best] >= 0]
    return np.bincount(best % requests, minlength=requests)
