"""How deep to draft and how many rows to run, from survival that is some steps old: both known before a round begins.

What a table says of so many requests is worked out once; a step then costs a sort a depth. Shapes: R requests, G block,
m candidate row totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dsbench.profiles.cost import CostTable
from dsbench.runtime.planner import Array, best_rows

DEPTHS = (1, 2, 3, 5)  # of a shallower draft; the block itself beside them


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
    """The argmax over depths and row totals of (R + expected accepted drafts) / step seconds.

    depths ascending; a depth below the block counts only where the table knows what a slot costs.
    """

    def __init__(self, table: CostTable, block: int, depths: Sequence[int]) -> None:
        self.table, self.block = table, block
        measured = table.slot_bias > 0 or table.slot.seconds[-1] > 0
        self.depths = tuple(d for d in depths if measured or d == block)
        self._priced: dict[int, Priced] = {}

    def choose(self, survival: Array, limits: Array, context: int) -> Choice:
        """survival [R, G] non-increasing along a request, limits [R] drafts allowed."""
        requests = len(limits)
        priced = self.priced(requests)
        tokens, best = priced.per_token * context, -1.0
        found = Choice(depth=self.depths[0], rows=requests, seconds=0.0)
        for depth, draft in zip(self.depths, priced.draft, strict=True):
            seconds = priced.verify + (tokens + draft)
            at, rate = best_rows(survival[:, :depth], limits, priced.rows, seconds)
            if rate > best:
                best, found = rate, Choice(depth=depth, rows=int(priced.rows[at]), seconds=float(seconds[at]))
        return found

    def priced(self, requests: int) -> Priced:
        if requests not in self._priced:
            table, rows = self.table, self.table.candidates(requests, self.block)
            self._priced[requests] = Priced(
                rows=rows, verify=table.verify_curve(requests, rows, 0),
                draft=tuple(table.draft_seconds(requests, 0, self.block - depth) for depth in self.depths),
                per_token=table.kappa + table.walk / requests + table.draft_kappa,
            )  # fmt: skip
        return self._priced[requests]
