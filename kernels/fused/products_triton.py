"""The CUDA side of fused.py: products whose neighbours in a layer are their prologue and epilogue.

What an epilogue reads is asked for before the sums. Rounds where torch does, but for norms: their scale is
applied to the sums. Imported only where a CUDA device runs it. `o_` offsets, `b_` block of values, `p_` pointers.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from dsbench.kernels.fused.product_triton import begin, product, scale
from dsbench.kernels.fused.tiles import ALONE, SPAN, Tile, tile_for
from dsbench.kernels.pdl import EARLY_ROWS, chained, enter, wait


@triton.jit
def _halves(b_y, DTYPE: tl.constexpr, BM: tl.constexpr, BE: tl.constexpr):
    """Even and odd columns of b_y [BM, 2 BE], rounded as torch rounds a product."""
    b_a, b_b = tl.split(tl.reshape(b_y.to(DTYPE).to(tl.float32), (BM, BE, 2)))
    return b_a, b_b


@triton.jit
def _head_normed(b_a, b_b, p_gain, o_e, eps, HALF: tl.constexpr, DTYPE: tl.constexpr):
    b_ga = tl.load(p_gain + o_e, mask=o_e < HALF, other=0.0).to(tl.float32)[None, :]
    b_gb = tl.load(p_gain + HALF + o_e, mask=o_e < HALF, other=0.0).to(tl.float32)[None, :]
    b_scale = tl.rsqrt((tl.sum(b_a * b_a, 1) + tl.sum(b_b * b_b, 1)) / (2 * HALF) + eps)[:, None]
    b_a, b_b = (b_a * b_scale).to(DTYPE).to(tl.float32) * b_ga, (b_b * b_scale).to(DTYPE).to(tl.float32) * b_gb
    return b_a.to(DTYPE).to(tl.float32), b_b.to(DTYPE).to(tl.float32)


@triton.jit(do_not_specialize=["m"])
def _qkv_kernel(
    p_a,
    p_squares,
    p_w,
    p_cos,
    p_sin,
    p_position,
    p_cache_index,
    p_q_norm,
    p_k_norm,
    p_q,
    p_keys,
    p_values,
    m,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    HALF: tl.constexpr,
    T: tl.constexpr,
    PADDED: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
    FETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """Some numbers of one head, each beside the one that it turns with. What is small is asked for before the sums."""
    BE: tl.constexpr = BN // 2
    A_HEAD: tl.constexpr = (HALF + BE - 1) // BE  # tiles
    DTYPE: tl.constexpr = p_q.dtype.element_ty
    o_m, o_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    head, first = tl.program_id(1) // A_HEAD, tl.program_id(1) % A_HEAD * BE
    o_w, b_held = head * 2 * HALF + first + o_n // 2 + o_n % 2 * HALF, first + o_n // 2 < HALF
    b_w, b_a = begin(p_a, p_w, o_w, b_held, K, BM, BK, SLICES, FETCH, PDL)
    o_e, there = first + tl.arange(0, BE), o_m < m
    kept = there[:, None] & (o_e < HALF)[None, :]
    b_at, b_cache_index = (
        tl.load(p_position + o_m, mask=there, other=0),
        tl.load(p_cache_index + o_m, mask=there, other=-1),
    )
    b_scale = scale(p_squares, o_m, m, eps, K, T, PADDED)
    o_angle, turned = b_at[:, None] * HALF + o_e[None, :], kept & (head < HEADS + KV_HEADS)
    b_cos, b_sin = tl.load(p_cos + o_angle, mask=turned, other=1.0), tl.load(p_sin + o_angle, mask=turned, other=0.0)
    b_y = product(b_w, b_a, p_a, p_w, o_m, m, o_w, b_held, K, BM, BN, BK, SLICES) * b_scale
    b_a, b_b = _halves(b_y, DTYPE, BM, BE)
    if p_q_norm is not None:  # noqa: SIM102  compiled or not, so a condition of its own
        if head < HEADS:
            b_a, b_b = _head_normed(b_a, b_b, p_q_norm, o_e, eps, HALF, DTYPE)
    if p_k_norm is not None:  # noqa: SIM102
        if (head >= HEADS) & (head < HEADS + KV_HEADS):
            b_a, b_b = _head_normed(b_a, b_b, p_k_norm, o_e, eps, HALF, DTYPE)
    b_a, b_b = b_a * b_cos - b_b * b_sin, b_b * b_cos + b_a * b_sin  # values: times one, less nothing
    if head < HEADS:
        o_q = (o_m.to(tl.int64) * HEADS + head)[:, None] * 2 * HALF + o_e[None, :]
        tl.store(p_q + o_q, b_a.to(DTYPE), mask=kept)
        tl.store(p_q + o_q + HALF, b_b.to(DTYPE), mask=kept)
    else:
        o_cache = ((b_cache_index // PAGE * KV_HEADS + (head - HEADS) % KV_HEADS) * PAGE + b_cache_index % PAGE)[
            :, None
        ]
        o_kept, kept = o_cache * 2 * HALF + o_e[None, :], kept & (b_cache_index >= 0)[:, None]
        p_pages = p_keys
        if head >= HEADS + KV_HEADS:
            p_pages = p_values
        tl.store(p_pages + o_kept, b_a.to(p_keys.dtype.element_ty), mask=kept)
        tl.store(p_pages + o_kept + HALF, b_b.to(p_keys.dtype.element_ty), mask=kept)


@triton.jit(do_not_specialize=["m"])
def _gate_kernel(
    p_a,
    p_squares,
    p_w,
    p_out,
    m,
    eps,
    WIDTH: tl.constexpr,
    T: tl.constexpr,
    PADDED: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
    FETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """BN / 2 numbers of the MLP's width: gates and ups side by side."""
    BE: tl.constexpr = BN // 2
    DTYPE: tl.constexpr = p_out.dtype.element_ty
    o_m, o_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN)
    first = tl.program_id(1) * BE
    o_w, b_held = first + o_n // 2 + o_n % 2 * WIDTH, first + o_n // 2 < WIDTH
    b_w, b_a = begin(p_a, p_w, o_w, b_held, K, BM, BK, SLICES, FETCH, PDL)
    b_scale = scale(p_squares, o_m, m, eps, K, T, PADDED)
    b_y = product(b_w, b_a, p_a, p_w, o_m, m, o_w, b_held, K, BM, BN, BK, SLICES) * b_scale
    b_gate, b_up = _halves(b_y, DTYPE, BM, BE)
    b_gate = (b_gate / (1.0 + tl.exp(-b_gate))).to(DTYPE).to(tl.float32)
    o_i = first + tl.arange(0, BE)
    o_out = o_m.to(tl.int64)[:, None] * WIDTH + o_i[None, :]
    tl.store(p_out + o_out, (b_gate * b_up).to(DTYPE), mask=(o_m < m)[:, None] & (o_i < WIDTH)[None, :])


@triton.jit(do_not_specialize=["m"])
def _product_kernel(
    p_a,
    p_squares,
    p_w,
    p_x,
    p_gain,
    p_out,
    p_gained,
    p_made,
    m,
    eps,
    N: tl.constexpr,
    T: tl.constexpr,
    PADDED: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    SLICES: tl.constexpr,
    FETCH: tl.constexpr,
    PDL: tl.constexpr,
):
    """BN outputs; with p_squares of normed rows; with p_x added to it, times a gain too, and its squares summed."""
    DTYPE: tl.constexpr = p_out.dtype.element_ty
    o_m, o_n = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    b_held = o_n < N
    kept, o_y = (o_m < m)[:, None] & b_held[None, :], o_m.to(tl.int64)[:, None] * N + o_n[None, :]
    b_w, b_a = begin(p_a, p_w, o_n, b_held, K, BM, BK, SLICES, FETCH, PDL)
    if p_squares is not None:
        b_scale = scale(p_squares, o_m, m, eps, K, T, PADDED)
    if p_x is not None:
        b_x = tl.load(p_x + o_y, mask=kept, other=0.0).to(tl.float32)
        b_gain = tl.load(p_gain + o_n, mask=b_held, other=0.0).to(tl.float32)[None, :]
    b_y = product(b_w, b_a, p_a, p_w, o_m, m, o_n, b_held, K, BM, BN, BK, SLICES)
    if p_squares is not None:
        b_y = b_y * b_scale
    b_y = b_y.to(DTYPE)
    if p_x is not None:
        b_y = (b_y.to(tl.float32) + b_x).to(DTYPE)
        b_x = b_y.to(tl.float32)
        tl.store(p_gained + o_y, (b_x * b_gain).to(DTYPE), mask=kept)
        tl.store(p_made + o_m * tl.num_programs(1) + tl.program_id(1), tl.sum(b_x * b_x, 1), mask=o_m < m)
    tl.store(p_out + o_y, b_y, mask=kept)


@triton.jit
def _embed_kernel(
    p_ids, p_table, p_gain, p_out, p_gained, p_made, D: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """One row."""
    row, o_d = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    mine = o_d < D
    enter(PDL)
    wait(PDL)
    b_gain = tl.load(p_gain + o_d, mask=mine, other=0.0).to(tl.float32)
    at = row
    if p_ids is not None:
        at = tl.load(p_ids + row)
    b_x = tl.load(p_table + at * D + o_d, mask=mine, other=0.0)
    tl.store(p_out + row * D + o_d, b_x, mask=mine)
    b_x = b_x.to(tl.float32)
    tl.store(p_gained + row * D + o_d, (b_x * b_gain).to(p_gained.dtype.element_ty), mask=mine)
    tl.store(p_made + row, tl.sum(b_x * b_x, 0))


def _options(tile: Tile, a: Tensor, squares: Tensor | None = None) -> dict[str, Any]:
    """What the kernels of a product of rows `a` have in common."""
    rows, inner = a.shape
    parts = 1 if squares is None else squares.shape[1]
    span = min(SPAN, triton.next_power_of_2(inner))
    return {
        "K": inner,
        "BM": tile.rows,
        "BN": tile.outputs,
        "BK": tile.inner,
        "SLICES": tile.slices,
        "T": parts,
        "PADDED": triton.next_power_of_2(parts),
        "FETCH": span if span >= 32 else 0,
        "num_warps": tile.warps,
        "num_stages": tile.stages,
        **chained(a.device, 1 < rows <= ALONE),
    }


def embed(ids: Tensor | None, table: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As fused.embed_reference. Asks the device nothing, as all here."""
    ids = None if ids is None else ids.contiguous()
    m, d = len(table if ids is None else ids), table.shape[1]
    assert table.is_contiguous()
    x, gained = (torch.empty(m, d, device=table.device, dtype=table.dtype) for _ in range(2))
    squares = torch.empty(m, 1, device=table.device, dtype=torch.float32)
    if m > 0:
        _embed_kernel[(m,)](
            ids,
            table,
            gain,
            x,
            gained,
            squares,
            D=d,
            BLOCK=triton.next_power_of_2(d),
            num_warps=4 if d <= 2048 else 8,
            **chained(table.device, m <= EARLY_ROWS),
        )
    return x, gained, squares


def normed_qkv(
    gained: Tensor,
    squares: Tensor,
    weight: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    cache_indices: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    eps: float,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> Tensor:
    """As fused.normed_qkv_reference; a cache index below 0 writes nothing."""
    (m, inner), (_, kv_heads, page, width) = gained.shape, keys.shape
    total = weight.shape[0] // width
    heads, half = total - 2 * kv_heads, width // 2
    q = torch.empty(m, heads, width, device=gained.device, dtype=gained.dtype)
    if m == 0:
        return q
    normed = q_norm is not None or k_norm is not None
    whole = 2 * triton.next_power_of_2(half) if normed else 0
    tile = tile_for(m, len(weight), inner, whole=whole, size=gained.element_size())
    assert gained.is_contiguous() and weight.is_contiguous() and keys.is_contiguous() and values.is_contiguous()
    grid = (triton.cdiv(m, tile.rows), total * triton.cdiv(half, tile.outputs // 2))
    _qkv_kernel[grid](
        gained,
        squares,
        weight,
        cos,
        sin,
        positions.contiguous(),
        cache_indices.contiguous(),
        q_norm,
        k_norm,
        q,
        keys,
        values,
        m,
        eps,
        HEADS=heads,
        KV_HEADS=kv_heads,
        PAGE=page,
        HALF=half,
        **_options(tile, gained, squares),
    )
    return q


def normed_swiglu(gained: Tensor, squares: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As fused.normed_swiglu_reference."""
    (m, inner), width = gained.shape, len(weight) // 2
    out = torch.empty(m, width, device=gained.device, dtype=gained.dtype)
    assert gained.is_contiguous() and weight.is_contiguous()
    if m > 0:
        tile = tile_for(m, 2 * width, inner, size=gained.element_size())
        _gate_kernel[(triton.cdiv(m, tile.rows), triton.cdiv(width, tile.outputs // 2))](
            gained, squares, weight, out, m, eps, WIDTH=width, **_options(tile, gained, squares)
        )
    return out


def product_add(a: Tensor, weight: Tensor, x: Tensor, gain: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As fused.product_add_reference, but that a row's squares are summed in as many parts as there are tiles."""
    m, (n, inner) = len(a), weight.shape
    out, gained = torch.empty_like(x), torch.empty_like(x)
    assert a.is_contiguous() and x.is_contiguous() and weight.is_contiguous()
    tile = tile_for(max(1, m), n, inner, size=a.element_size())
    grid = (triton.cdiv(m, tile.rows), triton.cdiv(n, tile.outputs))
    squares = torch.empty(m, grid[1], device=x.device, dtype=torch.float32)
    if m > 0:
        _product_kernel[grid](a, None, weight, x, gain, out, gained, squares, m, 0.0, N=n, **_options(tile, a))
    return out, gained, squares


def small_product(a: Tensor, weight: Tensor, squares: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """As fused.small_product_reference."""
    (m, inner), n = a.shape, len(weight)
    out = torch.empty(m, n, device=a.device, dtype=a.dtype)
    assert a.is_contiguous() and weight.is_contiguous()
    if m > 0:
        tile = tile_for(m, n, inner, size=a.element_size())
        _product_kernel[(triton.cdiv(m, tile.rows), triton.cdiv(n, tile.outputs))](
            a, squares, weight, None, None, out, None, None, m, eps, N=n, **_options(tile, a, squares)
        )
    return out
