"""The bodies of a round's passes over slots: draft, verify, the oracle's look, prefill. Every device runs these.

    draft    the requests' blocks, or the trace's drafts in their place
    verify   plan and pack, target, verdict, commit, and what the host reads
    prefill  prompt rows of some requests; those that are done get a first token and a slot

Windows come from the confidences that the draft left, and from two numbers that the host wrote, budget and cap; nothing
asks the device, unless the rule does. Shapes: R requests, G block, W = G + 1, M rows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.commit import commit
from dsbench.kernels.judge import UNSEEN
from dsbench.kernels.pack import Packed
from dsbench.kernels.plan import plan, survival_of, windows
from dsbench.runtime.batch import Batch, pack_padded, pack_rows
from dsbench.runtime.drafters.draft import DepthRule, Draft, Drafter, Standing
from dsbench.runtime.law.accept import Verdict, judge_coupled, judge_residual, widen_law
from dsbench.runtime.law.block_rule import judge_block
from dsbench.runtime.loop.prompt_rows import PromptRows
from dsbench.runtime.loop.slots import Slots
from dsbench.runtime.sampling import Purpose, Sampling, coupled_choice, distribution, inverse_cdf, keyed_uniforms
from dsbench.runtime.state import StatePool
from dsbench.runtime.targets.base import Target

Phase = Callable[[str], AbstractContextManager[None]]
CERTAIN = 40.0  # a logit whose odds are one and none in fp32


def no_phase(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """What runs, and on which state."""

    target: Target
    drafter: Drafter
    pool: StatePool
    rule: str


class Passes:
    """Passes of one drafter and one kind of commit: "all" verifies the windows; "window" verifies whole blocks."""

    def __init__(self, models: Models, slots: Slots, commit: str) -> None:
        self.models, self.slots, self.commit = models, slots, commit

    def draft(self, n: int, rule: DepthRule) -> Draft:
        """Drafts for the first n slots as deep as the rule says, leaves drafts and confidences in the slots."""
        slots, models, block = self.slots, self.models, self.slots.shape.block
        traced = slots.next_trace(n) if slots.trace.numel() else None
        follow: DepthRule = rule if traced is None else lambda free: rule(traced[:, 1 + block :])
        standing, sampling = slots.standing(n), slots.sampling(n)
        made = models.drafter.propose(standing, sampling, models.pool, rule=models.rule, depth=follow)
        if traced is not None:
            text = slots.next_text(n)
            assert text is not None, "a trace is replayed on its own text"
            hit = torch.arange(block, device=text.device) < traced[:, :1]
            tokens = torch.where(hit, text[:, :block], (text[:, :block] + 1) % models.target.shape.vocab)
            made = replace(made, tokens=tokens, confidence=traced[:, 1 : 1 + block], token_free=traced[:, 1 + block :])
        slots.drafts[:n].copy_(made.tokens)
        slots.reals_out[:n, 0].copy_(made.confidence)
        slots.reals_out[:n, 1].copy_(made.token_free)
        return made

    def fill(self, n: int, depth: int) -> None:
        """Puts what the token-free head says in place of the confidences past `depth`."""
        kept = self.slots.reals_out[:n]
        if depth < self.slots.shape.block:
            kept[:, 0].copy_(self.slots.filled(n, kept[:, 0], kept[:, 1], depth))

    def look(self, n: int) -> None:
        """Leaves 1 for each draft of the first n slots that the pinned text accepts within the limits."""
        slots, text = self.slots, self.slots.next_text(n)
        assert text is not None, "an oracle knows the recorded text"
        block = slots.shape.block
        hit = (slots.drafts[:n] == text[:, :block]).long().cumprod(1)
        allowed = torch.arange(block, device=slots.device) < slots.limits(n)[:, None]
        slots.accepted[:n].copy_(hit * allowed)

    def trust(self, n: int) -> None:
        """Puts certainty about what the text accepts in place of the confidences."""
        slots = self.slots
        certain = (2.0 * slots.accepted[:n] - 1.0) * CERTAIN
        slots.reals_out[:n, 0].copy_((certain - slots.offset[:n]) / slots.scale[:n].clamp(min=1e-6))

    def verify(self, rows: int, requests: int, *, drafts: bool) -> None:
        """Runs one pass padded to `rows` rows for `requests` slots and the filler slot, and commits its verdict.

        drafts: False runs one row a request, and verifies none.
        """
        slots, pool, n = self.slots, self.models.pool, requests + 1
        drafts = drafts and slots.shape.block > 0
        at = slots.standing(n)
        limits = slots.limits(n) if drafts else torch.zeros_like(at.anchor)
        made, context = self._drafts(n, drafts), at.start.int()
        if drafts:
            survival, window, packed = plan(
                made.confidence,
                slots.scale[:n],
                slots.offset[:n],
                limits,
                slots.budget,
                at.anchor,
                made.tokens,
                context,
                at.table,
                slots.live,
                rows,
                pool.shape.page,
            )
            batch = batch_of(packed, at, context, made.tokens)
        else:
            survival, window = made.confidence, limits
        if not drafts or self.commit == "window":
            batch = pack_padded(at.anchor, made.tokens, limits, context, at.table, slots.live, rows, pool.shape.page)
        verified = window if self.commit == "all" else limits
        self._commit(n, batch, made, survival, window, verified, limits, no_phase)

    def verify_exactly(self, n: int, draft: Draft | None, *, window: Tensor | None, full: bool, phase: Phase) -> int:
        """Runs one pass of exactly the rows of the first n slots, and commits its verdict; returns the rows.

        draft: None in a no-draft round. window [n]: what the host chose; None: the budget's best. full: all depths run.
        """
        slots = self.slots
        at, made = slots.standing(n), self._drafts(n, draft is not None)
        if draft is not None:
            made = replace(made, probabilities=draft.probabilities)
        with phase("plan"):
            limits = slots.limits(n) if draft is not None else torch.zeros_like(at.anchor)
            survival = survival_of(made.confidence, slots.scale[:n], slots.offset[:n]) if draft else made.confidence
            chosen = windows(survival, limits, slots.budget) if draft and window is None else limits
            chosen = chosen if window is None else torch.minimum(window, limits)
            verified = chosen if self.commit == "all" else limits
            if full and draft is not None:
                verified = torch.full_like(limits, int(slots.cap))
        with phase("pack"):
            batch = pack_rows(at.anchor, made.tokens, verified, at.start.int(), at.table)
        self._commit(n, batch, made, survival, chosen, verified, limits, phase)
        return batch.rows

    def prefill(self, rows: PromptRows) -> Tensor:
        """Runs prompt rows that were loaded; returns the first tokens [P] of the pass's requests."""
        models = self.models
        logits, taps = models.target.forward(rows.batch, models.pool, models.drafter.taps)
        models.drafter.observe(rows.batch, taps, models.pool)
        return self.slots.admit(rows.part["at"], first_tokens(logits, rows, models.rule), rows.values)

    def _drafts(self, n: int, drafts: bool) -> Draft:
        slots, block = self.slots, self.slots.shape.block if drafts else 0
        confidence = slots.reals_out[:n, 0, :block].contiguous()
        depth = torch.full((n,), block, dtype=torch.int64, device=slots.device)
        return Draft(
            tokens=slots.drafts[:n, :block],
            confidence=confidence,
            token_free=confidence,
            probabilities=None,
            depth=depth,
        )

    def _commit(
        self,
        n: int,
        batch: Batch,
        draft: Draft,
        survival: Tensor,
        window: Tensor,
        verified: Tensor,
        limits: Tensor,
        phase: Phase,
    ) -> None:
        """Target pass, verdict, what both change, and what the host is to read of it."""
        slots, models, width = self.slots, self.models, draft.tokens.shape[1]
        text, before = slots.next_text(n), slots.anchor[:n].clone()
        with phase("verify"):
            logits, taps = models.target.forward(batch, models.pool, models.drafter.taps)
            assert logits.shape[0] == batch.rows, "every row is judged"
        with phase("accept"):
            text = None if text is None else text[:, : width + 1]
            made = judge(models, logits, batch, draft, window, verified, slots.sampling(n), text)
        with phase("commit"):
            models.drafter.observe(batch, taps, models.pool)
            beyond = slots.shape.block - width
            tokens, ceiling = F.pad(made.tokens, (0, beyond)), made.ceiling
            if beyond:  # what a draft would have brought is not known
                ceiling = torch.full_like(ceiling, UNSEEN)
            delivered = commit(
                made.accepted,
                tokens,
                slots.eos,
                slots.stops_at_eos[:n],
                slots.live,
                slots.anchor[:n],
                slots.start[:n],
                slots.emitted[:n],
                slots.room[:n],
                slots.round[:n],
                slots.ended[:n],
            )
            counts = torch.stack(
                [made.accepted, ceiling, made.flips, window, limits, delivered, before, slots.ended[:n]], dim=1
            )
            slots.ints_out[:n].copy_(torch.cat([counts, tokens, slots.drafts[:n]], dim=1))
            slots.reals_out[:n, 2, :width].copy_(survival)


def judge(
    models: Models,
    logits: Tensor,
    batch: Batch,
    draft: Draft,
    window: Tensor,
    verified: Tensor,
    sampling: Sampling,
    text: Tensor | None,
) -> Verdict:
    """By the rule that the run accepts by; only the coupled one pins a text."""
    if models.rule == "coupled":
        return judge_coupled(logits, batch, draft, window, verified, sampling, text)
    if draft.probabilities is not None:
        wide = widen_law(draft.probabilities, models.drafter.vocabulary, logits.shape[-1])
        draft = replace(draft, probabilities=wide)
    by_rule = judge_block if models.rule == "block" else judge_residual
    return by_rule(logits, batch, draft, window, verified, sampling)


def first_tokens(logits: Tensor, rows: PromptRows, rule: str) -> Tensor:
    """The rule's choice [P] after each prompt, of logits [P, V]."""
    if rule == "coupled":
        return coupled_choice(logits, rows.sampling, rows.part["end"], None)
    uniforms = keyed_uniforms(rows.sampling, rows.part["end"], Purpose.BONUS)
    return inverse_cdf(distribution(logits, rows.sampling), uniforms)


def batch_of(packed: Packed, at: Standing, context: Tensor, drafts: Tensor) -> Batch:
    """The rows that `plan` packed: drafts [n, G], context [n] int32."""
    ids, positions, request, indices, cu_rows = packed
    return Batch(
        ids=ids,
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=at.table,
        request=request,
        cache_indices=indices,
        most_rows=drafts.shape[1] + 1,
    )
