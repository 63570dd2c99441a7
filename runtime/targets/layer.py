"""The weights of one decoder layer, as the unfused and the fused layer read them, and its attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.errors import UsageError
from dsbench.kernels.attention import paged_attention
from dsbench.kernels.linear import Projection
from dsbench.kernels.rope import rotate_and_store
from dsbench.runtime.batch import Batch
from dsbench.runtime.targets.shape import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one decoder layer, projections fused row-wise."""

    input_norm: Tensor  # [D]
    qkv: Projection  # [(H + 2K) E, D]
    output: Projection  # [D, H E]
    mlp_norm: Tensor  # [D]
    gate_up: Projection  # [2 I, D]
    down: Projection  # [D, I]
    q_norm: Tensor | None  # [E]
    k_norm: Tensor | None  # [E]


def layer_weights(shape: ModelShape, weights: dict[str, Tensor], prefix: str, *, exact: bool = False) -> Layer:
    """One layer from Hugging Face names under `prefix`. Raises UsageError naming a tensor that lacks or misfits."""
    d, q, kv = shape.hidden, shape.heads * shape.head_width, shape.kv_heads * shape.head_width

    def take(name: str, *size: int) -> Tensor:
        return take_tensor(weights, prefix + name + ".weight", size)

    def project(*parts: Tensor) -> Projection:
        return Projection(parts[0] if len(parts) == 1 else torch.cat(parts), exact=exact)

    return Layer(
        input_norm=take("input_layernorm", d),
        qkv=project(take("self_attn.q_proj", q, d), take("self_attn.k_proj", kv, d), take("self_attn.v_proj", kv, d)),
        output=project(take("self_attn.o_proj", d, q)),
        mlp_norm=take("post_attention_layernorm", d),
        gate_up=project(take("mlp.gate_proj", shape.mlp, d), take("mlp.up_proj", shape.mlp, d)),
        down=project(take("mlp.down_proj", d, shape.mlp)),
        q_norm=take("self_attn.q_norm", shape.head_width) if shape.qk_norm else None,
        k_norm=take("self_attn.k_norm", shape.head_width) if shape.qk_norm else None,
    )


def attend(
    layer: Layer,
    shape: ModelShape,
    h: Tensor,
    turns: tuple[Tensor, Tensor],
    batch: Batch,
    slots: Tensor,
    kept: tuple[Tensor, Tensor],
    *,
    causal: bool,
    window: int | None = None,
) -> Tensor:
    """What a layer's attention adds to rows whose normed states are h [M, D].

    Writes their keys and values into `kept`, the layer's pages, at `slots` [M]; `turns` are the rotary tables.
    """
    q = rotate_and_store(
        layer.qkv(h),
        *turns,
        batch.positions,
        slots,
        *kept,
        q_norm=layer.q_norm,
        k_norm=layer.k_norm,
        eps=shape.norm_eps,
    )
    mixed = paged_attention(
        q, *kept, batch.pages, batch.cu_rows, batch.context, causal=causal, window=window, most_rows=batch.most_rows
    )
    return layer.output(mixed.flatten(1))


def take_tensor(weights: dict[str, Tensor], name: str, size: tuple[int, ...]) -> Tensor:
    """The tensor of that name and size. Raises UsageError if it lacks or misfits."""
    tensor = weights.get(name)
    if tensor is None:
        raise UsageError(f"the checkpoint lacks the tensor {name}", hint="config.json may belong to another model")
    if tuple(tensor.shape) != size:
        raise UsageError(f"tensor {name} has shape {list(tensor.shape)}, the config says {list(size)}")
    return tensor
