"""Draws the tokens of a block: depth by depth with a sequential head, all depths at once without one.

Shapes: R requests, n the largest depth wanted, V' draft vocabulary, m rows drawn together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.kernels.draft.head import Head, coupled_block, walk
from dsbench.kernels.draft.stats import FEATURES
from dsbench.kernels.gumbel import ids_at
from dsbench.runtime.sampling import (
    Purpose,
    Sampling,
    coupled_choice,
    coupled_draw,
    distribution,
    inverse_cdf,
    keyed_uniforms,
    law_features,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawPlan:
    """What is to be drawn, and how."""

    start: Tensor  # [R] int64 committed tokens before the anchor
    counts: Sequence[int]  # [R] depths wanted
    depth: Tensor  # [R] the same on the device
    sampling: Sampling
    ids: Tensor | None  # [V'] vocabulary ids of the columns, None where they are all of them
    rule: str
    stats: bool  # compute features of the laws


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Zeros where a request wants no draft."""

    tokens: Tensor  # [R, n] vocabulary ids
    features: Tensor | None  # [R, n, 6]
    laws: Tensor | None  # [R, n, V'] fp32; None under the coupled rule


def draw_rows(
    logits: Tensor, sampling: Sampling, positions: Tensor, ids: Tensor | None, *, rule: str, stats: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Ids [m] for `positions` [m], features [m, 6] if wanted, the law [m, V'] unless coupled."""
    if rule != "coupled":
        law = distribution(logits, sampling)
        drawn = inverse_cdf(law, keyed_uniforms(sampling, positions, Purpose.DRAFT))
        return ids_at(ids, drawn), law_features(logits, sampling) if stats else None, law
    if stats:
        return *coupled_draw(logits, sampling, positions, ids), None
    return coupled_choice(logits, sampling, positions, ids), None, None


def at_once(base: Tensor, plan: DrawPlan) -> Drawn:
    """Draws all depths of logits [R, n, V'], which depend on no drawn token."""
    (requests, most), device = base.shape[:2], base.device
    full, pairs = min(plan.counts) == most, [(r, j) for r, count in enumerate(plan.counts) for j in range(count)]
    if full:
        request = torch.arange(requests, device=device)[:, None].expand(requests, most).flatten()
        positions, logits = (
            (plan.start[:, None] + torch.arange(1, most + 1, device=device)).flatten(),
            base.flatten(0, 1),
        )
    else:
        request, depth = torch.tensor(pairs, device=device).unbind(1)
        positions, logits = plan.start[request] + depth + 1, base[request, depth]
    sampling = plan.sampling.rows(request)
    made = draw_rows(logits, sampling, positions, plan.ids, rule=plan.rule, stats=plan.stats)

    def spread(x: Tensor) -> Tensor:
        if full:
            return x.view(requests, most, *x.shape[1:])
        return x.new_zeros(requests, most, *x.shape[1:]).index_put((request, depth), x)

    tokens, features, laws = made
    return Drawn(
        tokens=spread(tokens),
        features=None if features is None else spread(features),
        laws=None if laws is None else spread(laws),
    )


def in_turn(head: Head, base: Tensor, hidden: Tensor, anchor: Tensor, plan: DrawPlan) -> Drawn:
    """Draws depth by depth from base logits [R, n, V'] and hidden states [R, n, D], after the anchors [R]."""
    part, sampling = head.hidden_part(hidden), plan.sampling
    if plan.rule == "coupled" and sampling.unfiltered:
        tokens, found = coupled_block(
            head,
            base,
            part,
            anchor,
            plan.start,
            plan.depth,
            plan.counts,
            sampling.temperature,
            sampling.seed,
            plan.ids,
            plan.stats,
        )
        return Drawn(tokens=tokens, features=found, laws=None)
    features = base.new_zeros(*base.shape[:2], FEATURES, dtype=torch.float32) if plan.stats else None
    laws = base.new_zeros(base.shape, dtype=torch.float32) if plan.rule != "coupled" else None

    def choose(logits: Tensor, rows: Tensor | slice, j: int) -> Tensor:
        ids, found, law = draw_rows(
            logits, sampling.rows(rows), plan.start[rows] + (j + 1), plan.ids, rule=plan.rule, stats=plan.stats
        )
        if features is not None and found is not None:
            features[rows, j] = found
        if laws is not None and law is not None:
            laws[rows, j] = law
        return ids

    return Drawn(tokens=walk(head, base, part, anchor, plan.counts, choose), features=features, laws=laws)
