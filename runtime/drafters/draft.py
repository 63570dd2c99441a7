"""The seam between engine and drafters: `propose -> Draft`, `observe(committed hidden states)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dsbench.runtime.batch import Batch
from dsbench.runtime.request import Request
from dsbench.runtime.sampling import Sampling
from dsbench.runtime.state import StatePool


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was proposed for R requests. Confidence logits are raw: calibration is the planner's."""

    tokens: Tensor  # [R, G] int64 vocabulary ids; columns past a request's depth were not drafted
    confidence: Tensor  # [R, G] fp32, as far as drafted: logit of P(draft j accepted | those before it accepted)
    free: Tensor  # [R, G] fp32 the same from the hidden state alone: known before any token is drawn
    probabilities: Tensor | None  # [R, max depth, V'] fp32, the law each draft was drawn from; residual rule only
    depth: Tensor  # [R] int64, columns that were drafted


# token-free confidence logits [R, G] -> slots worth drafting, int64 [R] on the host, where loops are counted
DepthRule = Callable[[Tensor], Tensor]


class Drafter(Protocol):
    """A drafter of blocks of `block` tokens. Taps are the target layers whose outputs it reads."""

    block: int
    taps: tuple[int, ...]
    vocabulary: Tensor  # [V'] int64 ids it can propose
    digest: str

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        """(kv heads, head width) of each layer it keeps in the pool."""

    def propose(
        self, requests: Sequence[Request], sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule
    ) -> Draft: ...

    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """Takes in the tapped states [M, len(taps) * D] of a target pass; rows later rejected are overwritten."""


class NoDrafter:
    """Proposes nothing: plain decoding."""

    block = 0
    taps: tuple[int, ...] = ()
    digest = "none"

    def __init__(self, device: torch.device) -> None:
        self.vocabulary = torch.empty(0, dtype=torch.int64, device=device)

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        return ()

    def propose(
        self, requests: Sequence[Request], sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule
    ) -> Draft:
        n, device = len(requests), self.vocabulary.device
        nothing = torch.empty(n, 0, dtype=torch.float32, device=device)
        none = torch.zeros(n, dtype=torch.int64, device=device)
        return Draft(tokens=nothing.long(), confidence=nothing, free=nothing, probabilities=None, depth=none)

    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """Nothing to keep."""
