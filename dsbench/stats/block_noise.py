"""The ratio of two measured speeds, with an interval for two sources of error: prompts and repeats.

Time drifts: steps and requests of one repeat are slow or fast together, so prompts alone would give intervals that are
too narrow. A repeat is therefore a block. Two arms of one run are interleaved, so that drift slower than a repeat
cancels in each block's own ratio; two runs are not. Two or three blocks cannot be resampled; their mean is given the
error of Student's t instead, its variance moderated by that of the other cells (Smyth 2004,
doi 10.2202/1544-6115.1027). Pure numpy; logarithms are natural.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dsbench.stats.intervals import LEVEL, FloatArray, Held, Interval, reach

DRAWS = 4000
POWER = 0.8
LEAST_CELLS = 4  # fewer cells than this say nothing of how block noise differs between cells
FLOOR = 1e-12  # variance below the resolution of any clock
MANY = 1_000_000  # prompts, of which percentiles are as far out as they should be
FAR = 5.0  # log ratios beyond this are clipped; keeps Student's tails finite


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Variance of the log speed (paired blocks: of the log ratio) from block to block, and its degrees of freedom."""

    variance: float
    freedom: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """What two cells measured over their common prompts. `log_ratio` > 0: B is faster."""

    log_ratio: float
    prompts: int
    paired: bool  # by prompt: both wrote the same texts
    together: bool  # block i of A and block i of B ran interleaved
    repeats: tuple[int, int]
    spread: Spread | None  # None with one repeat a side
    prompt_draws: FloatArray  # [draws], bootstrap over prompts of the log ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """B over A: ratio with its interval, and the least true difference (relative) that would be found 4 times in 5."""

    ratio: Interval
    detectable: float | None
    paired: bool
    repeats: tuple[int, int]
    spread: Spread | None

    def json(self) -> dict[str, Any]:
        spread = None if self.spread is None else {"sd": self.spread.variance**0.5, "freedom": self.spread.freedom}
        return {
            "ratio": self.ratio.json(),
            "detectable": self.detectable,
            "paired_by_prompt": self.paired,
            "repeats": list(self.repeats),
            "block_noise": spread,
        }


def weigh(a: Held, b: Held, *, together: bool, paired: bool, seed: int = 0, draws: int = DRAWS) -> Sides | None:
    """Both sides over the prompts that both served; None without one, or where nothing was written."""
    b_names = set(b.names)
    common = [name for name in a.names if name in b_names]
    a, b = a.only(common), b.only(common)
    if not common or not (a.speed > 0 and b.speed > 0):
        return None
    if together:
        count = min(a.tokens.shape[1], b.tokens.shape[1])
        spread = _spread([log_speeds(b)[:count] - log_speeds(a)[:count]])
    else:
        spread = _spread([log_speeds(a), log_speeds(b)])
    return Sides(
        log_ratio=math.log(b.speed / a.speed),
        prompts=len(common),
        paired=paired,
        together=together,
        repeats=(a.tokens.shape[1], b.tokens.shape[1]),
        spread=spread,
        prompt_draws=_over_prompts(a, b, paired, seed, draws),
    )


def same_texts(a: Held, b: Held) -> bool:
    """Whether both wrote the same number of tokens for each prompt that both served, in every repeat."""
    rows = {name: i for i, name in enumerate(b.names)}
    at = [(i, rows[name]) for i, name in enumerate(a.names) if name in rows]
    return all(np.ptp([*a.tokens[i], *b.tokens[j]]) == 0 for i, j in at)


def log_speeds(held: Held) -> FloatArray:
    """Log tokens per second of each repeat, [repeats]."""
    return np.asarray(np.log(np.nansum(held.tokens, 0) / np.nansum(held.seconds, 0)), np.float64)


def prior_of(spreads: Sequence[Spread | None]) -> Spread | None:
    """A prior of a cell's block noise from the other cells; None for fewer than LEAST_CELLS of them.

    The mean variance, worth as many degrees of freedom as the cells' variances agree (Smyth's moment estimator: excess
    of the variance of log s^2 over that of equal cells), and no more than they hold.
    """
    known = [s for s in spreads if s is not None]
    if len(known) < LEAST_CELLS:
        return None
    variances = np.maximum([s.variance for s in known], FLOOR)
    freedom = np.array([s.freedom for s in known])
    logs = np.log(variances) - np.array([_digamma(d / 2) - math.log(d / 2) for d in freedom])
    excess = float(np.var(logs, ddof=1) - np.mean([_trigamma(d / 2) for d in freedom]))
    worth = float(freedom.sum())
    if excess > 0:
        worth = min(worth, 2 * _inverse_trigamma(excess))
    return Spread(variance=float(np.average(variances, weights=freedom)), freedom=worth)


def moderate(own: Spread | None, prior: Spread | None) -> Spread | None:
    """Posterior variance of Smyth 2004: the two weighted by their degrees of freedom."""
    if own is None or prior is None:
        return own or prior
    freedom = own.freedom + prior.freedom
    variance = (own.freedom * own.variance + prior.freedom * prior.variance) / freedom
    return Spread(variance=variance, freedom=freedom)


def measure(sides: Sides, prior: Spread | None, *, band: float, seed: int = 0) -> Measured:
    """The interval: resampled prompts, spread as few of them want (`reach`), shifted by Student's t times the standard
    error of the blocks' mean.
    """
    spread = moderate(sides.spread, prior)
    value = math.exp(sides.log_ratio)
    if spread is None or sides.prompts < 2:
        bare = Interval(value, None, None, sides.prompts)
        return Measured(ratio=bare, detectable=None, paired=sides.paired, repeats=sides.repeats, spread=spread)
    count_a, count_b = sides.repeats
    share = 1 / min(count_a, count_b) if sides.together else 1 / count_a + 1 / count_b
    shifts = np.random.default_rng([seed, 1]).standard_t(spread.freedom, len(sides.prompt_draws))
    far = reach(sides.prompts) / reach(MANY)
    prompts = sides.log_ratio + far * (sides.prompt_draws - sides.log_ratio)
    drawn = np.clip(prompts + math.sqrt(spread.variance * share) * shifts, -FAR, FAR)
    low, high, short, near = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2, 1 - POWER, POWER])
    away = (high - low) / 2 + (near - short) / 2  # of a normal: (1.96 + 0.84) standard errors
    return Measured(
        ratio=Interval(value, math.exp(low), math.exp(high), sides.prompts),
        detectable=math.expm1(math.log1p(band) + away),
        paired=sides.paired,
        repeats=sides.repeats,
        spread=spread,
    )


def _spread(groups: Sequence[FloatArray]) -> Spread | None:
    """Pooled variance within the groups; None where no group has two."""
    freedom = sum(len(g) - 1 for g in groups)
    if freedom < 1:
        return None
    squares = sum(float(((g - g.mean()) ** 2).sum()) for g in groups)
    return Spread(variance=squares / freedom, freedom=float(freedom))


def _over_prompts(a: Held, b: Held, paired: bool, seed: int, draws: int) -> FloatArray:
    count = len(a.names)
    rng = np.random.default_rng([seed, 0])
    chance = np.full(count, 1 / count)
    times = rng.multinomial(count, chance, draws).astype(np.float64)
    b_times = times if paired else rng.multinomial(count, chance, draws).astype(np.float64)
    (tokens, seconds), (b_tokens, b_seconds) = a.means(), b.means()
    speed, b_speed = (times @ tokens) / (times @ seconds), (b_times @ b_tokens) / (b_times @ b_seconds)
    return np.asarray(np.log(b_speed / speed), np.float64)


def _digamma(x: float) -> float:
    """By recurrence to x >= 8, then Abramowitz and Stegun 6.3.18."""
    shift = 0.0
    while x < 8:
        shift, x = shift - 1 / x, x + 1
    return shift + math.log(x) - 1 / (2 * x) - 1 / (12 * x**2) + 1 / (120 * x**4) - 1 / (252 * x**6)


def _trigamma(x: float) -> float:
    """By recurrence to x >= 8, then Abramowitz and Stegun 6.4.12."""
    shift = 0.0
    while x < 8:
        shift, x = shift + 1 / x**2, x + 1
    return shift + 1 / x + 1 / (2 * x**2) + 1 / (6 * x**3) - 1 / (30 * x**5) + 1 / (42 * x**7)


def _inverse_trigamma(value: float) -> float:
    """By bisection; trigamma falls from infinity to 0."""
    low, high = 1e-3, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return low
