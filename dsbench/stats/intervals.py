"""Estimates with intervals: ratios of sums over prompts, quantiles, paired ratios, halves, verdicts.

The unit of resampling is the prompt: tokens of one answer, and repeats of one prompt, are not independent. Percentiles
of resamples of few prompts lie too close together (of 5 they miss the truth one time in six); they are taken further
out, by Hesterberg 2015, arXiv:1411.5279, section 5.3. Pure numpy; knows nothing of tables. Every function is a function
of its arguments and the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Key = TypeVar("Key", bound=Hashable)

DRAWS = 2000
LEVEL = 0.95
LEAST_PROMPTS_JUDGED = 5  # fewer prompts than this give no verdict: their resamples do not reach far enough
LEAST_PROMPTS = 8  # fewer common prompts than this are not halved
BAND = 0.02  # relative noise band where no A/A run has measured one
WORDS = ("FASTER", "SLOWER", "SAME", "UNCLEAR")


@dataclass(frozen=True, slots=True)
class Interval:
    """A value, its 95% bootstrap interval over `n` prompts; `low` and `high` are None where n < 2."""

    value: float
    low: float | None
    high: float | None
    n: int

    def json(self) -> dict[str, Any]:
        """{value, low, high, n}."""
        return {"value": self.value, "low": self.low, "high": self.high, "n": self.n}


def ratio_of_sums(
    numerator: ArrayLike, denominator: ArrayLike, *, scale: float = 1.0, seed: int = 0, draws: int = DRAWS
) -> Interval | None:
    """scale * sum(numerator) / sum(denominator), both [prompts]. None where the denominator sums to 0."""
    top, bottom = _pair(numerator, denominator)
    if not bottom.sum() > 0:
        return None

    def estimate(index: NDArray[np.int64]) -> FloatArray:
        return _divide(scale * top[index].sum(-1), bottom[index].sum(-1))

    return _bootstrap(estimate, len(top), seed, draws)


def difference_of_ratios(
    numerator: ArrayLike,
    denominator: ArrayLike,
    base_numerator: ArrayLike,
    base_denominator: ArrayLike,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Interval | None:
    """Ratio of sums less that of the base, from the same prompts in the same order, each [prompts].

    A resample takes the same prompts on both sides. None where a denominator sums to 0.
    """
    top, bottom = _pair(numerator, denominator)
    base_top, base_bottom = _pair(base_numerator, base_denominator)
    if len(top) != len(base_top):
        raise ValueError(f"pairs must align: {len(top)} prompts against {len(base_top)}")
    if not (bottom.sum() > 0 and base_bottom.sum() > 0):
        return None

    def estimate(index: NDArray[np.int64]) -> FloatArray:
        own = _divide(top[index].sum(-1), bottom[index].sum(-1))
        return own - _divide(base_top[index].sum(-1), base_bottom[index].sum(-1))

    return _bootstrap(estimate, len(top), seed, draws)


def quantile_of(values: ArrayLike, share: float, *, seed: int = 0, draws: int = DRAWS) -> Interval | None:
    """The quantile `share` of one value a prompt. None without a prompt."""
    data = np.asarray(values, np.float64)
    if not len(data):
        return None
    return _bootstrap(lambda index: np.asarray(np.quantile(data[index], share, axis=-1)), len(data), seed, draws)


def quantiles_over(
    values: ArrayLike, owners: ArrayLike, shares: Sequence[float], *, seed: int = 0, draws: int = DRAWS
) -> list[Interval | None]:
    """Quantiles of all values, several to a prompt: `owners` [n] names the prompt of each; `n` of the result: values.

    Prompts are resampled with all their values; numpy's linear rule. Above the median, None where fewer than
    1 / (1 - share) values are there (20 for 95%, 100 for 99%): it would be little else than the largest.
    """
    data = np.asarray(values, np.float64)
    order = np.argsort(data, kind="stable")
    names, owner = np.unique(np.asarray(owners)[order], return_inverse=True)
    data, total = data[order], len(data)
    if not total:
        return [None] * len(shares)
    times = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), draws)
    drawn = _weighted_quantiles(data, times, owner, shares)
    found: list[Interval | None] = []
    for share, kept in zip(shares, drawn, strict=True):
        value = float(np.quantile(data, share))
        own = spread(value, kept, len(names)) if len(names) > 1 else Interval(value, None, None, total)
        own = replace(own, n=total)
        found.append(own if share <= 0.5 or total >= round(1 / (1 - share)) else None)
    return found


def _weighted_quantiles(
    data: FloatArray, times: NDArray[np.int64], owner: NDArray[np.intp], shares: Sequence[float]
) -> FloatArray:
    """Quantiles [shares, draws] of ascending data [n], each value taken as often as its owner was.

    times [draws, owners]. Counted in bins of about sqrt(n) values, then within the bin that holds the rank.
    """
    draw, wide = np.arange(len(times)), math.isqrt(len(data)) + 1
    bins = -(-len(data) // wide)
    times = np.pad(times, ((0, 0), (0, 1)))  # an owner who is never drawn fills the last bin up
    mine = np.pad(owner, (0, bins * wide - len(data)), constant_values=times.shape[1] - 1).reshape(bins, wide)
    counts = np.zeros((times.shape[1], bins))
    np.add.at(counts, (mine, np.arange(bins)[:, None]), 1)
    upto = np.cumsum(times @ counts, axis=1)  # values up to each bin's end, in each resample

    def at(rank: FloatArray) -> FloatArray:
        bin_ = (upto > rank[:, None]).argmax(1)
        before = np.where(bin_ > 0, upto[draw, bin_ - 1], 0)
        inside = np.cumsum(times[draw[:, None], mine[bin_]], axis=1) + before[:, None]
        return np.asarray(data[bin_ * wide + (inside > rank[:, None]).argmax(1)])

    drawn = []
    for share in shares:
        rank = share * (upto[:, -1] - 1)
        low, high = at(np.floor(rank)), at(np.ceil(rank))
        drawn.append(low + (rank - np.floor(rank)) * (high - low))
    return np.array(drawn)


def paired_ratio(
    tokens: ArrayLike,
    seconds: ArrayLike,
    base_tokens: ArrayLike,
    base_seconds: ArrayLike,
    *,
    seed: int = 0,
    draws: int = DRAWS,
) -> Interval | None:
    """Speed of an arm over that of a base arm, from the same prompts in the same order, each [prompts].

    It is (base seconds per token) / (seconds per token), sums over prompts; where both arms wrote the same text, the
    ratio of their summed seconds. Above 1 the arm is faster. None without a common prompt.
    """
    n, t = _pair(tokens, seconds)
    base_n, base_t = _pair(base_tokens, base_seconds)
    if len(n) != len(base_n):
        raise ValueError(f"pairs must align: {len(n)} prompts against {len(base_n)}")
    if not (t.sum() > 0 and base_n.sum() > 0 and base_t.sum() > 0):
        return None

    def estimate(index: NDArray[np.int64]) -> FloatArray:
        speed = _divide(n[index].sum(-1), t[index].sum(-1))
        return _divide(speed * base_t[index].sum(-1), base_n[index].sum(-1))

    return _bootstrap(estimate, len(n), seed, draws)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Tokens and seconds of residence of each prompt, by repeat; nan where a repeat lacks the prompt."""

    names: tuple[str, ...]
    tokens: FloatArray  # [prompts, repeats]
    seconds: FloatArray  # [prompts, repeats]

    def only(self, names: Sequence[str]) -> Held:
        rows = [self.names.index(name) for name in names]
        return Held(names=tuple(names), tokens=self.tokens[rows], seconds=self.seconds[rows])

    def repeats(self, parity: int) -> Held:
        """Even (0) or odd (1) repeats, and the prompts that they served."""
        tokens, seconds = self.tokens[:, parity::2], self.seconds[:, parity::2]
        here = np.flatnonzero(np.isfinite(tokens).any(1))
        return Held(names=tuple(self.names[i] for i in here), tokens=tokens[here], seconds=seconds[here])

    def means(self) -> tuple[FloatArray, FloatArray]:
        """Tokens and seconds per prompt, mean over its repeats."""
        return np.nanmean(self.tokens, 1), np.nanmean(self.seconds, 1)

    @property
    def speed(self) -> float:
        """Tokens per second of a slot."""
        tokens, seconds = self.means()
        return float(tokens.sum() / seconds.sum()) if len(tokens) else 0.0


def halves(held: Mapping[Key, Held]) -> tuple[dict[Key, Held], dict[Key, Held], str]:
    """Two halves of the arms' requests, to choose on and to compare on, and what was halved.

    Even and odd repeats where every arm has two; else every other one of the common prompts; else all data twice.
    """
    if min(arm.tokens.shape[1] for arm in held.values()) >= 2:
        even = {folder: arm.repeats(0) for folder, arm in held.items()}
        return even, {folder: arm.repeats(1) for folder, arm in held.items()}, "half of the repeats"
    common = sorted(set.intersection(*(set(arm.names) for arm in held.values())))
    if len(common) < LEAST_PROMPTS:
        return dict(held), dict(held), "the same data"
    first = {folder: arm.only(common[::2]) for folder, arm in held.items()}
    return first, {folder: arm.only(common[1::2]) for folder, arm in held.items()}, "half of the prompts"


def verdict(ratio: Interval | None, *, band: float = BAND) -> str:
    """FASTER or SLOWER: the interval lies beyond the noise band, 1 / (1 + band) to 1 + band; SAME: inside it.

    UNCLEAR: it crosses an edge of the band, there is no interval, or it is of fewer than LEAST_PROMPTS_JUDGED prompts.
    """
    if ratio is None or ratio.low is None or ratio.high is None or ratio.n < LEAST_PROMPTS_JUDGED:
        return "UNCLEAR"
    least, most = 1 / (1 + band), 1 + band
    if ratio.low > most:
        return "FASTER"
    if ratio.high < least:
        return "SLOWER"
    return "SAME" if least <= ratio.low and ratio.high <= most else "UNCLEAR"


def bootstrap_rows(
    estimate: Callable[[NDArray[np.int64]], FloatArray], prompts: int, *, seed: int = 0, draws: int = DRAWS
) -> list[Interval]:
    """Intervals of several estimates from the same resamples: prompt indices [..., prompts] to [k, ...]."""
    values = estimate(np.arange(prompts, dtype=np.int64))
    if prompts < 2:
        return [Interval(float(value), None, None, prompts) for value in values]
    drawn = estimate(np.random.default_rng(seed).integers(0, prompts, (draws, prompts), np.int64))
    return [spread(float(value), row, prompts) for value, row in zip(values, drawn, strict=True)]


def spread(value: float, drawn: FloatArray, prompts: int) -> Interval:
    """The value with the interval of its resamples of `prompts`; none where it, or all of them, are not finite."""
    drawn = drawn[np.isfinite(drawn)]
    if not len(drawn) or not math.isfinite(value):
        return Interval(value, None, None, prompts)
    low, high = np.quantile(drawn, [tail(prompts), 1 - tail(prompts)])
    return Interval(value, float(low), float(high), prompts)


def reach(prompts: int) -> float:
    """Standard errors of a bootstrap over prompts from the middle to an end of the interval; 1.96 for very many.

    Student's t, by Abramowitz and Stegun 26.7.5, times what resampling n values makes their spread too narrow.
    """
    z, free = NormalDist().inv_cdf((1 + LEVEL) / 2), prompts - 1
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    student = z + sum(term / free**power for power, term in enumerate(terms, start=1))
    return float(math.sqrt(prompts / free) * student)


def tail(prompts: int) -> float:
    """Share of the resamples outside either end of the interval; of two prompts or more."""
    return NormalDist().cdf(-reach(prompts))


def _bootstrap(estimate: Callable[[NDArray[np.int64]], FloatArray], prompts: int, seed: int, draws: int) -> Interval:
    """Interval of `estimate`, which maps prompt indices [..., prompts] to estimates [...]."""
    return bootstrap_rows(lambda index: estimate(index)[None], prompts, seed=seed, draws=draws)[0]


def _pair(first: ArrayLike, second: ArrayLike) -> tuple[FloatArray, FloatArray]:
    a, b = np.asarray(first, np.float64), np.asarray(second, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise ValueError(f"need two equally long rows of prompts, got {a.shape} and {b.shape}")
    return a, b


def _divide(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """nan where a resample holds nothing to divide by."""
    return np.asarray(np.divide(top, bottom, out=np.full(np.shape(top), np.nan), where=bottom > 0), np.float64)
