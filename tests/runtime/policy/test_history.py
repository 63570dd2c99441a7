"""What the host has read: rows, residences, and what policies read of them."""

from __future__ import annotations

import numpy as np

from dsbench.runtime.policy.history import History


def entered(history, *prompts, room=10):
    rows = np.array([history.enter(n, room, np.array([0.5, 0.25])) for n in prompts])
    history.emit(rows, 1)
    return rows


def test_a_round_of_a_residence_that_is_over_is_not_its_successors():
    history = History(2, 2)
    rows = entered(history, 5, 7)
    in_flight = rows.copy(), history.residence[rows]
    history.observe(rows, np.array([[0.9, 0.8], [0.7, 0.6]]), 4)
    history.leave(int(rows[0]))
    assert history.present(*in_flight).tolist() == [1]
    again = history.enter(3, 10, np.array([0.5, 0.25]))
    assert again == rows[0], "the only row that is free"
    assert history.present(*in_flight).tolist() == [1]
    assert history.survival[again].tolist() == [0.5, 0.25]
    assert history.seen[again] == -1 and history.emitted[again] == 0


def test_a_free_slot_has_no_residence_and_no_say():
    history = History(3, 2)
    history.rows = np.append(entered(history, 5, 7), history.none)
    assert history.present(history.rows, history.residence[history.rows]).tolist() == [0, 1]
    history.step = 9
    assert history.limits(2).tolist() == [2, 2, 0] and history.priors == 2 and history.age == 0
    history.observe(history.rows[:1], np.array([[0.9, 0.8]]), 4)
    assert history.priors == 1 and history.age == 5
    assert history.context == 5 + 7


def test_limits_leave_room_for_the_token_after_the_drafts():
    history = History(1, 2)
    row = history.enter(5, 4, np.array([0.5, 0.25]))
    history.rows = np.array([row])
    assert history.tokens[row] == 4, "all of the prompt but its last token"
    seen = []
    for _ in range(4):
        seen.append((int(history.limits(7)[0]), history.context))
        history.emit(history.rows, 1)
    assert seen == [(3, 4), (2, 5), (1, 6), (0, 7)]
