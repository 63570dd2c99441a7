"""The CUDA side of an exact projection: y = x W^T (+ b), a row's bits being the same whatever M and its neighbours.

An output number is one chain of the same instructions in every launch: a product of 64 weight rows and TOKENS rows of
x, over K from the front, summed in fp32 in one accumulator; nothing is split over K. M decides only how many such
products a program holds and how many programs there are. Weight rows stand on the side of the product that wgmma wants
64 of, so that one row of x fills it as well as 64 do; rows past M are zeros that are not read.

Weights are read from memory once: up to TOKENS rows by the one program that needs them, above by programs that follow
each other in launch order and find them in the L2 cache. At one row the tensor cores do 64 times the work asked for,
64 operations a byte where a device has some 200 to give. Imported only where a CUDA device runs it.
`o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TOKENS = 64  # rows of x in a product, for any M
FILLS = 128  # programs that fill a device: from there on they may be large


@triton.jit(do_not_specialize=["m"])
def _linear_kernel(
    p_x, p_w, p_bias, p_out, m, n, k, TOKENS: tl.constexpr, PAIRS: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr
):
    """ROWS outputs of TOKENS rows of x, or with PAIRS of twice as many."""
    o_m = tl.program_id(0) * (TOKENS * (2 if PAIRS else 1)) + tl.arange(0, TOKENS)
    o_n, o_k = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.arange(0, DEPTH)
    o_x, o_w = o_m.to(tl.int64)[:, None] * k + o_k[None, :], o_n.to(tl.int64)[:, None] * k + o_k[None, :]
    b_y, b_z = tl.zeros((ROWS, TOKENS), tl.float32), tl.zeros((ROWS, TOKENS), tl.float32)
    for o in tl.range(0, k, DEPTH):
        inside = (o_k < k - o)[None, :]
        b_w = tl.load(p_w + o_w + o, mask=(o_n < n)[:, None] & inside, other=0.0)
        b_x = tl.load(p_x + o_x + o, mask=(o_m < m)[:, None] & inside, other=0.0)
        b_y = tl.dot(b_w, tl.trans(b_x), b_y, input_precision="ieee")
        if PAIRS:
            b_x = tl.load(p_x + o_x + (TOKENS * k + o), mask=(o_m + TOKENS < m)[:, None] & inside, other=0.0)
            b_z = tl.dot(b_w, tl.trans(b_x), b_z, input_precision="ieee")
    _store(p_out, p_bias, b_y, o_m, o_n, m, n)
    if PAIRS:
        _store(p_out, p_bias, b_z, o_m + TOKENS, o_n, m, n)


@triton.jit
def _store(p_out, p_bias, b_y, o_m, o_n, m, n):
    if p_bias is not None:
        b_y += tl.load(p_bias + o_n, mask=o_n < n, other=0.0).to(tl.float32)[:, None]
    o_y = o_m.to(tl.int64)[None, :] * n + o_n[:, None]
    tl.store(p_out + o_y, b_y.to(p_out.dtype.element_ty), mask=(o_m < m)[None, :] & (o_n < n)[:, None])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., K], weight [N, K], bias [N] of one dtype -> [..., N]. Asks the device nothing; no gradients."""
    assert weight.is_contiguous() and x.dtype == weight.dtype, "weights lie as they were loaded, in the dtype of x"
    n, k = weight.shape
    x = x.contiguous()
    m = x.numel() // k
    out = torch.empty(*x.shape[:-1], n, dtype=x.dtype, device=x.device)
    if m == 0:
        return out
    half = x.element_size() < 4
    large = half and triton.cdiv(m, 2 * TOKENS) * triton.cdiv(n, 128) >= FILLS
    rows, tokens = (128, 2 * TOKENS) if large else (64, TOKENS)
    _linear_kernel[(triton.cdiv(m, tokens), triton.cdiv(n, rows))](
        x,
        weight,
        bias,
        out,
        m,
        n,
        k,
        TOKENS=TOKENS,
        PAIRS=large,
        ROWS=rows,
        DEPTH=64 if half else 16,
        num_warps=8 if large else 4,
        num_stages=(5 if large else 8) if half else 3,
    )
    return out
