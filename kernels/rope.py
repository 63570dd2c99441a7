"""Rotary embedding, and the step between qkv projection and attention: head norm, rotation, write to the KV pages.

Shapes: M rows, H heads, K key-value heads, E head width; cos, sin [positions, E/2] fp32 of all positions; keys, values
[P, K, B, E] (P pages of B tokens); cache_indices [M] int64, page number * B + offset.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsbench.kernels.norm import rms_norm


def rotary_table(positions: int, width: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, width/2] fp32 of the rotary embedding with base `theta`."""
    inverse = theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    return angles.cos().float().to(device), angles.sin().float().to(device)


def scaled_rotary_table(
    positions: int, frequencies: Sequence[float], scale: float, gain: float, device: torch.device
) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, E/2] fp32 of pairs that turn by `frequencies` [E/2] a position.

    `gain` multiplies all of them, `scale` those that turn at all.
    """
    inverse = torch.tensor(frequencies, dtype=torch.float64)
    angles = torch.outer(torch.arange(positions, dtype=torch.float64), inverse)
    by = torch.where(inverse > 0, scale * gain, gain)
    return (angles.cos() * by).float().to(device), (angles.sin() * by).float().to(device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding, half-split layout. x [..., heads, E]; cos, sin [..., E/2] of the rows' positions, fp32."""
    a, b = x.float().chunk(2, dim=-1)
    c, s = cos.unsqueeze(-2), sin.unsqueeze(-2)
    return torch.cat((a * c - b * s, b * c + a * s), dim=-1).to(x.dtype)


def write_rows(keys: Tensor, values: Tensor, cache_indices: Tensor, k: Tensor, v: Tensor) -> None:
    """Stores k, v [M, K, E] of rows at their cache indices. Index -1 lies in the last page, which belongs to no
    request.
    """
    page, offset = cache_indices // keys.shape[2], cache_indices % keys.shape[2]
    keys[page, :, offset] = k.to(keys.dtype)
    values[page, :, offset] = v.to(values.dtype)


def rotate_and_store_reference(
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
    """Rotated queries [M, H, E] of the fused projection's output [M, (H + 2K) E]; keys and values go to their cache
    indices.

    H may be 0: rows that only provide keys and values. q_norm, k_norm [E]: gains of a norm per head, before the
    rotation. A row of index -1 leaves nothing in any request's page.
    """
    kv_heads, width = keys.shape[1], keys.shape[3]
    heads = qkv.shape[1] // width - 2 * kv_heads
    parts = qkv.view(len(qkv), heads + 2 * kv_heads, width)
    q, k, v = torch.split(parts, [heads, kv_heads, kv_heads], dim=1)
    q = q if q_norm is None else rms_norm(q, q_norm, eps)
    k = k if k_norm is None else rms_norm(k, k_norm, eps)
    cos, sin = cos.index_select(0, positions), sin.index_select(0, positions)
    write_rows(keys, values, cache_indices, rotate(k, cos, sin), v)
    return rotate(q, cos, sin)


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
    """As the reference; on CUDA a Triton kernel, which writes nothing at all for a cache index below 0."""
    run = rotate_and_store_reference
    if qkv.device.type == "cuda":
        from dsbench.kernels.rope_triton import rotate_and_store as run
    return run(qkv, cos, sin, positions, cache_indices, keys, values, q_norm=q_norm, k_norm=k_norm, eps=eps)
