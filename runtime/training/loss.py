"""The training loss over the draft vocabulary, with its gradient in closed form, chunk by chunk of rows.

Loss of a row: 0.1 CE + 0.9 L1 + BCE of each confidence against c = sum_v min(q, p), detached (2607.05147, eq. 9-12).
L1 runs over the full vocabulary: outside the draft ids q is 0, so |q - p| sums to 2 (1 - c) exactly.
Shapes: R rows, D hidden, r head rank, V' draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

CE_SHARE, L1_SHARE = 0.1, 0.9
CHUNK_VALUES = 1 << 26  # logits of a chunk of rows: what the temporaries of a chunk scale with

RowsFn = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """Scalars fp32: the weighted means of a batch, and the acceptance of each row."""

    total: Tensor
    ce: Tensor
    l1: Tensor
    confidence: Tensor
    free: Tensor
    accept: Tensor  # [R] fp32, detached


def rows_gradient(z: Tensor, zp: Tensor, lse: Tensor, label: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Cross-entropy [c], acceptance [c] (fp32) and d(weighted 0.1 CE + 0.9 L1)/dz [c, V'] in z's dtype.

    z, zp [c, V'] draft and target logits; lse [c] of the target's full vocabulary; label [c], -1: no CE term.
    dL1/dz_v = q_v (s_v - sum_u q_u s_u), s = sign(q - p).
    """
    logits = z.float()
    lq = logits.logsumexp(dim=-1, keepdim=True)
    q = (logits - lq).exp()
    p = (zp.float() - lse[:, None]).exp()
    below = q < p
    accept = torch.where(below, q, p).sum(dim=-1)
    under = torch.where(below, q, 0.0).sum(dim=-1, keepdim=True)
    known = label >= 0
    ce = torch.where(known, lq.squeeze(-1) - logits.gather(1, label.clamp(min=0)[:, None]).squeeze(-1), 0.0)
    ce_weight = (CE_SHARE * weight * known)[:, None]
    l1_weight = (2 * L1_SHARE * weight)[:, None]  # s_v - sum q s = 2 (under - [v below])
    gradient = q * (ce_weight + l1_weight * (under - below.float()))
    hit = torch.arange(z.shape[1], device=z.device) == label[:, None]
    return ce, accept, (gradient - torch.where(hit, ce_weight, 0.0)).to(z.dtype)


def chunk_rows(rows: int, columns: int) -> int:
    """Rows a chunk: equal chunks, so that one compiled shape serves all, of at most CHUNK_VALUES logits if possible."""
    parts = max(1, -(-rows * columns // CHUNK_VALUES))
    while rows % parts and parts < rows:
        parts += 1
    return rows // parts


class HeadLoss(torch.autograd.Function):
    """(x [R, D + r], W2 [V', r] or None, head [V', D], last, lse, label, weight) -> weighted loss, CE, L1, acceptance.

    The gradients of x and W2 are computed along with the value: no [R, V'] tensor outlives its chunk.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w2: Tensor | None, head: Tensor, last: Tensor, lse: Tensor, label: Tensor, weight: Tensor,
        rows: RowsFn,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        d = head.shape[1]
        table = head if w2 is None else torch.cat([head, w2.to(head.dtype)], dim=1)
        dx = torch.empty_like(x)
        dw2 = None if w2 is None else torch.zeros_like(w2)
        ce, accept = torch.empty_like(lse), torch.empty_like(lse)
        size = chunk_rows(x.shape[0], head.shape[0])
        for first in range(0, x.shape[0], size):
            at = slice(first, first + size)
            z, zp = F.linear(x[at], table), F.linear(last[at], head)
            ce[at], accept[at], dz = rows(z, zp, lse[at], label[at], weight[at])
            torch.mm(dz, table, out=dx[at])
            if dw2 is not None:
                dw2 += torch.mm(dz.t(), x[at, d:])
        ctx.save_for_backward(dx, dw2)
        mean_ce, mean_l1 = (weight * ce).sum(), (weight * 2 * (1 - accept)).sum()
        ctx.mark_non_differentiable(mean_ce, mean_l1, accept)
        return CE_SHARE * mean_ce + L1_SHARE * mean_l1, mean_ce, mean_l1, accept

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw2 = ctx.saved_tensors
        scale = grads[0]
        return dx * scale.to(dx.dtype), None if dw2 is None else dw2 * scale, None, None, None, None, None, None


def draft_loss(
    x: Tensor, with_token: Tensor, free: Tensor, w2: Tensor | None, head: Tensor, last: Tensor, lse: Tensor,
    label: Tensor, weight: Tensor, rows: RowsFn = rows_gradient,
) -> LossParts:  # fmt: skip
    """The loss of a batch; `weight` [R] sums to 1 over the valid slots. `rows` may be a compiled `rows_gradient`."""
    head_loss, ce, l1, accept = HeadLoss.apply(x, w2, head, last, lse, label, weight, rows)  # type: ignore[no-untyped-call]
    goal = accept.clamp(0, 1)
    bce = (weight * F.binary_cross_entropy_with_logits(with_token, goal, reduction="none")).sum()
    bce_free = (weight * F.binary_cross_entropy_with_logits(free, goal, reduction="none")).sum()
    return LossParts(total=head_loss + bce + bce_free, ce=ce, l1=l1, confidence=bce, free=bce_free, accept=accept)


@torch.no_grad()
def slot_acceptance(x: Tensor, w2: Tensor | None, head: Tensor, last: Tensor, lse: Tensor) -> Tensor:
    """sum_v min(q, p) [R] fp32, without gradients."""
    table = head if w2 is None else torch.cat([head, w2.to(head.dtype)], dim=1)
    size = chunk_rows(x.shape[0], head.shape[0])
    parts: list[Tensor] = []
    for rows, target, shift in zip(*(torch.split(t, size) for t in (x, last, lse)), strict=True):
        q = F.linear(rows, table).float().softmax(dim=-1)
        parts.append(torch.minimum(q, (F.linear(target, head).float() - shift[:, None]).exp()).sum(dim=-1))
    return torch.cat(parts)
