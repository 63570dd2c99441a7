"""The drafter as a module to train: parameters named as in the checkpoint, forward over many blocks a sequence at once.

Parameters are fp32 masters; arithmetic is in the dtype of the features. The pieces are those of the runtime drafter.
Shapes: B sequences, S context positions, A blocks a sequence, G block, N = A * G, R = B * N, D hidden, r head rank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsbench.runtime.drafters.checkpoint import DrafterShape
from dsbench.runtime.drafters.heads import head_feature, head_shapes
from dsbench.runtime.targets.layers import gated_mlp, rms_norm, rotate
from dsbench.runtime.targets.shape import ModelShape


class Attention(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        d, q, kv = shape.hidden, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
        self.q_proj, self.o_proj = nn.Linear(d, q, bias=False), nn.Linear(q, d, bias=False)
        self.k_proj, self.v_proj = nn.Linear(d, kv, bias=False), nn.Linear(d, kv, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(shape.head_width), nn.RMSNorm(shape.head_width)


class Mlp(nn.Module):
    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (
            nn.Linear(shape.hidden, shape.mlp, bias=False),
            nn.Linear(shape.hidden, shape.mlp, bias=False),
        )
        self.down_proj = nn.Linear(shape.mlp, shape.hidden, bias=False)


class DraftLayer(nn.Module):
    """Holds the parameters of one layer; `forward` runs block rows against context and each other."""

    def __init__(self, shape: ModelShape) -> None:
        super().__init__()
        self.shape = shape
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(shape.hidden), nn.RMSNorm(shape.hidden)
        self.self_attn, self.mlp = Attention(shape), Mlp(shape)

    def forward(self, x: Tensor, context: Tensor, bias: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [B, N, D] block rows; context [B, S, D]; cos, sin [B, S + N, E/2] of context then rows."""
        shape, s, width = self.shape, context.shape[1], self.shape.head_width
        attention, mlp, group = self.self_attn, self.mlp, self.shape.heads // self.shape.kv_heads
        h = _norm(x, self.input_layernorm, shape.norm_eps)
        seen = torch.cat([context, h], dim=1)
        q = _norm(_heads(h, attention.q_proj, width), attention.q_norm, shape.norm_eps)
        k = _norm(_heads(seen, attention.k_proj, width), attention.k_norm, shape.norm_eps)
        v = _heads(seen, attention.v_proj, width)
        q, k = rotate(q, cos[:, s:], sin[:, s:]), rotate(k, cos, sin)
        k, v = k.repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=bias)
        x = x + _linear(mixed.transpose(1, 2).flatten(2), attention.o_proj)
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(x.dtype)
        h = _norm(x, self.post_attention_layernorm, shape.norm_eps)
        return x + gated_mlp(h, gate_up, mlp.down_proj.weight.to(x.dtype))


class MarkovHead(nn.Module):
    """W1 over the full vocabulary, W2 over the draft vocabulary, and the extra projection of its kind."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(shape.layer.vocab, shape.rank)
        self.markov_w2 = nn.Linear(shape.rank, shape.draft_vocab, bias=False)
        extra = head_shapes(shape.head, shape.layer.hidden, shape.rank)
        self.projections = tuple(name.removesuffix(".weight") for name in extra if name.endswith(".weight"))
        for name in self.projections:
            rows, columns = extra[name + ".weight"]
            self.add_module(name, nn.Linear(columns, rows))

    def extra(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Weights and biases of the extra projection, as `head_feature` takes them."""
        found: dict[str, Tensor] = {}
        for name in self.projections:
            layer = getattr(self, name)
            found[name + ".weight"], found[name + ".bias"] = layer.weight.to(dtype), layer.bias.to(dtype)
        return found


class Confidence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class DrafterModule(nn.Module):
    """All parameters of a checkpoint, by its names. `shape.mask_token` must be None: the mask vector is learned."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        assert shape.mask_token is None and shape.confidence, "this module trains the mask vector and the confidences"
        d = shape.layer.hidden
        self.shape = shape
        self.fc = nn.Linear(len(shape.taps) * d, d, bias=False)
        self.hidden_norm, self.norm = nn.RMSNorm(d), nn.RMSNorm(d)
        self.layers = nn.ModuleList(DraftLayer(shape.layer) for _ in range(shape.layer.layers))
        self.mask_embedding = nn.Parameter(torch.zeros(d))
        self.markov_head = None if shape.head == "none" else MarkovHead(shape)
        self.confidence_head = Confidence(d + (0 if shape.head == "none" else shape.rank))
        self.confidence_head_free = Confidence(d)

    def forward(
        self, taps: Tensor, anchor: Tensor, embedded: Tensor, previous: Tensor, bias: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Head input [R, D + r] (hidden, sequential feature); confidence logits [R] with and without the token, fp32.

        taps [B, S, m D], anchor [B, A], embedded [B, A, D], previous [B, A, G], bias [B, 1, N, S + N] as in `Blocks`;
        cos, sin [>= S + G, E/2]: the target's rotary table.
        """
        hidden = self.backbone(taps, anchor, embedded, bias, cos, sin)
        x, flat = hidden, hidden.flatten(0, 2)
        token_input = flat
        if self.markov_head is not None:
            e = self.markov_head.markov_w1(previous).to(hidden.dtype)
            x = torch.cat([hidden, self._features(e, hidden)], dim=-1)
            token_input = torch.cat([hidden, e], dim=-1).flatten(0, 2)
        with_token = self.confidence_head.proj(token_input.float()).squeeze(-1)
        free = self.confidence_head_free.proj(flat.float()).squeeze(-1)
        return x.flatten(0, 2), with_token, free

    def backbone(
        self, taps: Tensor, anchor: Tensor, embedded: Tensor, bias: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Hidden states [B, A, G, D] after the final norm."""
        (b, s), (a, g), eps = taps.shape[:2], (anchor.shape[1], self.shape.block), self.shape.layer.norm_eps
        context = _norm(_linear(taps, self.fc), self.hidden_norm, eps)
        at = torch.cat(
            [
                torch.arange(s, device=taps.device).expand(b, s),
                (anchor[..., None] + torch.arange(g, device=taps.device)).flatten(1),
            ],
            dim=1,
        )
        cos, sin = cos[at], sin[at]
        masks = self.mask_embedding.to(taps.dtype).expand(b, a, g - 1, -1)
        x = torch.cat([embedded[:, :, None], masks], dim=2).flatten(1, 2)
        for layer in self.layers:
            x = layer(x, context, bias, cos, sin)
        return _norm(x, self.norm, eps).view(b, a, g, -1)

    def _features(self, e: Tensor, hidden: Tensor) -> Tensor:
        """What feeds W2 [B, A, G, r]; slots one after the other where the head carries a state."""
        assert self.markov_head is not None
        if self.shape.head == "vanilla":
            return e
        weights = self.markov_head.extra(e.dtype)
        state = e.new_zeros(e.shape[0] * e.shape[1], e.shape[-1])
        parts: list[Tensor] = []
        for k in range(e.shape[2]):
            part, state = head_feature(
                self.shape.head, weights, e[:, :, k].flatten(0, 1), hidden[:, :, k].flatten(0, 1), state
            )
            parts.append(part)
        return torch.stack(parts, dim=1).view(e.shape)


def _linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x, layer.weight.to(x.dtype))


def _heads(x: Tensor, layer: nn.Linear, width: int) -> Tensor:
    return _linear(x, layer).view(*x.shape[:-1], -1, width)


def _norm(x: Tensor, gain: nn.RMSNorm, eps: float) -> Tensor:
    assert gain.weight is not None
    return rms_norm(x, gain.weight.to(x.dtype), eps)
