"""The weights of one decoder layer, as the unfused and the fused layer read them, and its attention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.errors import UsageError
from dsbench.kernels.attention import paged_attention
from dsbench.kernels.linear import Projection
from dsbench.kernels.norm import add_norm
from dsbench.kernels.rope import rotate_and_store
from dsbench.runtime.batch import Batch
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.targets.tensors import layer_tensors, norm_names
from dsbench.runtime.targets.traits import Traits


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Weights of one decoder layer, projections fused row-wise."""

    input_norm: Tensor  # [D] of what attention reads; where traits.norms is "after", of what it adds
    qkv: Projection  # [(H + 2K) E, D]
    output: Projection  # [D, H E]
    mlp_norm: Tensor  # [D] as input_norm, of the MLP
    gate_up: Projection  # [2 I, D]
    down: Projection  # [D, I]
    q_norm: Tensor | None  # [E], or [H E] over all heads
    k_norm: Tensor | None  # [E], or [K E] over all heads
    after_attention: Tensor | None = None  # [D] of what attention adds, where a layer has both norms
    after_mlp: Tensor | None = None  # [D] of what the MLP adds, likewise


def layer_weights(shape: ModelShape, weights: dict[str, Tensor], prefix: str, *, exact: bool = False) -> Layer:
    """One layer from Hugging Face names under `prefix`. Raises UsageError naming a tensor that lacks or misfits."""
    sizes, traits = layer_tensors(shape), shape.traits

    def take(name: str, kind: str) -> Tensor:
        return take_tensor(weights, prefix + name + kind, sizes[name + kind])

    def joined(names: Sequence[str], kind: str) -> Tensor:
        parts = [take(name, kind) for name in names]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def project(*names: str, turns: bool = False) -> Projection:
        weight = joined(names, ".weight")
        bias = joined(names, ".bias") if names[0] + ".bias" in sizes else None
        if turns and traits.turned is not None:
            weight, bias = turned_apart(weight, shape), None if bias is None else turned_apart(bias, shape)
        return Projection(weight, bias, exact=exact)

    def gain(name: str) -> Tensor:
        return wide_gain(take(name, ".weight"), traits)

    normed = shape.qk_norm or traits.whole_qk_norm
    qkv, gate_up = [f"self_attn.{n}_proj" for n in "qkv"], ["mlp.gate_proj", "mlp.up_proj"]
    norms = {field: gain(name) for field, name in norm_names(shape).items()}
    return Layer(
        qkv=project(*(["self_attn.qkv_proj"] if traits.packed else qkv), turns=True),
        output=project("self_attn.o_proj"),
        gate_up=project(*(["mlp.gate_up_proj"] if traits.packed else gate_up)),
        down=project("mlp.down_proj"),
        q_norm=gain("self_attn.q_norm") if normed else None,
        k_norm=gain("self_attn.k_norm") if normed else None,
        input_norm=norms["input_norm"],
        mlp_norm=norms["mlp_norm"],
        after_attention=norms.get("after_attention"),
        after_mlp=norms.get("after_mlp"),
    )


def wide_gain(stored: Tensor, traits: Traits) -> Tensor:
    """The gain of a norm: in fp32 where it acts there, with what the checkpoint left off."""
    return stored.float() + traits.gain_offset if traits.wide_gains else stored


def turned_apart(rows: Tensor, shape: ModelShape) -> Tensor:
    """Rows [(H + 2K) E, ...] of a qkv map with the turned dimensions of a query or key head split over its halves.

    The rotary embedding pairs dimension i with i + E/2 of a head; where only the first `turned` of E turn, i has to
    pair with i + turned/2. Queries and keys are permuted alike, so that their products stay.
    """
    turned, width = shape.traits.turned or shape.head_width, shape.head_width
    order = torch.arange(width).tensor_split([turned // 2, turned, (turned + width) // 2])
    first = torch.cat([order[0], order[2], order[1], order[3]]).to(rows.device)
    heads = rows.view(shape.heads + 2 * shape.kv_heads, width, *rows.shape[1:])
    turning = shape.heads + shape.kv_heads
    return torch.cat([heads[:turning, first], heads[turning:]]).reshape(rows.shape)


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
    qkv, whole = layer.qkv(h), shape.traits.whole_qk_norm
    q = rotate_and_store(
        _whole_norms(layer, shape, qkv) if whole else qkv,
        *turns,
        batch.positions,
        slots,
        *kept,
        q_norm=None if whole else layer.q_norm,
        k_norm=None if whole else layer.k_norm,
        eps=shape.norm_eps,
    )
    mixed = paged_attention(
        q,
        *kept,
        batch.pages,
        batch.cu_rows,
        batch.context,
        causal=causal,
        window=window,
        most_rows=batch.most_rows,
        cap=shape.traits.score_cap,
    )
    return layer.output(mixed.flatten(1))


def _whole_norms(layer: Layer, shape: ModelShape, qkv: Tensor) -> Tensor:
    """qkv [M, (H + 2K) E] with one norm over all queries of a row and one over all its keys."""
    assert layer.q_norm is not None and layer.k_norm is not None, "such layers have both gains"
    sizes = [shape.heads * shape.head_width, shape.kv_heads * shape.head_width, shape.kv_heads * shape.head_width]
    q, k, v = torch.split(qkv, sizes, dim=-1)
    q = add_norm(q.contiguous(), None, layer.q_norm, shape.norm_eps)[1]
    k = add_norm(k.contiguous(), None, layer.k_norm, shape.norm_eps)[1]
    return torch.cat([q, k, v], dim=-1)


def take_tensor(weights: dict[str, Tensor], name: str, size: tuple[int, ...]) -> Tensor:
    """The tensor of that name and size. Raises UsageError if it lacks or misfits."""
    tensor = weights.get(name)
    if tensor is None:
        raise UsageError(f"the checkpoint lacks the tensor {name}", hint="config.json may belong to another model")
    if tuple(tensor.shape) != size:
        raise UsageError(f"tensor {name} has shape {list(tensor.shape)}, the config says {list(size)}")
    return tensor
