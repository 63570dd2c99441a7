"""What the runtime asks of a target: a forward pass over packed rows, and a commit of the rows that were accepted.

Shapes: M packed rows, R requests, V vocabulary, D hidden, H heads, E head width.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from dsbench.kernels.linear import Projection
from dsbench.runtime.batch import Batch
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.layer import Layer
from dsbench.runtime.targets.shape import ModelShape

MARGIN = 128  # rotary positions past the context: a rectangular block may reach there, and is never committed


class Accepted(Protocol):
    """The part of a verdict that a commit reads."""

    @property
    def accepted(self) -> Tensor:
        """[R] int64: accepted drafts of each request; with the anchor, accepted + 1 of its rows are kept."""


class Target(Protocol):
    """The model whose distribution is kept. Stateless: what it keeps per request lives in a StatePool."""

    shape: ModelShape
    digest: str  # identity of the weights in contracts
    exact: bool  # a row's results have the same bits whatever rows run beside it
    device: torch.device
    dtype: torch.dtype
    embedding: Tensor  # [V, D]
    head: Tensor  # [V, D]
    unembed: Projection  # the head as a map
    norm: Tensor  # [D] gain of the final norm
    positions: int  # positions that a rotary table must cover

    def forward(self, batch: Batch, state: StatePool, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Runs the packed rows and writes their state at their positions.

        Returns logits [M or len(logit_rows), V] and tapped states [M, len(taps) * D]: the residual stream after layer
        t, or, one past the last layer, the output of the final norm. Samples nothing and decides nothing.
        """

    def commit(self, state: StatePool, verdict: Accepted) -> None:
        """Keeps the state of the anchor and the accepted drafts of the last `forward`, and drops that of the others.

        Called once a round after the verdict, before the next `forward`; must not wait for the device. A target with
        paged keys and values does nothing here: rows past the committed length lie at positions that the next pass
        writes again before it reads them. A recurrent target replays the accepted rows into its state.
        """


class DecoderTarget(Target, Protocol):
    """A target whose decoder layers can be read one by one, as training does."""

    layers: list[Layer]
    cos: Tensor  # [positions, E/2] fp32 rotary table
    sin: Tensor
