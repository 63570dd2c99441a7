"""A dense decoder (Llama and Qwen3 layouts) over paged keys and values. The target of the runtime.

`forward(batch) -> logits, taps` runs exactly the packed rows; it neither samples nor decides what is kept.
Shapes: M rows, D hidden, V vocabulary, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsbench.kernels.attention import paged_attention
from dsbench.kernels.fused.products import await_weights, embed
from dsbench.kernels.linear import Projection
from dsbench.kernels.norm import add_norm
from dsbench.kernels.rope import rotary_table, rotate_and_store
from dsbench.kernels.swiglu import swiglu
from dsbench.runtime.batch import Batch
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.fused import fused_layer, runs_fused
from dsbench.runtime.targets.layer import Layer, layer_weights, take_tensor
from dsbench.runtime.targets.shape import ModelShape

MARGIN = 128  # rotary positions past the context: a rectangular block may reach there, and is never committed


class DenseTarget:
    """Weights and shape of the model whose distribution is kept. Stateless: keys and values live in a StatePool.

    `exact`: a row's logits, taps, keys and values have the same bits whatever rows are run beside it.
    """

    def __init__(self, shape: ModelShape, weights: dict[str, Tensor], *, digest: str, exact: bool = False) -> None:
        self.shape, self.exact = shape, exact
        self.digest = digest
        table = (shape.vocab, shape.hidden)
        self.embedding = take_tensor(weights, "model.embed_tokens.weight", table)
        self.head = self.embedding if shape.tied else take_tensor(weights, "lm_head.weight", table)
        self.unembed = Projection(self.head, exact=exact)
        self.norm = take_tensor(weights, "model.norm.weight", (shape.hidden,))
        self.layers = [layer_weights(shape, weights, f"model.layers.{i}.", exact=exact) for i in range(shape.layers)]
        self.norms = [*(layer.input_norm for layer in self.layers), self.norm]
        self.dtype, self.device = self.norm.dtype, self.norm.device
        self.cos, self.sin = rotary_table(shape.context + MARGIN, shape.head_width, shape.rope_theta, self.device)
        await_weights(self.device)

    def forward(self, batch: Batch, pool: StatePool, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Logits [M or len(logit_rows), V] in the model's dtype, and tapped layer outputs [M, len(taps) * D].

        Writes the rows' keys and values into the pool at their positions; a tap is the residual stream after a layer,
        and the tap one past the last layer is the output of the final norm.
        """
        fused = runs_fused(self.shape, batch.rows, self.norm, exact=self.exact)
        h, tapped = (self._fused if fused else self._plain)(batch, pool, taps)
        if len(self.layers) in taps:
            tapped.append(h)
        logits = self.unembed(h if batch.logit_rows is None else h[batch.logit_rows])
        return logits, torch.cat(tapped, dim=-1) if tapped else h.new_empty(h.shape[0], 0)

    def _plain(self, batch: Batch, pool: StatePool, taps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """Normed states [M, D] after the last layer, and the tapped ones before."""
        slots, turns, eps = pool.cache_indices(batch), (self.cos, self.sin), self.shape.norm_eps
        x, h = add_norm(self.embedding[batch.ids], None, self.norms[0], eps)
        tapped: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            mixed = attend(layer, self.shape, h, turns, batch, slots, pool.layer(index), causal=True)
            x, h = add_norm(x, mixed, layer.mlp_norm, eps)
            x, h = add_norm(x, layer.down(swiglu(layer.gate_up(h))), self.norms[index + 1], eps)
            if index in taps:
                tapped.append(x)
        return h, tapped

    def _fused(self, batch: Batch, pool: StatePool, taps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """As `_plain`, but for rounding."""
        slots, turns = pool.cache_indices(batch), (self.cos, self.sin)
        stream, tapped = embed(batch.ids, self.embedding, self.norms[0]), list[Tensor]()
        for index, layer in enumerate(self.layers):
            stream = fused_layer(
                layer, self.shape, stream, turns, batch, slots, pool.layer(index), self.norms[index + 1], causal=True
            )
            if index in taps:
                tapped.append(stream.x)
        return add_norm(stream.x, None, self.norm, self.shape.norm_eps)[1], tapped


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


def random_weights(shape: ModelShape, device: torch.device, dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    """Random weights at true size (std 0.02, norms 1): for cost work only."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=dtype) * 0.02

    q, kv, d = shape.heads * shape.head_width, shape.kv_heads * shape.head_width, shape.hidden
    one = torch.ones(d, device=device, dtype=dtype)
    weights = {"model.embed_tokens.weight": noise(shape.vocab, d), "model.norm.weight": one}
    if not shape.tied:
        weights["lm_head.weight"] = noise(shape.vocab, d)
    for i in range(shape.layers):
        p = f"model.layers.{i}."
        weights |= {p + "input_layernorm.weight": one, p + "post_attention_layernorm.weight": one}
        weights |= {p + "self_attn.q_proj.weight": noise(q, d), p + "self_attn.o_proj.weight": noise(d, q)}
        weights |= {p + f"self_attn.{n}_proj.weight": noise(kv, d) for n in "kv"}
        weights |= {p + f"mlp.{n}_proj.weight": noise(shape.mlp, d) for n in ("gate", "up")}
        weights[p + "mlp.down_proj.weight"] = noise(d, shape.mlp)
        if shape.qk_norm:
            head = torch.ones(shape.head_width, device=device, dtype=dtype)
            weights |= {p + "self_attn.q_norm.weight": head, p + "self_attn.k_norm.weight": head}
    return weights
