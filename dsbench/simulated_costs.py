"""What a simulated round costs: a cost table, and what its raw samples say of decoding without a drafter. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dsbench.profiles.additive import APART
from dsbench.profiles.cost import CostTable, StepShape, load_cost_table
from dsbench.profiles.fit import CostSample, collapse
from dsbench.profiles.samples import load_samples, samples_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPass:
    """Seconds of a pass of arm none: linear in the mean context, straight between the R's that were measured."""

    requests: tuple[int, ...]
    seconds: tuple[float, ...]  # at no context
    per_token: tuple[float, ...]  # of the mean context

    def of(self, requests: int, context: int) -> float:
        """`context`: tokens of all requests."""
        base, slope = (float(np.interp(requests, self.requests, y)) for y in (self.seconds, self.per_token))
        return base + slope * context / requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of the parts of a round. Without `plain`, a pass of arm none costs what one row a request does."""

    table: CostTable
    plain: PlainPass | None = None

    def draft(self, requests: int, context: int, skipped: int) -> float:
        """`skipped` slots of the block are not drafted; a table from before slots were timed prices the whole block."""
        return self.table.draft_seconds(requests, context, skipped)

    def verify(self, requests: int, rows: int, context: int) -> float:
        return self.table.verify_seconds(StepShape(requests, rows, context))

    def alone(self, requests: int, context: int) -> float:
        """A pass of one row a request where there is no drafter."""
        if self.plain is None:
            return self.verify(requests, requests, context)
        return self.plain.of(requests, context)

    def prefill(self, requests: int, rows: int, context: int) -> float:
        """A pass of so many prompt rows. The table times no prompts: a verify pass of as many rows stands for it."""
        return self.verify(requests, rows, context)


def load_costs(path: Path) -> Costs:
    """A table, and the samples beside it where there are any. Raises UsageError for a file that is no cost table."""
    table = load_cost_table(path)
    samples = load_samples(path) if samples_path(path).exists() else []
    return Costs(table=table, plain=plain_pass(samples))


def plain_pass(samples: Iterable[CostSample]) -> PlainPass | None:
    """A line in the mean context through the samples of phase plain of each R; None without any.

    An R whose contexts are all alike has the slope of its neighbours.
    """
    cells = collapse([replace(s, phase="draft") for s in samples if s.phase == "plain"], "draft")
    if not cells:
        return None
    lines, alike = dict[int, tuple[float, float]](), dict[int, tuple[float, float]]()
    for requests in sorted({cell.requests for cell in cells}):
        mine = [cell for cell in cells if cell.requests == requests]
        mean, seconds = np.array([c.context / requests for c in mine]), np.array([c.seconds for c in mine])
        if mean.max() > APART * mean.min():
            slope, base = np.polyfit(mean, seconds, 1, w=1 / seconds)
            lines[requests] = float(base), max(0.0, float(slope))
        else:
            alike[requests] = float(np.median(seconds)), float(np.median(mean))
    known = {r: slope for r, (_, slope) in lines.items()} or {1: 0.0}
    for requests, (time, context) in alike.items():
        per_token = float(np.interp(requests, list(known), list(known.values())))
        lines[requests] = time - per_token * context, per_token
    bases, slopes = zip(*(lines[r] for r in sorted(lines)), strict=True)
    return PlainPass(requests=tuple(sorted(lines)), seconds=bases, per_token=slopes)
