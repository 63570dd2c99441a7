"""The CUDA side of commit.py: one program a seat. `b_` block of values, `p_` pointers, `o_` offsets."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _commit_kernel(
    p_accepted,
    p_tokens,
    p_eos,
    p_heeds,
    p_live,
    p_anchor,
    p_start,
    p_emitted,
    p_room,
    p_round,
    p_ended,
    p_delivered,
    COLUMNS: tl.constexpr,
    WIDTH: tl.constexpr,
    STOPS: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    runs = (r < tl.load(p_live)) & (tl.load(p_ended + r) == 0)
    if runs:
        accepted, room, heeds = tl.load(p_accepted + r), tl.load(p_room + r), tl.load(p_heeds + r) > 0
        o_w = tl.arange(0, WIDTH)
        b_token = tl.load(p_tokens + r * COLUMNS + o_w, mask=o_w < COLUMNS, other=-1)
        b_stops = o_w < 0
        for e in tl.static_range(STOPS):
            b_stops = b_stops | (b_token == tl.load(p_eos + e))
        b_stops = b_stops & (o_w < COLUMNS) & heeds
        until = tl.min(tl.where(b_stops, o_w, COLUMNS), 0).to(tl.int64) + 1
        delivered = tl.minimum(tl.minimum(accepted + 1, until), room)
        last = tl.sum(tl.where(o_w == delivered - 1, b_token, 0), 0)
        if delivered > 0:
            tl.store(p_anchor + r, last)
        tl.store(p_start + r, tl.load(p_start + r) + delivered)
        tl.store(p_emitted + r, tl.load(p_emitted + r) + delivered)
        tl.store(p_room + r, room - delivered)
        tl.store(p_round + r, tl.load(p_round + r) + 1)
        if (until <= delivered) | (delivered >= room):
            tl.store(p_ended + r, 1)
        tl.store(p_delivered + r, delivered)
    else:
        tl.store(p_delivered + r, 0)


def commit(
    accepted: Tensor,
    tokens: Tensor,
    eos: Tensor,
    heeds: Tensor,
    live: Tensor,
    anchor: Tensor,
    start: Tensor,
    emitted: Tensor,
    room: Tensor,
    round_: Tensor,
    ended: Tensor,
) -> Tensor:
    """As commit.commit."""
    state = (anchor, start, emitted, room, round_, ended)
    assert all(x.is_contiguous() for x in (heeds, live, *state)), "state is written where it lies"
    seats, columns = tokens.shape
    delivered = torch.empty_like(accepted)
    if seats:
        _commit_kernel[(seats,)](
            accepted.contiguous(),
            tokens.contiguous(),
            eos,
            heeds,
            live,
            *state,
            delivered,
            COLUMNS=columns,
            WIDTH=triton.next_power_of_2(columns),
            STOPS=eos.shape[0],
            num_warps=1,
        )
    return delivered
