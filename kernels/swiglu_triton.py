"""The CUDA side of swiglu.py: a program makes BLOCK numbers of one row. Rounds where torch does.

Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.pdl import EARLY_ROWS, chained, enter, wait

BLOCK = 1024  # eight numbers a thread: a 16-byte load of each half in half precision


@triton.jit
def _swiglu_kernel(p_gate_up, p_out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    enter(PDL)
    wait(PDL)
    row, o_i = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mine = o_i < WIDTH
    p_gate = p_gate_up + row * 2 * WIDTH + o_i
    b_gate = tl.load(p_gate, mask=mine, other=0.0).to(tl.float32)
    b_up = tl.load(p_gate + WIDTH, mask=mine, other=0.0).to(tl.float32)
    b_gate = (b_gate / (1.0 + tl.exp(-b_gate))).to(p_out.dtype.element_ty).to(tl.float32)
    tl.store(p_out + row * WIDTH + o_i, (b_gate * b_up).to(p_out.dtype.element_ty), mask=mine)


def swiglu(gate_up: Tensor) -> Tensor:
    """As swiglu.swiglu_reference, of [M, 2 I]. Asks the device nothing."""
    gate_up = gate_up.contiguous()
    m, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(m, width, device=gate_up.device, dtype=gate_up.dtype)
    block = min(BLOCK, triton.next_power_of_2(width))
    if m > 0:
        _swiglu_kernel[(m, triton.cdiv(width, block))](
            gate_up, out, WIDTH=width, BLOCK=block, num_warps=4, **chained(out.device, m <= EARLY_ROWS)
        )
    return out
