"""The CUDA side of judge.py: one program a request. `b_` block of values, `p_` pointers, `o_` offsets."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.judge import UNSEEN, Judged


@triton.jit
def _judge_kernel(
    p_own,
    p_cu_rows,
    p_drafts,
    p_window,
    p_verified,
    p_recorded,
    p_accepted,
    p_tokens,
    p_ceiling,
    p_flips,
    BLOCK: tl.constexpr,
    WIDTH: tl.constexpr,
    RECORDED: tl.constexpr,
    UNSEEN: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    begin, end = tl.load(p_cu_rows + r), tl.load(p_cu_rows + r + 1)
    window, verified = tl.load(p_window + r), tl.load(p_verified + r)
    o_w = tl.arange(0, WIDTH)
    there = o_w <= BLOCK
    b_mine = tl.load(p_own + begin + o_w, mask=there & (begin + o_w < end), other=0)
    b_chosen = b_mine
    if RECORDED:
        b_recorded = tl.load(p_recorded + r * (BLOCK + 1) + o_w, mask=there, other=-1)
        b_chosen = tl.where(b_recorded >= 0, b_recorded, b_mine)
    b_draft = tl.load(p_drafts + r * BLOCK + o_w, mask=o_w < BLOCK, other=-1)
    # the first column that does not match is how many drafts do
    misses = (b_draft != b_chosen) | (o_w >= verified) | (o_w >= BLOCK)
    matched = tl.min(tl.where(misses, o_w, BLOCK), 0).to(tl.int64)
    accepted = tl.minimum(matched, window)
    seen = (matched < verified) | (verified >= BLOCK)
    flips = tl.sum(((b_mine != b_chosen) & there & (o_w <= accepted)).to(tl.int64), 0)
    tl.store(p_accepted + r, accepted)
    tl.store(p_ceiling + r, tl.where(seen, matched + 1, UNSEEN))
    tl.store(p_flips + r, flips)
    tl.store(p_tokens + r * (BLOCK + 1) + o_w, b_chosen, mask=there)


def judge_rows(
    own: Tensor, cu_rows: Tensor, drafts: Tensor, window: Tensor, verified: Tensor, recorded: Tensor | None
) -> Judged:
    """As judge.judge_rows."""
    requests, block = drafts.shape
    accepted, ceiling, flips = (torch.empty(requests, dtype=torch.int64, device=own.device) for _ in range(3))
    tokens = torch.empty(requests, block + 1, dtype=torch.int64, device=own.device)
    if requests:
        _judge_kernel[(requests,)](
            own.contiguous(),
            cu_rows.contiguous(),
            drafts.contiguous(),
            window.contiguous(),
            verified.contiguous(),
            None if recorded is None else recorded.contiguous(),
            accepted,
            tokens,
            ceiling,
            flips,
            BLOCK=block,
            WIDTH=triton.next_power_of_2(block + 1),
            RECORDED=recorded is not None,
            UNSEEN=UNSEEN,
            num_warps=1,
        )
    return accepted, tokens, ceiling, flips
