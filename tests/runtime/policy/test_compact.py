"""Which survivals a budget is set from, and when a round drafts nothing for want of news."""

from __future__ import annotations

import numpy as np
import pytest
from toys import staircase_table

from dsbench.runtime.policy.compact import LOOK, SAMPLE, Compact
from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.prices import Prices

PRIOR = 0.5


class Watched(Compact):
    """Keeps what it chose by; chooses the depths that it is told to."""

    def __init__(self, requests: int, depth: int = 1) -> None:
        super().__init__(Prices(staircase_table(requests, 2), 2, (0, 2)))
        self.depth, self.seen = depth, []

    def best(self, survival, limits, context, *, may_rest=True):
        self.seen.append((survival, may_rest))
        return self.depth, 0

    def sets(self, history):
        """Of the next round."""
        before = len(self.seen)
        self.choose(history)
        assert len(self.seen) == before + 1, "it did not ask"
        return self.seen[-1][0]

    def rests(self, history):
        """Whether the next round drafts nothing without a choice."""
        before = len(self.seen)
        plan = self.choose(history)
        assert len(self.seen) > before or (plan.depth, plan.budget) == (0, 0)
        return len(self.seen) == before


def rows_of(*values: float) -> np.ndarray:
    return np.array([[v, v / 2] for v in values])


def running(count, *, room=100):
    history = History(2 * count + 2, 2)
    history.rows = np.array([enter(history, room) for _ in range(count)], np.int64)
    return history


def enter(history, room=100):
    row = history.enter(5, room, rows_of(PRIOR)[0])
    history.emit(row, 1)
    return row


def read(history, rounds, *values):
    """The requests' newest survivals, read in these rounds; None: not read."""
    for row, step, value in zip(history.rows, rounds, values, strict=True):
        if step is not None:
            history.observe(row, rows_of(value)[0], step)


def test_earlier_rounds_stand_beside_the_newest_which_comes_last():
    policy, history = Watched(2), running(2)
    read(history, (0, 0), 0.1, 0.2)
    assert np.array_equal(policy.sets(history), rows_of(0.1, 0.2)[None])
    read(history, (1, 1), 0.3, 0.4)
    assert np.array_equal(policy.sets(history), [rows_of(0.1, 0.2), rows_of(0.3, 0.4)])
    read(history, (2, 2), 0.5, 0.6)
    assert len(policy.sets(history)) == 3


def test_what_was_read_once_counts_once_however_often_it_is_chosen_by():
    policy, history = Watched(2), running(2)
    read(history, (0, 0), 0.1, 0.2)
    policy.sets(history)
    read(history, (1, 1), 0.3, 0.4)
    for _ in range(3):
        assert np.array_equal(policy.sets(history), [rows_of(0.1, 0.2), rows_of(0.3, 0.4)])
    read(history, (None, 2), 0.3, 0.5)  # of five rows the last four, in pairs
    assert np.array_equal(policy.sets(history), [rows_of(0.2, 0.3), rows_of(0.3, 0.5)])


def test_who_has_not_been_read_keeps_a_prior_and_is_nobodys_sample():
    policy, history = Watched(2), running(2)
    read(history, (0, None), 0.1, None)
    policy.sets(history)
    read(history, (1, None), 0.2, None)
    assert np.array_equal(policy.sets(history), [rows_of(0.1, PRIOR), rows_of(0.2, PRIOR)])


def test_who_has_no_room_for_a_draft_is_nobodys_sample():
    policy, history = Watched(3), running(3)
    read(history, (0, 0, 0), 0.7, 0.1, 0.2)
    history.room[history.rows[0]] = 2  # one more token and no draft before it
    assert history.limits(2).tolist() == [0, 2, 2]
    policy.sets(history)
    read(history, (1, 1, 1), 0.8, 0.3, 0.4)
    assert np.array_equal(policy.sets(history), [rows_of(0.8, 0.1, 0.2), rows_of(0.8, 0.3, 0.4)])


@pytest.mark.parametrize("requests", [1, 5, 33, 64, 100])
def test_only_so_many_rows_are_kept(requests):
    policy, history = Watched(requests), running(requests)
    for turn in range(80):
        newest = np.arange(requests) + turn * 1000.0
        read(history, [turn] * requests, *newest)
        sets = policy.sets(history)
        assert len(sets) == max(1, min(turn + 1, SAMPLE // requests))
        assert np.array_equal(sets[-1], rows_of(*newest))


def test_nobody_known_leaves_the_priors():
    policy, history = Watched(2), running(1)
    read(history, (0,), 0.5)
    policy.sets(history)
    history.leave(int(history.rows[0]))
    history.rows = np.array([enter(history)])
    assert np.array_equal(policy.sets(history), rows_of(PRIOR)[None])
    history.rows = np.zeros(0, np.int64)
    assert np.array_equal(policy.sets(history), np.zeros((1, 0, 2)))


def test_after_so_many_no_draft_rounds_one_drafts():
    policy, history = Watched(2, depth=0), running(2)
    assert policy.sets(history) is not None
    for _ in range(LOOK - 1):
        assert policy.seen[-1][1] and policy.rests(history)
    assert not policy.rests(history) and not policy.seen[-1][1], "it may not rest again"
    policy.depth = 2
    policy.choose(history)
    policy.choose(history)
    assert policy.seen[-1][1]


def test_no_draft_rounds_go_on_for_want_of_news_until_a_round_is_read():
    policy, history = Watched(2, depth=2), running(2)
    assert not policy.rests(history), "no round drafted nothing"
    read(history, (3, 4), 0.5, 0.5)
    policy.depth = 0
    assert not policy.rests(history)
    assert policy.rests(history)
    read(history, (None, 5), None, 0.5)
    assert not policy.rests(history) and policy.rests(history)
    for _ in range(LOOK - 4):
        assert policy.rests(history)
    policy.depth = 2
    assert not policy.rests(history) and not policy.seen[-1][1], "one drafts, to look"
    assert not policy.rests(history)


@pytest.mark.parametrize(("requests", "enough"), [(1, 1), (8, 2), (256, 33)])
def test_newcomers_are_news_where_they_are_more_than_a_few(requests, enough):
    for new in {0, enough - 1, enough, requests}:
        policy, history = Watched(requests, depth=0), running(requests)
        policy.choose(history)
        for slot in range(new):
            history.leave(int(history.rows[slot]))
            history.rows[slot] = enter(history)
        assert policy.rests(history) == (new < enough)
