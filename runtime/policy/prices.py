"""What rounds cost by the cost table, worked out once a number of requests. No torch.

Shapes: R requests, G block, m candidate row totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dsbench.profiles.cost import CostTable, StepShape
from dsbench.runtime.policy.objective import Array

DEPTHS = (1, 2, 3, 5)  # depths that a policy may choose beside the full block


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Seconds of R requests' rounds without context, of each depth and row total; and those of a context token."""

    rows: Array  # [m]
    seconds: Array  # [depths, m]
    per_token: Array  # [depths, 1]


class Prices:
    """Prices of rounds that draft to one of `depths`, ascending; depth 0 is a no-draft round.

    A depth between 0 and the block counts only where the table knows what a depth costs.
    """

    def __init__(self, table: CostTable | None, block: int, depths: Sequence[int]) -> None:
        self.table, self.block = table, block
        measured = table is not None and (table.depth_bias > 0 or table.depth.seconds[-1] > 0)
        self.depths = tuple(d for d in depths if measured or d in (0, block))
        self._priced: dict[int, Priced] = {}
        self._known: dict[tuple[int, int, int], tuple[float, float, bool]] = {}  # by R, M and depth

    def of(self, requests: int) -> Priced:
        """Prices of all depths and row totals for R requests."""
        if requests not in self._priced:
            assert self.table is not None, "a policy that weighs cost has a table"
            table, rows = self.table, self.table.candidates(requests, self.block)
            full = table.draft_seconds(requests, 0)
            depth = full - table.draft_seconds(requests, 0, skipped=1)
            draft = full - (self.block - np.array(self.depths)) * depth
            seconds = table.verify_curve(requests, rows, 0) + draft[:, None]
            per_token = np.full((len(self.depths), 1), table.per_token(requests, drafts=True))
            if self.depths[0] == 0:  # rows beyond one a request bring nothing
                seconds[0] = np.inf
                seconds[0, 0], per_token[0] = table.no_draft_parts(requests)
            self._priced[requests] = Priced(rows=rows, seconds=seconds, per_token=per_token)
        return self._priced[requests]

    def predict(self, shape: StepShape, depth: int) -> tuple[float, bool]:
        """Seconds of a round (nan without a table), and whether the table extrapolates."""
        table, key = self.table, (shape.requests, shape.rows, depth)
        if table is None:
            return float("nan"), False
        if key not in self._known:
            start, drafts = StepShape(shape.requests, shape.rows, 0), depth > 0
            seconds, per_token = table.verify_seconds(start), table.per_token(shape.requests, drafts=drafts)
            if drafts:
                seconds += table.draft_seconds(shape.requests, 0, skipped=self.block - depth)
            elif self.block:
                seconds, per_token = table.no_draft_parts(shape.requests)
            self._known[key] = seconds, per_token, table.outside(replace(start, context=table.box.context[0]))
        seconds, per_token, outside = self._known[key]
        least, most = table.box.context
        return seconds + per_token * shape.context, outside or not least <= shape.context <= most
