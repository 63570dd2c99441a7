"""Confidence heads by event: argmax equality at T = 0, the coupled match, or 1 - TV need not pass equally often.

`confidence_events` reads [h ; e ; features of the draft law] of a depth, `confidence_free_events` h alone.
Shapes: D hidden, r head rank, n depths.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.draft.stats import FEATURES

EVENTS = ("greedy", "coupled", "residual")  # the rows of a head


def event_shapes(hidden: int, rank: int) -> dict[str, tuple[int, ...]]:
    """Tensors of both heads; `rank` 0 for a drafter without a sequential head."""
    found: dict[str, tuple[int, ...]] = {}
    for name, width in (("confidence_events", hidden + rank + FEATURES), ("confidence_free_events", hidden)):
        found |= {name + ".weight": (len(EVENTS), width), name + ".bias": (len(EVENTS),)}
    return found


def event_of(temperature: Tensor, rule: str) -> Tensor:
    """The row of each request, int64 in the shape of `temperature`; residual's for the block rule, which has none."""
    return torch.where(temperature > 0, EVENTS.index("residual" if rule == "block" else rule), EVENTS.index("greedy"))


class EventHead:
    """One linear map per event, in fp32 whatever the dtype of the drafter: the features need it."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.weight, self.bias = weight.float(), bias.float()

    def __call__(self, inputs: tuple[Tensor, ...], event: Tensor) -> Tensor:
        """Logits [...] fp32 of inputs [..., *], joined in order, each by its row `event` [...]."""
        x = torch.cat([part.float() for part in inputs], dim=-1)
        return F.linear(x, self.weight, self.bias).gather(-1, event[..., None]).squeeze(-1)


def event_head(weights: Mapping[str, Tensor], name: str) -> EventHead | None:
    """The head `name` of a checkpoint, or None where it has none."""
    weight = weights.get(name + ".weight")
    return None if weight is None else EventHead(weight, weights[name + ".bias"])
