"""Plans windows on the device: confidence logits -> survival -> the K likeliest drafts -> packed rows. One launch.

Shapes: R requests, of which the first `live` are real and the last is a dummy for filler rows; G block, M rows, N pages
a request. The arithmetic is fp32 and bitwise equal on every device: IEEE sums, products and quotients, and an
exponential built from them. Relative to fp64 a survival is off by at most SURVIVAL_ERROR for logits of common size, so
windows differ from those planned on a host only where two survivals are closer than that. Ties go by position, then by
request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dsbench.kernels.pack import Packed, pack_reference

Planned = tuple[Tensor, Tensor, Packed]

SURVIVAL_ERROR = 1e-5  # relative: for a block of 8 and |scale * logit + offset| below 16
FARTHEST = 80.0  # a logit further from 0 counts as this far: exp(-80) = 2e-35 is still a normal fp32 number
LOG2_E = 1.44269504088896341
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4  # LN2_HIGH times a small integer is exact
EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)


def plan(
    confidence: Tensor,
    scale: Tensor,
    offset: Tensor,
    limits: Tensor,
    budget: Tensor,
    anchor: Tensor,
    drafts: Tensor,
    context: Tensor,
    pages: Tensor,
    live: Tensor,
    rows: int,
    page: int,
) -> Planned:
    """Survival [R, G] fp32, window [R] int64, and what `pack` makes of the windows.

    confidence [R, G] fp32 logits; scale, offset [R, G] fp32 of each request's calibration; limits [R] int64 drafts
    allowed, none where <= 0; budget [1] int64 drafts to grant, capped by the limits and by `rows`; the rest as in
    `pack`. A NaN logit has survival 0. Survival and window at or past `live` are 0.
    """
    rest = (anchor, drafts, context, pages, live, rows, page)
    if anchor.device.type == "cuda":
        from dsbench.kernels import plan_triton  # imports triton, which a machine without a GPU need not have

        return plan_triton.plan(confidence, scale, offset, limits, budget, *rest)
    return plan_reference(confidence, scale, offset, limits, budget, *rest)


def plan_reference(
    confidence: Tensor,
    scale: Tensor,
    offset: Tensor,
    limits: Tensor,
    budget: Tensor,
    anchor: Tensor,
    drafts: Tensor,
    context: Tensor,
    pages: Tensor,
    live: Tensor,
    rows: int,
    page: int,
) -> Planned:
    """The reference of `plan`, in torch."""
    alive = torch.arange(anchor.shape[0], device=anchor.device) < live
    survival = torch.where(alive[:, None], survival_of(confidence, scale, offset), 0.0)
    window = windows(survival, torch.where(alive, limits, 0), torch.minimum(budget, rows - live))
    return survival, window, pack_reference(anchor, drafts, window, context, pages, live, rows, page)


def survival_of(confidence: Tensor, scale: Tensor, offset: Tensor) -> Tensor:
    """Probability [R, G] that the first k drafts are all accepted, of logits [R, G]; from left to right."""
    logits = confidence * scale + offset
    tail = negative_exp(logits.abs())
    conditional = torch.where(logits >= 0, 1.0, tail) / (tail + 1.0)
    conditional = torch.where(logits.isnan(), 0.0, conditional)
    columns = list(conditional.unbind(dim=1))
    for k in range(1, len(columns)):
        columns[k] = columns[k - 1] * columns[k]
    return torch.stack(columns, dim=1) if columns else conditional


def negative_exp(x: Tensor) -> Tensor:
    """exp(-x) of x >= 0, relative error below 2**-22; x beyond FARTHEST, or NaN, counts as FARTHEST."""
    x = -torch.where(x < FARTHEST, x, FARTHEST)
    power = torch.floor(x * LOG2_E + 0.5)
    rest = x - power * LN2_HIGH - power * LN2_LOW
    value = torch.full_like(rest, EXP[0])
    for coefficient in EXP[1:]:
        value = value * rest + coefficient
    value = value * rest * rest + rest + 1.0
    return value * ((power.int() + 127) << 23).view(torch.float32)


def windows(survival: Tensor, limits: Tensor, budget: Tensor) -> Tensor:
    """window [R]: the budget's best drafts by (survival descending, position ascending, request ascending).

    Survival [R, G] does not increase along a request; limits [R]; budget [1].
    """
    requests, block = survival.shape
    allowed = torch.arange(block, device=survival.device) < limits[:, None]
    score = torch.where(allowed, survival, -1.0).t().reshape(-1)
    order = score.sort(descending=True, stable=True).indices
    granted = torch.empty_like(order)
    granted[order] = torch.arange(block * requests, device=survival.device)
    return ((granted.view(block, requests).t() < budget) & allowed).sum(dim=1)
