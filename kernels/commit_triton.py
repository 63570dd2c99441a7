"""The CUDA side of commit.py: one program a slot. `b_` block of values, `p_` pointers, `o_` offsets."""

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
    p_stops_at_eos,
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
        accepted, room, stops_at_eos = tl.load(p_accepted + r), tl.load(p_room + r), tl.load(p_stops_at_eos + r) > 0
        o_w = tl.arange(0, WIDTH)
        b_token = tl.load(p_tokens + r * COLUMNS + o_w, mask=o_w < COLUMNS, other=-1)
        b_stops = o_w < 0
        for e in tl.static_range(STOPS):
            b_stops = b_stops | (b_token == tl.load(p_eos + e))
        b_stops = b_stops & (o_w < COLUMNS) & stops_at_eos
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
    stops_at_eos: Tensor,
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
    assert all(x.is_contiguous() for x in (stops_at_eos, live, *state)), "state is updated in place"
    slots, columns = tokens.shape
    delivered = torch.empty_like(accepted)
    if slots:
        _commit_kernel[(slots,)](
            accepted.contiguous(),
            tokens.contiguous(),
            eos,
            stops_at_eos,
            live,
            *state,
            delivered,
            COLUMNS=columns,
            WIDTH=triton.next_power_of_2(columns),
            STOPS=eos.shape[0],
            num_warps=1,
        )
    return delivered
