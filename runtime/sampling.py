"""From logits to a token, by the same functions for target and drafter.

Acceptance rules. Coupled: argmax(logits / T + Gumbel noise of (request, position)), the same noise for
draft and target. Residual and block: inverse-CDF draws whose uniforms are keyed by (request, position, round, purpose).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
from torch import Tensor

from dsbench.kernels.draft.stats import coupled_stats, law_stats
from dsbench.kernels.gumbel import gumbel_argmax, ids_at
from dsbench.kernels.philox import uniforms
from dsbench.kernels.truncate import Kept, kept_logits, truncate
from dsbench.runtime.request import Request


class Purpose(IntEnum):
    """Use of a uniform in the residual or block rule; part of its key, so that no two uses share a number."""

    DRAFT = 1
    ACCEPT = 2
    RESAMPLE = 3
    BONUS = 4  # also the first token after a prompt
    BLOCK_ACCEPT = 5
    BLOCK_RESAMPLE = 6
    BLOCK_BONUS = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling settings of R requests as tensors, [R] each."""

    temperature: Tensor  # fp32
    top_k: Tensor  # int64, 0 = off
    top_p: Tensor  # fp32, 1 = off
    seed: Tensor  # int64
    round: Tensor  # int64, verify rounds so far
    unfiltered: bool  # no request uses top-k or top-p

    def rows(self, index: Tensor | slice) -> Sampling:
        """The settings of rows that belong to requests `index` [n]."""
        return Sampling(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            seed=self.seed[index],
            round=self.round[index],
            unfiltered=self.unfiltered,
        )


def sampling_of(requests: Sequence[Request], device: torch.device) -> Sampling:
    """The settings of host requests, as tensors on `device`."""
    params = [r.sampling for r in requests]
    return Sampling(
        temperature=torch.tensor([p.temperature for p in params], dtype=torch.float32, device=device),
        top_k=torch.tensor([p.top_k for p in params], dtype=torch.int64, device=device),
        top_p=torch.tensor([p.top_p for p in params], dtype=torch.float32, device=device),
        seed=torch.tensor([p.seed for p in params], dtype=torch.int64, device=device),
        round=torch.tensor([r.rounds for r in requests], dtype=torch.int64, device=device),
        unfiltered=not any(p.truncates for p in params),
    )


def kept_of(logits: Tensor, sampling: Sampling) -> Kept | None:
    """The top-k and top-p bounds of logits [n, V]; None where no request uses them."""
    return None if sampling.unfiltered else truncate(logits, sampling.temperature, sampling.top_k, sampling.top_p)


def admissible(logits: Tensor, sampling: Sampling) -> Tensor:
    """Logits [n, V] in fp32, -inf where top-k or top-p exclude a token."""
    return kept_logits(logits, kept_of(logits, sampling))


def distribution(logits: Tensor, sampling: Sampling) -> Tensor:
    """Probabilities [n, V] fp32 of the law that is sampled; one-hot at temperature 0."""
    x = admissible(logits, sampling)
    greedy = torch.zeros_like(x).scatter(-1, x.argmax(-1, keepdim=True), 1.0)
    return torch.where((sampling.temperature > 0)[:, None], (x / _scale(sampling)).softmax(-1), greedy)


def coupled_choice(logits: Tensor, sampling: Sampling, positions: Tensor, ids: Tensor | None) -> Tensor:
    """The coupled rule's token [n] for absolute `positions` [n]; `ids` [V'] of the columns, None for all of them."""
    kept = kept_of(logits, sampling)
    return ids_at(ids, gumbel_argmax(logits, sampling.temperature, sampling.seed, positions, ids, kept))


def coupled_draw(logits: Tensor, sampling: Sampling, positions: Tensor, ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """`coupled_choice` and the features [n, 6] of the law it drew from (kernels/draft/stats.py)."""
    kept = kept_of(logits, sampling)
    winner, features = coupled_stats(logits, sampling.temperature, sampling.seed, positions, ids, kept)
    return ids_at(ids, winner), features


def law_features(logits: Tensor, sampling: Sampling) -> Tensor:
    """Features [n, 6] that do not depend on the noise, and so not on the draw."""
    return law_stats(logits, sampling.temperature, kept_of(logits, sampling))


def keyed_uniforms(sampling: Sampling, positions: Tensor, purpose: Purpose) -> Tensor:
    """fp64 [n] in (0, 1), keyed by (request, position, round, purpose)."""
    return uniforms(sampling.seed, positions, sampling.round, int(purpose))


def inverse_cdf(weights: Tensor, u: Tensor) -> Tensor:
    """Index [n] drawn from rows of non-negative weights [n, V] (need not sum to 1) by uniforms u fp64 [n]."""
    mass = weights.double().cumsum(-1)
    at = torch.searchsorted(mass, (u * mass[:, -1])[:, None], right=True).squeeze(-1)
    last = (
        weights.shape[-1] - 1 - weights.gt(0).flip(-1).to(torch.int8).argmax(-1)
    )  # never past the last token with mass
    return torch.minimum(at, last)


def _scale(sampling: Sampling) -> Tensor:
    return torch.where(sampling.temperature > 0, sampling.temperature, torch.ones_like(sampling.temperature))[:, None]
