"""Acceptance of a drafter on held-out sequences: teacher-forced, by depth and event.

Acceptance of depth k given that the depths before passed, averaged over the text: sum_v min(q_k, p_k) for the residual
rule, the match under one draw of noise for the coupled rule, equality with the argmax on greedy text.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dsbench.runtime.drafters.events import EVENTS
from dsbench.runtime.training.forward import training_attention
from dsbench.runtime.training.loss import rows_of
from dsbench.runtime.training.step import Setting


@torch.no_grad()
def evaluate(setting: Setting, sequences: Tensor, *, batch: int, seed: int) -> dict[str, Any]:
    """Acceptance by depth and tau per event over `sequences` [n]; anchors and noise depend on `seed` alone.

    tau = 1 + mean over full blocks of the sum of running products: expected tokens a round, the bonus included.
    Greedy text measures the first event, other text the other two; an event without text is left out.
    `confidence_loss`: mean cross-entropy of the logits against the event, with and without the token before.
    """
    device, module, g = sequences.device, setting.module, setting.module.shape.block
    generator = torch.Generator(device=device).manual_seed(seed)
    key = torch.tensor([seed], device=device)
    sums = {event: _Sums(g, device) for event in EVENTS}
    for number, rows in enumerate(torch.split(sequences, batch)):
        blocks = setting.maker.make(rows, generator)
        with training_attention(device, setting.heads.head.dtype):
            x, seen = module(*module.inputs(blocks, setting.heads.cos, setting.heads.sin))
        accept, match, features = rows_of(x, module.w2, setting.heads.head, blocks.goals, key + number)
        logits = module.confidences(seen, features, module.shape.layer.hidden)
        greedy = blocks.goals.greedy.view(-1, g)
        for i, event in enumerate(EVENTS):
            valid = blocks.valid.view(-1, g) & (greedy if event == "greedy" else ~greedy)
            passed = (accept if event == "residual" else match).view(-1, g)
            sums[event].add(passed, valid, [t[:, i].view(-1, g) for t in (logits.events, logits.free_events)])
    return {event: found for event, s in sums.items() if (found := s.take()) is not None}


class _Sums:
    def __init__(self, block: int, device: torch.device) -> None:
        self.accepted, self.trials = torch.zeros(block, device=device), torch.zeros(block, device=device)
        self.product, self.full_blocks = torch.zeros((), device=device), torch.zeros((), device=device)
        self.loss = torch.zeros(2, device=device)

    def add(self, passed: Tensor, valid: Tensor, logits: list[Tensor]) -> None:
        """passed, valid, logits: [blocks, G]."""
        self.accepted += (passed * valid).sum(0)
        self.trials += valid.sum(0)
        full = valid.all(dim=1)
        self.product += (passed.cumprod(dim=1).sum(dim=1) * full).sum()
        self.full_blocks += full.sum()
        for i, z in enumerate(logits):
            off = torch.nn.functional.binary_cross_entropy_with_logits(z, passed.clamp(0, 1), reduction="none")
            self.loss[i] += (off * valid).sum()

    def take(self) -> dict[str, Any] | None:
        trials, full = self.trials.sum().item(), self.full_blocks.item()
        if not full:
            return None
        return {
            "tau": round(1 + self.product.item() / full, 4),
            "acceptance": [round(a, 4) for a in (self.accepted / self.trials.clamp(min=1)).tolist()],
            "confidence_loss": [round(e / trials, 4) for e in self.loss.tolist()],
            "blocks": int(full),
        }
