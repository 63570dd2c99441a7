"""Against the best of several: chosen on one half and compared on the other, both ways round."""

from __future__ import annotations

import numpy as np
import pytest

from dsbench.stats.best_member import against_best
from dsbench.stats.intervals import Held


def held(seconds, prompts=9):
    """Ten tokens a prompt and repeat, in so many seconds by repeat."""
    return Held(
        names=tuple(f"p{i}" for i in range(prompts)),
        tokens=np.full((prompts, len(seconds)), 10.0),
        seconds=np.tile(seconds, (prompts, 1)),
    )


def test_a_slow_repeat_of_the_best_alone_makes_nobody_faster():
    """Compared on the second repeat alone the arm would be 1.2 times as fast; over both it is slower."""
    arms = {"a": held([1.3, 1.0]), "k1": held([1.0, 1.2]), "k2": held([1.5, 1.5])}
    found = against_best(arms, "a", ["k1", "k2"])
    assert found.best == ("k1",) and found.basis == "half of the repeats"
    assert found.ratio.value == pytest.approx(2.2 / 2.3)


def test_each_half_is_compared_with_the_winner_of_the_other():
    arms = {"a": held([1.0, 1.0]), "k1": held([0.5, 2.0]), "k2": held([2.0, 0.5])}
    found = against_best(arms, "a", ["k1", "k2"])
    assert found.best == ("k1", "k2")
    assert found.ratio.value == pytest.approx((2.0 + 2.0) / 2), "luck of a half is no speed in the other"
    within = against_best(arms, "k1", ["k1", "k2"])  # itself on the second repeat, k2 on the first
    assert within.ratio.value == pytest.approx((2.0 + 2.0) / (2.0 + 0.5))


def test_halves_of_the_prompts_make_one_ratio_over_all_of_them():
    arms = {"a": held([1.0], prompts=10), "k1": held([0.8], prompts=10)}
    found = against_best(arms, "a", ["k1"])
    assert found.basis == "half of the prompts" and found.ratio.n == 10 and found.ratio.value == pytest.approx(0.8)


def test_the_best_itself_and_a_single_arm_are_compared_with_nobody():
    arms = {"a": held([1.0, 1.0]), "k1": held([1.2, 1.2])}
    assert against_best(arms, "a", ["a", "k1"]) is None
    assert against_best(arms, "a", []) is None
