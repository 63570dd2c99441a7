"""What the host has read of the requests in slots, in arrays: a completed round enters all rows at once. No torch.

A request has a row from the slot it takes to its end. Rounds in flight name rows and residences, so that results for a
request that has left are told apart from those of its successor. The last row belongs to free slots.
Shapes: H rows, one of them for free slots; R slots in use; G block.
"""

from __future__ import annotations

import numpy as np

from dsbench.runtime.policy.objective import Array


class History:
    """Rows for `slots` requests at a time. `rows` [R]: the row of each slot of the coming round; `step`: its number."""

    def __init__(self, slots: int, block: int) -> None:
        self.none = slots  # the row of a free slot
        self.residence = np.zeros(slots + 1, np.int64)  # of the row's request, counted from 1; 0: it has left
        self.tokens = np.zeros(slots + 1, np.int64)  # in the pages: the prompt and the output without its last
        self.emitted = np.zeros(slots + 1, np.int64)  # output tokens that were read
        self.room = np.zeros(slots + 1, np.int64)  # output tokens it may have in all
        self.survival = np.zeros((slots + 1, block))  # when last read, a prior before that
        self.seen = np.full(slots + 1, -1, np.int64)  # the round that left it; -1: a prior
        self.rows = np.zeros(0, np.int64)
        self.step = 0
        self._unused = list(range(slots))
        self._residences = 0

    def enter(self, prompt: int, room: int, prior: Array) -> int:
        """Returns a row for a request with a prompt of so many tokens, of whose survival [G] only a prior is known."""
        row = self._unused.pop()
        self._residences += 1
        self.residence[row], self.tokens[row] = self._residences, prompt - 1
        self.emitted[row], self.room[row] = 0, room
        self.survival[row], self.seen[row] = prior, -1
        return row

    def leave(self, row: int) -> None:
        self.residence[row] = self.tokens[row] = self.room[row] = self.emitted[row] = 0
        self.seen[row] = -1
        self._unused.append(row)

    def present(self, rows: Array, residences: Array) -> Array:
        """Places in `rows` whose request is still the one in `residences`."""
        return np.flatnonzero((self.residence[rows] == residences) & (residences > 0))

    def emit(self, rows: Array | int, tokens: Array | int) -> None:
        """Adds output tokens that were read."""
        self.emitted[rows] += tokens
        self.tokens[rows] += tokens

    def observe(self, rows: Array, survival: Array, step: int) -> None:
        """Keeps the survival [n, G] that round `step` left for rows [n]."""
        self.survival[rows], self.seen[rows] = survival, step

    def limits(self, most: int) -> Array:
        """Drafts [R] that each may verify: room for one more token after them, at most `most`."""
        room = self.room[self.rows] - self.emitted[self.rows] - 1
        return np.asarray(np.minimum(np.maximum(room, 0), most))  # np.clip is slower

    @property
    def context(self) -> int:
        """Tokens of all requests in the pages."""
        return int(self.tokens[self.rows].sum())

    @property
    def priors(self) -> int:
        """Requests of which no draft was read yet."""
        return int(np.count_nonzero((self.seen[self.rows] < 0) & (self.rows != self.none)))

    @property
    def age(self) -> int:
        """Rounds since the oldest survival was left; 0 where none was."""
        seen = self.seen[self.rows]
        seen = seen[seen >= 0]
        return self.step - int(seen.min()) if len(seen) else 0
