"""Loss rows of a drafter in one pass over its logits: value, gradient, acceptance and what its confidences learn from.

A row is trained towards the target's law at T = 1, whatever temperature drew its text. Loss of a row, times its weight:

    ce * CE  +  l1 * sum |q - p|  +  coupled * 2 (1 - softmax((z + noise) / tau)[y])

y = argmax(zp + noise) is the token that the target would emit under this noise, so the last term is a smooth form of
the coupled rule's event (gumbel.py); rows of greedy text get no noise, and y is their label.
Gradient: dL1/dz_v = q_v (s_v - sum_u q_u s_u), s = sign(q - p).
Shapes: n rows, V' draft vocabulary. Ids outside it have q = 0: |q - p| sums to 2 (1 - accept) over all ids.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.kernels.draft.stats import CLIP, SHIFT, law_stats_reference, top_gap
from dsbench.kernels.philox import gumbel_from_bits

MASK = 0xFFFFFFFF
OUTSIDE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Weights of the loss terms, and the temperature of the smooth coupled event."""

    ce: float = 0.1
    l1: float = 0.9
    coupled: float = 0.0
    tau: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRows:
    """All fp32 [n] but the last two; `gradient` is of the weighted loss."""

    ce: Tensor
    accept: Tensor  # sum_v min(q, p)
    soft: Tensor  # the smooth coupled event; 0 where its share is
    match: Tensor  # 1 where the drafter's token under the noise is the target's; argmax equality for greedy text
    features: Tensor  # [n, FEATURES], see draft_stats.py
    gradient: Tensor  # [n, V'] d loss / dz in z's dtype


def draft_loss_rows(
    z: Tensor,
    zp: Tensor,
    lse: Tensor,
    greedy: Tensor,
    label: Tensor,
    weight: Tensor,
    *,
    seed: Tensor,
    first: int,
    shares: Shares,
) -> LossRows:
    """As the reference; on CUDA one Triton kernel, whose rows live in registers and L1."""
    if z.device.type != "cuda":
        return draft_loss_rows_reference(z, zp, lse, greedy, label, weight, seed=seed, first=first, shares=shares)
    from dsbench.kernels.draft.loss_triton import launch

    return launch(z, zp, lse, greedy, label, weight, seed=seed, first=first, shares=shares)


def draft_loss_rows_reference(
    z: Tensor,
    zp: Tensor,
    lse: Tensor,
    greedy: Tensor,
    label: Tensor,
    weight: Tensor,
    *,
    seed: Tensor,
    first: int,
    shares: Shares,
) -> LossRows:
    """z, zp [n, V'] draft and target logits; lse [n] of the target's over the full vocabulary; greedy bool [n];
    label int64 [n], -1: outside the draft vocabulary; noise is keyed by (seed int64 [1], first + row, column).
    """
    n, vocab = z.shape
    column = torch.arange(vocab, device=z.device)
    x = z.float()
    lq = x.logsumexp(dim=-1, keepdim=True)
    q = (x - lq).exp()
    hit = column == label[:, None]
    logp = zp.float() - lse[:, None]
    p = logp.exp()
    below = q < p
    accept = torch.where(below, q, p).sum(-1)
    under = torch.where(below, q, 0.0).sum(-1, keepdim=True)
    known = label >= 0
    at = label.clamp(min=0)[:, None]
    ce = torch.where(known, lq.squeeze(-1) - x.gather(1, at).squeeze(-1), 0.0)
    noise = training_noise(n, vocab + 1, seed=seed, first=first, device=z.device)
    noise = torch.where(greedy[:, None], 0.0, noise)
    y = coupled_token(logp, p, noise, greedy, label)
    perturbed = x + noise[:, :vocab]
    ry = torch.zeros_like(accept)
    gradient = q * ((shares.ce * known)[:, None] + 2 * shares.l1 * (under - below.float()))
    gradient = gradient - torch.where(hit, shares.ce, 0.0)
    if shares.coupled:
        r = (perturbed / shares.tau).softmax(-1)
        ry = torch.where(y >= 0, r.gather(1, y.clamp(min=0)[:, None]).squeeze(-1), 0.0)
        pull = (2 * shares.coupled / shares.tau * ry)[:, None]
        gradient = gradient + pull * (r - (column == y[:, None]).float())
    return LossRows(
        ce=ce,
        accept=accept,
        soft=ry,
        match=(perturbed.argmax(-1) == y).float(),
        features=draft_features(x, perturbed),
        gradient=(gradient * weight[:, None]).to(z.dtype),
    )


def coupled_token(logp: Tensor, p: Tensor, noise: Tensor, greedy: Tensor, label: Tensor) -> Tensor:
    """The target's token [n] under the noise [n, V' + 1], OUTSIDE where it is no draft id; the label of greedy text.

    All ids outside the draft vocabulary together are one more candidate of their joint mass: exact for Gumbel noise.
    """
    best, token = (logp + noise[:, :-1]).max(dim=-1)
    rest = (1 - p.sum(-1)).clamp(min=1e-30).log() + noise[:, -1]
    return torch.where(greedy, label, torch.where(rest > best, OUTSIDE, token))


def draft_features(x: Tensor, perturbed: Tensor) -> Tensor:
    """[n, FEATURES] of draft_stats.py for draft logits x [n, V'] at T = 1 and the same under the noise."""
    features = law_stats_reference(x, torch.ones_like(x[:, 0]))
    gap = top_gap(perturbed).clamp(max=CLIP)
    features[:, 4], features[:, 5] = gap, (gap + SHIFT).log()
    return features


def training_noise(rows: int, columns: int, *, seed: Tensor, first: int, device: torch.device) -> Tensor:
    """Gumbel noise [rows, columns] fp32 by a 32-bit hash of (seed, first + row, column): not for serving text."""
    row = torch.arange(first, first + rows, device=device, dtype=torch.int64)
    column = torch.arange(columns, device=device, dtype=torch.int64)
    key = _mixed((row + seed * 0x9E3779B1) & MASK)
    return gumbel_from_bits(_mixed(key[:, None] ^ ((column * 0x85EBCA6B) & MASK)))


def _mixed(x: Tensor) -> Tensor:
    """A 32-bit finaliser held in int64 (Wellons' lowbias32)."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)
