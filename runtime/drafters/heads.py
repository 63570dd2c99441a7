"""Sequential heads: what the token before a slot adds to the slot's base logits (2607.05147, eq. 4-6).

Every head is W2 applied to an r-wide feature; only the feature differs. `none` is the DFlash control: no head at all.
Shapes: e [n, r] = W1[previous token], h [n, D] = backbone output, state [n, r].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

KINDS = ("none", "vanilla", "gated", "rnn")


def head_feature(
    kind: str, weights: Mapping[str, Tensor], e: Tensor, h: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Feature that feeds W2, and the next state (the state as it was for heads without one)."""
    if kind == "vanilla":
        return e, state
    if kind == "gated":
        x = torch.cat([h, e], dim=-1)
        gate = torch.sigmoid(F.linear(x, weights["gate_proj.weight"], weights["gate_proj.bias"]))
        return gate * e, state
    if kind == "rnn":
        x = torch.cat([state, e, h], dim=-1)
        g, c, o = F.linear(x, weights["joint_proj.weight"], weights["joint_proj.bias"]).chunk(3, dim=-1)
        g = torch.sigmoid(g)
        state = g * state + (1 - g) * torch.tanh(c)
        return torch.tanh(o), state
    raise AssertionError(f"unknown sequential head {kind!r}")


def head_shapes(kind: str, hidden: int, rank: int) -> dict[str, tuple[int, ...]]:
    """Extra tensors of a head beside W1 and W2, by name under `markov_head.`."""
    if kind == "gated":
        return {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)}
    if kind == "rnn":
        return {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)}
    return {}
