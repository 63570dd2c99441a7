"""The packed rows of one target (or drafter) pass, and where their keys and values are stored.

Shape legend: `R` requests, `M` packed rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.kernels.pack import pack


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Rows of all requests, front-packed: request r owns rows cu_rows[r]:cu_rows[r+1]."""

    ids: Tensor  # [M] int64 token ids
    positions: Tensor  # [M] int64 absolute positions
    cu_rows: Tensor  # [R+1] int32
    context: Tensor  # [R] int32 tokens in the pages before the request's first row
    pages: Tensor  # [R, N] int32 page table
    request: Tensor  # [M] int64 index of the row's request within the batch
    logit_rows: Tensor | None = None  # int64 rows whose logits are computed; None: all
    most_rows: int | None = None  # upper bound of a request's rows; None: unknown
    cache_indices: Tensor | None = None  # [M] int64 where keys and values are stored, -1: nowhere; None: from `pages`

    @property
    def requests(self) -> int:
        return self.context.shape[0]

    @property
    def rows(self) -> int:
        return self.ids.shape[0]


def ragged_positions(context: Tensor, counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """cu_rows [R+1] int32, request index [M] and positions [M] int64 of counts[r] rows after context[r] tokens."""
    cu_rows = torch.zeros(counts.shape[0] + 1, dtype=torch.int32, device=counts.device)
    cu_rows[1:] = counts.cumsum(0)
    index = torch.repeat_interleave(torch.arange(counts.shape[0], device=counts.device), counts.long())
    within = torch.arange(index.shape[0], device=counts.device) - cu_rows.long()[index]
    return cu_rows, index, context.long()[index] + within


def block_positions(start: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """`ragged_positions` of `block` rows after start[r] tokens each."""
    requests, device = start.shape[0], start.device
    cu_rows = torch.arange(0, (requests + 1) * block, block, dtype=torch.int32, device=device)
    index = torch.arange(requests, device=device)[:, None].expand(-1, block).flatten()
    return cu_rows, index, (start.long()[:, None] + torch.arange(block, device=device)).flatten()


def pack_rows(anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor) -> Batch:
    """Front-packs anchor [R] and the first verified[r] drafts of [R, G] into M = sum(verified + 1) rows."""
    cu_rows, index, positions = ragged_positions(context, verified + 1)
    block = torch.cat([anchor[:, None], drafts], dim=1)
    ids = block[index, positions - context.long()[index]]
    return Batch(
        ids=ids,
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=pages,
        request=index,
        most_rows=drafts.shape[1] + 1,
    )


def pack_padded(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Batch:
    """`pack_rows` of the first live[0] requests, padded to exactly `rows` rows; no device synchronisation.

    The last of the R requests must be a dummy without context. Filler rows belong to it, at position 0 and cache index
    -1; cu_rows leaves them out, so attention skips them and their results are never read.
    """
    ids, positions, request, indices, cu_rows = pack(anchor, drafts, verified, context, pages, live, rows, page)
    return Batch(
        ids=ids,
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=pages,
        request=request,
        cache_indices=indices,
        most_rows=drafts.shape[1] + 1,
    )
