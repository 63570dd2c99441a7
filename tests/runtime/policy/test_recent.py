"""Which survivals a budget is set from: the newest of each request, and rounds before them where requests are few."""

from __future__ import annotations

import numpy as np
import pytest

from dsbench.runtime.policy import recent
from dsbench.runtime.policy.recent import Recent

BOTH = np.array([True, True])


def rows_of(*values: float) -> np.ndarray:
    return np.array([[v, v / 2] for v in values])


def read_in(*rounds: int) -> np.ndarray:
    return np.array(rounds)


def test_earlier_rounds_stand_beside_the_newest_which_comes_last():
    kept = Recent(2)
    assert np.array_equal(kept.sets(rows_of(0.1, 0.2), read_in(0, 0), BOTH), rows_of(0.1, 0.2)[None])
    sets = kept.sets(rows_of(0.3, 0.4), read_in(1, 1), BOTH)
    assert np.array_equal(sets, [rows_of(0.1, 0.2), rows_of(0.3, 0.4)])
    assert len(kept.sets(rows_of(0.5, 0.6), read_in(2, 2), BOTH)) == 3


def test_what_was_read_once_counts_once_however_long_rounds_are_plain():
    kept = Recent(2)
    kept.sets(rows_of(0.1, 0.2), read_in(0, 0), BOTH)
    for _ in range(3):
        sets = kept.sets(rows_of(0.3, 0.4), read_in(1, 1), BOTH)
        assert np.array_equal(sets, [rows_of(0.1, 0.2), rows_of(0.3, 0.4)])
    sets = kept.sets(rows_of(0.3, 0.5), read_in(1, 2), BOTH)  # of five rows the last four, in pairs
    assert np.array_equal(sets, [rows_of(0.2, 0.3), rows_of(0.3, 0.5)])


def test_who_has_not_been_read_keeps_a_prior_and_is_nobodys_sample():
    kept = Recent(2)
    kept.sets(rows_of(0.1, 0.9), read_in(0, -1), BOTH)
    sets = kept.sets(rows_of(0.2, 0.9), read_in(1, -1), BOTH)
    assert np.array_equal(sets, [rows_of(0.1, 0.9), rows_of(0.2, 0.9)])
    sets = kept.sets(rows_of(0.8, 0.3, 0.4), read_in(2, 2, 2), np.array([False, True, True]))
    assert np.array_equal(sets, [rows_of(0.8, 0.1, 0.2), rows_of(0.8, 0.3, 0.4)])


@pytest.mark.parametrize("requests", [1, 5, 33, 64, 100])
def test_only_so_many_rows_are_kept(requests):
    kept, everybody = Recent(2), np.ones(requests, bool)
    for turn in range(80):
        newest = rows_of(*(np.arange(requests) + turn * 1000))
        sets = kept.sets(newest, np.full(requests, turn), everybody)
        assert len(sets) == max(1, min(turn + 1, recent.ROWS // requests))
        assert np.array_equal(sets[-1], newest)


def test_nobody_known_leaves_the_priors():
    kept = Recent(2)
    kept.sets(rows_of(0.5), read_in(0), np.array([True]))
    assert np.array_equal(kept.sets(rows_of(0.7), read_in(-1), np.array([True])), rows_of(0.7)[None])
    assert np.array_equal(kept.sets(np.zeros((0, 2)), read_in(), np.zeros(0, bool)), np.zeros((1, 0, 2)))


def test_after_a_spell_of_plain_rounds_one_drafts():
    kept = Recent(2)
    for _ in range(recent.SPELL):
        assert not kept.due
        kept.chose(0)
    assert kept.due
    kept.chose(3)
    assert not kept.due


def test_plain_rounds_go_on_for_want_of_news_until_a_round_is_read():
    kept, stays = Recent(2), np.array([7, 8])
    assert not kept.rests(read_in(-1, -1), stays), "no round was plain"
    kept.sets(rows_of(0.5, 0.5), read_in(3, 4), np.array([True, True]))
    kept.chose(0, stays)
    assert kept.rests(read_in(3, 4), stays) and kept.rests(read_in(4, -1), stays)
    assert not kept.rests(read_in(3, 5), stays)
    for _ in range(recent.SPELL - 1):
        kept.chose(0)
    assert kept.due and not kept.rests(read_in(3, 4), stays), "one drafts, to see"
    kept.chose(2, stays)
    assert not kept.rests(read_in(3, 4), stays)


@pytest.mark.parametrize(("requests", "enough"), [(1, 1), (8, 2), (256, 33)])
def test_newcomers_are_news_where_they_are_more_than_a_few(requests, enough):
    kept, stays, seen = Recent(2), np.arange(requests), np.full(requests, -1)
    kept.chose(0, stays)
    for new in range(requests + 1):
        now = np.concatenate([stays[new:], requests + np.arange(new)])
        assert kept.rests(seen, now) == (new < enough)
