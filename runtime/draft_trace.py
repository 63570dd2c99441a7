"""The recorded drafts of one request's text: at every anchor, the block that was drafted there. No torch.

Anchors are the first n - 1 of n output tokens. Row a is the block drafted after output[a]; its first draft is for
output[a + 1]. Shapes: n output tokens, G block.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DraftTrace:
    """Raises ValueError where shapes disagree or a value is out of range.

    A match that reaches the text's end and is shorter than the block is censored: more might have matched.
    """

    match: Array  # [n - 1] int8 leading drafts that equal the text, at most the tokens left
    logits: Array  # [n - 1, G] float32 logits of the calibrated P(draft j passes | those before it did)
    token_free: Array  # [n - 1, G] float32 the same from the token-free head
    packed: Array = field(init=False)  # [n - 1, 1 + 2G] float32 the three side by side, so that a round makes one copy

    def __post_init__(self) -> None:
        if self.logits.ndim != 2 or len(self.match) != len(self.logits) or self.logits.shape != self.token_free.shape:
            shapes = self.match.shape, self.logits.shape, self.token_free.shape
            raise ValueError(f"need match [n - 1] and two sets of logits [n - 1, G], got {shapes}")
        if not (np.isfinite(self.logits).all() and np.isfinite(self.token_free).all()):
            raise ValueError("logits must be finite")
        if ((self.match < 0) | (self.match > np.minimum(self.left, self.block))).any():
            raise ValueError("a match must lie between 0 and the block or what is left of the text")
        packed = np.concatenate([self.match[:, None], self.logits, self.token_free], axis=1).astype(np.float32)
        object.__setattr__(self, "packed", packed)

    @property
    def block(self) -> int:
        return int(self.logits.shape[1])

    @property
    def left(self) -> Array:
        """Text tokens [n - 1] after each anchor."""
        return np.arange(len(self.match), 0, -1)

    @property
    def censored(self) -> Array:
        """Whether the text's end cut the match short, bool [n - 1]."""
        return np.asarray((self.match == self.left) & (self.left < self.block))
