"""Decision regret: what following a cost table loses against following the measured times.

Judges a table by its decisions, not by its residuals: an error that leaves the choice of rows unchanged costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.errors import UsageError
from dsbench.profiles.cost import CostTable
from dsbench.profiles.curve import FloatArray, IntArray
from dsbench.profiles.fit import CostCell


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Relative throughput losses, 0 = the table chose as the measurement would."""

    decisions: int
    mean: float
    p95: float
    worst: float


def decision_regret(
    table: CostTable, cells: Sequence[CostCell], survival: FloatArray, *, draws: int = 20, seed: int = 0
) -> Regret:
    """Throughput lost by choosing M by the table instead of by the measured time.

    cells: measured verify cells; those of one (R, S) with R <= M <= R*(G+1) compete, tier padding clipped away.
    survival: [n, G], non-increasing along G, one drafted block per row. For each competition, `draws` batches of R
    blocks are drawn; M is worth (R + sum of its M - R best survivals) / (verify + draft seconds), draft by the table on
    both sides. The measured best is the best of noisy times, so this is an upper bound of the true loss. Raises
    UsageError when no (R, S) was measured at two row totals.
    """
    rng = np.random.default_rng(seed)
    losses: list[float] = []
    groups: dict[tuple[int, int], dict[int, float]] = {}
    everything = survival.shape[1] + 1
    for cell in cells:
        if cell.rows >= cell.requests and cell.rows <= table.tier(cell.requests * everything):
            rows = min(cell.rows, cell.requests * everything)
            groups.setdefault((cell.requests, cell.context), {})[rows] = cell.seconds
    for (requests, context), times in sorted(groups.items()):
        if len(times) < 2:
            continue
        rows = np.array(sorted(times), np.int64)
        measured = np.array([times[count] for count in rows.tolist()])
        draft = table.draft_seconds(requests, context)
        predicted = table.verify_curve(requests, rows, context)
        for _ in range(draws):
            gain = _delivered(survival[rng.integers(0, len(survival), requests)], rows)
            real = gain / (measured + draft)
            chosen = int(np.argmax(gain / (predicted + draft)))
            losses.append(1.0 - float(real[chosen] / real.max()))
    if not losses:
        raise UsageError(
            "no decision to judge: no (requests, context) was measured at two row totals",
            hint="profile several row totals at the same requests and context",
        )
    return Regret(
        decisions=len(losses), mean=float(np.mean(losses)), p95=float(np.quantile(losses, 0.95)), worst=max(losses)
    )


def _delivered(survival: FloatArray, rows: IntArray) -> FloatArray:
    """Expected tokens of a step [n] at each row total [n]: one per request and the best survivals of [R, G]."""
    requests = len(survival)
    best = np.sort(survival, axis=None)[::-1]
    total = np.concatenate([[0.0], np.cumsum(best)])
    return np.asarray(requests + total[rows - requests], np.float64)
