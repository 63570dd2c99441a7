"""What a simulated round costs: a cost table, and what its raw samples say of decoding without a drafter. No torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dsbench.profiles.cost import CostTable, StepShape, load_cost_table
from dsbench.profiles.fit import no_draft_pass
from dsbench.profiles.no_draft import NoDraftPass
from dsbench.profiles.samples import load_samples, samples_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds of the parts of a round. Without `no_draft`, a pass of arm none costs what one row a request does."""

    table: CostTable
    no_draft: NoDraftPass | None = None

    def draft(self, requests: int, context: int, skipped: int) -> float:
        """Seconds of a draft without its last `skipped` depths; a table without depth times prices the full block."""
        return self.table.draft_seconds(requests, context, skipped)

    def verify(self, requests: int, rows: int, context: int) -> float:
        return self.table.verify_seconds(StepShape(requests, rows, context))

    def alone(self, requests: int, context: int) -> float:
        """A pass of one row a request where there is no drafter."""
        if self.no_draft is None:
            return self.verify(requests, requests, context)
        return self.no_draft.of(requests, context)

    def bare(self, requests: int, context: int) -> float:
        """A no-draft round of an arm that drafts in others."""
        return self.table.no_draft_seconds(requests, context)

    def tier(self, rows: int) -> int:
        """Rows that really run."""
        return self.table.tier(rows)

    def prefill(self, requests: int, rows: int, context: int) -> float:
        """A pass of so many prompt rows. The table times no prompts: a verify pass of as many rows stands for it."""
        return self.verify(requests, rows, context)


def load_costs(path: Path) -> Costs:
    """A table, and the samples beside it where there are any. Raises UsageError for a file that is no cost table."""
    table = load_cost_table(path)
    samples = load_samples(path) if samples_path(path).exists() else []
    return Costs(table=table, no_draft=no_draft_pass(samples))
