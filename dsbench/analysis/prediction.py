"""Predicted against live step time: how far the cost table was off, by cell, by tier and over the run. No torch.

The error of a step is predicted / measured - 1, prompts left out. Only steps of arms that were planned with, or priced
by, a cost table have a prediction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names
from dsbench.results.step_numbers import round_seconds

FloatArray = NDArray[np.float64]
SLICES = 10  # of a repeat, by number of steps


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps with a prediction: rows of the executed shape, place in the repeat (0 to 1), error. Each [n]."""

    tier: NDArray[np.int64]
    place: FloatArray
    error: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """The error of some steps: median, median and 95th percentile of its size, quantiles 10% and 90%."""

    n: int
    bias: float
    median: float
    p95: float
    low: float
    high: float


def steps_of(stored: StoredCell) -> Steps:
    """All steps of a cell that ran a request and have a prediction."""
    table = stored.table("steps")
    table = table[table["requests"] > 0].sort_values(["rep", "step"])
    last = table.groupby("rep")["step"].transform("max").to_numpy(np.float64)
    place = table["step"].to_numpy(np.float64) / np.maximum(last, 1)
    seconds, predicted = round_seconds(table), table["predicted_seconds"].to_numpy(np.float64)
    known = np.isfinite(predicted) & (seconds > 0)
    error = predicted[known] / seconds[known] - 1
    return Steps(table["tier"].to_numpy(np.int64)[known], place[known], error)


def by_arm(cells: Sequence[StoredCell]) -> dict[str, Steps]:
    """The steps of each arm, all its cells together; arms without a prediction are left out."""
    names, found = arm_names(cells), dict[str, list[Steps]]()
    for stored in cells:
        found.setdefault(names[stored.folder], []).append(steps_of(stored))
    return {arm: joined for arm, parts in found.items() if len((joined := together(parts)).error)}


def together(parts: Sequence[Steps]) -> Steps:
    tier = np.concatenate([p.tier for p in parts])
    return Steps(tier, np.concatenate([p.place for p in parts]), np.concatenate([p.error for p in parts]))


def off(error: FloatArray) -> Off | None:
    """None without a step."""
    if not len(error):
        return None
    size = np.abs(error)
    low, bias, high = (float(q) for q in np.quantile(error, [0.1, 0.5, 0.9]))
    return Off(
        n=len(error), bias=bias, median=float(np.median(size)), p95=float(np.quantile(size, 0.95)), low=low, high=high
    )


def by_tier(steps: Steps) -> dict[int, Off]:
    """By rows of the executed shape."""
    found = {int(tier): off(steps.error[steps.tier == tier]) for tier in np.unique(steps.tier)}
    return {tier: one for tier, one in found.items() if one is not None}


def over_run(steps: Steps) -> Mapping[float, Off]:
    """By the middle of each tenth of the repeats."""
    part = np.minimum((steps.place * SLICES).astype(np.int64), SLICES - 1)
    found = {(i + 0.5) / SLICES: off(steps.error[part == i]) for i in range(SLICES)}
    return {place: one for place, one in found.items() if one is not None}
