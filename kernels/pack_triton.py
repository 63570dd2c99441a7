"""The CUDA side of pack.py: a program sums the counts anew, then fills its rows. `b_` values, `p_` pointers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.pack import Packed

ROWS = 32  # a program


@triton.jit(do_not_specialize=["requests", "rows", "table"])
def _pack_kernel(
    p_anchor, p_drafts, p_verified, p_context, p_pages, p_live, p_ids, p_positions, p_request, p_slots, p_cu_rows,
    requests, rows, table, BLOCK: tl.constexpr, PAGE: tl.constexpr, REQUESTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    o_r = tl.arange(0, REQUESTS)
    b_count = tl.load(p_verified + o_r, mask=(o_r < requests) & (o_r < tl.load(p_live)), other=-1) + 1
    b_end = tl.cumsum(b_count, 0)
    total = tl.sum(b_count, 0)
    if tl.program_id(0) == 0:
        tl.store(p_cu_rows, 0)
        tl.store(p_cu_rows + 1 + o_r, b_end.to(tl.int32), mask=o_r < requests)
    o_m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    there, real = o_m < rows, o_m < total
    b_owner = tl.sum((b_end[None, :] <= o_m[:, None]).to(tl.int64), 1)
    b_owner = tl.where(real, b_owner, requests - 1)
    mine = o_r[None, :] == b_owner[:, None]
    b_within = o_m - tl.sum(tl.where(mine, (b_end - b_count)[None, :], 0), 1)
    b_anchor = tl.load(p_anchor + b_owner)
    b_draft = tl.load(p_drafts + b_owner * BLOCK + b_within - 1, mask=real & (b_within > 0), other=0)
    b_position = tl.where(real, tl.load(p_context + b_owner).to(tl.int64) + b_within, 0)
    b_page = tl.load(p_pages + b_owner * table + b_position // PAGE, mask=real, other=0).to(tl.int64)
    tl.store(p_ids + o_m, tl.where(real & (b_within > 0), b_draft, b_anchor), mask=there)
    tl.store(p_positions + o_m, b_position, mask=there)
    tl.store(p_request + o_m, b_owner, mask=there)
    tl.store(p_slots + o_m, tl.where(real, b_page * PAGE + b_position % PAGE, -1), mask=there)


def pack(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Packed:
    """As pack.pack."""
    requests, block = drafts.shape
    ids, positions, request, slots = (torch.empty(rows, dtype=torch.int64, device=anchor.device) for _ in range(4))
    cu_rows = torch.empty(requests + 1, dtype=torch.int32, device=anchor.device)
    assert pages.stride(1) == 1 or pages.shape[1] == 1, "a request's pages lie side by side"
    _pack_kernel[(triton.cdiv(rows, ROWS),)](
        anchor.contiguous(), drafts.contiguous(), verified.contiguous(), context.contiguous(), pages, live, ids,
        positions, request, slots, cu_rows, requests, rows, pages.stride(0), BLOCK=block, PAGE=page,
        REQUESTS=max(16, triton.next_power_of_2(requests)), ROWS=ROWS,
    )  # fmt: skip
    return ids, positions, request, slots, cu_rows
