"""Products fused with their neighbours in a layer: a pass of few rows is bound by its launches, and has half as many.

A norm's rows cross from one product to the next as they are times the gain, and their squares summed in T parts; the
scale of a row is a factor of its sums. So no product reads a row twice, and none waits for a kernel of its own.
Shapes: M rows, D hidden, I width of the MLP, T parts; H heads, K key-value heads of width E as in rope.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.rope import rotate_and_store_reference
from dsbench.kernels.swiglu import swiglu_reference


class Stream(NamedTuple):
    """The residual stream between two products."""

    x: Tensor  # [M, D]
    gained: Tensor  # [M, D] times the gain of the norm that follows
    squares: Tensor  # [M, T] fp32 parts of the sum of a row's squares


def await_weights(device: torch.device) -> None:
    """Waits until the weights are written: products read them without waiting for the kernels before (pdl.py)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def stream_of(x: Tensor, gain: Tensor) -> Stream:
    y = x.float()
    return Stream(x, (y * gain.float()).to(x.dtype), y.square().sum(-1, keepdim=True))


def embed_reference(ids: Tensor | None, table: Tensor, gain: Tensor) -> Stream:
    """Rows ids [M] of a table [V, D], or all of it."""
    return stream_of(table if ids is None else table[ids], gain)


def small_product_reference(a: Tensor, weight: Tensor, squares: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """a [M, D] times weight [N, D] in fp32, rounded once; with `squares` over the rows' root mean squares."""
    product = F.linear(a.float(), weight.float())
    if squares is not None:
        product = product * (squares.sum(-1, keepdim=True) / a.shape[1] + eps).rsqrt()
    return product.to(a.dtype)


def normed_qkv_reference(
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
    """Rotated queries [M, H, E] of normed rows; keys and values go to their cache indices, as in rope.py."""
    return rotate_and_store_reference(
        small_product_reference(gained, weight, squares, eps),
        cos,
        sin,
        positions,
        cache_indices,
        keys,
        values,
        q_norm=q_norm,
        k_norm=k_norm,
        eps=eps,
    )


def normed_swiglu_reference(gained: Tensor, squares: Tensor, weight: Tensor, eps: float) -> Tensor:
    """silu(gate) * up [M, I] of normed rows; weight [2 I, D], gate first."""
    return swiglu_reference(small_product_reference(gained, weight, squares, eps))


def product_add_reference(a: Tensor, weight: Tensor, x: Tensor, gain: Tensor) -> Stream:
    """x [M, D] plus a [M, N] times weight [D, N], both rounded, and what a norm with this gain [D] needs of it."""
    return stream_of(x + small_product_reference(a, weight), gain)


def embed(ids: Tensor | None, table: Tensor, gain: Tensor) -> Stream:
    """As the reference; on CUDA, as all below, a Triton kernel. No gradients."""
    if table.device.type == "cuda":
        from dsbench.kernels.fused import products_triton as fused_triton

        return Stream(*fused_triton.embed(ids, table, gain))
    return embed_reference(ids, table, gain)


def small_product(a: Tensor, weight: Tensor, squares: Tensor | None = None, eps: float = 0.0) -> Tensor:
    """As the reference."""
    run = small_product_reference
    if a.device.type == "cuda":
        from dsbench.kernels.fused.products_triton import small_product as run
    return run(a, weight, squares, eps)


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
    """As the reference; the kernel writes nothing for a cache index below 0."""
    run = normed_qkv_reference
    if gained.device.type == "cuda":
        from dsbench.kernels.fused.products_triton import normed_qkv as run
    return run(
        gained, squares, weight, cos, sin, positions, cache_indices, keys, values, eps=eps, q_norm=q_norm, k_norm=k_norm
    )


def normed_swiglu(gained: Tensor, squares: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As the reference."""
    run = normed_swiglu_reference
    if gained.device.type == "cuda":
        from dsbench.kernels.fused.products_triton import normed_swiglu as run
    return run(gained, squares, weight, eps)


def product_add(a: Tensor, weight: Tensor, x: Tensor, gain: Tensor) -> Stream:
    """As the reference, but that T is the kernel's choice."""
    if a.device.type == "cuda":
        from dsbench.kernels.fused import products_triton as fused_triton

        return Stream(*fused_triton.product_add(a, weight, x, gain))
    return product_add_reference(a, weight, x, gain)
