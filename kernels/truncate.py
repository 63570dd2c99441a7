"""Top-k and top-p: which tokens of a row of logits may be drawn, as a bound that a draw applies while it reads them.

Top-k first: a logit stays unless k others are larger, so that ties at the k-th value all stay. Then top-p over softmax
(z / T) of the rest, from the largest down, of equals the lower column first: a token stays if the mass before it is
below p; the largest always does. At temperature 0 all stay, as the argmax does whatever the rule. NaN counts as -inf.
Shapes: n rows, V columns.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class Kept(NamedTuple):
    """A logit stays where it is above the cut, or equals it no further right than `last`."""

    cut: Tensor  # [n] fp32; -inf where all stay
    last: Tensor  # [n] int32; V - 1 where all equals of the cut stay


def truncate(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> Kept:
    """As the reference: on CUDA by a search in each row that sorts nothing and asks the device nothing."""
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
    stays = (mass.cumsum(-1) - mass < top_p.double()[:, None] * mass.sum(-1, keepdim=True)) & (ordered >= cut)
    count = stays.cummin(-1).values.sum(-1).clamp(min=1)
    lowest = ordered.gather(-1, (count - 1)[:, None])
    some = nucleus & (mass[:, 0] > 0) & (count < (ordered >= lowest).sum(-1))  # of the equals, not all
    last = torch.where(some, order.gather(-1, (count - 1)[:, None]).squeeze(-1).int(), last)
    cut = torch.where(nucleus[:, None], lowest, cut).squeeze(-1)
    return Kept(torch.where(limited | nucleus, cut, float("-inf")), last)


def kept_logits(logits: Tensor, kept: Kept | None) -> Tensor:
    """Logits in fp32, what does not stay at -inf; all stay where nothing is said."""
    if kept is None:
        return logits.float()
    x, column = logits.float(), torch.arange(logits.shape[-1], device=logits.device)
    cut = kept.cut[:, None]
    return x.where((x > cut) | ((x == cut) & (column <= kept.last[:, None])), float("-inf"))


def _triton() -> Any:
    from dsbench.kernels import truncate_triton  # imports triton, which a machine without a GPU need not have

    return truncate_triton
