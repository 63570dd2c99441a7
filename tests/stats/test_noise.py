"""Verdicts by simulation, on drifting noise and interleaved arms: false ones are rare, a 3% slow-down is found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from noise_tools import sweep, verdicts

from dsbench.analysis.noise_band import band_of, find_band, pairs_within, save_bands
from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.settings import RunConfig
from dsbench.stats.block_noise import Spread, _digamma, _inverse_trigamma, _trigamma, moderate, prior_of, weigh

REPEATS = RunConfig().repeats
SLOW = -math.log(0.97)
CONTRACT = {"device": "Virtual CPU", "threads": "2", "dtype": "float32", "target": "toy"}
MEMORIES = (2.0, 40.0, 1000.0)  # slices: far shorter than a repeat (40), as long, far longer
CELLS = 12


def upper_bound(bad, trials):
    """One-sided 95% bound of a share (Clopper-Pearson), by bisection on the binomial law."""
    low, high = bad / trials, 1.0
    for _ in range(60):
        p = (low + high) / 2
        below = sum(
            math.exp(
                math.lgamma(trials + 1)
                - math.lgamma(k + 1)
                - math.lgamma(trials - k + 1)
                + k * math.log(p)
                + (trials - k) * math.log1p(-p)
            )
            for k in range(bad + 1)
        )
        low, high = (p, high) if below > 0.05 else (low, p)
    return high


def calibrated(memory, **law):
    """A band from one A/A sweep of this machine, as `dsbench noise` makes it."""
    held = [arm for cell in sweep(np.random.default_rng(99), 24, [0, 0], memory=memory, **law) for arm in cell]
    found = [pairs_within(cell) for cell in held]
    return band_of("arms", [r for r, _ in found], [s for _, s in found], repeats=1, targets=["toy"])


def false_comparisons(trials, memory, *, together=True, band=None, **law):
    """How many of `trials` A/A comparisons of CELLS cells hold a FASTER or a SLOWER."""
    band = band or calibrated(memory, **law).value
    bad = 0
    for trial in range(trials):
        pairs = sweep(np.random.default_rng([trial, int(memory)]), CELLS, [0, 0], repeats=REPEATS, memory=memory, **law)
        words, _ = verdicts(pairs, band=band, together=together)
        bad += any(word in ("FASTER", "SLOWER") for word in words)
    return bad


def power(trials, memory, **law):
    """Share of cells that are 3% slower and are called SLOWER, at the default repeats and a measured band."""
    band = calibrated(memory, **law).value
    words = []
    for trial in range(trials):
        rng = np.random.default_rng([7, trial, int(memory)])
        words += verdicts(sweep(rng, CELLS, [0, SLOW], repeats=REPEATS, memory=memory, **law), band=band)[0]
    return words.count("SLOWER") / len(words)


@pytest.mark.slow
@pytest.mark.parametrize("law", [{}, {"tails": 3}, {"sd": 0.01}], ids=["quiet", "heavy tails", "noisy"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_of_500_comparisons_of_a_thing_with_itself_at_most_5_in_100_find_a_difference(memory, law):
    assert upper_bound(false_comparisons(500, memory, **law), 500) <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_slow_down_of_3_percent_is_found_4_times_in_5_at_the_default_repeats(memory):
    assert power(100, memory) >= 0.8


@pytest.mark.parametrize("memory", [40.0])
def test_false_verdicts_and_power_in_short(memory):
    assert upper_bound(false_comparisons(60, memory), 60) <= 0.05
    assert power(10, memory) >= 0.8


def test_intervals_hold_the_truth_where_prompts_alone_would_not():
    """Against no band at all: the share of cells whose 95% interval misses 1, and what it is without the blocks."""
    missed, missed_by_prompts, cells = 0, 0, 0
    for trial in range(40):
        pairs = sweep(np.random.default_rng([3, trial]), CELLS, [0, 0], repeats=REPEATS, sd=0.01, own=0.002)
        for (a, b), found in zip(pairs, verdicts(pairs, band=0.0)[1], strict=True):
            missed += not found.ratio.low <= 1 <= found.ratio.high
            draws = weigh(a, b, together=True, paired=True, draws=500).prompt_draws
            low, high = np.quantile(draws, [0.025, 0.975])
            missed_by_prompts += not low <= 0 <= high
            cells += 1
    assert missed / cells <= 0.05 < 0.2 < missed_by_prompts / cells


def test_one_repeat_without_a_measured_machine_is_unclear_and_with_one_is_not():
    pairs = sweep(np.random.default_rng(0), CELLS, [0, 0.2], repeats=1)
    assert set(verdicts(pairs, band=0.02)[0]) == {"UNCLEAR"}
    assert set(verdicts(pairs, band=0.02, prior=Spread(variance=1e-5, freedom=20))[0]) == {"SLOWER"}


def test_the_prior_trusts_cells_that_agree_and_little_those_that_do_not():
    rng = np.random.default_rng(5)
    equal = [Spread(variance=v / 4, freedom=4) for v in rng.chisquare(4, 400)]
    prior = prior_of(equal)
    assert prior.variance == pytest.approx(1, rel=0.2) and prior.freedom > 20
    apart = [Spread(variance=v * 10.0 ** (i % 5), freedom=4) for i, v in enumerate(rng.chisquare(4, 400))]
    assert prior_of(apart).freedom < 2
    assert prior_of(equal[:3]) is None
    own = moderate(Spread(variance=4, freedom=1), Spread(variance=1, freedom=3))
    assert (own.variance, own.freedom) == (pytest.approx(7 / 4), 4)


@pytest.mark.parametrize("x", [0.3, 0.5, 2.0, 9.0])
def test_gamma_functions(x):
    from scipy import special

    assert _digamma(x) == pytest.approx(special.digamma(x), rel=1e-9)
    assert _trigamma(x) == pytest.approx(special.polygamma(1, x), rel=1e-7)
    assert _inverse_trigamma(_trigamma(x)) == pytest.approx(x, rel=1e-6)


def test_a_band_is_what_95_percent_of_pairs_stay_within_and_is_kept_by_machine(tmp_path):
    ratios = [math.log1p(0.001 * i) * (-1) ** i for i in range(1, 101)]
    band = band_of("arms", ratios, [Spread(variance=1e-6, freedom=1)] * 5, repeats=1, targets=["toy"])
    assert band.value == pytest.approx(0.095) and band.median == pytest.approx(0.0505, rel=0.01)
    save_bands(tmp_path, CONTRACT, [band])
    found = find_band(tmp_path, CONTRACT | {"target": "another"}, "arms")
    assert (found.value, found.source, found.prior) == (pytest.approx(0.095), "this machine's", band.prior)
    assert find_band(tmp_path, CONTRACT, "runs").source == "default"
    assert find_band(tmp_path, CONTRACT | {"threads": "4"}, "arms").source == "default"
    with pytest.raises(UsageError, match="make no band"):
        band_of("arms", ratios[:7], [], repeats=1, targets=[])
    next((tmp_path / "noise").iterdir()).write_text("{")
    with pytest.raises(UsageError, match="damaged"):
        find_band(tmp_path, CONTRACT, "arms")


def test_a_machine_that_was_not_quiet_has_no_band():
    wide = [0.5, -0.4, 0.3] * 3
    with pytest.raises(EnvironmentRefused, match="A/A pairs of arms differ by up to 65%"):
        band_of("arms", wide, [], repeats=1, targets=["toy"])
    assert band_of("arms", [r / 3 for r in wide], [None] * 9, repeats=1, targets=["toy"]).value < 0.2
