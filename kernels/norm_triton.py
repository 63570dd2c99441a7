"""The CUDA side of norm.py: one program a row, so that a row's result does not depend on M. Rounds where torch does.

Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.pdl import EARLY_ROWS, chained, enter, wait


@triton.jit
def _add_norm_kernel(p_x, p_delta, p_gain, p_sum, p_out, eps, D: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    o_d = tl.arange(0, BLOCK)
    mine = o_d < D
    enter(PDL)
    wait(PDL)
    b_gain = tl.load(p_gain + o_d, mask=mine, other=0.0).to(tl.float32)
    o_x = tl.program_id(0).to(tl.int64) * D + o_d
    b_x = tl.load(p_x + o_x, mask=mine, other=0.0)
    if p_delta is not None:
        b_delta = tl.load(p_delta + o_x, mask=mine, other=0.0)
        b_x = (b_x.to(tl.float32) + b_delta.to(tl.float32)).to(p_x.dtype.element_ty)
        tl.store(p_sum + o_x, b_x, mask=mine)
    b_y = b_x.to(tl.float32)
    b_y = b_y * tl.rsqrt(tl.sum(b_y * b_y, 0) / D + eps)
    if p_gain.dtype.element_ty != tl.float32:
        b_y = b_y.to(p_x.dtype.element_ty).to(tl.float32)
    b_y = b_y * b_gain
    tl.store(p_out + o_x, b_y.to(p_out.dtype.element_ty), mask=mine)


def add_norm(x: Tensor, delta: Tensor | None, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """As norm.add_norm_reference. Asks the device nothing."""
    (m, d), x = x.shape, x.contiguous()
    assert gain.dtype in (x.dtype, torch.float32) and (delta is None or delta.dtype == x.dtype), "dtypes"
    delta = None if delta is None else delta.contiguous()
    summed, out = x if delta is None else torch.empty_like(x), torch.empty_like(x)
    if m > 0:
        _add_norm_kernel[(m,)](
            x,
            delta,
            gain,
            summed,
            out,
            eps,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            num_warps=4 if d <= 2048 else 8,
            **chained(x.device, m <= EARLY_ROWS),
        )
    return summed, out
