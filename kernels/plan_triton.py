"""The CUDA side of plan.py: every program finds the threshold of all drafts, then writes its own requests' rows.

`b_` block of values, `p_` pointers, `o_` offsets; blocks are [REQUESTS] or [REQUESTS, WIDTH], WIDTH > G. The dummy
request is in none of them.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels import plan as reference
from dsbench.kernels.pack_triton import launch, load_rows, store_rows
from dsbench.kernels.plan import Planned

FARTHEST = tl.constexpr(reference.FARTHEST)
LOG2_E, LN2_HIGH, LN2_LOW = (
    tl.constexpr(reference.LOG2_E),
    tl.constexpr(reference.LN2_HIGH),
    tl.constexpr(reference.LN2_LOW),
)
EXP0, EXP1, EXP2, EXP3, EXP4, EXP5 = (tl.constexpr(x) for x in reference.EXP)
HIGHEST = tl.constexpr(28)  # of a survival's 30 bits, which as a whole number are in the survivals' order, the last two
PLACES = tl.constexpr(1 << 14)  # of a draft among those of one survival; an even number of bits
ONE, TWO, COUNT = tl.constexpr(20), tl.constexpr(40), tl.constexpr((1 << 20) - 1)  # three counts in a number
NOBODY = tl.constexpr(1 << 62)  # above any key


@triton.jit
def _negative_exp(b_x):
    """As plan.negative_exp, operation by operation."""
    b_x = -tl.where(b_x < FARTHEST, b_x, FARTHEST)
    power = tl.floor(b_x * LOG2_E + 0.5)
    rest = b_x - power * LN2_HIGH - power * LN2_LOW
    value = ((rest * EXP0 + EXP1) * rest + EXP2) * rest + EXP3
    value = (value * rest + EXP4) * rest + EXP5
    value = value * rest * rest + rest + 1.0
    return value * ((power.to(tl.int32) + 127) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _survival(p_confidence, p_scale, p_offset, alive, BLOCK: tl.constexpr, REQUESTS: tl.constexpr, WIDTH: tl.constexpr):
    """As plan.survival_of, from left to right; 0 of requests that are not alive."""
    o_r, o_w = tl.arange(0, REQUESTS)[:, None], tl.arange(0, WIDTH)[None, :]
    o_d, there = o_r * BLOCK + o_w, alive[:, None] & (o_w < BLOCK)
    b_logit = tl.load(p_confidence + o_d, mask=there, other=0.0) * tl.load(p_scale + o_d, mask=there, other=0.0)
    b_logit += tl.load(p_offset + o_d, mask=there, other=0.0)
    b_tail = _negative_exp(tl.abs(b_logit))
    b_conditional = tl.div_rn(tl.where(b_logit >= 0, 1.0, b_tail), b_tail + 1.0)
    b_conditional = tl.where(there & (b_logit == b_logit), b_conditional, 0.0)
    b_survival, o_before = b_conditional, tl.broadcast_to(tl.maximum(o_w - 1, 0), REQUESTS, WIDTH)
    for k in tl.static_range(1, BLOCK):  # a scan would multiply in an order of its own
        b_survival = tl.where(o_w == k, tl.gather(b_survival, o_before, 1) * b_conditional, b_survival)
    return b_survival


@triton.jit
def _threshold(b_key, most):
    """The number that `most` of the keys reach, or all where they are fewer. Keys differ; those below 0 do not count.

    Two bits a turn, from the highest, until what the bits below would decide no longer matters.
    """
    legal = tl.sum((b_key >= 0).to(tl.int32))
    most = tl.maximum(tl.minimum(most, legal), 0)
    low = tl.where(most > 0, 0, NOBODY).to(tl.int64)
    found = tl.where(most > 0, legal, 0)
    step = tl.full([], PLACES, tl.int64) << HIGHEST
    while (found != most) & (step > 0):
        b_reach = (b_key >= low + step).to(tl.int64)
        b_reach += (b_key >= low + 2 * step).to(tl.int64) << ONE
        b_reach += (b_key >= low + 3 * step).to(tl.int64) << TWO
        reach = tl.sum(b_reach)
        one, two, three = (reach & COUNT).to(tl.int32), (reach >> ONE & COUNT).to(tl.int32), (reach >> TWO).to(tl.int32)
        low += step * ((one >= most).to(tl.int64) + (two >= most).to(tl.int64) + (three >= most).to(tl.int64))
        found = tl.where(one >= most, one, found)
        found = tl.where(two >= most, two, found)
        found = tl.where(three >= most, three, found)
        step = step >> 2
    return low


@triton.jit(do_not_specialize=["requests", "rows", "table"])
def _plan_kernel(
    p_confidence,
    p_scale,
    p_offset,
    p_limits,
    p_budget,
    p_live,
    p_survival,
    p_window,
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
    o_r, o_w = tl.arange(0, REQUESTS), tl.arange(0, WIDTH)[None, :]
    live, part = tl.load(p_live), tl.program_id(0)
    alive, own = o_r < live, (o_r // PART == part) & (o_r < requests - 1)
    b_limit = tl.load(p_limits + o_r, mask=alive, other=0)
    b_limit = tl.minimum(tl.maximum(b_limit, 0), BLOCK).to(tl.int32)
    # asked for now, needed after the search
    b_id, b_position, b_cache_index = load_rows(
        p_anchor, p_drafts, p_context, p_pages, table, alive & own, b_limit, BLOCK, PAGE, REQUESTS, WIDTH
    )
    b_survival = _survival(p_confidence, p_scale, p_offset, alive, BLOCK, REQUESTS, WIDTH)
    tl.store(p_survival + o_r[:, None] * BLOCK + o_w, b_survival, mask=own[:, None] & (o_w < BLOCK))
    # likelier before less likely, then by position, then by request
    b_key = b_survival.to(tl.int32, bitcast=True).to(tl.int64) * PLACES + PLACES - 1 - (o_w * REQUESTS + o_r[:, None])
    b_key = tl.where(o_w < b_limit[:, None], b_key, -1)
    most = tl.minimum(tl.load(p_budget), rows - live).to(tl.int32)
    low = _threshold(b_key, most)
    b_window = tl.sum((b_key >= low).to(tl.int32), 1)
    tl.store(p_window + o_r, b_window, mask=own)
    if part == 0:
        tl.store(p_survival + (requests - 1) * BLOCK + tl.arange(0, WIDTH), 0.0, mask=tl.arange(0, WIDTH) < BLOCK)
        tl.store(p_window + requests - 1, 0)
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
        alive & own,
        tl.where(alive, b_window + 1, 0),
        REQUESTS,
        WIDTH,
        PART,
    )


def plan(
    confidence: Tensor,
    scale: Tensor,
    offset: Tensor,
    limits: Tensor,
    budget: Tensor,
    anchor: Tensor,
    drafts: Tensor,
    context: Tensor,
    pages: Tensor,
    live: Tensor,
    rows: int,
    page: int,
) -> Planned:
    """As plan.plan."""
    assert drafts.numel() <= PLACES.value // 4, "more drafts than places"
    survival = torch.empty(drafts.shape, dtype=torch.float32, device=anchor.device)
    window = torch.empty_like(limits)
    read = (confidence.contiguous(), scale.contiguous(), offset.contiguous(), limits.contiguous(), budget, live)
    packed = launch(_plan_kernel, (*read, survival, window), (anchor, drafts, context, pages), rows, page)
    return survival, window, packed
