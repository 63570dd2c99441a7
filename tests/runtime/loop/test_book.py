"""The host's book of those who sit: lines, stays, and what budgets read of them."""

from __future__ import annotations

import numpy as np

from dsbench.runtime.policy.book import Book


def opened(book, *prompts, room=10):
    return np.array([book.open(n, room, np.array([0.5, 0.25])) for n in prompts])


def test_a_round_of_a_stay_that_is_over_is_not_the_next_holders():
    book = Book(2, 2)
    lines = opened(book, 5, 7)
    under_way = lines.copy(), book.stay[lines]
    book.enter(lines, [1, 3], np.array([[0.9, 0.8], [0.7, 0.6]]), 4)
    book.close(int(lines[0]))
    assert book.going_on(*under_way).tolist() == [1]
    again = book.open(3, 10, np.array([0.5, 0.25]))
    assert again == lines[0], "the only line that is free"
    assert book.going_on(*under_way).tolist() == [1]
    assert book.survival[again].tolist() == [0.5, 0.25] and book.seen[again] == -1 and book.emitted[again] == 0


def test_nobody_is_no_stay_and_has_no_say():
    book = Book(3, 2)
    lines = np.append(opened(book, 5, 7), book.nobody)
    assert book.going_on(lines, book.stay[lines]).tolist() == [0, 1]
    assert book.limits(lines, 2).tolist() == [2, 2, 0] and book.priors(lines) == 2 and book.age(lines, 9) == 0
    book.enter(lines[:1], [1], np.array([[0.9, 0.8]]), 4)
    assert book.priors(lines) == 1 and book.age(lines, 9) == 5


def test_limits_leave_room_for_the_token_after_the_drafts():
    book = Book(1, 2)
    lines = opened(book, 5, room=4)
    assert book.held[lines].tolist() == [4], "all of the prompt but its last token"
    seen = []
    for _ in range(4):
        seen.append((int(book.limits(lines, 7)[0]), int(book.held[lines[0]])))
        book.emit(lines, 1)
    assert seen == [(3, 4), (2, 5), (1, 6), (0, 7)]
