"""A dense decoder over paged keys and values. The target of the runtime.

Implements `base.DecoderTarget`.
Shapes: M rows, D hidden, V vocabulary, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsbench.kernels.fused.products import await_weights, embed
from dsbench.kernels.linear import Projection
from dsbench.kernels.norm import add_norm
from dsbench.kernels.rope import rotary_table, scaled_rotary_table
from dsbench.kernels.swiglu import gated
from dsbench.runtime.batch import Batch
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import MARGIN, Accepted
from dsbench.runtime.targets.fused import fused_layer, runs_fused
from dsbench.runtime.targets.layer import attend, layer_weights, take_tensor, wide_gain
from dsbench.runtime.targets.rotary import Rope
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.targets.tensors import EMBEDDING, HEAD, NORM


class DenseTarget:
    """Weights and shape of the model whose distribution is kept. Stateless: keys and values live in a StatePool.

    `exact`: a row's logits, taps, keys and values have the same bits whatever rows are run beside it.
    """

    def __init__(self, shape: ModelShape, weights: dict[str, Tensor], *, digest: str, exact: bool = False) -> None:
        self.shape, self.exact = shape, exact
        self.digest = digest
        table = (shape.vocab, shape.hidden)
        self.embedding = take_tensor(weights, EMBEDDING, table)
        self.head = self.embedding if shape.tied else take_tensor(weights, HEAD, table)
        self.unembed = Projection(self.head, exact=exact)
        self.norm = wide_gain(take_tensor(weights, NORM, (shape.hidden,)), shape.traits)
        self.layers = [layer_weights(shape, weights, f"model.layers.{i}.", exact=exact) for i in range(shape.layers)]
        self.dtype, self.device = self.embedding.dtype, self.embedding.device
        self.positions = shape.context + MARGIN
        self.turns = self._turns()
        self.cos, self.sin = self.turns[0]
        await_weights(self.device)

    def _turns(self) -> list[tuple[Tensor, Tensor]]:
        """The rotary table of each layer; equal ones are one.

        A score's scale that is not the kernel's own (head width ** -0.5) is half in the queries' table and half in
        the keys', which are the same.
        """
        shape, traits = self.shape, self.shape.traits
        if not traits.ropes and traits.score_scale is None:
            return [rotary_table(self.positions, shape.head_width, shape.rope_theta, self.device)] * shape.layers
        plain = tuple(shape.rope_theta ** (-2 * i / shape.head_width) for i in range(shape.head_width // 2))
        ropes = traits.ropes or (Rope(frequencies=plain),) * shape.layers
        gain = 1.0 if traits.score_scale is None else (traits.score_scale * shape.head_width**0.5) ** 0.5
        tables = {
            rope: scaled_rotary_table(self.positions, rope.frequencies, rope.scale, gain, self.device)
            for rope in set(ropes)
        }
        return [tables[rope] for rope in ropes]

    def forward(self, batch: Batch, state: StatePool, taps: tuple[int, ...] = ()) -> tuple[Tensor, Tensor]:
        """Logits [M or len(logit_rows), V] in the model's dtype, and tapped layer outputs [M, len(taps) * D].

        Writes the rows' keys and values into the pages at their positions; a tap is the residual stream after a layer,
        and the tap one past the last layer is the output of the final norm.
        """
        fused = self.shape.traits.fusable and runs_fused(self.shape, batch.rows, self.embedding, exact=self.exact)
        h, tapped = (self._fused if fused else self._unfused)(batch, state, taps)
        if len(self.layers) in taps:
            tapped.append(h)
        logits = self._logits(h if batch.logit_rows is None else h[batch.logit_rows])
        return logits, torch.cat(tapped, dim=-1) if tapped else h.new_empty(h.shape[0], 0)

    def commit(self, state: StatePool, verdict: Accepted) -> None:
        """Does nothing: rejected rows lie past the committed length, where the next pass writes before it reads."""

    def _logits(self, h: Tensor) -> Tensor:
        """[M, V] of the final norm's output [M, D]."""
        logits, traits = self.unembed(h), self.shape.traits
        if traits.logit_scale != 1.0:
            logits = logits / traits.logit_scale
        return logits if traits.logit_cap is None else torch.tanh(logits / traits.logit_cap) * traits.logit_cap

    def _embedded(self, ids: Tensor) -> Tensor:
        """[M, D]; the scale is rounded to the model's dtype first, as in the published classes."""
        x, scale = self.embedding[ids], self.shape.traits.embed_scale
        return x if scale == 1.0 else x * float(torch.tensor(scale, dtype=self.dtype))

    def _unfused(self, batch: Batch, pool: StatePool, taps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """Normed states [M, D] after the last layer, and the tapped ones before."""
        shape, slots, windows = self.shape, pool.cache_indices(batch), self.shape.traits.windows
        after = shape.traits.norms == "after"
        reads = [None if after else layer.input_norm for layer in self.layers] + [self.norm]
        x, h = self._added(self._embedded(batch.ids), None, reads[0])
        tapped: list[Tensor] = []
        for index, layer in enumerate(self.layers):
            window = windows[index] if windows else None
            turns, kept = self.turns[index], pool.layer(index)
            mixed = attend(layer, shape, h, turns, batch, slots, kept, causal=True, window=window)
            mixed = self._scaled(mixed, layer.input_norm if after else layer.after_attention)
            x, h = self._added(x, mixed, None if after else layer.mlp_norm)
            made = layer.down(gated(layer.gate_up(h), shape.traits.activation))
            made = self._scaled(made, layer.mlp_norm if after else layer.after_mlp)
            x, h = self._added(x, made, reads[index + 1])
            if index in taps:
                tapped.append(x)
        return h, tapped

    def _scaled(self, delta: Tensor, gain: Tensor | None) -> Tensor:
        """What a layer adds [M, D], after the norm and the scale that it may have."""
        if gain is not None:
            delta = add_norm(delta, None, gain, self.shape.norm_eps)[1]
        scale = self.shape.traits.residual_scale
        return delta if scale == 1.0 else delta * scale

    def _added(self, x: Tensor, delta: Tensor | None, gain: Tensor | None) -> tuple[Tensor, Tensor]:
        """The residual stream x + delta [M, D], and its norm; itself without a gain."""
        if gain is not None:
            return add_norm(x, delta, gain, self.shape.norm_eps)
        x = x if delta is None else x + delta
        return x, x

    def _fused(self, batch: Batch, pool: StatePool, taps: tuple[int, ...]) -> tuple[Tensor, list[Tensor]]:
        """As `_unfused`, but for rounding."""
        gains = [layer.input_norm for layer in self.layers] + [self.norm]
        slots, windows = pool.cache_indices(batch), self.shape.traits.windows
        stream, tapped = embed(batch.ids, self.embedding, gains[0]), list[Tensor]()
        for index, layer in enumerate(self.layers):
            gain, kept = gains[index + 1], pool.layer(index)
            window, turns = windows[index] if windows else None, self.turns[index]
            stream = fused_layer(layer, self.shape, stream, turns, batch, slots, kept, gain, causal=True, window=window)
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
