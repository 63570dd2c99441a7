"""The CUDA side of attention.py: a tile holds rows of one request, each with all query heads of its key-value head.

So the pages of a request are read once per tile, and the rows of a draft block are one tile. The grid follows from
static shapes: request r owns the tiles cu_rows[r] // ROWS + r onwards, of which at most one is empty; a program finds
its request by counting. Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.attention import FAR

KEYS = 32  # keys a step: more leave R = 1 with fewer loads in flight, and a tile of fp32 heads of 128 must fit
LANES = 64  # (row, query head) pairs a tile at most, unless a group alone is larger
NEAR = FAR >> 10  # the same in int32, past any key


@triton.jit
def _attend_kernel(
    p_q, p_keys, p_values, p_pages, p_cu_rows, p_context, p_out, requests, table, scale,
    BEHIND: tl.constexpr, AHEAD: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PAGE: tl.constexpr,
    WIDTH: tl.constexpr, REQUESTS: tl.constexpr, ROWS: tl.constexpr, LANES: tl.constexpr, KEYS: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    o_r = tl.arange(0, REQUESTS)
    b_tile = tl.load(p_cu_rows + o_r, mask=o_r < requests, other=0) // ROWS + o_r
    r = tl.sum(tl.where((o_r < requests) & (b_tile <= tile), 1, 0), 0) - 1
    begin, end = tl.load(p_cu_rows + r), tl.load(p_cu_rows + r + 1)
    first = (tile - (begin // ROWS + r)) * ROWS  # row of the request
    count = end - begin
    if first < count:
        context = tl.load(p_context + r)
        total = context + count
        o_l, o_e = tl.arange(0, LANES), tl.arange(0, PADDED)
        b_row = first + o_l // GROUP
        lane = (o_l // GROUP < ROWS) & (b_row < count)
        wide = o_e < WIDTH
        o_q = ((begin + b_row).to(tl.int64) * (KV_HEADS * GROUP) + head * GROUP + o_l % GROUP) * WIDTH
        o_q = o_q[:, None] + o_e[None, :]
        b_q = tl.load(p_q + o_q, mask=lane[:, None] & wide[None, :], other=0.0)
        b_at = context + b_row
        b_low, b_high = tl.maximum(b_at - BEHIND + 1, 0), tl.minimum(b_at + AHEAD, total)
        low = tl.maximum(context + first - BEHIND + 1, 0)
        high = tl.minimum(context + tl.minimum(first + ROWS, count) - 1 + AHEAD, total)
        b_top = tl.full((LANES,), -3.0e38, tl.float32)
        b_mass = tl.zeros((LANES,), tl.float32)
        b_sum = tl.zeros((LANES, PADDED), tl.float32)
        for start in range(low // KEYS * KEYS, high, KEYS):
            o_k = start + tl.arange(0, KEYS)
            there = (o_k >= low) & (o_k < high)
            page = tl.load(p_pages + r * table + o_k // PAGE, mask=there, other=0).to(tl.int64)
            o_kv = ((page * KV_HEADS + head) * PAGE + o_k % PAGE) * WIDTH
            o_kv = o_kv[:, None] + o_e[None, :]
            held = there[:, None] & wide[None, :]
            b_k = tl.load(p_keys + o_kv, mask=held, other=0.0)
            b_v = tl.load(p_values + o_kv, mask=held, other=0.0)
            b_s = tl.dot(b_q, tl.trans(b_k), input_precision="ieee") * scale
            sees = (o_k[None, :] >= b_low[:, None]) & (o_k[None, :] < b_high[:, None])
            b_s = tl.where(sees, b_s, -3.0e38)
            higher = tl.maximum(b_top, tl.max(b_s, 1))
            b_p = tl.where(sees, tl.exp(b_s - higher[:, None]), 0.0)
            shrunk = tl.exp(b_top - higher)
            b_mass = b_mass * shrunk + tl.sum(b_p, 1)
            b_sum = b_sum * shrunk[:, None] + tl.dot(b_p.to(b_v.dtype), b_v, input_precision="ieee")
            b_top = higher
        b_out = b_sum / tl.where(b_mass > 0, b_mass, 1.0)[:, None]
        tl.store(p_out + o_q, b_out.to(p_out.dtype.element_ty), mask=lane[:, None] & wide[None, :])


def paged_attention(
    q: Tensor, keys: Tensor, values: Tensor, pages: Tensor, cu_rows: Tensor, context: Tensor, *, causal: bool,
    window: int | None = None,
) -> Tensor:  # fmt: skip
    """As attention.paged_attention_reference; q in the dtype of the keys. Asks the device nothing."""
    m, heads, width = q.shape
    requests, kv_heads, page = pages.shape[0], keys.shape[1], keys.shape[2]
    q, pages, cu_rows, context = (x.contiguous() for x in (q.to(keys.dtype), pages, cu_rows, context))
    assert keys.is_contiguous() and values.is_contiguous(), "the pool's layers are whole"
    out = torch.empty_like(q)
    if m == 0:
        return out
    group = heads // kv_heads
    lanes = triton.next_power_of_2(triton.cdiv(m, requests) * group)  # one tile a request where all have alike rows
    lanes = max(16, triton.next_power_of_2(group), min(lanes, LANES))
    rows = lanes // group
    behind = NEAR if window is None else window
    _attend_kernel[(m // rows + requests, kv_heads)](
        q, keys, values, pages, cu_rows, context, out, requests, pages.shape[1], width**-0.5,
        BEHIND=behind, AHEAD=1 if causal else behind, KV_HEADS=kv_heads, GROUP=group, PAGE=page, WIDTH=width,
        REQUESTS=triton.next_power_of_2(requests), ROWS=rows, LANES=lanes, KEYS=KEYS,
        PADDED=max(16, triton.next_power_of_2(width)), num_warps=4, num_stages=2,
    )  # fmt: skip
    return out
