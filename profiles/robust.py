"""What the repeats of a time say where some were disturbed. What else a machine does only adds, so ties go low."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsbench.profiles.curve import FloatArray

AGREE = 0.15  # repeats within this share of their middle agree
NOTICED = 0.05  # a machine that is slower by less than this is at its usual speed
LEAST_CELLS = 4  # fewer cells than this do not tell a slow pass from a slow cell
USUAL = 0.1  # share of the time at which the machine is at its usual speed, or faster
NEAREST = 5  # reference samples that tell the speed of a moment


def middle(values: Sequence[float] | FloatArray) -> float:
    """The median; of an even count whose middle two disagree, the lower one of these."""
    ordered = np.sort(np.asarray(values, np.float64))
    low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
    return low if high > low * (1 + AGREE) else (low + high) / 2


def agree(values: Sequence[float]) -> bool:
    """Whether most of the values, and two at least, lie close to their median."""
    found = np.asarray(values, np.float64)
    close = np.abs(found / np.median(found) - 1.0) <= AGREE / 2
    return len(found) == 1 or (close.sum() >= 2 and close.sum() > len(found) / 2)


def pass_factors(cells: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """How many times slower than the fastest pass each pass was, all cells together.

    cells: of each its seconds by pass. 1 where a pass timed less than half of the cells or too few to tell, or is about
    as fast as the fastest.
    """
    ratios: dict[int, list[float]] = {}
    for passes in cells:
        usual = float(np.median(list(passes.values())))
        for number, seconds in passes.items():
            ratios.setdefault(number, []).append(seconds / usual)
    enough = max(LEAST_CELLS, len(cells) / 2)
    medians = {number: float(np.median(found)) for number, found in ratios.items() if len(found) >= enough}
    fastest = min(medians.values(), default=1.0)
    factors = {number: medians.get(number, fastest) / fastest for number in ratios}
    return {number: factor if factor > 1 + NOTICED else 1.0 for number, factor in factors.items()}


def slowdowns(reference: Sequence[tuple[float, float]], at: Sequence[float]) -> list[tuple[float, bool]]:
    """How many times slower than usual the machine was at each of the times `at`, and whether that is certain.

    reference: (when, seconds) of one and the same shape, timed all along. Usual is what it does when little else runs,
    a tenth of the time. The median of the nearest few tells a slow machine from a slow sample; it is not certain where
    these disagree, as when the machine becomes slow or fast at once.
    """
    when, seconds = (np.array(column, np.float64) for column in zip(*reference, strict=True))

    def near(moment: float) -> FloatArray:
        return np.sort(seconds[np.argsort(np.abs(when - moment), kind="stable")[:NEAREST]])

    usual = float(np.quantile([np.median(near(moment)) for moment in when], USUAL))
    found = []
    for moment in at:
        few = near(moment)
        inner = few[1:-1] if len(few) == NEAREST else few  # one slow sample does not make it uncertain
        found.append((float(np.median(few)) / usual, bool(inner[-1] <= (1 + AGREE) * inner[0])))
    return found
