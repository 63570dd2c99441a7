"""The CUDA side of rope.py: a program takes some heads of one row, queries, keys and values alike, as two halves.

Rounds where torch does, and products are not fused into sums: without norms the result is torch's, bit
for bit. Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.pdl import EARLY_ROWS, chained, enter, wait

TILE = 16  # heads a program


@triton.jit
def _norm_halves(b_a, b_b, p_gain, o_e, eps, HALF: tl.constexpr, DTYPE: tl.constexpr):
    b_ga = tl.load(p_gain + o_e, mask=o_e < HALF, other=0.0).to(tl.float32)[None, :]
    b_gb = tl.load(p_gain + HALF + o_e, mask=o_e < HALF, other=0.0).to(tl.float32)[None, :]
    b_scale = tl.rsqrt((tl.sum(b_a * b_a, 1) + tl.sum(b_b * b_b, 1)) / (2 * HALF) + eps)[:, None]
    b_a, b_b = b_a * b_scale, b_b * b_scale
    if p_gain.dtype.element_ty != tl.float32:
        b_a, b_b = b_a.to(DTYPE).to(tl.float32), b_b.to(DTYPE).to(tl.float32)
    b_a, b_b = b_a * b_ga, b_b * b_gb
    return b_a.to(DTYPE).to(tl.float32), b_b.to(DTYPE).to(tl.float32)


@triton.jit
def _rotate_kernel(
    p_qkv,
    p_cos,
    p_sin,
    p_position,
    p_cache_index,
    p_q_norm,
    p_k_norm,
    p_q,
    p_keys,
    p_values,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HALF: tl.constexpr,
    PADDED: tl.constexpr,
    TILE: tl.constexpr,
    PDL: tl.constexpr,
):
    enter(PDL)
    wait(PDL)
    row, o_h, o_e = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE), tl.arange(0, PADDED)
    in_q, in_v = o_h[:, None] < HEADS, o_h[:, None] >= HEADS + KV_HEADS
    wide = o_e[None, :] < HALF
    there = (o_h[:, None] < HEADS + 2 * KV_HEADS) & wide
    o_x = o_h[:, None] * (2 * HALF) + o_e[None, :]
    p_x = p_qkv + row * (HEADS + 2 * KV_HEADS) * 2 * HALF + o_x
    b_a = tl.load(p_x, mask=there, other=0.0).to(tl.float32)
    b_b = tl.load(p_x + HALF, mask=there, other=0.0).to(tl.float32)
    o_angle = tl.load(p_position + row) * HALF + o_e
    b_cos = tl.load(p_cos + o_angle, mask=o_e < HALF, other=0.0)[None, :]
    b_sin = tl.load(p_sin + o_angle, mask=o_e < HALF, other=0.0)[None, :]
    cache_index = tl.load(p_cache_index + row)
    b_c, b_d = b_a, b_b
    if p_q_norm is not None:
        b_na, b_nb = _norm_halves(b_a, b_b, p_q_norm, o_e, eps, HALF, p_qkv.dtype.element_ty)
        b_c, b_d = tl.where(in_q, b_na, b_c), tl.where(in_q, b_nb, b_d)
    if p_k_norm is not None:
        b_na, b_nb = _norm_halves(b_a, b_b, p_k_norm, o_e, eps, HALF, p_qkv.dtype.element_ty)
        b_c, b_d = tl.where(in_q, b_c, b_na), tl.where(in_q, b_d, b_nb)
    b_c, b_d = b_c * b_cos - b_d * b_sin, b_d * b_cos + b_c * b_sin
    tl.store(p_q + row * HEADS * 2 * HALF + o_x, b_c.to(p_q.dtype.element_ty), mask=in_q & wide)
    tl.store(p_q + row * HEADS * 2 * HALF + o_x + HALF, b_d.to(p_q.dtype.element_ty), mask=in_q & wide)
    o_kept = ((cache_index // PAGE * KV_HEADS + (o_h - HEADS)[:, None]) * PAGE + cache_index % PAGE) * 2 * HALF + o_e[
        None, :
    ]
    kept = there & (in_q == 0) & (in_v == 0) & (cache_index >= 0)
    tl.store(p_keys + o_kept, b_c.to(p_keys.dtype.element_ty), mask=kept)
    tl.store(p_keys + o_kept + HALF, b_d.to(p_keys.dtype.element_ty), mask=kept)
    o_kept -= KV_HEADS * PAGE * 2 * HALF
    kept = there & in_v & (cache_index >= 0)
    tl.store(p_values + o_kept, b_a.to(p_values.dtype.element_ty), mask=kept)
    tl.store(p_values + o_kept + HALF, b_b.to(p_values.dtype.element_ty), mask=kept)


def rotate_and_store(
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    cache_indices: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 0.0,
) -> Tensor:
    """As rope.rotate_and_store_reference; a cache index below 0 writes nothing. No device synchronisation."""
    m, (_, kv_heads, page, width) = qkv.shape[0], keys.shape
    total = qkv.shape[1] // width
    heads, padded = total - 2 * kv_heads, triton.next_power_of_2(width // 2)
    tile = min(TILE, triton.next_power_of_2(total))
    assert keys.is_contiguous() and values.is_contiguous(), "the pool's layers are contiguous"
    qkv, positions, cache_indices = qkv.contiguous(), positions.contiguous(), cache_indices.contiguous()
    q = torch.empty(m, heads, width, device=qkv.device, dtype=qkv.dtype)
    if m > 0:
        _rotate_kernel[(m, triton.cdiv(total, tile))](
            qkv,
            cos,
            sin,
            positions,
            cache_indices,
            q_norm,
            k_norm,
            q,
            keys,
            values,
            eps,
            HEADS=heads,
            KV_HEADS=kv_heads,
            PAGE=page,
            HALF=width // 2,
            PADDED=padded,
            TILE=tile,
            num_warps=max(1, min(4, tile * padded // 256)),
            enable_fp_fusion=False,
            **chained(qkv.device, m <= EARLY_ROWS),
        )
    return q
