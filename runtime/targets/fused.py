"""A decoder layer on fused products: six launches of which none is a norm, for passes that launches bound.

Shapes: M rows, D hidden. A row's numbers differ from those of the plain layer by rounding alone.
"""

from __future__ import annotations

from torch import Tensor

from dsbench.kernels.attention import paged_attention
from dsbench.kernels.fused.products import Stream, normed_qkv, normed_swiglu, product_add, small_product
from dsbench.kernels.fused.tiles import fuses, turns_in_product
from dsbench.kernels.rope import rotate_and_store
from dsbench.runtime.batch import Batch
from dsbench.runtime.targets.layer import Layer
from dsbench.runtime.targets.shape import ModelShape


def runs_fused(shape: ModelShape, rows: int, like: Tensor, *, exact: bool) -> bool:
    """Whether a pass of so many rows, with states as `like`, is to run on fused layers: in half precision on CUDA."""
    return like.device.type == "cuda" and like.element_size() == 2 and not exact and fuses(shape.hidden, rows)


def fused_layer(
    layer: Layer,
    shape: ModelShape,
    stream: Stream,
    turns: tuple[Tensor, Tensor],
    batch: Batch,
    slots: Tensor,
    kept: tuple[Tensor, Tensor],
    gain: Tensor,
    *,
    causal: bool,
    window: int | None = None,
) -> Stream:
    """The stream after a layer. `gain` [D]: of the norm that follows it; the rest as in dense.attend."""
    q = _queries(layer, shape, stream, turns, batch, slots, kept)
    mixed = paged_attention(
        q, *kept, batch.pages, batch.cu_rows, batch.context, causal=causal, window=window, most_rows=batch.most_rows
    )
    stream = product_add(mixed.flatten(1), layer.output.weight, stream.x, layer.mlp_norm)
    act = normed_swiglu(stream.gained, stream.squares, layer.gate_up.weight, shape.norm_eps)
    return product_add(act, layer.down.weight, stream.x, gain)


def _queries(
    layer: Layer,
    shape: ModelShape,
    stream: Stream,
    turns: tuple[Tensor, Tensor],
    batch: Batch,
    slots: Tensor,
    kept: tuple[Tensor, Tensor],
) -> Tensor:
    """Rotated queries [M, H, E]; where a head's norm would make tiles too large, in two launches."""
    rest, eps = (*turns, batch.positions, slots, *kept), shape.norm_eps
    if turns_in_product(shape.hidden, normed=shape.qk_norm):
        return normed_qkv(
            stream.gained, stream.squares, layer.qkv.weight, *rest, eps=eps, q_norm=layer.q_norm, k_norm=layer.k_norm
        )
    qkv = small_product(stream.gained, layer.qkv.weight, stream.squares, eps)
    return rotate_and_store(qkv, *rest, q_norm=layer.q_norm, k_norm=layer.k_norm, eps=eps)
