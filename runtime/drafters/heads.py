"""Sequential heads: what the token before adds to the base logits of a depth (2607.05147, eq. 4-6).

Every head is W2 applied to an r-wide feature; only the feature differs. `none` is the DFlash control: no head at all.
`deep` is ours: one hidden layer of width 4r that reads the whole embedding E of the token before, the hidden state and
its own output one depth earlier, u = silu(W_e norm(E) + W_h h + b + W_u u'); its feature is W_f u. It has no W1.
Shapes: e [n, w] = W1[previous token], or W_e norm(E); h [n, D] = backbone output, state [n, w]; w = r, 4r for `deep`.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.draft.head import gates, split_weights, token_inputs

KINDS = ("none", "vanilla", "gated", "rnn", "deep")
DEEP = 4  # width of a deep head's layer, in ranks


def head_feature(
    kind: str, weights: Mapping[str, Tensor], e: Tensor, h: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Feature that feeds W2, and the next state (the state as it was for heads without one)."""
    if kind == "vanilla":
        return e, state
    if kind not in ("gated", "rnn", "deep"):
        raise AssertionError(f"unknown sequential head {kind!r}")
    of_hidden, of_token, bias = split_weights(kind, weights)
    z = F.linear(h, of_hidden, bias) + F.linear(token_inputs(kind, e, state), of_token)
    feature, state = gates(kind, z, e, state)
    return (F.linear(feature, weights["feature_proj.weight"]) if kind == "deep" else feature), state


def token_width(kind: str, rank: int) -> int:
    """w, the width of the embedding e of the token before."""
    return {"none": 0, "deep": DEEP * rank}.get(kind, rank)


def project_tokens(embedded: Tensor, weight: Tensor) -> Tensor:
    """W_e norm(E) [..., w] of embeddings [..., D]."""
    return F.linear(F.rms_norm(embedded, embedded.shape[-1:], eps=1e-6), weight)


def token_table(kind: str, weights: Mapping[str, Tensor], embedding: Tensor) -> Tensor:
    """e of every token, [V, w]."""
    return project_tokens(embedding, weights["token_proj.weight"]) if kind == "deep" else weights["markov_w1.weight"]


def head_shapes(kind: str, hidden: int, rank: int) -> dict[str, tuple[int, ...]]:
    """Extra tensors of a head beside W1 and W2, by name under `markov_head.`."""
    if kind == "gated":
        return {"gate_proj.weight": (rank, hidden + rank), "gate_proj.bias": (rank,)}
    if kind == "rnn":
        return {"joint_proj.weight": (3 * rank, 2 * rank + hidden), "joint_proj.bias": (3 * rank,)}
    if kind == "deep":
        width = DEEP * rank
        return {
            "token_proj.weight": (width, hidden),
            "hidden_proj.weight": (width, hidden),
            "hidden_proj.bias": (width,),
            "state_proj.weight": (width, width),
            "feature_proj.weight": (rank, width),
        }
    return {}
