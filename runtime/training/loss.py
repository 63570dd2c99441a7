"""The training loss over the draft vocabulary, with its gradient in closed form, chunk by chunk of rows.

kernels/draft/loss.py computes the loss of a row; this file the products around it and the confidences' cross-entropies
(2607.05147, eq. 9-12). No tensor of [R, V'] outlives its chunk.
Shapes: R rows, D hidden, r head rank, V' draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.draft.loss import Shares, draft_loss_rows
from dsbench.kernels.draft.stats import FEATURES
from dsbench.runtime.training.batches import Goals

CHUNK_VALUES = 1 << 26  # logits of a chunk of rows: what the temporaries of a chunk scale with


@dataclass(frozen=True, slots=True, kw_only=True)
class LossParts:
    """Scalars fp32: the weighted means of a batch; and the values of each row, detached."""

    total: Tensor
    ce: Tensor
    l1: Tensor
    coupled: Tensor
    confidence: Tensor  # of the heads that see the token before
    free: Tensor
    accept: Tensor  # [R] fp32
    match: Tensor  # [R] fp32 0 or 1


def chunk_rows(rows: int, columns: int) -> int:
    """Rows a chunk: equal chunks, so that one compiled shape serves all, of at most CHUNK_VALUES logits if possible."""
    parts = min(rows, max(1, -(-rows * columns // CHUNK_VALUES)))
    while rows % parts and parts < rows:
        parts += 1
    return rows // parts


class HeadLoss(torch.autograd.Function):
    """(x [R, D + r], W2 [V', r] or None, head [V', D], ...) -> weighted loss, and per row ce, accept, soft, match and
    the confidences' features. The gradients of x and W2 are computed along with the value.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w2: Tensor | None, head: Tensor, goals: Goals, seed: Tensor, shares: Shares
    ) -> tuple[Tensor, ...]:
        d, rows = head.shape[1], x.shape[0]
        table = head if w2 is None else torch.cat([head, w2.to(head.dtype)], dim=1)
        dx = torch.empty_like(x)
        dw2 = None if w2 is None else torch.zeros_like(w2)
        per_row = [torch.empty_like(goals.lse) for _ in range(4)]
        features = goals.lse.new_empty(rows, FEATURES)
        size = chunk_rows(rows, head.shape[0])
        for first in range(0, rows, size):
            at = slice(first, first + size)
            z, zp = F.linear(x[at], table), F.linear(goals.last[at], head)
            found = draft_loss_rows(
                z,
                zp,
                goals.lse[at],
                goals.greedy[at],
                goals.label[at],
                goals.weight[at],
                seed=seed,
                first=first,
                shares=shares,
            )
            for into, part in zip(per_row, (found.ce, found.accept, found.soft, found.match), strict=True):
                into[at] = part
            features[at] = found.features
            torch.mm(found.gradient, table, out=dx[at])
            if dw2 is not None:
                dw2 += torch.mm(found.gradient.t(), x[at, d:])
            del z, zp, found  # before the next chunk's are made
        ctx.save_for_backward(dx, dw2)
        ce, accept, soft, match = per_row
        ctx.mark_non_differentiable(ce, accept, soft, match, features)
        row = shares.ce * ce + 2 * shares.l1 * (1 - accept) + 2 * shares.coupled * (1 - soft)
        return (goals.weight * row).sum(), ce, accept, soft, match, features

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dx, dw2 = ctx.saved_tensors
        scale = grads[0]
        return dx * scale.to(dx.dtype), None if dw2 is None else dw2 * scale, None, None, None, None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfidenceLogits:
    """fp32 logits of R rows: the published heads [R], and one column per event (greedy, coupled, residual) [R, 3]."""

    published: Tensor
    published_free: Tensor
    events: Tensor
    free_events: Tensor


def confidence_loss(logits: ConfidenceLogits, goals: Goals, accept: Tensor, match: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted cross-entropies of the heads that see the token before, and of those that do not.

    A row trains the events that its text can show: greedy text the first, other text the coupled match and
    sum min(q, p). The published heads train on sum min(q, p) of every row.
    """
    goal = accept.clamp(0, 1)
    hot = (~goals.greedy).float()
    wanted = torch.stack([match, match, goal], dim=-1)
    shows = torch.stack([1 - hot, hot, hot], dim=-1) * goals.weight[:, None]

    def entropy(one: Tensor, three: Tensor) -> Tensor:
        published = F.binary_cross_entropy_with_logits(one, goal, reduction="none")
        events = F.binary_cross_entropy_with_logits(three, wanted, reduction="none")
        return (goals.weight * published).sum() + (shows * events).sum()

    return entropy(logits.published, logits.events), entropy(logits.published_free, logits.free_events)


@torch.no_grad()
def rows_of(x: Tensor, w2: Tensor | None, head: Tensor, goals: Goals, seed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """accept [R], match [R] and features [R, FEATURES] of given rows."""
    _, _, accept, _, match, features = HeadLoss.apply(x, w2, head, goals, seed, Shares())  # type: ignore[no-untyped-call]
    return accept, match, features
