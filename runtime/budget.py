"""How many rows are worth running, and how deep to draft, of what survives and what a step costs. No torch.

`want_tier` and `early_stop` choose a round's rows; `Budgets` chooses depth and rows together, before a round begins:
what a table says of so many requests is worked out once; a step then costs a sort a depth. Survival: a[r, j] = product
of the calibrated conditional acceptances up to draft j. Shapes: R requests, G block, m candidate row totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.profiles.cost import CostTable
from dsbench.runtime.objective import Array, Outlook, best_of, bounded, outlook

DEPTHS = (1, 2, 3, 5)  # of a shallower draft; the block itself beside them


@dataclass(frozen=True, slots=True, kw_only=True)
class TierChoice:
    """A number of packed rows M worth running, the step seconds predicted for it, and why."""

    rows: int
    seconds: float
    reason: str


def want_tier(survival: Array, limits: Array, table: CostTable, context: int, weight: float = 1.0) -> TierChoice:
    """The M that is `best_of` all candidates. survival [R, G], limits [R] drafts allowed."""
    requests, block = survival.shape
    rows = table.candidates(requests, block)
    seconds = table.verify_curve(requests, rows, context) + table.draft_seconds(requests, context)
    best = best_of(outlook(survival, limits, rows, weight), seconds, weight)
    return TierChoice(rows=int(rows[best]), seconds=float(seconds[best]), reason="argmax")


def agree(choices: Sequence[TierChoice]) -> TierChoice:
    """What all data-parallel ranks run: the largest tier any of them needs."""
    return max(choices, key=lambda choice: choice.rows)


def early_stop(survival: Array, limits: Array, table: CostTable, context: int) -> int:
    """Budget K of the paper's Algorithm 1: admit by survival, stop at the first that does not raise throughput."""
    requests, block = survival.shape
    ranked = np.sort(bounded(survival, limits), axis=None)[::-1]
    ranked = ranked[ranked > 0]
    rows = requests + np.arange(len(ranked) + 1)
    seconds = table.verify_curve(requests, rows, context) + table.draft_seconds(requests, context)
    rate = (requests + np.concatenate([[0.0], np.cumsum(ranked)])) / seconds
    drops = np.flatnonzero(rate[1:] <= rate[:-1])
    return int(drops[0]) if len(drops) else len(ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Seconds of R requests' rounds without context: of each row total, and of a draft of each depth."""

    rows: Array  # [m]
    verify: Array  # [m]
    draft: tuple[float, ...]  # by depth
    per_token: float  # seconds a context token, of draft and verify


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """depth drafts a request, of which `rows` - R are to be verified; the step's predicted seconds."""

    depth: int
    rows: int
    seconds: float


class Budgets:
    """The best of all depths and row totals, by the objective with `weight` (`best_of`).

    depths ascending; a depth below the block counts only where the table knows what a slot costs.
    """

    def __init__(self, table: CostTable, block: int, depths: Sequence[int], weight: float = 1.0) -> None:
        self.table, self.block, self.weight = table, block, weight
        measured = table.slot_bias > 0 or table.slot.seconds[-1] > 0
        self.depths = tuple(d for d in depths if measured or d == block)
        self._priced: dict[int, Priced] = {}

    def choose(self, survival: Array, limits: Array, context: int) -> Choice:
        """survival [R, G] non-increasing along a request, limits [R] drafts allowed."""
        priced, weight = self.priced(len(limits)), self.weight
        found = [outlook(survival[:, :depth], limits, priced.rows, weight) for depth in self.depths]
        seconds = np.concatenate([priced.verify + (priced.per_token * context + draft) for draft in priced.draft])
        best = best_of(_joined(found), seconds, weight)
        depth, at = divmod(best, len(priced.rows))
        return Choice(depth=self.depths[depth], rows=int(priced.rows[at]), seconds=float(seconds[best]))

    def certain(self, taken: int, requests: int, context: int) -> Choice:
        """Of whole blocks, of which `taken` drafts over all are known to be accepted: the most tokens a second."""
        priced = self.priced(requests)
        seconds = priced.verify + (priced.per_token * context + priced.draft[-1])
        best = int(np.argmax(np.minimum(priced.rows, requests + taken) / seconds))
        rows = min(int(priced.rows[best]), requests + taken)
        return Choice(depth=self.depths[-1], rows=rows, seconds=float(seconds[best]))

    def priced(self, requests: int) -> Priced:
        if requests not in self._priced:
            table, rows = self.table, self.table.candidates(requests, self.block)
            self._priced[requests] = Priced(
                rows=rows, verify=table.verify_curve(requests, rows, 0),
                draft=tuple(table.draft_seconds(requests, 0, self.block - depth) for depth in self.depths),
                per_token=table.kappa + table.walk / requests + table.draft_kappa,
            )  # fmt: skip
        return self._priced[requests]


def _joined(found: Sequence[Outlook]) -> Outlook:
    waits = [one.waits for one in found if one.waits is not None]
    return Outlook(np.concatenate([one.tokens for one in found]), np.concatenate(waits) if waits else None)
