"""Sequential heads: what the token before a slot adds to the slot's base logits (2607.05147, eq. 4-6).

Every head is W2 applied to an r-wide feature; only the feature differs. `none` is the DFlash control: no head at all.
Shapes: e [n, r] = W1[previous token], h [n, D] = backbone output, state [n, r].
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.draft_head import gates, split_weights, token_inputs

KINDS = ("none", "vanilla", "gated", "rnn")


def head_feature(
    kind: str, weights: Mapping[str, Tensor], e: Tensor, h: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Feature that feeds W2, and the next state (the state as it was for heads without one)."""
    if kind == "vanilla":
        return e, state
    if kind not in ("gated", "rnn"):
        raise AssertionError(f"unknown sequential head {kind!r}")
    of_hidden, of_token, bias = split_weights(kind, weights)
    z = F.linear(h, of_hidden, bias) + F.linear(token_inputs(kind, e, state), of_token)
    return gates(kind, z, e, state)


def head_shapes(kind: str, hidden: int, rank: int) -> dict[str, tuple[int, ...]]:
    """Extra tensors of a head beside W1 and W2, by name under `markov_head.`."""
    if kind == "gated":
        return {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)}
    if kind == "rnn":
        return {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)}
    return {}
