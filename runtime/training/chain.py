"""The MTP baseline as a trainable module: one causal layer applied to its own output, unrolled over the chain's steps.

Row of token x_i at position i: fc [h_{i-1}; norm(E x_i)] -> layer -> norm -> m_i, which predicts x_{i+1}. h is the
target's last hidden state; at chained step k > 1 it is m_{i-1} of step k - 1. Keys and values of earlier positions are
those a run would hold: of step 1 up to i - k + 1, then one of each later step (the unrolling of EAGLE-3, 2503.01840).
Shapes: B sequences, S positions, A anchors, G steps, R = B * A * G, D hidden.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dsbench.runtime.drafters.checkpoint import DrafterShape
from dsbench.runtime.training.batches import Blocks
from dsbench.runtime.training.module import Confidences, DraftLayer, linear, norm


class ChainModule(nn.Module):
    """Parameters by their names in an MTP checkpoint."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        d = shape.layer.hidden
        self.shape = shape
        self.fc = nn.Linear(2 * d, d, bias=False)
        self.embed_norm, self.norm = nn.RMSNorm(d), nn.RMSNorm(d)
        self.layers = nn.ModuleList([DraftLayer(shape.layer)])
        self.confidences = Confidences(d, d)

    @property
    def w2(self) -> Tensor | None:
        return None

    def inputs(self, blocks: Blocks, cos: Tensor, sin: Tensor) -> tuple[Tensor, ...]:
        return blocks.taps, blocks.text, blocks.anchor, cos, sin

    def forward(self, last: Tensor, text: Tensor, anchor: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [R, D] of every anchor's G steps, twice: for the head and for the confidences.

        last [B, S, D] target states, text [B, S, D] token embeddings, anchor [B, A].
        """
        layer, eps, s = self.layers[0], self.shape.layer.norm_eps, last.shape[1]
        assert isinstance(layer, DraftLayer)
        cos, sin = cos[:s], sin[:s]
        token = norm(text, self.embed_norm, eps)
        behind = torch.arange(s, device=last.device)[:, None] - torch.arange(s, device=last.device)  # query - key
        hidden = last
        keys: list[Tensor] = []
        values: list[Tensor] = []
        steps: list[Tensor] = []
        for k in range(self.shape.block):
            u = linear(torch.cat([F.pad(hidden, (0, 0, 1, -1)), token], dim=-1), self.fc)
            h = norm(u, layer.input_layernorm, eps)
            key, value = layer.keys_values(h, cos, sin)
            keys, values = [*keys, key], [*values, value]
            seen = torch.cat([behind >= k, *(behind == k - j for j in range(1, k + 1))], dim=1)
            bias = torch.zeros(seen.shape, dtype=u.dtype, device=u.device).masked_fill(~seen, float("-inf"))
            q = layer.queries(h, cos, sin)
            # a position before the k-th sees nothing and is unused; its own key keeps the softmax finite
            mixed = F.scaled_dot_product_attention(
                q,
                torch.cat(keys, dim=2),
                torch.cat(values, dim=2),
                attn_mask=bias[None, None].expand(q.shape[0], 1, -1, -1),
            )
            hidden = norm(layer.finish(u, mixed), self.norm, eps)
            steps.append(hidden)
        at = anchor[..., None] + torch.arange(self.shape.block, device=anchor.device)  # [B, A, G]
        rows = torch.arange(anchor.shape[0], device=anchor.device)[:, None]
        picked = [steps[k][rows, at[..., k].clamp(max=s - 1)] for k in range(self.shape.block)]
        x = torch.stack(picked, dim=2).flatten(0, 2)
        return x, x
