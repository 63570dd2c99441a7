"""What a simulated round costs: a cost table, and what its raw samples say of decoding without a drafter. No torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dsbench.profiles.cost import CostTable, StepShape, load_cost_table
from dsbench.profiles.fit import CostSample, collapse
from dsbench.profiles.samples import load_samples, samples_path


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainPass:
    """Seconds of a pass of arm none, over measured (R, S): linear in S, straight between the R's."""

    requests: tuple[int, ...]
    seconds: tuple[float, ...]  # at no context
    per_token: float

    def of(self, requests: int, context: int) -> float:
        return float(np.interp(requests, self.requests, self.seconds)) + self.per_token * context


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
    """From samples of phase plain: the slope over contexts all R share, and each R's median less it. None without."""
    cells = collapse([replace(s, phase="draft") for s in samples if s.phase == "plain"], "draft")
    if not cells:
        return None
    requests = sorted({cell.requests for cell in cells})
    context, seconds = (np.array([getattr(c, name) for c in cells], np.float64) for name in ("context", "seconds"))
    here = np.array([[cell.requests == r for r in requests] for cell in cells], np.float64)
    weight = 1 / seconds[:, None]
    design = np.hstack([here, context[:, None]])
    found = np.linalg.lstsq(design * weight, np.ones(len(cells)), rcond=None)[0]
    slope = max(0.0, float(found[-1]))
    base = [float(np.median(seconds[here[:, i] > 0] - slope * context[here[:, i] > 0])) for i in range(len(requests))]
    return PlainPass(requests=tuple(requests), seconds=tuple(base), per_token=slope)
