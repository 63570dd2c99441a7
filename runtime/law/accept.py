"""Acceptance: from the target's logits over the packed rows to the tokens each request emits.

Holds the coupled rule, the residual rule, and what the block rule (`block_rule.py`) shares with it.

Row i of a request is the target's law at position context + i + 1; draft j (0-based) stands at that of row j.
Shapes: R requests, G block, W = G + 1, M packed rows, V vocabulary, V' draft vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.kernels.judge import UNSEEN, judge_rows
from dsbench.runtime.batch import Batch
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.sampling import Purpose, Sampling, coupled_choice, distribution, inverse_cdf, keyed_uniforms


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """accepted[r] drafts and one more token are emitted: tokens[r, :accepted[r] + 1]."""

    accepted: Tensor  # [R] int64, within the committed window
    tokens: Tensor  # [R, W] int64; tokens past accepted + 1 are not emitted
    ceiling: Tensor  # [R] int64: accepted + 1 had the full block been verified; UNSEEN where the arm cannot tell
    flips: Tensor  # [R] int64: emitted tokens where this pass's own choice differs from the recorded text


def pad_rows(values: Tensor, batch: Batch, width: int) -> Tensor:
    """Packed [M, ...] -> [R, width, ...], zeros where a request has fewer rows."""
    out = values.new_zeros(batch.requests, width, *values.shape[1:])
    out[batch.request, batch.positions - batch.context.long()[batch.request]] = values
    return out


def judge_coupled(
    logits: Tensor,
    batch: Batch,
    draft: Draft,
    window: Tensor,
    verified: Tensor,
    sampling: Sampling,
    recorded: Tensor | None = None,
) -> Verdict:
    """A draft is accepted iff it equals y = argmax(logits / T + noise); what is emitted is always y.

    `recorded` [R, W] pins the text: where it is >= 0 that token replaces y, and a difference counts as a flip.
    """
    own = coupled_choice(logits, sampling.rows(batch.request), batch.positions + 1, None)
    accepted, tokens, ceiling, flips = judge_rows(own, batch.cu_rows, draft.tokens, window, verified, recorded)
    return Verdict(accepted=accepted, tokens=tokens, ceiling=ceiling, flips=flips)


def judge_residual(
    logits: Tensor, batch: Batch, draft: Draft, window: Tensor, verified: Tensor, sampling: Sampling
) -> Verdict:
    """min(1, p/q), then the residual law at the first rejection, or a fresh draw from p past the window.

    Uniforms are keyed by (request, position, round, purpose); drafts verified beyond the window only determine the
    ceiling.
    """
    block = draft.tokens.shape[1]
    law, target = both_laws(logits, batch, draft, sampling)
    u = draft_uniforms(batch, block, sampling, Purpose.ACCEPT)
    passed = residual_tests(draft.tokens, law, target, u, law.shape[1])
    matched = (passed & (torch.arange(block, device=logits.device) < verified[:, None])).long().cumprod(-1).sum(-1)
    accepted = torch.minimum(matched, window)
    at = batch.context.long() + 1 + accepted
    u_resample = keyed_uniforms(sampling, at, Purpose.RESAMPLE)
    u_bonus = keyed_uniforms(sampling, at, Purpose.BONUS)
    last = residual_token(law, target, accepted, window, u_resample, u_bonus)
    return Verdict(
        accepted=accepted,
        tokens=with_last(draft.tokens, accepted, last),
        ceiling=_ceiling(matched, verified, block),
        flips=torch.zeros_like(accepted),
    )


def both_laws(logits: Tensor, batch: Batch, draft: Draft, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """The drafter's laws q [R, depth, V] (depth 0 where nothing was drafted) and the target's p [R, W, V]."""
    target = pad_rows(distribution(logits, sampling.rows(batch.request)), batch, draft.tokens.shape[1] + 1)
    law = draft.probabilities if draft.probabilities is not None else target.new_zeros(len(target), 0, 1)
    return law, target


def draft_uniforms(batch: Batch, block: int, sampling: Sampling, purpose: Purpose) -> Tensor:
    """One uniform per draft, fp64 [R, G], keyed by the draft's position."""
    requests, device = batch.requests, batch.context.device
    positions = batch.context.long()[:, None] + 1 + torch.arange(block, device=device)
    tries = sampling.rows(torch.arange(requests, device=device).repeat_interleave(block))
    return keyed_uniforms(tries, positions.reshape(-1), purpose).view(requests, block)


def with_last(drafts: Tensor, accepted: Tensor, last: Tensor) -> Tensor:
    """Drafts [R, G] and after the accepted ones the token `last` [R]: [R, W]."""
    tokens = torch.cat([drafts, drafts.new_zeros(len(drafts), 1)], dim=1)
    return tokens.scatter(1, accepted[:, None], last[:, None])


def residual_tests(tokens: Tensor, law: Tensor, target: Tensor, u: Tensor, depth: int) -> Tensor:
    """Whether each draft passes on its own, bool [R, G]: u < min(1, p/q). law [R, depth, V] q over the vocabulary."""
    passed = torch.zeros_like(tokens, dtype=torch.bool)
    if depth:
        drawn = tokens[:, :depth, None]
        p = target[:, :depth].gather(-1, drawn).squeeze(-1).double()
        q = law[:, :depth].gather(-1, drawn).squeeze(-1).double()
        passed[:, :depth] = u[:, :depth] * q < p
    return passed


def residual_token(
    law: Tensor,
    target: Tensor,
    accepted: Tensor,
    window: Tensor,
    u_resample: Tensor,
    u_bonus: Tensor,
    weight: Tensor | None = None,
) -> Tensor:
    """The token [R] after the accepted drafts: from norm(max(p - q, 0)) if a draft was rejected, else from p.

    `weight` [R] scales p before q is taken off it.
    """
    index = torch.arange(accepted.shape[0], device=accepted.device)
    p = target[index, accepted]
    rejected = accepted < window
    rest = p.clone()
    if law.shape[1]:
        q = law[index, accepted.clamp(max=law.shape[1] - 1)]
        left = p - q if weight is None else weight[:, None] * p - q
        rest = torch.where(rejected[:, None], left.clamp(min=0), p)
    empty = rest.sum(-1) <= 0  # p and q equal to the last bit: the draft could not have been rejected by more
    rest = torch.where(empty[:, None], p, rest)
    return inverse_cdf(rest, torch.where(rejected, u_resample, u_bonus))


def widen_law(law: Tensor, vocabulary: Tensor, size: int) -> Tensor:
    """q over the draft vocabulary [R, G, V'] -> over the full one [R, G, V]; zero outside."""
    if law.shape[-1] == size:
        return law
    out = law.new_zeros(*law.shape[:-1], size)
    out[..., vocabulary] = law
    return out


def _ceiling(matched: Tensor, verified: Tensor, block: int) -> Tensor:
    """accepted + 1 without the window, where a draft was rejected or the full block was verified; else UNSEEN."""
    seen = (matched < verified) | (verified >= block)
    return torch.where(seen, matched + 1, torch.full_like(matched, UNSEEN))
