"""Applies the coupled acceptance rule, given the target's own choice at every packed row.

A draft is accepted iff it equals the choice (or the recorded token) at the row before it and all drafts before did.
Shapes: R requests, G block, W = G + 1, M packed rows; rows of request r are cu_rows[r]:cu_rows[r+1].
"""

from __future__ import annotations

import torch
from torch import Tensor

UNSEEN = -1

Judged = tuple[Tensor, Tensor, Tensor, Tensor]


def judge_rows(
    own: Tensor, cu_rows: Tensor, drafts: Tensor, window: Tensor, verified: Tensor, recorded: Tensor | None
) -> Judged:
    """Accepted [R] within the window, tokens [R, W], ceiling [R], flips [R]; all int64.

    own [M] the target's choices; drafts [R, G]; window, verified [R]: drafts that may be accepted, and that were
    verified; recorded [R, W]: where >= 0 it replaces the choice, and an emitted token that differs from the choice is a
    flip. Ceiling: accepted + 1 without the window; UNSEEN where all verified drafts matched but the block is longer.
    Tokens past a request's rows are 0.
    """
    if own.device.type == "cuda":
        from dsbench.kernels import judge_triton  # imports triton, which a machine without a GPU need not have

        return judge_triton.judge_rows(own, cu_rows, drafts, window, verified, recorded)
    return judge_rows_reference(own, cu_rows, drafts, window, verified, recorded)


def judge_rows_reference(
    own: Tensor, cu_rows: Tensor, drafts: Tensor, window: Tensor, verified: Tensor, recorded: Tensor | None
) -> Judged:
    """The reference of `judge_rows`, in torch."""
    block = drafts.shape[1]
    column = torch.arange(block + 1, device=own.device)
    begin, end = cu_rows[:-1].long()[:, None], cu_rows[1:].long()[:, None]
    row = begin + column
    mine = torch.where(row < end, own[row.clamp(max=own.shape[0] - 1)], 0)
    chosen = mine if recorded is None else torch.where(recorded >= 0, recorded, mine)
    match = (drafts == chosen[:, :-1]) & (column[:-1] < verified[:, None])
    matched = match.long().cumprod(-1).sum(-1)
    accepted = torch.minimum(matched, window)
    seen = (matched < verified) | (verified >= block)
    flips = ((mine != chosen) & (column <= accepted[:, None])).sum(-1)
    return accepted, chosen, torch.where(seen, matched + 1, UNSEEN), flips
