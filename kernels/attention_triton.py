"""The CUDA side of attention.py: a tile holds rows of one request, each with all query heads of its key-value head.

So a request's pages are read once for all rows of a draft block. Keys go in chunks of a fixed number of tokens: each
gives a lane (a query head of a row) its highest logit, its mass and its weighted sum of values; chunks are merged in
order. A lane that sees nothing of a chunk gets the neutral element, which changes no bit. Hence a row's bits depend on
its own request's keys and on the chunk's size alone: not on the rows beside it, nor on the tile, nor on whether a
program walks all chunks or takes one of them and `_merge_kernel` follows. That needs masses that are products with ones
(a tensor core sums in one order whatever the tile, a reduction across threads does not), no multiply-add fused at the
compiler's choice, and one kind of instruction a group: 16 or 32 lanes (mma.sync) up to four heads, 64 (wgmma) above.
Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.attention import FAR, WHOLE_FROM, tile_lanes
from dsbench.kernels.pdl import EARLY_ROWS, chained, enter, wait

CHUNK = 256  # tokens; smaller ones feed more multiprocessors at R = 1, and write more partial sums
KEYS = 64  # tokens a product, in half precision; half as many of wider numbers
STAGES = 3  # key tiles in flight; a fourth gains nothing, two lose a fifth at 128 requests
LOG2_E = 1.4426950408889634
NEAR = FAR >> 10  # in int32, past any key
FLOOR = tl.constexpr(-1.0e38)  # below any logit, above a masked one: 2 ** (MASKED - FLOOR) is zero
MASKED = tl.constexpr(-3.0e38)


@triton.jit
def _tile_of(
    tile,
    p_cu_rows,
    p_context,
    requests,
    tiles,
    BEHIND: tl.constexpr,
    AHEAD: tl.constexpr,
    REQUESTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Request; its first packed row, rows, context, first chunk and chunks; the tile's first row and keys low:high.

    A tile without rows has no keys. Either (REQUESTS = 0) every request owns `tiles` tiles, or
    request r owns the tiles cu_rows[r] // ROWS + r onwards, of which at most one is empty.
    """
    if REQUESTS == 0:
        r = tile // tiles
        begin, end = tl.load(p_cu_rows + r), tl.load(p_cu_rows + r + 1)
        first = tile % tiles * ROWS
    else:
        o_r = tl.arange(0, REQUESTS)
        b_tile = tl.load(p_cu_rows + o_r, mask=o_r < requests, other=0) // ROWS + o_r
        r = tl.sum(tl.where((o_r < requests) & (b_tile <= tile), 1, 0), 0) - 1
        begin, end = tl.load(p_cu_rows + r), tl.load(p_cu_rows + r + 1)
        first = (tile - (begin // ROWS + r)) * ROWS
    count, context = end - begin, tl.load(p_context + r)
    base = tl.maximum(context - BEHIND + 1, 0) // CHUNK
    parts = tl.cdiv(context + count, CHUNK) - base
    low = tl.maximum(context + first - BEHIND + 1, 0)
    high = tl.minimum(context + tl.minimum(first + ROWS, count) - 1 + AHEAD, context + count)
    high = tl.where(first < count, high, 0)
    return r, begin, count, context, base, parts, first, low, high


@triton.jit
def _merged(b_top, b_mass, b_sum, b_more_top, b_more_mass, b_more_sum):
    """Two parts of a softmax as one: top and mass [L], sum [L, E]. (FLOOR, 0, 0) is neutral on either side."""
    higher = tl.maximum(b_top, b_more_top)
    kept, added = tl.exp2(b_top - higher), tl.exp2(b_more_top - higher)
    b_sum = b_sum * kept[:, None] + b_more_sum * added[:, None]
    return higher, b_mass * kept + b_more_mass * added, b_sum


@triton.jit
def _pages_at(p_mine, o, low, high, PAGE: tl.constexpr, KEYS: tl.constexpr):
    """Pages of the keys o..o + KEYS: one where a page holds them all, else one a key."""
    if PAGE % KEYS == 0:
        page = tl.load(p_mine + o // PAGE, mask=o < high, other=0)
    else:
        o_k = o + tl.arange(0, KEYS)
        page = tl.load(p_mine + o_k // PAGE, mask=(o_k >= low) & (o_k < high), other=0)
    return page


@triton.jit
def _nothing(LANES: tl.constexpr, PADDED: tl.constexpr):
    """Top [L], mass [L, 16] (columns alike) and sum [L, E] of no keys."""
    b_top, b_mass = tl.full((LANES,), FLOOR, tl.float32), tl.zeros((LANES, 16), tl.float32)
    return b_top, b_mass, tl.zeros((LANES, PADDED), tl.float32)


@triton.jit
def _with_keys(b_top, b_mass, b_sum, b_q, b_k, b_v, o_k, b_low, b_high, scale, WINDOW: tl.constexpr, CAP: tl.constexpr):
    """Top, mass and sum as in `_nothing`, of these keys too; a lane sees those from b_low to below b_high."""
    b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
    if CAP > 0:  # of scores times log2(e), so CAP is too; tanh(x) = 1 - 2 / (1 + exp(2 x))
        b_s = CAP * (1.0 - 2.0 / (1.0 + tl.exp2(b_s * (2.0 * 1.4426950408889634 / CAP))))
    sees = o_k[None, :] < b_high[:, None]
    if WINDOW:
        sees = sees & (o_k[None, :] >= b_low[:, None])
    b_s = tl.where(sees, b_s, MASKED)
    higher = tl.maximum(b_top, tl.max(b_s, 1))
    b_p = tl.exp2(b_s - higher[:, None]).to(b_v.dtype)
    shrunk = tl.exp2(b_top - higher)[:, None]
    ones = tl.full((b_v.shape[0], 16), 1.0, b_v.dtype)
    b_mass = tl.dot(b_p, ones, b_mass * shrunk, input_precision="ieee")
    return higher, b_mass, tl.dot(b_p, b_v, b_sum * shrunk, input_precision="ieee")


@triton.jit(do_not_specialize=["requests", "tiles", "rows", "table"])
def _attend_kernel(
    p_q,
    p_keys,
    p_values,
    p_pages,
    p_cu_rows,
    p_context,
    p_out,
    p_tops,
    p_sums,
    requests,
    tiles,
    rows,
    table,
    scale,
    BEHIND: tl.constexpr,
    AHEAD: tl.constexpr,
    REQUESTS: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    PAGE: tl.constexpr,
    LANES: tl.constexpr,
    KEYS: tl.constexpr,
    WINDOW: tl.constexpr,
    CAP: tl.constexpr,
    SPLIT: tl.constexpr,
    PDL: tl.constexpr,
):
    enter(PDL)
    wait(PDL)
    head, part = tl.program_id(1), tl.program_id(2)
    r, begin, count, context, base, parts, first, low, high = _tile_of(
        tl.program_id(0), p_cu_rows, p_context, requests, tiles, BEHIND, AHEAD, REQUESTS, ROWS, CHUNK
    )
    start, stop = low // KEYS * KEYS, high
    if SPLIT:
        start, stop = tl.maximum(start, (base + part) * CHUNK), tl.minimum(stop, (base + part + 1) * CHUNK)
    if start < stop:
        o_l, o_e = tl.arange(0, LANES), tl.arange(0, PADDED)
        b_row = first + o_l // GROUP
        lane = (o_l // GROUP < ROWS) & (b_row < count)
        wide = o_e < WIDTH
        o_lane = (begin + b_row) * (KV_HEADS * GROUP) + head * GROUP + o_l % GROUP
        o_q = o_lane.to(tl.int64)[:, None] * WIDTH + o_e[None, :]
        held = lane[:, None] & wide[None, :]
        b_q = tl.load(p_q + o_q, mask=held, other=0.0)
        b_at = context + b_row
        b_low, b_high = b_at - BEHIND + 1, tl.minimum(b_at + AHEAD, context + count)
        b_top, b_mass, b_sum = _nothing(LANES, PADDED)  # of a chunk
        b_tops, b_sums, b_masses = b_top, b_sum, tl.zeros((LANES,), tl.float32)  # of the chunks before
        p_mine = p_pages + r.to(tl.int64) * table
        page = _pages_at(p_mine, start, low, high, PAGE, KEYS)
        for o in tl.range(start, stop, KEYS):
            o_k = o + tl.arange(0, KEYS)
            o_kv = ((page.to(tl.int64) * KV_HEADS + head) * PAGE + o_k % PAGE) * WIDTH
            o_kv = o_kv[:, None] + o_e[None, :]
            page = _pages_at(p_mine, o + KEYS, low, high, PAGE, KEYS)  # a step ahead, or no load of keys is pipelined
            there = ((o_k >= low) & (o_k < high))[:, None] & wide[None, :]
            b_k = tl.load(p_keys + o_kv, mask=there, other=0.0)
            b_v = tl.load(p_values + o_kv, mask=there, other=0.0)
            b_top, b_mass, b_sum = _with_keys(
                b_top, b_mass, b_sum, b_q, b_k, b_v, o_k, b_low, b_high, scale, WINDOW, CAP
            )
            if not SPLIT:  # noqa: SIM102  compiled or not, so a condition of its own
                if (o + KEYS) % CHUNK == 0:
                    b_tops, b_masses, b_sums = _merged(b_tops, b_masses, b_sums, b_top, tl.max(b_mass, 1), b_sum)
                    b_top, b_mass, b_sum = _nothing(LANES, PADDED)
        b_tops, b_masses, b_sums = _merged(b_tops, b_masses, b_sums, b_top, tl.max(b_mass, 1), b_sum)
        if SPLIT and parts > 1:
            o_part = part.to(tl.int64) * rows * (KV_HEADS * GROUP) + o_lane
            tl.store(p_tops + o_part * 2, b_tops, mask=lane)
            tl.store(p_tops + o_part * 2 + 1, b_masses, mask=lane)
            tl.store(p_sums + o_part[:, None] * WIDTH + o_e[None, :], b_sums, mask=held)
        else:
            tl.store(p_out + o_q, (b_sums / b_masses[:, None]).to(p_out.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=["requests", "tiles", "rows"])
def _merge_kernel(
    p_out,
    p_tops,
    p_sums,
    p_cu_rows,
    p_context,
    requests,
    tiles,
    rows,
    BEHIND: tl.constexpr,
    AHEAD: tl.constexpr,
    REQUESTS: tl.constexpr,
    CHUNK: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    WIDTH: tl.constexpr,
    PADDED: tl.constexpr,
    LANES: tl.constexpr,
    PDL: tl.constexpr,
):
    """One row's query heads of a key-value head; only the chunks that the row sees."""
    enter(PDL)
    wait(PDL)
    head = tl.program_id(1)
    r, begin, count, context, base, parts, first, low, high = _tile_of(
        tl.program_id(0), p_cu_rows, p_context, requests, tiles, BEHIND, AHEAD, REQUESTS, 1, CHUNK
    )
    if (low < high) & (parts > 1):
        o_l, o_e = tl.arange(0, LANES), tl.arange(0, PADDED)
        lane = o_l < GROUP
        held = lane[:, None] & (o_e < WIDTH)[None, :]
        o_lane = (begin + first) * (KV_HEADS * GROUP) + head * GROUP + o_l
        b_top, b_sum = tl.full((LANES,), FLOOR, tl.float32), tl.zeros((LANES, PADDED), tl.float32)
        b_mass = tl.zeros((LANES,), tl.float32)
        for chunk in tl.range(low // CHUNK, tl.cdiv(high, CHUNK), num_stages=4):
            o_part = (chunk - base).to(tl.int64) * rows * (KV_HEADS * GROUP) + o_lane
            b_more_top = tl.load(p_tops + o_part * 2, mask=lane, other=FLOOR)
            b_more_mass = tl.load(p_tops + o_part * 2 + 1, mask=lane, other=0.0)
            b_more = tl.load(p_sums + o_part[:, None] * WIDTH + o_e[None, :], mask=held, other=0.0)
            b_top, b_mass, b_sum = _merged(b_top, b_mass, b_sum, b_more_top, b_more_mass, b_more)
        o_out = o_lane.to(tl.int64)[:, None] * WIDTH + o_e[None, :]
        tl.store(p_out + o_out, (b_sum / b_mass[:, None]).to(p_out.dtype.element_ty), mask=held)


def paged_attention(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    pages: Tensor,
    cu_rows: Tensor,
    context: Tensor,
    *,
    causal: bool,
    window: int | None = None,
    cap: float | None = None,
    most_rows: int | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """As attention.paged_attention_reference; q in the dtype of the keys. Asks the device nothing.

    Grid and scratch follow from shapes and from `most_rows` alone, so that a captured pass serves any lengths: tiles
    from R and `most_rows` (no request may have more rows; None: from R and M), chunks from the tokens that a row of
    the page table holds (a narrower slice of the table makes a smaller grid). Programs without rows or keys return at
    once, requests without rows are skipped, and rows past the last request's are left unwritten.
    """
    m, heads, width = q.shape
    requests, kv_heads, page = pages.shape[0], keys.shape[1], keys.shape[2]
    q, cu_rows, context = (x.contiguous() for x in (q.to(keys.dtype), cu_rows, context))
    assert keys.is_contiguous() and values.is_contiguous(), "the pool's layers are contiguous"
    assert pages.stride(1) == 1 or pages.shape[1] == 1, "a request's pages lie side by side"
    out = torch.empty_like(q)
    if m == 0:
        return out
    group, half = heads // kv_heads, keys.element_size() < 4
    lanes = tile_lanes(group, most_rows or triton.cdiv(m, requests), half)
    rows, behind = lanes // group, NEAR if window is None else window
    tiles = triton.cdiv(most_rows, rows) if most_rows else 0
    parts = triton.cdiv(pages.shape[1] * page, chunk)
    if window is not None:
        parts = min(parts, triton.cdiv(window - 1 + (most_rows or m), chunk) + 1)
    grid = (requests * tiles or m // rows + requests, kv_heads)
    split = parts == 1 or grid[0] * grid[1] < WHOLE_FROM
    merged = split and parts > 1
    stages = STAGES if half else 2
    warps = 2 if lanes == 16 and width <= 64 else 4  # a tile so small has more to wait for than to share
    tops, sums = (
        torch.empty(parts if merged else 0, m, heads, n, dtype=torch.float32, device=q.device) for n in (2, width)
    )
    shared: dict[str, Any] = {
        "BEHIND": behind,
        "AHEAD": 1 if causal else behind,
        "CHUNK": chunk,
        "KV_HEADS": kv_heads,
        "GROUP": group,
        "WIDTH": width,
        "PADDED": max(16, triton.next_power_of_2(width)),
        "enable_fp_fusion": False,
        "REQUESTS": 0 if most_rows else max(64, triton.next_power_of_2(requests)),
        **chained(q.device, m <= EARLY_ROWS),
    }
    _attend_kernel[(*grid, parts if split else 1)](
        q,
        keys,
        values,
        pages,
        cu_rows,
        context,
        out,
        tops,
        sums,
        requests,
        tiles,
        m,
        pages.stride(0),
        width**-0.5 * LOG2_E,
        ROWS=rows,
        PAGE=page,
        LANES=lanes,
        KEYS=min(chunk, KEYS if half else KEYS // 2),
        WINDOW=window is not None,
        CAP=(cap or 0.0) * LOG2_E,
        SPLIT=split,
        num_warps=warps,
        num_stages=stages,
        **shared,
    )
    if merged:
        _merge_kernel[(requests * most_rows if most_rows else m + requests, kv_heads)](
            out,
            tops,
            sums,
            cu_rows,
            context,
            requests,
            most_rows or 0,
            m,
            LANES=triton.next_power_of_2(group),
            num_warps=1,
            **shared,
        )
    return out
