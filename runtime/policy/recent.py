"""What a round's drafts may survive, as far as rounds before it tell: its budget is set before it is read. No torch.

A request's survival changes more from round to round than it keeps. Many requests are a fair sample of what comes; one
or two are not, and the survivals of other recent rounds stand beside theirs. Where drafts have not paid, rounds are
plain and leave no survival: until one is read, or others sit, there is nothing new to choose by. Now and then one
drafts all the same, to see. Shapes: R requests, G block, K sets.
"""

from __future__ import annotations

import numpy as np

from dsbench.runtime.policy.objective import Array

ROWS = 64  # survivals that make a fair sample; four times as many change throughput by less than 0.3%, simulated
NEW = 8  # one in so many who sat down since makes it worth choosing anew
SPELL = 16  # plain rounds in a row; the next one drafts: a round that costs a tenth more is half a percent of these


class Recent:
    """The last survivals that were read, a row a request and round; how many plain rounds came after each other."""

    def __init__(self, block: int) -> None:
        self._rows, self._read, self._plain, self._stay = np.zeros((0, block)), -1, 0, 0

    @property
    def due(self) -> bool:
        """Whether the next round is to draft, pay or not."""
        return self._plain >= SPELL

    def rests(self, seen: Array, stays: Array) -> bool:
        """Whether the next round is plain as the one before was, for want of news.

        seen [R] as in `sets`; stays [R] grow in the order of sitting down.
        """
        if not 0 < self._plain < SPELL or int(seen.max(initial=-1)) > self._read:
            return False
        return NEW * int(np.count_nonzero(stays > self._stay)) <= len(stays)

    def chose(self, depth: int, stays: Array | None = None) -> None:
        """What the round drafts, and for whom that was chosen; None: it rests."""
        self._plain = 0 if depth else self._plain + 1
        if stays is not None:
            self._stay = int(stays.max(initial=0))

    def sets(self, survival: Array, seen: Array, drafting: Array) -> Array:
        """[K, R, G], each as likely as the others to be the round's: in place of the known rows the rows before them.

        survival [R, G] is the newest, read in the rounds `seen` [R], below 0: never; drafting [R]: who may still draft.
        """
        known = (seen >= 0) & drafting
        self._rows = np.concatenate([self._rows, survival[known & (seen > self._read)]])[-ROWS:]
        self._read = max(self._read, int(seen.max(initial=-1)))
        many = int(np.count_nonzero(known))
        count = len(self._rows) // many if many else 0
        if count < 2:
            return survival[None]
        sets = np.repeat(survival[None], count, axis=0)
        sets[:-1, known] = self._rows[-count * many : -many].reshape(count - 1, many, -1)
        return sets
