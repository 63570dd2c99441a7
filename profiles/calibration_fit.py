"""Fitting a calibration to rollouts: sequential temperature scaling, and Platt maps by position.

Legend: `N` rounds, `G` block size; position k = 1..G is column k - 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from dsbench.profiles.calibration import Calibration, EventKey, Head, Method, Quality, conditional
from dsbench.profiles.curve import FloatArray, IntArray
from dsbench.profiles.metrics import BINS, ece, score

RIDGE = 1.0  # of the Platt map towards (1, 0), in nats: felt at tens of observations, not at thousands
PRIOR_WEIGHT = 2.0  # observations that the previous position's rate counts for in the prior


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Verified rounds. Raises ValueError when shapes disagree or accepted <= window <= G is broken.

    Where trimmed drafts were judged later, give the match length as `accepted` and G as `window`: nothing is censored
    then. Otherwise `window` must not depend on what the drafts turned out to be, or the observed events are a biased
    choice of all.
    """

    logits: FloatArray  # [N, G] confidence logits
    accepted: IntArray  # [N] drafts accepted
    window: IntArray  # [N] drafts verified

    def __post_init__(self) -> None:
        shapes = self.logits.shape, self.accepted.shape, self.window.shape
        if self.logits.ndim != 2 or not shapes[0][:1] == shapes[1] == shapes[2]:
            raise ValueError(f"need logits [N, G], accepted [N] and window [N], got {shapes}")
        if not np.isfinite(self.logits).all():
            raise ValueError("logits must be finite")
        ordered = (self.accepted >= 0) & (self.accepted <= self.window) & (self.window <= self.logits.shape[1])
        if not ordered.all():
            raise ValueError("need 0 <= accepted <= window <= G in every round")

    def conditional(self, k: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Position k's event given that all before were accepted: (observed [N], accepted [N])."""
        return (self.accepted >= k - 1) & (self.window >= k), self.accepted >= k

    def prefix(self, k: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The event 'the first k drafts are all accepted': (observed [N], accepted [N]).

        Observed only where k drafts were verified: a shorter window with an early rejection decides the event too, but
        counting it would admit rejections alone.
        """
        return self.window >= k, self.accepted >= k


def fit_calibration(
    rounds: Rounds, *, method: Method, event: EventKey, head: Head = "conditioned", test: Rounds | None = None
) -> Calibration:
    """Fit one map on `rounds`; score it on `test` when given, else on the fitted rounds themselves."""
    block = rounds.logits.shape[1]
    scale, offset = np.ones(block), np.zeros(block)
    if method == "sts":
        scale = 1.0 / fit_temperatures(rounds)
    elif method == "platt":
        scale, offset = fit_platt(rounds)
    scored = rounds if test is None else test
    return Calibration(
        method=method,
        head=head,
        event=event,
        scale=tuple(scale.tolist()),
        offset=tuple(offset.tolist()),
        prior=tuple(_prior(rounds)),
        n=len(rounds.accepted),
        scored_on="fit" if test is None else "test",
        before=quality(scored, np.ones(block), np.zeros(block)),
        after=quality(scored, scale, offset),
    )


def fit_temperatures(rounds: Rounds, *, bins: int = BINS) -> FloatArray:
    """Sequential temperature scaling (STS): T [G], left to right.

    With T of the earlier positions fixed, T_k is the one of 41 log-spaced values in [0.1, 10] that minimises the ECE of
    prod over i <= k of sigmoid(z_i / T_i) against the observed prefix event; of equals the nearest to 1. A position
    that no round verified keeps 1.
    """
    grid = np.logspace(-1.0, 1.0, 41)
    grid = grid[np.argsort(np.abs(np.log(grid)), kind="stable")]
    grid[0] = 1.0
    temperatures = np.ones(rounds.logits.shape[1])
    before = np.ones(len(rounds.accepted))
    for k in range(1, len(temperatures) + 1):
        observed, passed = rounds.prefix(k)
        column = rounds.logits[:, k - 1 : k]
        if observed.any():
            chances = conditional(np.repeat(column[observed], len(grid), axis=1), 1.0 / grid, np.zeros(len(grid)))
            errors = [ece(before[observed] * chances[:, i], passed[observed], bins=bins) for i in range(len(grid))]
            temperatures[k - 1] = grid[int(np.argmin(errors))]
        before = before * conditional(column, [1.0 / temperatures[k - 1]], [0.0])[:, 0]
    return temperatures


def fit_platt(rounds: Rounds, *, ridge: float = RIDGE) -> tuple[FloatArray, FloatArray]:
    """Platt maps by position: (scale [G] >= 0, offset [G]).

    Minimises the Bernoulli negative log likelihood of the observed conditional events under sigmoid(a*z + b), plus
    ridge/2 * ((a - 1)^2 + b^2); a >= 0, since a map that reverses the ranking is noise.
    """
    block = rounds.logits.shape[1]
    scale, offset = np.ones(block), np.zeros(block)
    for k in range(1, block + 1):
        observed, accepted = rounds.conditional(k)
        if observed.any():
            z, y = rounds.logits[observed, k - 1], accepted[observed].astype(np.float64)
            scale[k - 1], offset[k - 1] = _platt(z.astype(np.float64), y, ridge)
    return scale, offset


def _platt(z: FloatArray, y: FloatArray, ridge: float) -> tuple[float, float]:
    def loss(point: FloatArray) -> tuple[float, FloatArray]:
        a, b = point
        logit = a * z + b
        miss = np.exp(-np.logaddexp(0.0, -logit)) - y
        value = np.sum(np.logaddexp(0.0, logit) - y * logit) + 0.5 * ridge * ((a - 1.0) ** 2 + b**2)
        slope = np.array([miss @ z + ridge * (a - 1.0), miss.sum() + ridge * b])
        return float(value) / len(z), slope / len(z)

    found = minimize(
        loss, np.array([1.0, 0.0]), jac=True, method="L-BFGS-B", bounds=[(0.0, None), (None, None)], tol=1e-12
    )
    return float(found.x[0]), float(found.x[1])


def quality(rounds: Rounds, scale: FloatArray, offset: FloatArray) -> Quality:
    """Scores of a map on the observed conditional and prefix events, by position."""
    chance = conditional(rounds.logits, scale, offset)
    survival = np.cumprod(chance, axis=1)
    conditionals, prefixes = [], []
    for k in range(1, chance.shape[1] + 1):
        observed, accepted = rounds.conditional(k)
        conditionals.append(score(chance[observed, k - 1], accepted[observed]))
        observed, passed = rounds.prefix(k)
        prefixes.append(score(survival[observed, k - 1], passed[observed]))
    return Quality(conditional=tuple(conditionals), prefix=tuple(prefixes))


def _prior(rounds: Rounds) -> list[float]:
    """Mean conditional acceptance by position, shrunk a little towards the position before (the first towards 0.5)."""
    rates: list[float] = []
    for k in range(1, rounds.logits.shape[1] + 1):
        observed, accepted = rounds.conditional(k)
        anchor = rates[-1] if rates else 0.5
        rates.append(float((accepted[observed].sum() + PRIOR_WEIGHT * anchor) / (observed.sum() + PRIOR_WEIGHT)))
    return rates
