"""Front-packs the rows of many requests into exactly M rows: ids, positions, requests, cache indices. One launch.

Shapes: R requests, of which the first `live` are real and the last is a dummy for filler rows; G block, M rows, N pages
a request.
"""

from __future__ import annotations

import torch
from torch import Tensor

Packed = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def pack(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Packed:
    """ids, positions, request, cache_indices [M] int64 and cu_rows [R+1] int32: each live request's anchor and drafts.

    anchor [R], drafts [R, G], verified [R] int64; context [R], pages [R, N] int32; live [1]. Filler rows
    belong to the last request, at position 0 and cache index -1; they are never read and cu_rows leaves them out.
    """
    if anchor.device.type == "cuda":
        from dsbench.kernels import pack_triton  # imports triton, which a machine without a GPU need not have

        return pack_triton.pack(anchor, drafts, verified, context, pages, live, rows, page)
    return pack_reference(anchor, drafts, verified, context, pages, live, rows, page)


def pack_reference(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Packed:
    """The reference of `pack`, in torch."""
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
    cache_indices = pages.long()[request, positions // page] * page + positions % page
    cu_rows = torch.cat([ends.new_zeros(1), ends]).int()
    return ids, positions, request, torch.where(real, cache_indices, -1), cu_rows
