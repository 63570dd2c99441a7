"""A round's work on the device, between the host's decisions: draft -> (plan) -> pack, verify, accept, commit.

Both executors run these passes: the eager one for exactly the requests and rows there are, the graphs one padded to a
tier. Nothing here asks the device, unless the rule does. Shapes: R requests, G block, W = G + 1, M rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from torch import Tensor

from dsbench.runtime.batch import Batch
from dsbench.runtime.drafters.draft import DepthRule, Draft, Drafter, Standing
from dsbench.runtime.law.accept import Verdict, judge_coupled, judge_residual, widen_law
from dsbench.runtime.law.block_rule import judge_block
from dsbench.runtime.loop.script import Script
from dsbench.runtime.sampling import Sampling
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import Target

Phase = Callable[[str], AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What the passes of a round read of R requests, on the device."""

    standing: Standing
    sampling: Sampling
    recorded: Tensor | None  # [R, W] int64 the pinned text's next tokens, -1 where none is recorded
    script: Script | None = None  # what replaces the drafts, if recorded acceptance is replayed

    @property
    def requests(self) -> int:
        return self.standing.anchor.shape[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What runs, and on which state."""

    target: Target
    drafter: Drafter
    pool: StatePool
    rule: str


def draft_pass(models: Models, now: Round, depth: DepthRule) -> Draft:
    """A scripted round is drafted as deep as the script's confidences say, and then takes the script's drafts."""
    script = now.script
    rule: DepthRule = depth if script is None else lambda free: depth(script.free)
    made = models.drafter.propose(now.standing, now.sampling, models.pool, rule=models.rule, depth=rule)
    if script is None:
        return made
    return replace(made, tokens=script.tokens, confidence=script.confidence, free=script.free)


def verify_pass(
    models: Models, now: Round, batch: Batch, draft: Draft, window: Tensor, verified: Tensor, phase: Phase
) -> Verdict:
    """One target pass over the packed rows, its verdict, and the drafter's share of it; window, verified [R]."""
    with phase("verify"):
        logits, taps = models.target.forward(batch, models.pool, models.drafter.taps)
        assert logits.shape[0] == batch.rows, "every row is judged"
    with phase("accept"):
        verdict = judge(models, logits, batch, draft, window, verified, now)
    with phase("commit"):
        models.drafter.observe(batch, taps, models.pool)
    return verdict


def judge(
    models: Models, logits: Tensor, batch: Batch, draft: Draft, window: Tensor, verified: Tensor, now: Round
) -> Verdict:
    """By the rule that the run accepts by."""
    if models.rule == "coupled":
        return judge_coupled(logits, batch, draft, window, verified, now.sampling, now.recorded)
    if draft.probabilities is not None:
        wide = widen_law(draft.probabilities, models.drafter.vocabulary, logits.shape[-1])
        draft = replace(draft, probabilities=wide)
    by_rule = judge_block if models.rule == "block" else judge_residual
    return by_rule(logits, batch, draft, window, verified, now.sampling)
