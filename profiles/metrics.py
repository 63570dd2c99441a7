"""Scores of predicted probabilities: calibration error and its noise, Brier, AUC, log loss. numpy only.

Every function takes `probability` [n] in [0, 1] and `outcome` [n] of 0/1, n >= 1. Legend: `n` observations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dsbench.profiles.curve import FloatArray

BINS = 20  # equal-width, as in the published evaluation of confidence heads


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Every metric of one set of predictions. None where a metric is undefined (no observation, one class only)."""

    n: int
    base_rate: float | None  # mean outcome
    mean_probability: float | None
    ece: float | None
    ece_null: tuple[float, float] | None  # 5% and 95% quantile of the ECE that perfect calibration shows at this n
    brier: float | None
    skill: float | None
    auc: float | None
    log_loss: float | None

    @property
    def within_noise(self) -> bool:
        """Whether the ECE is no larger than perfect calibration would show; True without observations."""
        return self.ece is None or self.ece_null is None or self.ece <= self.ece_null[1]


def score(probability: ArrayLike, outcome: ArrayLike, *, bins: int = BINS, draws: int = 100, seed: int = 0) -> Scores:
    """All metrics at once; n may be 0 here."""
    p, y = _pair(probability, outcome)
    if not len(p):
        return Scores(
            n=0,
            base_rate=None,
            mean_probability=None,
            ece=None,
            ece_null=None,
            brier=None,
            skill=None,
            auc=None,
            log_loss=None,
        )
    null = ece_null(p, bins=bins, draws=draws, seed=seed)
    both = 0.0 < y.mean() < 1.0
    return Scores(
        n=len(p),
        base_rate=float(y.mean()),
        mean_probability=float(p.mean()),
        ece=ece(p, y, bins=bins),
        ece_null=(float(np.quantile(null, 0.05)), float(np.quantile(null, 0.95))),
        brier=brier(p, y),
        skill=brier_skill(p, y) if both else None,
        auc=auc(p, y) if both else None,
        log_loss=log_loss(p, y),
    )


def ece(probability: ArrayLike, outcome: ArrayLike, *, bins: int = BINS) -> float:
    """Expected calibration error: sum over equal-width bins of n_b/n * |mean probability - mean outcome|."""
    p, y = _pair(probability, outcome)
    return float(_gap(_bin(p, bins), p, y, bins))


def ece_null(probability: ArrayLike, *, bins: int = BINS, draws: int = 200, seed: int = 0) -> FloatArray:
    """ECE [draws] of outcomes drawn from the probabilities themselves: what perfect calibration shows at this n."""
    p = np.asarray(probability, np.float64)
    rng = np.random.default_rng(seed)
    index = _bin(p, bins)
    return np.array([_gap(index, p, (rng.random(len(p)) < p).astype(np.float64), bins) for _ in range(draws)])


def brier(probability: ArrayLike, outcome: ArrayLike) -> float:
    """Mean squared error of the probability."""
    p, y = _pair(probability, outcome)
    return float(np.mean((p - y) ** 2))


def brier_skill(probability: ArrayLike, outcome: ArrayLike) -> float:
    """1 - Brier / Brier of always predicting the base rate: 1 perfect, 0 no better. NaN when only one class occurs."""
    p, y = _pair(probability, outcome)
    reference = float(y.mean() * (1.0 - y.mean()))
    return 1.0 - brier(p, y) / reference if reference > 0 else float("nan")


def auc(probability: ArrayLike, outcome: ArrayLike) -> float:
    """Chance that a random hit is ranked above a random miss, ties counted half (Mann-Whitney U / (n1 n0)).

    NaN when only one class occurs.
    """
    p, y = _pair(probability, outcome)
    hits = int(y.sum())
    misses = len(y) - hits
    if not hits or not misses:
        return float("nan")
    _, index, counts = np.unique(p, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2.0
    rank_sum = float(mean_rank[index][y == 1.0].sum())
    return (rank_sum - hits * (hits + 1) / 2.0) / (hits * misses)


def log_loss(probability: ArrayLike, outcome: ArrayLike) -> float:
    """Mean negative log likelihood in nats; probabilities are kept 1e-12 away from 0 and 1."""
    p, y = _pair(probability, outcome)
    p = np.clip(p, 1e-12, 1.0 - 1e-12)
    return float(-np.mean(y * np.log(p) + (1.0 - y) * np.log1p(-p)))


def _pair(probability: ArrayLike, outcome: ArrayLike) -> tuple[FloatArray, FloatArray]:
    p, y = np.asarray(probability, np.float64), np.asarray(outcome, np.float64)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"probability and outcome must be [n] alike, got {p.shape} and {y.shape}")
    if not ((p >= 0.0) & (p <= 1.0)).all() or not ((y == 0.0) | (y == 1.0)).all():
        raise ValueError("probabilities must lie in [0, 1] and outcomes be 0 or 1")
    return p, y


def _bin(p: FloatArray, bins: int) -> NDArray[np.int64]:
    return np.minimum((p * bins).astype(np.int64), bins - 1)


def _gap(index: NDArray[np.int64], p: FloatArray, y: FloatArray, bins: int) -> float:
    return float(np.abs(np.bincount(index, weights=p - y, minlength=bins)).sum() / len(p))
