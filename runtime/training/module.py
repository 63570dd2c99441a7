"""The drafter as a module to train: parameters named as in the checkpoint, forward over many blocks a sequence at once.

Parameters are fp32 masters; arithmetic is in the dtype of the features. The pieces are those of the runtime drafter.
Shapes: B sequences, S context positions, A blocks a sequence, G block, N = A * G, R = B * N, D hidden, r head rank.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsbench.kernels.draft.stats import FEATURES, SHIFT
from dsbench.kernels.norm import rms_norm
from dsbench.kernels.rope import rotate
from dsbench.runtime.drafters.checkpoint import DrafterShape
from dsbench.runtime.drafters.events import EVENTS
from dsbench.runtime.drafters.heads import head_feature, head_shapes, project_tokens, token_width
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.training.batches import Blocks
from dsbench.runtime.training.forward import gated_mlp
from dsbench.runtime.training.loss import ConfidenceLogits

RESIDUAL = EVENTS.index("residual")
NOISE_FREE = 4  # features of the draft law that do not depend on the noise


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
        s, h = context.shape[1], norm(x, self.input_layernorm, self.shape.norm_eps)
        q = self.queries(h, cos[:, s:], sin[:, s:])
        k, v = self.keys_values(torch.cat([context, h], dim=1), cos, sin)
        return self.finish(x, F.scaled_dot_product_attention(q, k, v, attn_mask=bias))

    def queries(self, h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotated queries [B, H, N, E] of normed rows h [B, N, D]; cos, sin [B, N, E/2] or [N, E/2]."""
        attention = self.self_attn
        q = norm(_heads(h, attention.q_proj, self.shape.head_width), attention.q_norm, self.shape.norm_eps)
        return rotate(q, cos, sin).transpose(1, 2)

    def keys_values(self, h: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated keys and values, repeated to all heads: [B, H, N, E] each."""
        attention, group = self.self_attn, self.shape.heads // self.shape.kv_heads
        k = norm(_heads(h, attention.k_proj, self.shape.head_width), attention.k_norm, self.shape.norm_eps)
        v = _heads(h, attention.v_proj, self.shape.head_width)
        k, v = rotate(k, cos, sin).repeat_interleave(group, dim=2), v.repeat_interleave(group, dim=2)
        return k.transpose(1, 2), v.transpose(1, 2)

    def finish(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the layer: adds the attention output [B, H, N, E] to rows x [B, N, D], then the MLP."""
        mlp = self.mlp
        x = x + linear(mixed.transpose(1, 2).flatten(2), self.self_attn.o_proj)
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(x.dtype)
        h = norm(x, self.post_attention_layernorm, self.shape.norm_eps)
        return x + gated_mlp(h, gate_up, mlp.down_proj.weight.to(x.dtype))


class MarkovHead(nn.Module):
    """W1 over the full vocabulary, W2 over the draft vocabulary, and the extra projections of its kind.

    A `deep` head projects the target's embeddings and has no W1.
    """

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        self.kind = shape.head
        if self.kind != "deep":
            self.markov_w1 = nn.Embedding(shape.layer.vocab, shape.rank)
        self.markov_w2 = nn.Linear(shape.rank, shape.draft_vocab, bias=False)
        extra = head_shapes(shape.head, shape.layer.hidden, shape.rank)
        self.projections = tuple(name.removesuffix(".weight") for name in extra if name.endswith(".weight"))
        for name in self.projections:
            rows, columns = extra[name + ".weight"]
            self.add_module(name, nn.Linear(columns, rows, bias=name + ".bias" in extra))

    def tokens(self, previous: Tensor, embedded: Tensor) -> Tensor:
        """e of the token before each depth, [B, A, G, w]; previous ids, embedded [B, A, G, D]."""
        if self.kind != "deep":
            e: Tensor = self.markov_w1(previous)
            return e.to(embedded.dtype)
        assert isinstance(self.token_proj, nn.Linear)
        return project_tokens(embedded, self.token_proj.weight.to(embedded.dtype))

    def extra(self, dtype: torch.dtype) -> dict[str, Tensor]:
        """Weights and biases of the extra projections, as `head_feature` takes them."""
        return {
            f"{name}.{part}": value.to(dtype)
            for name in self.projections
            for part, value in getattr(self, name).named_parameters()
        }


class Confidence(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, 1)


class Confidences(nn.Module):
    """The published heads (one logit) and one head per acceptance event, over the token before or without it.

    Events in the order greedy, coupled, residual. Without the token there are no features of the draft law either.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.confidence_head, self.confidence_head_free = Confidence(width), Confidence(hidden)
        self.confidence_events = nn.Linear(width + FEATURES, len(EVENTS))
        self.confidence_free_events = nn.Linear(hidden, len(EVENTS))

    def forward(self, seen: Tensor, features: Tensor, hidden: int) -> ConfidenceLogits:
        """seen [R, D + r] rows (hidden state first), features [R, FEATURES] of their draft laws.

        The residual event never sees the perturbed margin, which would reveal the token that is drawn.
        """
        seen = seen.float()
        free = seen[:, :hidden]
        blind = torch.cat([features[:, :NOISE_FREE], torch.zeros_like(features[:, NOISE_FREE:])], dim=-1)
        blind[:, -1] = math.log(SHIFT)
        conditioned = self.confidence_events(torch.cat([seen, features], dim=-1))[:, :RESIDUAL]
        residual = self.confidence_events(torch.cat([seen, blind], dim=-1))[:, RESIDUAL:]
        return ConfidenceLogits(
            published=self.confidence_head.proj(seen).squeeze(-1),
            published_free=self.confidence_head_free.proj(free).squeeze(-1),
            events=torch.cat([conditioned, residual], dim=-1),
            free_events=self.confidence_free_events(free),
        )


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
        self.confidences = Confidences(d + token_width(shape.head, shape.rank), d)

    @property
    def w2(self) -> Tensor | None:
        return None if self.markov_head is None else self.markov_head.markov_w2.weight

    def inputs(self, blocks: Blocks, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        """The arguments of `forward`; cos, sin [>= S + G, E/2]: the target's rotary table."""
        return blocks.taps, blocks.anchor, blocks.embedded, blocks.previous, blocks.bias, cos, sin

    def forward(
        self, taps: Tensor, anchor: Tensor, embedded: Tensor, previous: Tensor, bias: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Head input [R, D + r] (hidden, sequential feature) and confidence input [R, D + r] (hidden, token).

        Of `Blocks`: taps [B, S, m D], anchor [B, A], embedded [B, A, G, D], previous [B, A, G], bias [B, 1, N, S + N].
        """
        hidden = self.backbone(taps, anchor, embedded, bias, cos, sin)
        if self.markov_head is None:
            flat = hidden.flatten(0, 2)
            return flat, flat
        e = self.markov_head.tokens(previous, embedded)
        x = torch.cat([hidden, self._features(e, hidden)], dim=-1)
        return x.flatten(0, 2), torch.cat([hidden, e], dim=-1).flatten(0, 2)

    def backbone(
        self, taps: Tensor, anchor: Tensor, embedded: Tensor, bias: Tensor, cos: Tensor, sin: Tensor
    ) -> Tensor:
        """Hidden states [B, A, G, D] after the final norm."""
        (b, s), (a, g), eps = taps.shape[:2], (anchor.shape[1], self.shape.block), self.shape.layer.norm_eps
        context = norm(linear(taps, self.fc), self.hidden_norm, eps)
        at = torch.cat(
            [
                torch.arange(s, device=taps.device).expand(b, s),
                (anchor[..., None] + torch.arange(g, device=taps.device)).flatten(1),
            ],
            dim=1,
        )
        cos, sin = cos[at], sin[at]
        masks = self.mask_embedding.to(taps.dtype).expand(b, a, g - 1, -1)
        x = torch.cat([embedded[:, :, :1], masks], dim=2).flatten(1, 2)
        for layer in self.layers:
            x = layer(x, context, bias, cos, sin)
        return norm(x, self.norm, eps).view(b, a, g, -1)

    def _features(self, e: Tensor, hidden: Tensor) -> Tensor:
        """Input of W2 [B, A, G, r]; depth by depth where the head carries a state."""
        assert self.markov_head is not None
        if self.shape.head == "vanilla":
            return e
        weights = self.markov_head.extra(e.dtype)
        state = e.new_zeros(e.shape[0] * e.shape[1], token_width(self.shape.head, self.shape.rank))
        parts: list[Tensor] = []
        for k in range(e.shape[2]):
            part, state = head_feature(
                self.shape.head, weights, e[:, :, k].flatten(0, 1), hidden[:, :, k].flatten(0, 1), state
            )
            parts.append(part)
        return torch.stack(parts, dim=1).view(*e.shape[:-1], -1)


def linear(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x, layer.weight.to(x.dtype))


def _heads(x: Tensor, layer: nn.Linear, width: int) -> Tensor:
    return linear(x, layer).view(*x.shape[:-1], -1, width)


def norm(x: Tensor, gain: nn.RMSNorm, eps: float) -> Tensor:
    assert gain.weight is not None
    return rms_norm(x, gain.weight.to(x.dtype), eps)
