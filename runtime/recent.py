"""What a round's drafts may survive, as far as rounds before it tell: its budget is set before it is read. No torch.

A request's survival changes more from round to round than it keeps. Many requests are a fair sample of what comes; one
or two are not, and the survivals of other recent rounds stand beside theirs. Shapes: R requests, G block, K sets.
"""

from __future__ import annotations

import numpy as np

from dsbench.runtime.objective import Array

ROWS = 64  # survivals that make a fair sample; four times as many change throughput by less than 0.3%, simulated


class Recent:
    """The last survivals that were read, a row a request and round."""

    def __init__(self, block: int) -> None:
        self._rows = np.zeros((0, block))

    def sets(self, survival: Array, known: Array) -> Array:
        """[K, R, G], each as likely as the others to be the round's: in place of the known rows the rows before them.

        survival [R, G] is the newest; known [R]: who has been read, and still drafts.
        """
        self._rows = np.concatenate([self._rows, survival[known]])[-ROWS:]
        many = int(np.count_nonzero(known))
        count = len(self._rows) // many if many else 0
        if count < 2:
            return survival[None]
        sets = np.repeat(survival[None], count, axis=0)
        sets[:, known] = self._rows[-count * many :].reshape(count, many, -1)
        return sets
