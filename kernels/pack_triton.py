"""The CUDA side of pack.py: a program sums all counts, then writes its own requests' rows, wherever those begin.

`b_` block of values, `p_` pointers, `o_` offsets; blocks are [REQUESTS] or [REQUESTS, WIDTH], WIDTH > G. The dummy
request is in none of them.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.pack import Packed

PART = 32  # requests a program
EACH, WARPS = 8, 8  # rows a thread, of all programs alike; warps at most


@triton.jit
def load_rows(
    p_anchor,
    p_drafts,
    p_context,
    p_pages,
    table,
    b_mine,
    b_last,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    REQUESTS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Id, position and cache index of the rows that a request of mine may have: its anchor and b_last drafts."""
    o_r, o_w = tl.arange(0, REQUESTS).to(tl.int64), tl.arange(0, WIDTH)[None, :]
    there = b_mine[:, None] & (o_w <= b_last[:, None])
    b_anchor = tl.load(p_anchor + o_r, mask=b_mine, other=0)[:, None]
    b_draft = tl.load(p_drafts + o_r[:, None] * BLOCK + o_w - 1, mask=there & (o_w > 0), other=0)
    b_position = tl.load(p_context + o_r, mask=b_mine, other=0)[:, None] + o_w
    b_page = tl.load(p_pages + o_r[:, None] * table + b_position // PAGE, mask=there, other=0).to(tl.int64)
    return tl.where(o_w > 0, b_draft, b_anchor), b_position, b_page * PAGE + b_position % PAGE


@triton.jit
def store_rows(
    b_id,
    b_position,
    b_cache_index,
    p_anchor,
    p_ids,
    p_positions,
    p_request,
    p_cache_indices,
    p_cu_rows,
    requests,
    rows,
    b_mine,
    b_count,
    REQUESTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
):
    """The first b_count rows of each request of mine, and of the rows left over PART * WIDTH."""
    part, o_r, o_w = tl.program_id(0), tl.arange(0, REQUESTS), tl.arange(0, WIDTH)[None, :]
    b_end, total = tl.cumsum(b_count, 0), tl.sum(b_count, 0)
    o_m = (b_end - b_count)[:, None] + o_w
    there = b_mine[:, None] & (o_w < b_count[:, None]) & (o_m < rows)
    tl.store(p_ids + o_m, b_id, mask=there)
    tl.store(p_positions + o_m, b_position, mask=there)
    tl.store(p_request + o_m, tl.broadcast_to(o_r[:, None], REQUESTS, WIDTH), mask=there)
    tl.store(p_cache_indices + o_m, b_cache_index, mask=there)
    o_m = part * PART * WIDTH + tl.arange(0, PART * WIDTH)
    left = (o_m >= total) & (o_m < rows)
    tl.store(p_ids + o_m, tl.load(p_anchor + requests - 1), mask=left)
    tl.store(p_positions + o_m, 0, mask=left)
    tl.store(p_request + o_m, requests - 1, mask=left)
    tl.store(p_cache_indices + o_m, -1, mask=left)
    if part == 0:
        tl.store(p_cu_rows, 0)
        tl.store(p_cu_rows + 1 + o_r, b_end, mask=o_r < requests - 1)
        tl.store(p_cu_rows + requests, total)


@triton.jit(do_not_specialize=["requests", "rows", "table"])
def _pack_kernel(
    p_verified,
    p_live,
    p_anchor,
    p_drafts,
    p_context,
    p_pages,
    p_ids,
    p_positions,
    p_request,
    p_cache_indices,
    p_cu_rows,
    requests,
    rows,
    table,
    BLOCK: tl.constexpr,
    PAGE: tl.constexpr,
    REQUESTS: tl.constexpr,
    WIDTH: tl.constexpr,
    PART: tl.constexpr,
):
    o_r = tl.arange(0, REQUESTS)
    alive = o_r < tl.load(p_live)
    b_last = tl.load(p_verified + o_r, mask=alive, other=-1).to(tl.int32)
    b_mine = alive & (o_r // PART == tl.program_id(0))
    b_id, b_position, b_cache_index = load_rows(
        p_anchor, p_drafts, p_context, p_pages, table, b_mine, b_last, BLOCK, PAGE, REQUESTS, WIDTH
    )
    store_rows(
        b_id,
        b_position,
        b_cache_index,
        p_anchor,
        p_ids,
        p_positions,
        p_request,
        p_cache_indices,
        p_cu_rows,
        requests,
        rows,
        b_mine,
        b_last + 1,
        REQUESTS,
        WIDTH,
        PART,
    )


def launch(kernel: Any, first: tuple[Tensor, ...], standing: tuple[Tensor, ...], rows: int, page: int) -> Packed:
    """Runs a kernel that packs: `first` and then anchor, drafts, context, pages are what it reads."""
    anchor, drafts, context, pages = standing
    requests, block = drafts.shape
    ids, positions, request, cache_indices = (
        torch.empty(rows, dtype=torch.int64, device=anchor.device) for _ in range(4)
    )
    cu_rows = torch.empty(requests + 1, dtype=torch.int32, device=anchor.device)
    assert pages.stride(1) == 1 or pages.shape[1] == 1, "a request's pages lie side by side"
    covered, width = max(16, triton.next_power_of_2(requests - 1)), triton.next_power_of_2(block + 1)
    grid = max(triton.cdiv(requests - 1, PART), triton.cdiv(rows, PART * width))
    kernel[(grid,)](
        *first,
        anchor.contiguous(),
        drafts.contiguous(),
        context.contiguous(),
        pages,
        ids,
        positions,
        request,
        cache_indices,
        cu_rows,
        requests,
        rows,
        pages.stride(0),
        BLOCK=block,
        PAGE=page,
        REQUESTS=covered,
        WIDTH=width,
        PART=PART,
        num_warps=min(WARPS, max(1, covered * width // (32 * EACH))),
        enable_fp_fusion=False,
    )
    return ids, positions, request, cache_indices, cu_rows


def pack(
    anchor: Tensor, drafts: Tensor, verified: Tensor, context: Tensor, pages: Tensor, live: Tensor, rows: int, page: int
) -> Packed:
    """As pack.pack."""
    return launch(_pack_kernel, (verified.contiguous(), live), (anchor, drafts, context, pages), rows, page)
