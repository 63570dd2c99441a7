"""Forward passes of a dense target over padded rows without paging: prefill for generation, features for training. No
sampling.

Shapes: n sequences, S positions (right-padded), D hidden, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from dsbench.kernels.norm import rms_norm
from dsbench.kernels.rope import rotate
from dsbench.kernels.swiglu import swiglu_reference
from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.targets.layer import Layer
from dsbench.runtime.targets.shape import ModelShape


@contextmanager
def attention_by(device: torch.device, *backends: SDPBackend) -> Iterator[None]:
    """Restricts scaled_dot_product_attention to `backends` on CUDA; no effect on the CPU."""
    if device.type != "cuda":
        yield
        return
    with sdpa_kernel(list(backends)):
        yield


def masked_attention(device: torch.device) -> AbstractContextManager[None]:
    """For dense additive masks of many shapes, for each of which cuDNN would build a plan."""
    return attention_by(device, SDPBackend.EFFICIENT_ATTENTION)


def training_attention(device: torch.device, dtype: torch.dtype) -> AbstractContextManager[None]:
    """For dense additive masks of one shape: cuDNN, or efficient attention in fp32, which cuDNN lacks."""
    by = SDPBackend.EFFICIENT_ATTENTION if dtype == torch.float32 else SDPBackend.CUDNN_ATTENTION
    return attention_by(device, by)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The target's RMS norm as the one fused kernel of torch: it differs from `rms_norm` by bf16 rounding only."""
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def split_heads(qkv: Tensor, shape: ModelShape, layer: Layer) -> tuple[Tensor, Tensor, Tensor]:
    """q [M, H, E], k and v [M, K, E] from the fused projection, per-head norms applied where the layout has them."""
    width = shape.head_width
    q, k, v = torch.split(qkv, [shape.heads * width, shape.kv_heads * width, shape.kv_heads * width], dim=-1)
    q, k, v = (part.reshape(*part.shape[:-1], -1, width) for part in (q, k, v))
    if layer.q_norm is not None and layer.k_norm is not None:
        q, k = rms_norm(q, layer.q_norm, shape.norm_eps), rms_norm(k, layer.k_norm, shape.norm_eps)
    return q, k, v


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """SwiGLU: (silu(gate) * up) projected down; gate_up [2I, D] is gate over up, down [D, I]."""
    return F.linear(swiglu_reference(F.linear(x, gate_up)), down)


def padded_forward(
    target: DecoderTarget,
    ids: Tensor,
    taps: tuple[int, ...] = (),
    keep: Callable[[int, Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, Tensor]:
    """Last normed hidden [n, S, D] and tapped states [n, S, len(taps) * D] of right-padded ids [n, S].

    Padding is on the right, so causal attention keeps it out of every real row. `keep(layer, k, v)` is handed the
    rotated keys and the values [n, K, S, E] of each layer.
    """
    shape, (n, length) = target.shape, ids.shape
    cos, sin = target.cos[:length], target.sin[:length]
    group = shape.heads // shape.kv_heads
    x = target.embedding[ids]
    tapped: list[Tensor] = []
    for index, layer in enumerate(target.layers):
        q, k, v = split_heads(F.linear(norm(x, layer.input_norm, shape.norm_eps), layer.qkv.weight), shape, layer)
        q, k, v = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2), v.transpose(1, 2)
        if keep is not None:
            keep(index, k, v)
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        with attention_by(x.device, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(mixed.transpose(1, 2).reshape(n, length, -1), layer.output.weight)
        x = x + gated_mlp(norm(x, layer.mlp_norm, shape.norm_eps), layer.gate_up.weight, layer.down.weight)
        if index in taps:
            tapped.append(x)
    last = norm(x, target.norm, shape.norm_eps)
    if len(target.layers) in taps:
        tapped.append(last)
    return last, torch.cat(tapped, dim=-1) if tapped else x.new_empty(n, length, 0)
