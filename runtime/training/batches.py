"""From cached features to one training batch: random anchors, their blocks, the mask. All on the device, no syncs.

Source of the packing: DeepSpec. A block at anchor a sees context strictly before a, and itself; depth k predicts the
token at a + k + 1 (k from 0), whose target law is that of position a + k.
Shapes: B sequences, S width, A anchors a sequence, G block, R = B * A * G rows, m taps, D hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.training.features import Features

DECAY = 4.0  # depth k weighs exp(-k / DECAY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What R rows are trained towards: the target's law at each row, and the next token of the text."""

    last: Tensor  # [R, D] the target's hidden state
    lse: Tensor  # [R] fp32 log-sum-exp of its logits
    greedy: Tensor  # [R] bool: the text was drawn at temperature 0
    label: Tensor  # [R] int64 index into the draft vocabulary, -1 outside it
    weight: Tensor  # [R] fp32, sums to 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """One batch. Padding rows have weight 0 and finite contents."""

    # what the drafter sees
    taps: Tensor  # [B, S, m * D]
    anchor: Tensor  # [B, A] int64 positions
    embedded: Tensor  # [B, A, G, D] the embeddings of `previous`; a block begins with its anchor's
    previous: Tensor  # [B, A, G] int64 the token before each depth's
    bias: Tensor  # [B, 1, A * G, S + A * G] 0 or -inf; empty for a chain
    text: Tensor  # [B, S, D] the sequences' token embeddings, for a chain; empty otherwise
    # what it is trained towards
    goals: Goals
    valid: Tensor  # [B, A, G] bool


class BatchMaker:
    """Makes batches from what they share: the features, the draft vocabulary's inverse, the part of the mask within
    blocks.
    """

    def __init__(
        self,
        features: Features,
        target: DecoderTarget,
        vocabulary: Tensor,
        *,
        width: int,
        anchors: int,
        block: int,
        window: int | None = None,
        chain: bool = False,
    ) -> None:
        assert anchors <= width, f"{anchors} anchors do not fit into {width} positions"
        self.features, self.embedding = features, target.embedding
        self.width, self.anchors, self.block, self.window, self.chain = width, anchors, block, window, chain
        device = target.device
        self.inverse = torch.full((target.shape.vocab,), -1, dtype=torch.int64, device=device)
        self.inverse[vocabulary.long()] = torch.arange(vocabulary.shape[0], device=device)
        self.at = torch.arange(width, device=device)
        self.depths = torch.arange(block, device=device)
        block_of = torch.arange(anchors * block, device=device) // block
        self.within = self._bias(block_of[:, None] == block_of[None])
        self.decay = torch.exp(-self.depths / DECAY)

    def _bias(self, seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, dtype=self.embedding.dtype, device=seen.device).masked_fill(~seen, float("-inf"))

    def make(self, sequences: Tensor, generator: torch.Generator) -> Blocks:
        """Blocks of `sequences` [B] int64; anchors: distinct answer tokens that have a successor."""
        f, (b, a, g) = self.features, (sequences.shape[0], self.anchors, self.block)
        start, last = f.start[sequences][:, None], f.length[sequences][:, None] - 1
        draw = torch.rand(b, self.width, generator=generator, device=self.at.device)
        prompt = f.prompt[sequences][:, None]
        candidate = (self.at >= prompt) & (self.at < last)
        top, anchor = draw.masked_fill(~candidate, -1.0).topk(a, dim=1)
        real = top >= 0
        anchor = torch.where(real, anchor, prompt)
        at = anchor[..., None] + self.depths  # [B, A, G] positions whose target law each depth is trained towards
        valid = real[..., None] & (at < last[..., None])
        row = start[..., None] + torch.minimum(at, last[..., None])
        following = f.ids[start[..., None] + torch.minimum(at + 1, last[..., None])].long()
        previous = f.ids[row].long()
        weight = valid * self.decay
        nothing = self.embedding.new_empty(0)
        inside = start + torch.minimum(self.at, last)  # [B, S] rows of the features, the last one repeated as padding
        per_row = torch.Size((b, a, g))
        return Blocks(
            taps=f.last[inside] if self.chain else f.taps[inside],
            anchor=anchor,
            embedded=self.embedding[previous],
            previous=previous,
            bias=nothing if self.chain else self._mask(anchor),
            text=self.embedding[f.ids[inside].long()] if self.chain else nothing,
            goals=Goals(
                last=f.last[row.flatten()],
                lse=f.lse[row.flatten()],
                greedy=f.greedy[sequences][:, None, None].expand(per_row).flatten(),
                label=self.inverse[following.flatten()],
                weight=(weight / weight.sum()).flatten(),
            ),
            valid=valid,
        )

    def _mask(self, anchor: Tensor) -> Tensor:
        """[B, 1, A * G, S + A * G] additive: context before the anchor, within the window where there is one."""
        (b, a), g = anchor.shape, self.block
        bias = torch.empty(b, 1, a * g, self.width + a * g, dtype=self.embedding.dtype, device=anchor.device)
        seen = (self.at < anchor[..., None])[:, :, None].expand(b, a, g, -1)
        if self.window is not None:
            seen = seen & (anchor[..., None, None] + self.depths[:, None] - self.at < self.window)
        bias[..., : self.width] = self._bias(seen.flatten(1, 2))[:, None]
        bias[..., self.width :] = self.within
        return bias
