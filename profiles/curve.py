"""Non-decreasing curves through measured knots, and the rounding of rows to captured tiers.

Owns interpolation and what happens past the last knot. Shared by the table, which reads curves, and the fit, which
makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
FAR = 1 << 40  # of requests, rows or context tokens: more than any machine holds


@dataclass(frozen=True, slots=True)
class Curve:
    """Knots `at` (strictly increasing counts) -> `seconds` (first 0, non-decreasing), linear in between.

    Raises ValueError when the knots break one of these rules, or are out of range.
    """

    at: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.at or len(self.at) != len(self.seconds):
            raise ValueError(f"a curve needs as many knots as values, got {len(self.at)} and {len(self.seconds)}")
        if any(b <= a for a, b in zip(self.at, self.at[1:], strict=False)):
            raise ValueError(f"knots must increase, got {self.at}")
        if self.at[0] < 0 or self.at[-1] > FAR:
            raise ValueError(f"knots must lie in 0..{FAR}, got {self.at}")
        if self.seconds[0] != 0.0 or not np.isfinite(self.seconds).all():
            raise ValueError(f"a curve starts at 0 and is finite, got {self.seconds}")
        if any(b < a for a, b in zip(self.seconds, self.seconds[1:], strict=False)):
            raise ValueError(f"a curve must not decrease, got {self.seconds}")

    @classmethod
    def of(cls, knots: Mapping[int, float]) -> Curve:
        """The curve through `knots`, given in any order."""
        return cls(tuple(sorted(knots)), tuple(float(knots[at]) for at in sorted(knots)))

    @property
    def mean_slope(self) -> float:
        """Seconds per unit from the first knot to the last; 0 for a single knot."""
        width = self.at[-1] - self.at[0]
        return self.seconds[-1] / width if width else 0.0

    @property
    def outer_slope(self) -> float:
        """Seconds per unit past the last knot: the last slope, or the mean one where the curve ends on a plateau."""
        if len(self.at) == 1:
            return 0.0
        last = (self.seconds[-1] - self.seconds[-2]) / (self.at[-1] - self.at[-2])
        return max(last, self.mean_slope)

    def value(self, count: ArrayLike, *, above: float, below: float = 0.0) -> FloatArray:
        """Seconds at `count` (any shape): linear inside, slope `above` past the last knot, `below` before the first."""
        x = np.asarray(count, np.float64)
        inside = np.interp(x, self.at, self.seconds)
        past = np.maximum(x - self.at[-1], 0.0) * above
        before = np.maximum(self.at[0] - x, 0.0) * below
        return np.asarray(inside + past - before, np.float64)


def round_up(rows: ArrayLike, tiers: tuple[int, ...] | None) -> IntArray:
    """Rows rounded up to the next tier (any shape); unchanged without tiers, and past the last tier."""
    counts = np.asarray(rows, np.int64)
    if tiers is None:
        return counts
    steps = np.asarray(tiers, np.int64)
    index = np.searchsorted(steps, counts)
    return np.where(index < len(steps), steps[np.minimum(index, len(steps) - 1)], counts)
