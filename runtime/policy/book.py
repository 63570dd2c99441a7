"""What the host knows of those who sit, by line, in arrays: what a round left enters all lines at once.

A stay has a line of its own from the seat it takes to the end. Rounds under way name lines and stays, so that what they
leave for a stay that is over is told from what is another's. The last line is nobody's: a seat that waits for a prompt.
Shapes: L lines, one of them nobody's; G block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsbench.runtime.policy.objective import Array


class Book:
    """Lines for `seats` stays at a time."""

    def __init__(self, seats: int, block: int) -> None:
        self.nobody = seats
        self.stay = np.zeros(seats + 1, np.int64)  # of the line's holder, counted from 1; 0: it is over
        self.held = np.zeros(seats + 1, np.int64)  # tokens: the prompt and the output without its last
        self.emitted = np.zeros(seats + 1, np.int64)  # tokens that were read
        self.room = np.zeros(seats + 1, np.int64)  # tokens it may emit in all
        self.survival = np.zeros((seats + 1, block))  # when last read, a prior before that
        self.seen = np.full(seats + 1, -1, np.int64)  # the step that left it; -1: a prior
        self._free = list(range(seats))
        self._stays = 0

    def open(self, prompt: int, room: int, prior: Array) -> int:
        """A line for a stay with a prompt of so many tokens, of whose survival [G] a prior is all that is known."""
        line = self._free.pop()
        self._stays += 1
        self.stay[line], self.held[line], self.emitted[line], self.room[line] = self._stays, prompt - 1, 0, room
        self.survival[line], self.seen[line] = prior, -1
        return line

    def close(self, line: int) -> None:
        self.stay[line] = self.held[line] = self.room[line] = self.emitted[line] = 0
        self.seen[line] = -1
        self._free.append(line)

    def going_on(self, lines: Array, stays: Array) -> Array:
        """Places in `lines` whose stay is still the one in `stays`."""
        return np.flatnonzero((self.stay[lines] == stays) & (stays > 0))

    def enter(self, lines: Array, tokens: Array | Sequence[int], survival: Array, step: int) -> None:
        """Tokens [n] that came to lines [n] and the survival [n, G] that the round left."""
        self.emit(lines, tokens)
        self.survival[lines], self.seen[lines] = survival, step

    def emit(self, lines: Array | int, tokens: Array | Sequence[int] | int) -> None:
        self.emitted[lines] += tokens
        self.held[lines] += tokens

    def limits(self, lines: Array, cap: int) -> Array:
        """Drafts [n] that each may verify: room for one more token after them, at most `cap`."""
        most: Array = np.minimum(np.maximum(self.room[lines] - self.emitted[lines] - 1, 0), cap)  # np.clip is slower
        return most

    def priors(self, lines: Array) -> int:
        """How many of them nothing was read of yet."""
        return int(np.count_nonzero((self.seen[lines] < 0) & (lines != self.nobody)))

    def age(self, lines: Array, step: int) -> int:
        """Steps since what was read longest ago; 0 where nothing was."""
        seen = self.seen[lines]
        seen = seen[seen >= 0]
        return step - int(seen.min()) if len(seen) else 0
