"""Throughput against per-user speed: who dominates, what is gained at equal service, who overtakes whom and where.

Resamples take prompts of the whole workload, the same ones in every cell, so that arms are paired. Between two batch
sizes that ran, curves are straight in log-log; beyond them there is no data, and none is made up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dsbench.results.cells import StoredCell
from dsbench.results.labels import arm_names, is_fixed
from dsbench.results.metrics import held_slots, measured
from dsbench.stats import best_member
from dsbench.stats.best_member import AgainstBest
from dsbench.stats.intervals import BAND, DRAWS, Interval, spread, verdict

FloatArray = NDArray[np.float64]
LEAST_DRAWS = 0.9  # fewer resamples with data than this share: no interval


@dataclass(frozen=True, slots=True)
class Point:
    """An arm at a batch size: tokens/s, the value first, then one a resample. [1 + draws]

    prompts: that ran there; a workload's small batches may hold fewer than its large ones.
    """

    arm: str
    batch: int
    speed: FloatArray
    throughput: FloatArray
    prompts: int

    @property
    def label(self) -> str:
        return f"{self.arm} R={self.batch}"


@dataclass(frozen=True, slots=True)
class Crossing:
    """Where an arm's throughput over another's changes sides between two batch sizes whose verdicts are clear.

    `batch`: where the straight line through the log ratios meets 1, with its interval.
    """

    low: int
    high: int
    batch: Interval
    gains: bool  # faster above it


def points_of(cells: Sequence[StoredCell], *, seed: int = 0, draws: int = DRAWS) -> list[Point]:
    """The points of one workload and setting, resampled together."""
    names = arm_names(cells)
    sums = {stored.folder: _sums(stored) for stored in cells}
    prompts = sorted({name for table in sums.values() for name in table})
    place = {name: i for i, name in enumerate(prompts)}
    chosen = np.random.default_rng(seed).integers(0, len(prompts), (draws, len(prompts)))
    times = np.apply_along_axis(np.bincount, 1, chosen, minlength=len(prompts))
    times = np.concatenate([np.ones((1, len(prompts)), np.int64), times]).astype(np.float64)
    found = []
    for stored in cells:
        table = sums[stored.folder]
        values = np.array(list(table.values()))
        tokens, residence, later, after = (times[:, [place[name] for name in table]] @ values).T
        found.append(
            Point(
                names[stored.folder],
                stored.cell.batch,
                _over(later, after),
                stored.cell.batch * _over(tokens, residence),
                len(table),
            )
        )
    return found


def _sums(stored: StoredCell) -> dict[str, list[float]]:
    """Tokens, residence, tokens after the first and their seconds by prompt, mean over repeats."""
    served = measured(stored.table("requests"))
    table = served[["name", "rep", "output_tokens"]].assign(
        residence=served["finished"] - served["admitted"],
        later=served["output_tokens"] - 1,
        after=(served["finished"] - served["first_token"]).where(served["output_tokens"] > 1, 0.0),
    )
    mean = table.groupby(["name", "rep"], sort=True).sum().groupby("name", sort=True).mean()
    return {str(name): [float(v) for v in row] for name, row in zip(mean.index, mean.to_numpy(), strict=True)}


def _over(top: FloatArray, bottom: FloatArray) -> FloatArray:
    return np.asarray(np.divide(top, bottom, out=np.full(len(top), np.nan), where=bottom > 0), np.float64)


def dominators(points: Sequence[Point], *, band: float = BAND) -> dict[str, list[str]]:
    """Per point who dominates it; nobody where it lies on the frontier.

    Values within the noise band of each other tie. A point dominates another that it beats on one axis while it is not
    beaten on the other.
    """

    def beats(a: FloatArray, b: FloatArray) -> bool:
        return bool(a[0] > b[0] * (1 + band))

    def dominates(a: Point, b: Point) -> bool:
        better = beats(a.speed, b.speed) or beats(a.throughput, b.throughput)
        return better and not beats(b.speed, a.speed) and not beats(b.throughput, a.throughput)

    return {b.label: [a.label for a in points if a is not b and dominates(a, b)] for b in points}


def envelope(points: Sequence[Point], members: Callable[[str], bool]) -> list[Point]:
    """At each batch size the member with the highest throughput, in hindsight."""
    best: dict[int, Point] = {}
    for point in (p for p in points if members(p.arm)):
        if point.batch not in best or point.throughput[0] > best[point.batch].throughput[0]:
            best[point.batch] = point
    return [best[batch] for batch in sorted(best)]


def gain_at(arm: Sequence[Point], base: Point, axis: str) -> Interval | None:
    """The arm's gain over a base point at equal service, over its curve; None ("no data") off the curve.

    axis "throughput": per-user speeds at the base's throughput; "speed": throughputs at the base's per-user speed.
    """
    curve = sorted(arm, key=lambda p: p.batch)
    other = "speed" if axis == "throughput" else "throughput"
    if len(curve) < 2:
        return None
    knots = np.log(np.stack([getattr(p, axis) for p in curve]))
    values = np.log(np.stack([getattr(p, other) for p in curve]))
    ratio = np.exp(_along(knots, values, np.log(getattr(base, axis))) - np.log(getattr(base, other)))
    if not np.isfinite(ratio[0]):
        return None
    here = np.log(getattr(base, axis)[0])
    near = (knots[:-1, 0] - here) * (knots[1:, 0] - here) <= 0
    prompts = min([base.prompts, *(p.prompts for i in np.flatnonzero(near) for p in curve[i : i + 2])])
    enough = np.isfinite(ratio[1:]).mean() >= LEAST_DRAWS and prompts > 1
    return spread(float(ratio[0]), ratio[1:], prompts) if enough else Interval(float(ratio[0]), None, None, prompts)


def _along(knots: FloatArray, values: FloatArray, at: FloatArray) -> FloatArray:
    """Values [k, n] at `at` [n] along the line through the knots [k, n]; the highest where it passes twice, or nan."""
    best = np.full(at.shape, -np.inf)
    for (x0, x1), (y0, y1) in zip(
        zip(knots[:-1], knots[1:], strict=True), zip(values[:-1], values[1:], strict=True), strict=True
    ):
        inside = (np.minimum(x0, x1) <= at) & (at <= np.maximum(x0, x1))
        share = np.divide(at - x0, x1 - x0, out=np.zeros_like(at), where=x1 != x0)
        best = np.where(inside, np.fmax(best, y0 + share * (y1 - y0)), best)
    return np.where(np.isfinite(best), best, np.nan)


def crossings(
    arm: Sequence[Point], base: Sequence[Point], *, band: float = BAND
) -> tuple[list[Crossing], dict[int, str]]:
    """Where the arm overtakes the base or falls behind, by batch size, and the verdict at each that both ran."""
    mine, other = ({p.batch: p for p in side} for side in (arm, base))
    batches = sorted(set(mine) & set(other))
    ratios = {batch: mine[batch].throughput / other[batch].throughput for batch in batches}
    prompts = {batch: min(mine[batch].prompts, other[batch].prompts) for batch in batches}
    words = {
        b: verdict(spread(float(r[0]), r[1:], prompts[b]) if prompts[b] > 1 else None, band=band)
        for b, r in ratios.items()
    }
    clear = [batch for batch in batches if words[batch] in ("FASTER", "SLOWER")]
    found = []
    for low, high in zip(clear[:-1], clear[1:], strict=True):
        if words[low] != words[high]:
            between = [batch for batch in batches if low <= batch <= high]
            logs = np.log(np.stack([ratios[batch] for batch in between]))
            where, fewest = np.exp(_root(np.log(between), logs)), min(prompts[batch] for batch in between)
            found.append(Crossing(low, high, spread(float(where[0]), where[1:], fewest), words[high] == "FASTER"))
    return found, words


def _root(x: FloatArray, y: FloatArray) -> FloatArray:
    """The first zero of the lines through (x [k], y [k, n]); nan where there is none. [n]"""
    found = np.full(y.shape[1], np.nan)
    for i in range(len(x) - 1):
        turns = np.isnan(found) & (y[i] * y[i + 1] <= 0) & (y[i] != y[i + 1])
        share = np.divide(y[i], y[i] - y[i + 1], out=np.zeros_like(found), where=turns)
        found = np.where(turns, x[i] + share * (x[i + 1] - x[i]), found)
    return found


def against_best(
    rivals: Mapping[str, StoredCell], arm: str, members: Sequence[str], *, seed: int = 0
) -> AgainstBest[str] | None:
    """Throughput over that of the best member at one batch size."""
    held = {name: held_slots(rivals[name].table("requests")) for name in {arm, *members}}
    return best_member.against_best(held, arm, members, seed=seed)


def fixed_arms(cells: Sequence[StoredCell]) -> list[str]:
    """Names of the arms with one window >= 1 for everybody."""
    names = arm_names(cells)
    return sorted({names[c.folder] for c in cells if is_fixed(c.cell)})


def oracle_arms(cells: Sequence[StoredCell]) -> list[str]:
    names = arm_names(cells)
    return sorted({names[c.folder] for c in cells if c.cell.mode.endswith(":oracle")})
