"""Block verification: the drafts of a window are accepted jointly (arXiv 2403.10444, section 4, algorithm 2).

    p_0 = 1,  p_i = min(p_{i-1} P(x_i) / Q(x_i), 1)         P, Q: the laws at position i, given the drafts before it
    S_i = sum_x max(p_i P(x) - Q(x), 0)                     P, Q: the laws at position i + 1
    h_i = S_i / (S_i + 1 - p_i) for i < l,  h_l = p_l       l: the window
    accepted = the largest i with eta_i <= h_i; next token ~ norm(max(p_i P - Q, 0)), or ~ P after all l drafts

By induction backward over i, P(accepted >= i | x_1 .. x_i) = p_i whatever is drafted later. So the window may end at
any draft, as long as the choice does not depend on the drafts it admits (the condition of the residual rule), and a
draft's survival does not depend on the window. Shapes: R requests, G block, W = G + 1, V vocabulary, D depths that were
drafted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsbench.kernels.judge import UNSEEN
from dsbench.runtime.batch import Batch
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.law.accept import Verdict, both_laws, draft_uniforms, residual_token, with_last
from dsbench.runtime.sampling import Purpose, Sampling, keyed_uniforms


def judge_block(
    logits: Tensor, batch: Batch, draft: Draft, window: Tensor, verified: Tensor, sampling: Sampling
) -> Verdict:
    """Applies the rule to the window's drafts; drafts verified past it are ignored.

    ceiling: the rule applied to the full block with the same uniforms, where all of it was verified, else UNSEEN. In a
    single round it may lie below what was delivered; on average it does not.
    """
    block = draft.tokens.shape[1]
    law, target = both_laws(logits, batch, draft, sampling)
    eta = draft_uniforms(batch, block, sampling, Purpose.BLOCK_ACCEPT)
    chain = joint_ratio(draft.tokens, law, target)
    left = rest_mass(chain, law, target)
    accepted = block_accepted(chain, left, window, eta)
    full = block_accepted(chain, left, torch.full_like(window, law.shape[1]), eta)
    at = batch.context.long() + 1 + accepted
    last = residual_token(
        law,
        target,
        accepted,
        window,
        keyed_uniforms(sampling, at, Purpose.BLOCK_RESAMPLE),
        keyed_uniforms(sampling, at, Purpose.BLOCK_BONUS),
        chain.gather(1, accepted[:, None]).squeeze(1),
    )
    return Verdict(
        accepted=accepted,
        tokens=with_last(draft.tokens, accepted, last),
        ceiling=torch.where(verified >= block, full + 1, UNSEEN),
        flips=torch.zeros_like(accepted),
    )


def joint_ratio(tokens: Tensor, law: Tensor, target: Tensor) -> Tensor:
    """p_0 .. p_D, fp64 [R, D + 1], of drafts tokens [R, G]; law [R, D, V], target [R, W, V]. 0 at undrafted depths."""
    depth = law.shape[1]
    drawn = tokens[:, :depth, None]
    p, q = (x[:, :depth].gather(-1, drawn).squeeze(-1).double() for x in (target, law))
    ratio = torch.where(q > 0, p / q, 0.0)
    steps = [torch.ones(len(tokens), dtype=torch.float64, device=tokens.device)]
    for j in range(depth):
        steps.append((steps[-1] * ratio[:, j]).clamp(max=1))
    return torch.stack(steps, dim=1)


def rest_mass(chain: Tensor, law: Tensor, target: Tensor) -> Tensor:
    """S_1 .. S_{D-1}, fp64 [R, max(D - 1, 0)].

    Summed in the laws' own dtype, a position at a time: in fp64, or all at once, it costs several times as much, and S
    enters the law by its absolute error, which is the rounding of the laws.
    """
    weight, found = chain.to(target.dtype), [chain[:, :0]]
    for i in range(1, chain.shape[1] - 1):
        short = torch.addcmul(law[:, i], weight[:, i, None], target[:, i], value=-1)  # q - p_i p
        found.append(-short.clamp_(max=0).sum(-1, keepdim=True).double())
    return torch.cat(found, dim=1)


def block_chances(chain: Tensor, left: Tensor, window: Tensor) -> Tensor:
    """h_1 .. h_D of windows [R], fp64 [R, D]; 0 past the window.

    Where S_i + 1 - p_i = 0 the next draft always passes (P = Q and p_i = 1), and any value gives the same law.
    """
    last = chain[:, 1:]
    under = left + 1 - last[:, :-1]
    inner = torch.where(under > 0, left / under, 1.0)
    inner = torch.cat([inner, last[:, -1:]], dim=1)
    at = torch.arange(1, last.shape[1] + 1, device=chain.device)
    return torch.where(at < window[:, None], inner, last).masked_fill(at > window[:, None], 0.0)


def block_accepted(chain: Tensor, left: Tensor, window: Tensor, eta: Tensor) -> Tensor:
    """The largest i with eta_i <= h_i, int64 [R]; eta [R, G] in (0, 1)."""
    chances = block_chances(chain, left, window)
    depth = chances.shape[1]
    at = torch.arange(1, depth + 1, device=chain.device)
    passed = torch.where((eta[:, :depth] <= chances) & (at <= window[:, None]), at, 0)
    return torch.cat([torch.zeros_like(window)[:, None], passed], dim=1).amax(1)
