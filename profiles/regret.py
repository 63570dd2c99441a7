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
from dsbench.profiles.fit import CostCell, CostSample, collapse, fit_cost_table

RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """Relative throughput losses, 0 = the table chose as the measurement would."""

    decisions: int
    mean: float
    low: float  # of the mean's 95% interval
    high: float
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
    losses = _losses(table, cells, survival, draws=draws, seed=seed)
    if not losses:
        raise UsageError(
            "no decision to judge: no (requests, context) was measured at two row totals",
            hint="profile several row totals at the same requests and context",
        )
    return _summed(losses, np.random.default_rng(seed))


def heldout_regret(
    samples: Sequence[CostSample], tiers: tuple[int, ...] | None, survival: FloatArray, *, seed: int = 0
) -> Regret | None:
    """Each pass in turn is held out: a table fitted on the other ones decides, the times of the held-out one judge.

    None where less than two passes timed the shapes.
    """
    passes = sorted({s.pass_index for s in samples if s.phase == "verify"})
    cells = len({(s.requests, s.rows, s.context) for s in samples if s.phase == "verify"})
    losses: list[list[float]] = []
    for number in passes:
        own = collapse([s for s in samples if s.pass_index == number], "verify")
        others = [s for s in samples if s.pass_index != number and s.phase in ("verify", "draft")]
        if 2 * len(own) < cells or not any(s.phase == "verify" for s in others):
            continue
        table, _ = fit_cost_table(others, tiers=tiers, contract={}, provenance={}, holdout=0.0, seed=seed)
        losses += _losses(table, own, survival, draws=20, seed=seed)
    return _summed(losses, np.random.default_rng(seed)) if losses else None


def guessed_survival(acceptance: Sequence[float], *, seed: int = 0, blocks: int = 200) -> FloatArray:
    """Survivals [blocks, G] of blocks that differ in how easy they are; acceptance: [G] mean rate at each depth.

    A block's rates are the mean ones to a power that is drawn for it, 1 on average.
    """
    hardness = np.random.default_rng(seed).gamma(1.0, 1.0, (blocks, 1))
    return np.asarray(np.cumprod(np.clip(acceptance, 1e-3, 1.0) ** hardness, axis=1), np.float64)


def _summed(losses: Sequence[Sequence[float]], rng: np.random.Generator) -> Regret:
    """The interval resamples competitions, whose draws share their times."""
    means = np.array([np.mean(one) for one in losses])
    resampled = means[rng.integers(0, len(means), (RESAMPLES, len(means)))].mean(axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    every = np.concatenate([np.asarray(one) for one in losses])
    return Regret(
        decisions=len(every),
        mean=float(every.mean()),
        low=float(low),
        high=float(high),
        p95=float(np.quantile(every, 0.95)),
        worst=float(every.max()),
    )


def _losses(
    table: CostTable, cells: Sequence[CostCell], survival: FloatArray, *, draws: int, seed: int
) -> list[list[float]]:
    """Of each competition the throughput lost in each draw."""
    rng = np.random.default_rng(seed)
    losses: list[list[float]] = []  # of a competition each
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
        losses.append([])
        for _ in range(draws):
            gain = _delivered(survival[rng.integers(0, len(survival), requests)], rows)
            real = gain / (measured + draft)
            chosen = int(np.argmax(gain / (predicted + draft)))
            losses[-1].append(1.0 - float(real[chosen] / real.max()))
    return losses


def _delivered(survival: FloatArray, rows: IntArray) -> FloatArray:
    """Expected tokens of a step [n] at each row total [n]: one per request and the best survivals of [R, G]."""
    requests = len(survival)
    best = np.sort(survival, axis=None)[::-1]
    total = np.concatenate([[0.0], np.cumsum(best)])
    return np.asarray(requests + total[rows - requests], np.float64)
