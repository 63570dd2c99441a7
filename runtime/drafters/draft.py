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

    tokens: Tensor  # [R, G] int64 vocabulary ids; columns at or past a request's depth were not drafted
    confidence: Tensor  # [R, G] fp32, as far as drafted: logit of P(draft j accepted | those before it accepted)
    token_free: Tensor  # [R, G] fp32 token-free: the same from the hidden state alone, known before any token is drawn
    probabilities: Tensor | None  # [R, max depth, V'] fp32, the law each draft was drawn from; none if coupled
    depth: Tensor  # [R] int64, columns that were drafted


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Anchors and page tables of R requests on the device: with the sampling, the inputs of a proposal."""

    anchor: Tensor  # [R] int64 last committed token, which has no keys and values yet
    start: Tensor  # [R] int64 committed tokens before it
    table: Tensor  # [R, N] int32 page table


def standing_of(requests: Sequence[Request], pool: StatePool, device: torch.device) -> Standing:
    """Copies anchors and page tables of host requests to the device; later work may be captured in a graph."""
    return Standing(
        anchor=torch.tensor([r.anchor for r in requests], dtype=torch.int64, device=device),
        start=torch.tensor([r.committed for r in requests], dtype=torch.int64, device=device),
        table=pool.table([r.id for r in requests]),
    )


def row_index(wanted: list[int], count: int, device: torch.device) -> Tensor | slice:
    """An index of the rows `wanted` out of `count`; a slice where all are wanted."""
    return slice(None) if len(wanted) == count else torch.tensor(wanted, dtype=torch.int64, device=device)


def depth_on(depth: Tensor, counts: list[int], device: torch.device) -> Tensor:
    """`depth` on the device: a fill where all are equal, because a copy from the host cannot be captured."""
    return torch.full_like(depth, counts[0], device=device) if len(set(counts)) == 1 else depth.to(device)


# token-free confidence logits [R, G] -> depths worth drafting, int64 [R] on the host, where loops are counted
DepthRule = Callable[[Tensor], Tensor]


class Drafter(Protocol):
    """A drafter of blocks of `block` tokens. Taps are the target layers whose outputs it reads."""

    block: int
    taps: tuple[int, ...]
    vocabulary: Tensor  # [V'] int64 ids it can propose
    digest: str
    has_token_free: bool  # whether it predicts acceptance before any token is drawn

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        """(kv heads, head width) of each layer it keeps in the pool."""

    def propose(self, rows: Standing, sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule) -> Draft:
        """Drafts up to depth[r] tokens a request. With one depth for all it neither synchronises nor copies from the
        host.
        """

    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """Stores what it needs of the tapped states [M, len(taps) * D] of a target pass; rejected rows are overwritten
        later.
        """


class NoDrafter:
    """Proposes nothing: decoding without drafts."""

    block = 0
    taps: tuple[int, ...] = ()
    digest = "none"
    has_token_free = False

    def __init__(self, device: torch.device) -> None:
        self.vocabulary = torch.empty(0, dtype=torch.int64, device=device)

    def pool_layers(self) -> tuple[tuple[int, int], ...]:
        return ()

    def propose(self, rows: Standing, sampling: Sampling, pool: StatePool, *, rule: str, depth: DepthRule) -> Draft:
        n = rows.anchor.shape[0]
        device = self.vocabulary.device
        nothing = torch.empty(n, 0, dtype=torch.float32, device=device)
        none = torch.zeros(n, dtype=torch.int64, device=device)
        return Draft(tokens=nothing.long(), confidence=nothing, token_free=nothing, probabilities=None, depth=none)

    def observe(self, batch: Batch, taps: Tensor, pool: StatePool) -> None:
        """Nothing to keep."""
