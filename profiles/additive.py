"""Isotonic additive regression: time = bias + one non-decreasing curve per axis + (walk + rise(first axis)) * walked.

Where no level of the first axis was seen with several walked totals, kappa * context stands for the last part.

The solver, and the test of which values a design of cells determines. The
relative least squares over non-decreasing curves is a convex problem in the curves' increments, so it is solved exactly
as non-negative least squares (Lawson-Hanson). Alternating pool-adjacent-violators passes reach the same optimum, but
crawl when the axes are correlated, as requests and rows always are. Legend: `n` cells.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.profiles.curve import Curve, FloatArray, IntArray

TIE_BREAK = (
    1e-4  # weight of the ridge that decides between equally good fits; moves a determined one by about its square
)
RANK_TOLERANCE = 1e-3  # a direction of the unit-norm design below this share of the largest one is not determined
APART = 1.2  # walked totals of a level, most over least, from which on they tell its walk
LEAST_BIAS = 1e-9  # seconds; a pass is never free


@dataclass(frozen=True, slots=True, kw_only=True)
class AdditiveFit:
    """The fitted parts, in seconds."""

    bias: float
    curves: tuple[Curve, ...]  # one per axis
    kappa: float  # seconds per context token
    walk: float  # seconds per walked token, at the lowest level of the first axis
    rise: Curve  # the first axis -> seconds more

    def predict(self, axes: Sequence[IntArray], context: IntArray, walked: FloatArray | None = None) -> FloatArray:
        """Seconds of each cell [n]; a level that was not fitted is interpolated."""
        total = self.bias + self.kappa * np.asarray(context, np.float64)
        if walked is not None:
            total = total + (self.walk + self.rise.value(axes[0], above=self.rise.outer_slope)) * walked
        for curve, levels in zip(self.curves, axes, strict=True):
            total = total + curve.value(levels, above=curve.outer_slope)
        return np.asarray(total, np.float64)


def fit_additive(
    axes: Sequence[IntArray],
    context: IntArray,
    seconds: FloatArray,
    *,
    free: Sequence[bool],
    rounds: int = 10,
    walked: FloatArray | None = None,
) -> AdditiveFit:
    """Fit n cells by least squares of the relative residual, outliers down-weighted by Huber weights.

    axes: integer levels [n] each; context: tokens [n]; seconds: [n], > 0; walked: tokens [n] that are read one after
    the other, None: there is no such part. Each curve is 0 at its lowest level and does not decrease; bias, kappa and
    walk are not negative. Where cells cannot tell two parts apart, the time goes to the bias and to the axes marked
    `free`, not to the others, kappa or walk.
    """
    levels = [np.unique(axis) for axis in axes]
    increments = [
        (axis[:, None] >= level[None, 1:]).astype(np.float64) for axis, level in zip(axes, levels, strict=True)
    ]
    knots = walk_knots(axes[0], walked)
    loads = _ramps(axes[0], knots) * np.asarray(walked)[:, None] if knots else np.asarray(context, np.float64)[:, None]
    columns = np.hstack([np.ones((len(seconds), 1)), *increments, loads])
    counts = [part.shape[1] for part in increments]
    rises = [np.full(count, 0.0 if f else TIE_BREAK) for count, f in zip(counts, free, strict=True)]
    ridge_weight = np.concatenate([[0.0], *rises, [TIE_BREAK] * loads.shape[1]])
    relative = columns / seconds[:, None]
    weight = np.ones(len(seconds))
    solution = np.zeros(columns.shape[1])
    for _ in range(rounds):
        solution = _solve(relative, weight, ridge_weight)
        updated = _huber(relative @ solution - 1.0)
        converged = np.abs(updated - weight).max() < 1e-3
        weight = updated
        if converged:
            break
    curves = []
    *parts, last = np.split(solution[1:], np.cumsum(counts))
    for level, part in zip(levels, parts, strict=True):
        curves.append(Curve(tuple(map(int, level)), (0.0, *map(float, np.cumsum(part)))))
    rise = Curve(knots, (0.0, *map(float, np.cumsum(last[1:])))) if knots else Curve((1,), (0.0,))
    kappa, walk = (0.0, float(last[0])) if knots else (float(last[0]), 0.0)
    return AdditiveFit(
        bias=max(float(solution[0]), LEAST_BIAS), curves=tuple(curves), kappa=kappa, walk=walk, rise=rise
    )


def walk_knots(axis: IntArray, walked: FloatArray | None) -> tuple[int, ...]:
    """Levels of the axis whose cells differ in what they walk: there it is separable from the level's own time."""
    if walked is None:
        return ()
    return tuple(
        int(level) for level in np.unique(axis) if (walked[axis == level].max() > APART * walked[axis == level].min())
    )


def _ramps(axis: IntArray, knots: Sequence[int]) -> FloatArray:
    """[n, knots]: 1, then for each further knot the share of the way from the one before, 0 to 1."""
    rises = [(axis - low) / (high - low) for low, high in itertools.pairwise(knots)]
    return np.stack([np.ones(len(axis)), *(np.clip(rise, 0.0, 1.0) for rise in rises)], 1)


def _solve(relative: FloatArray, weight: FloatArray, ridge_weight: FloatArray) -> FloatArray:
    """argmin over x >= 0 of sum weight * (relative @ x - 1)^2 + |ridge_weight * x|^2, in columns of unit norm."""
    from scipy.optimize import nnls

    root = np.sqrt(weight)
    design = relative * root[:, None]
    norm = np.linalg.norm(design, axis=0)
    norm[norm == 0.0] = 1.0
    penalised = np.flatnonzero(ridge_weight)
    ridge = np.zeros((len(penalised), design.shape[1]))
    ridge[np.arange(len(penalised)), penalised] = ridge_weight[penalised]
    target = np.concatenate([root, np.zeros(len(penalised))])
    solution, _ = nnls(np.vstack([design / norm, ridge]), target, maxiter=30 * design.shape[1] + 100)
    return np.asarray(solution / norm, np.float64)


def _huber(residual: FloatArray) -> FloatArray:
    """Weights [n] of relative residuals [n]: 1 up to 2.5 robust deviations (at least 0.5%), then falling as 1/|r|."""
    size = np.abs(residual)
    limit = max(2.5 * 1.4826 * float(np.median(size)), 0.005)
    return np.asarray(np.minimum(1.0, limit / np.maximum(size, limit)), np.float64)


def confounded(
    axes: Sequence[IntArray], context: IntArray, names: Sequence[str], walked: FloatArray | None = None
) -> tuple[str, ...]:
    """The values that these cells do not determine, as `name(level)` or `kappa`; empty for a sound design.

    Values are relative to the lowest level, as in the table; one is determined when no direction in the null space of
    the (unconstrained) design moves it. For two axes this means that the graph, with the levels of both as its nodes
    and the cells as its edges, is connected: on the diagonal M = R*(G+1) alone every cell is an island, and time can
    move freely between alpha and theta. Non-negativity may narrow such a value down; it is listed all the same.
    """
    knots = walk_knots(axes[0], walked)
    loads = {f"walk({k})": np.where(axes[0] == k, walked, 0.0) for k in knots if walked is not None}
    loads = loads or {"kappa": np.asarray(context, np.float64) - np.mean(context)}
    columns = [np.ones((len(context), 1))]
    labels = ["bias"]
    for axis, name in zip(axes, names, strict=True):
        level = np.unique(axis)[1:]
        columns.append((axis[:, None] == level[None, :]).astype(np.float64))
        labels.extend(f"{name}({int(value)})" for value in level)
    design = np.hstack([*columns, np.stack(list(loads.values()), 1)])
    labels += loads
    norm = np.linalg.norm(design, axis=0)
    norm[norm == 0.0] = 1.0
    _, singular, directions = np.linalg.svd(design / norm, full_matrices=True)
    padded = np.zeros(len(labels))
    padded[: len(singular)] = singular
    null = directions[padded < RANK_TOLERANCE * padded[0]]  # [d, parameters]
    loose = np.linalg.norm(null, axis=0) > 1e-3
    return tuple(label for label, moves in zip(labels, loose, strict=True) if moves and label != "bias")
