"""Intervals over few prompts hold the truth about as often as they say, and verdicts are not made of too little."""

import numpy as np
import pytest
from scipy import stats

from dsbench.stats.intervals import LEAST_PROMPTS_JUDGED, Interval, paired_ratio, quantiles_over, reach, tail, verdict

TRIALS = 800


def pairs(prompts: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of two arms that are equally fast in the mean; prompts differ much, the arms' ratio a tenth."""
    base = rng.lognormal(0, 0.3, prompts)
    return base, base * np.exp(rng.normal(0, 0.1, prompts) - 0.1**2 / 2)


def shares(prompts: int) -> tuple[float, float]:
    """How often the interval of a ratio of 1 misses it, and how often it is called a difference."""
    rng, tokens = np.random.default_rng(prompts), np.ones(prompts)
    missed = called = 0
    for seed in range(TRIALS):
        base, other = pairs(prompts, rng)
        found = paired_ratio(tokens, other, tokens, base, seed=seed, draws=400)
        assert found is not None and found.low is not None and found.high is not None
        missed += not found.low <= 1 <= found.high
        called += verdict(found) in ("FASTER", "SLOWER")
    return missed / TRIALS, called / TRIALS


@pytest.mark.parametrize("prompts", [6, 12])
def test_intervals_of_few_prompts_hold_the_truth(prompts):
    assert shares(prompts)[0] < 0.09  # plain percentiles: 0.15 and 0.10


@pytest.mark.parametrize("prompts", [2, 3, 4, 5])
def test_two_arms_that_are_equally_fast_are_hardly_ever_called_different(prompts):
    assert shares(prompts)[1] < 0.06  # plain percentiles: 0.35, 0.16, 0.10 and 0.08


def test_fewer_prompts_than_that_have_no_verdict_however_clear():
    assert verdict(Interval(2.0, 1.9, 2.1, LEAST_PROMPTS_JUDGED)) == "FASTER"
    assert verdict(Interval(2.0, 1.9, 2.1, LEAST_PROMPTS_JUDGED - 1)) == "UNCLEAR"


def test_the_reach_is_students_of_one_less_corrected_for_resampling():
    for prompts in (5, 6, 10, 40, 1000):
        expected = stats.t.ppf(0.975, prompts - 1) * np.sqrt(prompts / (prompts - 1))
        assert reach(prompts) == pytest.approx(expected, rel=2e-3)
        assert tail(prompts) == pytest.approx(stats.norm.sf(expected), rel=0.03)


def test_percentiles_are_widened_by_prompts_not_by_values():
    """Many values of few prompts are few prompts; the count that is told stays that of the values."""
    rng = np.random.default_rng(0)
    owners = np.repeat(np.arange(6), 100)
    values = rng.normal(size=600) + owners
    found = quantiles_over(values, owners, [0.5], draws=4000)[0]
    chosen = rng.integers(0, 6, (4000, 6))
    medians = [np.median(values.reshape(6, 100)[six]) for six in chosen]
    assert found is not None and found.n == 600
    assert (found.low, found.high) == pytest.approx(tuple(np.quantile(medians, [tail(6), 1 - tail(6)])), abs=0.25)
    assert found.low < np.quantile(medians, 0.025) - 0.2
