"""Rows of many requests, front-packed into exactly M: ids, positions, owners, where keys and values go. One launch.

Shapes: R requests, of which the first `live` are real and the last is nobody's; G block, M rows, N pages a request.
"""

from __future__ import annotations

import torch
from torch import Tensor

Packed = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def pack(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Packed:
    """ids, positions, request, slots [M] int64 and cu_rows [R+1] int32 of each live request's anchor and first drafts.

    anchor [R], drafts [R, G], verified [R] int64; context [R], pages [R, N] int32; live [1]. Rows left over are the
    last request's, at position 0, without a slot (-1): nobody reads what they hold, and cu_rows does not know them.
    """
    if anchor.device.type == "cuda":
        from dsbench.kernels import pack_triton  # imports triton, which a machine without a GPU need not have

        return pack_triton.pack(anchor, drafts, verified, context, pages, live, rows, page)
    return pack_reference(anchor, drafts, verified, context, pages, live, rows, page)


def pack_reference(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Packed:
    """As `pack`, in plain torch."""
    last, device = anchor.shape[0] - 1, anchor.device
    counts = torch.where(torch.arange(last + 1, device=device) < live, verified + 1, 0)
    ends = counts.cumsum(0)
    row = torch.arange(rows, device=device)
    request = (ends <= row[:, None]).sum(-1).clamp(max=last)
    real = row < ends[-1]
    request = torch.where(real, request, last)
    within = torch.where(real, row - (ends - counts)[request], 0)
    positions = torch.where(real, context.long()[request] + within, 0)
    ids = torch.cat([anchor[:, None], drafts], dim=1)[request, within]
    slots = pages.long()[request, positions // page] * page + positions % page
    cu_rows = torch.cat([ends.new_zeros(1), ends]).int()
    return ids, positions, request, torch.where(real, slots, -1), cu_rows
