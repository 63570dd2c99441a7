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
from dsbench.runtime.policy.objective import Array, Outlook, best_of, bounded, outlook

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
    """Seconds of R requests' rounds without context, of each depth and row total; and those of a context token."""

    rows: Array  # [m]
    seconds: Array  # [depths, m]
    per_token: Array  # [depths, 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """depth drafts a request, of which `rows` - R are to be verified; the step's predicted seconds."""

    depth: int
    rows: int
    seconds: float


class Budgets:
    """The best of all depths and row totals, by the objective with `weight` (`best_of`).

    depths ascending; 0 is a plain round, which drafts nothing. One between it and the block counts only where the table
    knows what a slot costs.
    """

    def __init__(self, table: CostTable, block: int, depths: Sequence[int], weight: float = 1.0) -> None:
        self.table, self.block, self.weight = table, block, weight
        measured = table.depth_bias > 0 or table.depth.seconds[-1] > 0
        self.depths = tuple(d for d in depths if measured or d in (0, block))
        self._column = np.arange(block)
        self._within = -1.0 * (self._column < np.array(self.depths)[:, None, None])  # [depths, 1, G]
        self._priced: dict[int, Priced] = {}

    def choose(self, survival: Array, limits: Array, context: int, *, plain: bool = True) -> Choice:
        """survival [R, G] non-increasing along a request, or sets of it [K, R, G]; limits [R] drafts allowed.

        plain: whether a round may draft nothing.
        """
        priced = self.priced(len(limits))
        seconds = priced.seconds + priced.per_token * context
        if not plain and self.depths[0] == 0:
            seconds[0] = np.inf
        if self.weight == 1:
            best = int(np.argmax(self._expected(survival, limits, priced.rows) / seconds))
        else:
            found = [outlook(survival[..., :depth], limits, priced.rows, self.weight) for depth in self.depths]
            best = best_of(_joined(found), seconds.ravel(), self.weight)
        return self._choice(priced, best, seconds, len(limits))

    def certain(self, taken: Array, requests: int, context: int) -> Choice:
        """The most tokens a second where it is known that of drafts to depths 1..G `taken` [G] are accepted."""
        priced = self.priced(requests)
        seconds = priced.seconds + priced.per_token * context
        tokens = requests + np.concatenate([[0], taken])[list(self.depths)]
        best = int(np.argmax(np.minimum(priced.rows, tokens[:, None]) / seconds))
        depth, at = divmod(best, len(priced.rows))
        rows = min(int(priced.rows[at]), int(tokens[depth]))
        return Choice(depth=self.depths[depth], rows=rows, seconds=float(seconds[depth, at]))

    def _choice(self, priced: Priced, best: int, seconds: Array, requests: int) -> Choice:
        depth, at = divmod(best, len(priced.rows))
        rows = int(priced.rows[at]) if self.depths[depth] else requests
        return Choice(depth=self.depths[depth], rows=rows, seconds=float(seconds[depth, at]))

    def _expected(self, survival: Array, limits: Array, rows: Array) -> Array:
        """Tokens [depths, m] of each depth's likeliest drafts, as `outlook` has them: what may not be, adds nothing."""
        requests = len(limits)
        worth = self._worth(survival, limits)[..., None, :, :]
        lost = worth * self._within  # below 0, so that the likeliest sort first
        lost = lost.reshape(-1, len(self.depths), lost.shape[-1] * requests)
        lost.sort(axis=-1)
        np.cumsum(lost, axis=-1, out=lost)
        lost = lost[0] if len(lost) == 1 else lost.mean(axis=0)
        expected = np.full((len(self.depths), len(rows)), float(requests))
        some = rows > requests
        expected[:, some] -= lost[:, (rows - requests)[some] - 1]
        return expected

    def _worth(self, survival: Array, limits: Array) -> Array:
        """Tokens [..., R, G] expected of each draft; none of what may not be verified, or is no number."""
        return np.where(self._column < limits[:, None], np.fmax(survival, 0.0), 0.0)

    def priced(self, requests: int) -> Priced:
        if requests not in self._priced:
            table, rows = self.table, self.table.candidates(requests, self.block)
            whole = table.draft_seconds(requests, 0)
            slot = whole - table.draft_seconds(requests, 0, skipped=1)
            draft = whole - (self.block - np.array(self.depths)) * slot
            seconds = table.verify_curve(requests, rows, 0) + draft[:, None]
            per_token = np.full((len(self.depths), 1), table.per_token(requests, drafts=True))
            if self.depths[0] == 0:  # rows beyond one a request bring nothing
                seconds[0] = np.inf
                seconds[0, 0], per_token[0] = table.no_draft_parts(requests)
            self._priced[requests] = Priced(rows=rows, seconds=seconds, per_token=per_token)
        return self._priced[requests]


def _joined(found: Sequence[Outlook]) -> Outlook:
    waits = [one.waits for one in found if one.waits is not None]
    return Outlook(np.concatenate([one.tokens for one in found]), np.concatenate(waits) if waits else None)
