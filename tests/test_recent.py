"""Which survivals a budget is set from: the newest of each request, and rounds before them where requests are few."""

from __future__ import annotations

import numpy as np
import pytest

from dsbench.runtime import recent
from dsbench.runtime.recent import Recent


def rows_of(*values: float) -> np.ndarray:
    return np.array([[v, v / 2] for v in values])


def test_earlier_rounds_stand_beside_the_newest_which_comes_last():
    kept = Recent(2)
    everybody = np.array([True, True])
    assert np.array_equal(kept.sets(rows_of(0.1, 0.2), everybody), rows_of(0.1, 0.2)[None])
    sets = kept.sets(rows_of(0.3, 0.4), everybody)
    assert np.array_equal(sets, [rows_of(0.1, 0.2), rows_of(0.3, 0.4)])
    assert len(kept.sets(rows_of(0.5, 0.6), everybody)) == 3


def test_who_has_not_been_read_keeps_a_prior_and_is_nobodys_sample():
    kept = Recent(2)
    kept.sets(rows_of(0.1, 0.9), np.array([True, False]))
    sets = kept.sets(rows_of(0.2, 0.9), np.array([True, False]))
    assert np.array_equal(sets, [rows_of(0.1, 0.9), rows_of(0.2, 0.9)])
    sets = kept.sets(rows_of(0.8, 0.3, 0.4), np.array([False, True, True]))  # 0.1 to 0.4, two at a time
    assert np.array_equal(sets, [rows_of(0.8, 0.1, 0.2), rows_of(0.8, 0.3, 0.4)])


@pytest.mark.parametrize("requests", [1, 5, 33, 64, 100])
def test_only_so_many_rows_are_kept(requests):
    kept, everybody = Recent(2), np.ones(requests, bool)
    for turn in range(80):
        sets = kept.sets(rows_of(*(np.arange(requests) + turn * 1000)), everybody)
        assert len(sets) == max(1, min(turn + 1, recent.ROWS // requests))
        assert np.array_equal(sets[-1], rows_of(*(np.arange(requests) + turn * 1000)))


def test_nobody_known_leaves_the_priors():
    kept = Recent(2)
    kept.sets(rows_of(0.5), np.array([True]))
    assert np.array_equal(kept.sets(rows_of(0.7), np.array([False])), rows_of(0.7)[None])
