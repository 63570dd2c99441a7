"""The core of the fused products: a tile of rows by outputs, all of K in one order, so that a tile fixes the bits.

How a program works follows from its tile (fused_tiles.py). Of one row, and of a few, every weight of its outputs is
in flight before the program waits for the kernels before: one row is multiplied and summed in fp32; of a few each warp
takes a slice of K (mma.sync, the weights in place of the rows). Of more, warps take rows (wgmma), and weights come to
the L2 cache before the wait.
Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dsbench.kernels.pdl import enter, wait


@triton.jit
def _fetch(p_w, o_w, K: tl.constexpr, SPAN: tl.constexpr):
    """Asks for the first SPAN weights of rows o_w [BN] to come to the L2 cache, 64 bytes each time."""
    o_k = tl.minimum(tl.arange(0, SPAN // 32) * 32, K - 1)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [p_w + o_w[:, None] * K + o_k[None, :]],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _slices(p, o, o_k, b_real, K: tl.constexpr):
    """[SLICES, N, BK / SLICES] of rows at p [N] that are real, from column o on; o_k [SLICES, BK / SLICES]."""
    mask = b_real[None, :, None] & (o_k < K - o)[:, None, :]
    return tl.load(p[None, :, None] + o + o_k[:, None, :], mask=mask, other=0.0)


@triton.jit
def _columns(BK: tl.constexpr, SLICES: tl.constexpr):
    """[SLICES, BK / SLICES]: 0 to BK, so written that loads of neighbours are seen to be one."""
    DEPTH: tl.constexpr = BK // SLICES
    return tl.arange(0, SLICES)[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]


@triton.jit
def begin(
    p_a,
    p_w,
    o_w,
    b_held,
    K: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
    FETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Weights on their way, then waits. The first weights [BN, BK] of one row, with numbers [BK], or of a few."""
    enter(PDL)
    b_w, b_a = 0, 0
    if SLICES > 0:
        b_w = _slices(p_w + o_w * K, 0, _columns(BK, SLICES), b_held, K)
        wait(PDL)
    elif BM == 1:
        o_k = tl.arange(0, BK)
        b_w = tl.load(p_w + o_w[:, None] * K + o_k[None, :], mask=b_held[:, None] & (o_k < K)[None, :], other=0.0)
        wait(PDL)
        b_a = tl.load(p_a + tl.program_id(0) * K + o_k, mask=o_k < K, other=0.0)
    else:
        if PDL > 0 and FETCH > 0:
            _fetch(p_w, tl.where(b_held, o_w, 0), K, FETCH)
        wait(PDL)
    return b_w, b_a


@triton.jit
def _one_row(b_w, b_a, p_a, p_w, o_w, b_held, K: tl.constexpr, BK: tl.constexpr):
    """[1, BN]: a [K] times weight rows o_w [BN], whose first parts are there."""
    o_k = tl.arange(0, BK)
    p_w += o_w[:, None] * K + o_k[None, :]
    b_y = b_w.to(tl.float32) * b_a.to(tl.float32)[None, :]
    for o in tl.range(BK, K, BK, num_stages=3):
        b_w = tl.load(p_w + o, mask=b_held[:, None] & (o_k < K - o)[None, :], other=0.0)
        b_a = tl.load(p_a + o + o_k, mask=o_k < K - o, other=0.0)
        b_y += b_w.to(tl.float32) * b_a.to(tl.float32)[None, :]
    return tl.sum(b_y, 1)[None, :]


@triton.jit
def _rows(p_a, p_w, o_m, b_there, o_w, b_held, K: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """[BM, BN]: a's rows o_m times weight rows o_w."""
    o_k = tl.arange(0, BK)
    p_a += o_m[:, None] * K + o_k[None, :]
    p_w += o_w[:, None] * K + o_k[None, :]
    b_y = tl.zeros((BM, BN), tl.float32)
    for o in tl.range(0, K, BK):
        inside = (o_k < K - o)[None, :]
        b_a = tl.load(p_a + o, mask=b_there[:, None] & inside, other=0.0)
        b_w = tl.load(p_w + o, mask=b_held[:, None] & inside, other=0.0)
        b_y = tl.dot(b_a, tl.trans(b_w), b_y, input_precision="ieee")
    return b_y


@triton.jit
def _few_rows(
    b_w,
    p_a,
    p_w,
    o_m,
    b_there,
    o_w,
    b_held,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
):
    """[BM, BN]: as `_rows`, whose first weights are there; a warp sums a slice of each BK."""
    o_k = _columns(BK, SLICES)
    b_y = tl.zeros((SLICES, BN, BM), tl.float32)
    for o in tl.static_range(0, K, BK):
        if o > 0:
            b_w = _slices(p_w + o_w * K, o, o_k, b_held, K)
        b_a = _slices(p_a + o_m * K, o, o_k, b_there, K)
        b_y = tl.dot(b_w, tl.trans(b_a, 0, 2, 1), b_y, input_precision="ieee")
    return tl.trans(tl.sum(b_y, 0))


@triton.jit
def product(
    b_w,
    b_a,
    p_a,
    p_w,
    o_m,
    m,
    o_w,
    b_held,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
):
    """[BM, BN] fp32: rows o_m (below m) of a [m, K] times rows o_w (where held) of a weight; after `begin`."""
    if SLICES > 0:
        b_y = _few_rows(b_w, p_a, p_w, o_m, o_m < m, o_w, b_held, K, BM, BN, BK, SLICES)
    elif BM == 1:
        b_y = _one_row(b_w, b_a, p_a + tl.program_id(0) * K, p_w, o_w, b_held, K, BK)
    else:
        b_y = _rows(p_a, p_w, o_m, o_m < m, o_w, b_held, K, BM, BN, BK)
    return b_y


@triton.jit
def scale(p_squares, o_m, m, eps, K: tl.constexpr, T: tl.constexpr, PADDED: tl.constexpr):
    """[BM, 1]: one over the root mean square of rows whose squares lie summed in T parts each."""
    o_t = tl.arange(0, PADDED)
    mask = (o_m < m)[:, None] & (o_t < T)[None, :]
    b_squares = tl.load(p_squares + o_m[:, None] * T + o_t[None, :], mask=mask, other=0.0)
    return tl.rsqrt(tl.sum(b_squares, 1) / K + eps)[:, None]
