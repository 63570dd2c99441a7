"""The noise table on CUDA, as philox.py makes it: four ids share one counter, and so four words of one call.

`b_` block of values, `p_` pointers, `o_` offsets.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice


@triton.jit
def log2(b_x):
    """The device's own instruction: within 2**-22 where the result is below 1, else within 2**-22 of it."""
    return libdevice.fast_log2f(b_x)


@triton.jit
def _words(seed, position, b_quad):
    """The four words [rows, .] of ids 4 b_quad .. 4 b_quad + 3 [rows, .]; seed and position [rows, 1]."""
    c0 = b_quad.to(tl.uint32)
    zero = c0 * 0
    return tl.philox(seed, c0, zero + position.to(tl.uint32), zero, zero)


@triton.jit
def _gumbel(b_word):
    """`philox.gumbel_from_bits` to 4e-6, a few ulp of a score: -log(e) with e = -log1p(-w).

    Where w is small, where most winners are, e is a polynomial that keeps its relative error below 2e-7.
    """
    b_w = tl.fma((b_word >> 8).to(tl.int32).to(tl.float32), 1.0 / (1 << 24), 0.5 / (1 << 24))
    b_w = tl.minimum(b_w, 1.0 - 1.0 / (1 << 24))
    b_p = tl.fma(b_w, 0.26269308, 0.24274564)
    b_p = tl.fma(b_w, b_p, 0.33366543)
    b_p = tl.fma(b_w, b_p, 0.49999475)
    b_p = tl.fma(b_w, b_p, 1.0)
    b_e = tl.where(b_w < 0.125, b_w * b_p, log2(1.0 - b_w) * -0.6931471805599453)
    return log2(b_e) * -0.6931471805599453


@triton.jit
def noise_of_ids(b_seed, b_position, b_id):
    """Noise [rows, columns] of any ids [columns]; seeds and positions [rows]."""
    b_id = tl.broadcast_to(b_id[None, :], (b_seed.shape[0], b_id.shape[0]))
    w0, w1, w2, w3 = _words(b_seed[:, None], b_position[:, None], b_id >> 2)
    odd, upper = (b_id & 1) != 0, (b_id & 2) != 0
    return _gumbel(tl.where(upper, tl.where(odd, w3, w2), tl.where(odd, w1, w0)))


@triton.jit
def noise_of_run(b_seed, b_position, first, COLUMNS: tl.constexpr):
    """Noise [rows, COLUMNS] of ids first, first + 1, ..; `first` and COLUMNS are multiples of 4."""
    b_quad = tl.broadcast_to((first // 4 + tl.arange(0, COLUMNS // 4))[None, :], (b_seed.shape[0], COLUMNS // 4))
    w0, w1, w2, w3 = _words(b_seed[:, None], b_position[:, None], b_quad)
    return _gumbel(tl.join(tl.join(w0, w2), tl.join(w1, w3)).reshape(b_seed.shape[0], COLUMNS))
