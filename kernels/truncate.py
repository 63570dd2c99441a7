"""Top-k and top-p as a bound on each row's logits, which a draw applies while it reads them.

Top-k first: a logit is kept unless k others are larger, so ties at the k-th value are all kept. Then top-p over softmax
(z / T) of those, in descending order, ties by column: a token is kept if the mass before it is below p; the largest
always is. At temperature 0 all are kept: the argmax is the same. NaN counts as -inf.
Shapes: n rows, V columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """A logit is kept if it is above the cut, or equals it at a column <= `last`."""

    cut: Tensor  # [n] fp32; -inf where all are kept
    last: Tensor  # [n] int32; V - 1 where all ties at the cut are kept


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Kept:
    """As the reference: on CUDA by a search per row, without sorting and without synchronising."""
    if logits.device.type == "cuda":
        return _triton().truncate(logits, temperature, top_k, top_p)  # type: ignore[no-any-return]
    return truncate_reference(logits, temperature, top_k, top_p)


def truncate_reference(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Kept:
    """logits [n, V]; temperature fp32, top_k int64 (0 = off), top_p fp32 (1 = off), [n] each."""
    x = logits.float().nan_to_num(nan=float("-inf"), posinf=float("inf"), neginf=float("-inf"))
    vocab, hot = x.shape[-1], temperature > 0
    ordered, order = x.sort(dim=-1, descending=True, stable=True)
    limited, nucleus = hot & (top_k > 0) & (top_k < vocab), hot & (top_p < 1)
    k = torch.where(limited, top_k, vocab)
    cut = ordered.gather(-1, (k - 1)[:, None])
    last = torch.full((len(x),), vocab - 1, dtype=torch.int32, device=x.device)
    scale = torch.where(hot, temperature, torch.ones_like(temperature)).double()[:, None]
    fall = (ordered - ordered[:, :1].clamp(min=-3e38)).double() / scale
    mass = fall.exp().masked_fill(ordered < cut, 0)
    keeps = (mass.cumsum(-1) - mass < top_p.double()[:, None] * mass.sum(-1, keepdim=True)) & (ordered >= cut)
    count = keeps.cummin(-1).values.sum(-1).clamp(min=1)
    lowest = ordered.gather(-1, (count - 1)[:, None])
    some = nucleus & (mass[:, 0] > 0) & (count < (ordered >= lowest).sum(-1))  # some of the ties, not all
    last = torch.where(some, order.gather(-1, (count - 1)[:, None]).squeeze(-1).int(), last)
    cut = torch.where(nucleus[:, None], lowest, cut).squeeze(-1)
    return Kept(torch.where(limited | nucleus, cut, float("-inf")), last)


def kept_logits(logits: Tensor, kept: Kept | None) -> Tensor:
    """Logits in fp32, with -inf where not kept; `kept` None keeps all."""
    if kept is None:
        return logits.float()
    x, column = logits.float(), torch.arange(logits.shape[-1], device=logits.device)
    cut = kept.cut[:, None]
    return x.where((x > cut) | ((x == cut) & (column <= kept.last[:, None])), float("-inf"))


def _triton() -> Any:
    from dsbench.kernels import truncate_triton  # imports triton, which a machine without a GPU need not have

    return truncate_triton
