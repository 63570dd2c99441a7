"""How much of a drafter's text the target would accept: analytic, teacher-forced, by depth, on held-out sequences.

Acceptance of slot k given that the ones before passed is sum_v min(q_k, p_k) at T = 1, averaged over real text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsbench.runtime.training.batches import BatchMaker, Blocks
from dsbench.runtime.training.forward import masked_attention
from dsbench.runtime.training.loss import slot_acceptance
from dsbench.runtime.training.module import DrafterModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The target's side of the loss and the rotary table, on the device."""

    head: Tensor  # [V', D] rows of the target's head in the order of the draft vocabulary
    cos: Tensor
    sin: Tensor


def drafter_inputs(blocks: Blocks, heads: Heads) -> tuple[Tensor, ...]:
    """The arguments of `DrafterModule.forward`."""
    return blocks.taps, blocks.anchor, blocks.embedded, blocks.previous, blocks.bias, heads.cos, heads.sin


@torch.no_grad()
def evaluate(
    module: DrafterModule, maker: BatchMaker, heads: Heads, sequences: Tensor, *, batch: int, seed: int
) -> dict[str, Any]:
    """Acceptance by depth, tau, the confidences' mean error over `sequences` [n]; anchors depend on `seed` alone.

    tau = 1 + mean over whole blocks of the sum of running products: expected tokens a round, the bonus included.
    """
    device, g = sequences.device, module.shape.block
    generator = torch.Generator(device=device).manual_seed(seed)
    accepted, slots = torch.zeros(g, device=device), torch.zeros(g, device=device)
    product, wholes = torch.zeros((), device=device), torch.zeros((), device=device)
    error, bias = torch.zeros(2, device=device), torch.zeros(2, device=device)
    w2 = None if module.markov_head is None else module.markov_head.markov_w2.weight
    for rows in torch.split(sequences, batch):
        blocks = maker.make(rows, generator)
        with masked_attention(device):
            x, with_token, free = module(*drafter_inputs(blocks, heads))
        flat = slot_acceptance(x, w2, heads.head, blocks.last, blocks.lse)
        accept, valid = flat.view(-1, g), blocks.valid.view(-1, g)
        accepted += (accept * valid).sum(0)
        slots += valid.sum(0)
        whole = valid.all(dim=1)
        product += (accept.cumprod(dim=1).sum(dim=1) * whole).sum()
        wholes += whole.sum()
        for i, logit in enumerate((with_token, free)):
            off = (logit.sigmoid().view(-1, g) - accept) * valid
            error[i] += off.abs().sum()
            bias[i] += off.sum()
    total = slots.sum().clamp(min=1)
    return {
        "tau": round(1 + (product / wholes.clamp(min=1)).item(), 4),
        "acceptance": [round(a, 4) for a in (accepted / slots.clamp(min=1)).tolist()],
        "confidence_error": [round(e, 4) for e in (error / total).tolist()],
        "confidence_bias": [round(b, 4) for b in (bias / total).tolist()],
        "blocks": int(wholes.item()),
    }
