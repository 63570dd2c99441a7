"""A dense decoder (Llama and Qwen3 layouts) over paged keys and values. The target of the runtime.

Implements `base.DecoderTarget`.
Shapes: M rows, D hidden, V vocabulary, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsbench.kernels.fused.products import embed, settle
from dsbench.kernels.linear import Projection
from dsbench.kernels.norm import add_norm
from dsbench.kernels.rope import rotary_table
from dsbench.kernels.swiglu import swiglu
from dsbench.runtime.batch import Batch
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import MARGIN, Accepted
from dsbench.runtime.targets.fused import fused_layer, runs_fused
from dsbench.runtime.targets.layer import attend, layer_weights, take_tensor
from dsbench.runtime.targets.shape import ModelShape


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
        self.positions = shape.context + MARGIN
        self.cos, self.sin = rotary_table(self.positions, shape.head_width, shape.rope_theta, self.device)
        settle(self.device)

    def forward(self, batch: Batch, state: StatePool, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Logits [M or len(logit_rows), V] in the model's dtype, and tapped layer outputs [M, len(taps) * D].

        Writes the rows' keys and values into the pages at their positions; a tap is the residual stream after a layer,
        and the tap one past the last layer is the output of the final norm.
        """
        fused = runs_fused(self.shape, batch.rows, self.norm, exact=self.exact)
        h, tapped = (self._fused if fused else self._plain)(batch, state, taps)
        if len(self.layers) in taps:
            tapped.append(h)
        logits = self.unembed(h if batch.logit_rows is None else h[batch.logit_rows])
        return logits, torch.cat(tapped, dim=-1) if tapped else h.new_empty(h.shape[0], 0)

    def commit(self, state: StatePool, verdict: Accepted) -> None:
        """Does nothing: rejected rows lie past the committed length, where the next pass writes before it reads."""

    def _plain(self, batch: Batch, pool: StatePool, taps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """Normed states [M, D] after the last layer, and the tapped ones before."""
        slots, turns, eps = pool.slots(batch), (self.cos, self.sin), self.shape.norm_eps
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
        slots, turns = pool.slots(batch), (self.cos, self.sin)
        stream, tapped = embed(batch.ids, self.embedding, self.norms[0]), list[Tensor]()
        for index, layer in enumerate(self.layers):
            stream = fused_layer(
                layer, self.shape, stream, turns, batch, slots, pool.layer(index), self.norms[index + 1], causal=True
            )
            if index in taps:
                tapped.append(stream.x)
        return add_norm(stream.x, None, self.norm, self.shape.norm_eps)[1], tapped


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
