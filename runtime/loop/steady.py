"""The passes of a round over seats: all it needs is on the device, and what it leaves is read later, by a copy.

    draft   the seats' blocks, or the trace's drafts in their place           a graph per request tier
    verify  plan + pack, target, verdict, commit, and what the host reads     a graph per row tier
    plain   the same of one row a request, no draft                           a graph per request tier
    prefill prompt rows of some requests; those done get a token and sit down a graph per token tier

A replay waits for nobody and asks nobody: windows come from the confidences that the draft left, the budget and the cap
from two numbers that the host wrote. Rows are those of the first `live` seats; what is left over is nobody's.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.kernels.commit import commit
from dsbench.kernels.judge import UNSEEN
from dsbench.kernels.pack import Packed
from dsbench.kernels.plan import plan
from dsbench.runtime.arm import Arm
from dsbench.runtime.batch import Batch, pack_padded
from dsbench.runtime.config import CHUNKS, EngineConfig
from dsbench.runtime.drafters.draft import Draft, Standing
from dsbench.runtime.loop.graphs import Capture, Run, Tiers, capture_on, next_tier, tiers_of
from dsbench.runtime.loop.passes import Models, Round, draft_pass, verify_pass
from dsbench.runtime.loop.prompt_rows import PromptRows
from dsbench.runtime.loop.seats import Seats, SeatShape
from dsbench.runtime.policy.budget import DEPTHS
from dsbench.runtime.sampling import coupled_choice

CERTAIN = 40.0  # a logit whose odds are one and none in fp32


def make_steady(
    models: Models, arm: Arm, config: EngineConfig, *, recorded: int, eos: frozenset[int], scripted: bool
) -> Steady:
    """The captured passes of an arm for config.graphs requests over the models' pool.

    recorded: tokens of the longest pinned text, 0 where none is; scripted: a trace's drafts are replayed.
    """
    block = models.drafter.block
    depth = arm.depth(block)
    # arms of whole blocks share their graphs, and some of them may draft less than they could verify
    shallow = arm.fixed is None and arm.commit == "all"
    depths = (*(d for d in DEPTHS if shallow and d < depth), depth)
    tiers = tiers_of(models, config.graphs, depth)
    shape = SeatShape(
        seats=tiers.requests[-1],
        block=block,
        table=models.pool.shape.table,
        recorded=recorded,
        eos=tuple(sorted(eos)),
        scripted=scripted,
    )
    return Steady(models, shape, tiers, depths, arm.commit, capture_on(models.target.device))


class Steady:
    """Captured passes of one drafter, of some depths, and one kind of commit, over their own seats.

    commit: "all" verifies the planned windows; "window" verifies whole blocks and commits the planned windows of them.
    """

    def __init__(
        self, models: Models, shape: SeatShape, tiers: Tiers, depths: tuple[int, ...], commit: str, capture: Capture
    ) -> None:
        self.models, self.tiers, self.depths, self.commit = models, tiers, depths, commit
        self.seats = Seats(shape, models.pool.shape.pages, models.target.device)
        self.graph_pool: Any = getattr(capture, "pool", None)  # torch's handle of the graphs' memory
        self.chunks = [PromptRows(self.seats, n) for n in CHUNKS]
        with torch.inference_mode():
            self.verify_graphs = {size: capture(self._verify_run(*size, shape.block)) for size in tiers.verify()}
            plain = tiers.requests if len(depths) > 1 else ()
            self.plain_graphs = {n: capture(self._verify_run(n, n, 0)) for n in reversed(plain)}
            drafts = [(n, depth) for n in reversed(tiers.requests) for depth in reversed(depths) if depth]
            self.draft_graphs = {size: capture(self._draft_run(*size)) for size in drafts}
            # arms of whole blocks share their graphs, and an oracle may be one of them
            foreseen = tiers.requests if shape.recorded and depths[-1] == shape.block > 0 else ()
            self.foresights = {n: capture(self._foresee_run(n)) for n in reversed(foreseen)}
            self.prefill_graphs = {c.rows: capture(self._prefill_run(c)) for c in reversed(self.chunks)}

    def draft(self, requests: int, depth: int) -> None:
        if depth:
            self.draft_graphs[next_tier(self.tiers.requests, requests), depth]()

    def foresee(self, requests: int) -> Tensor:
        """Drafts [G] of the round's first seats that the pinned text takes, by the depth they are drafted to."""
        self.foresights[next_tier(self.tiers.requests, requests)]()
        return self.seats.taken

    def trust(self, requests: int) -> None:
        """What was foreseen stands for the confidences."""
        self.seats.real_left[:requests, 0].copy_(self.seats.certain[:requests])

    def verify(self, requests: int, rows: int) -> int:
        """Runs the tier that holds `rows`; returns its rows."""
        size = self.tiers.of(requests, rows)
        self.verify_graphs[size]()
        return size[0]

    def plain(self, requests: int) -> int:
        """Runs a pass of one row a request, which verifies no draft; returns its rows."""
        size = next_tier(self.tiers.requests, requests)
        self.plain_graphs[size]()
        return size

    def prompt_rows(self, count: int) -> PromptRows:
        """The smallest buffers that hold `count` prompt rows."""
        return next(c for c in self.chunks if c.rows >= count)

    def prefill(self, rows: PromptRows) -> None:
        """Runs prompt rows that were loaded; who is done with theirs sits then, with a first token."""
        self.prefill_graphs[rows.rows]()

    def _round(self, n: int) -> Round:
        return Round(
            standing=self.seats.standing(n), sampling=self.seats.sampling(n), recorded=self.seats.next_recorded(n)
        )

    def _draft_run(self, n: int, depth: int) -> Run:
        depths = torch.full((n,), depth)  # on the host, where slots are counted

        def run() -> None:
            seats, block = self.seats, self.seats.shape.block
            now = self._round(n)
            assert now.requests == n, "a tier of requests has its seats"
            made = draft_pass(self.models, now, lambda free: depths)
            tokens, confidence, free = made.tokens, made.confidence, made.token_free
            if seats.shape.scripted:
                script, text = seats.next_script(n), now.recorded
                assert text is not None, "a trace is replayed on its own text"
                hit = torch.arange(block, device=text.device) < script[:, :1]
                tokens = torch.where(hit, text[:, :block], (text[:, :block] + 1) % self.models.target.shape.vocab)
                confidence, free = script[:, 1 : 1 + block], script[:, 1 + block :]
            seats.drafts[:n].copy_(tokens)
            seats.real_left[:n, 0].copy_(confidence if depth == block else seats.filled(n, confidence, free, depth))
            seats.real_left[:n, 1].copy_(free)

        return run

    def _verify_run(self, rows: int, requests: int, block: int) -> Run:
        """Over drafts up to `block` deep, of all that there are or of none."""
        n, beyond = requests + 1, self.seats.shape.block - block

        def run() -> None:
            seats, page = self.seats, self.models.pool.shape.page
            now = self._round(n)
            if beyond and now.recorded is not None:
                now = replace(now, recorded=now.recorded[:, : block + 1])
            at, before = now.standing, now.standing.anchor.clone()
            limits = torch.zeros_like(before) if beyond else seats.limits(n)
            context, drafts = at.start.int(), seats.drafts[:n, :block]
            confidence = seats.real_left[:n, 0, :block].contiguous()
            if not block:
                survival, window = confidence, limits
                batch = pack_padded(at.anchor, drafts, window, context, at.table, seats.live, rows, page)
            else:
                survival, window, packed = plan(
                    confidence,
                    seats.scale[:n],
                    seats.offset[:n],
                    limits,
                    seats.budget,
                    at.anchor,
                    drafts,
                    context,
                    at.table,
                    seats.live,
                    rows,
                    page,
                )
                batch = batch_of(packed, at, context, drafts)
            verified = window
            if self.commit == "window":
                verified = limits
                batch = pack_padded(at.anchor, drafts, verified, context, at.table, seats.live, rows, page)
            tall = torch.full((n,), self.depths[-1], dtype=torch.int64, device=drafts.device)
            draft = Draft(tokens=drafts, confidence=confidence, token_free=confidence, probabilities=None, depth=tall)
            made = verify_pass(self.models, now, batch, draft, window, verified, lambda name: nullcontext())
            tokens, ceiling = F.pad(made.tokens, (0, beyond)), made.ceiling
            if beyond:  # what a draft would have brought is not known
                ceiling = torch.full_like(ceiling, UNSEEN)
            delivered = commit(
                made.accepted,
                tokens,
                seats.eos,
                seats.heeds[:n],
                seats.live,
                seats.anchor[:n],
                seats.start[:n],
                seats.emitted[:n],
                seats.room[:n],
                seats.round[:n],
                seats.ended[:n],
            )
            counts = torch.stack(
                [made.accepted, ceiling, made.flips, window, limits, delivered, before, seats.ended[:n]], dim=1
            )
            seats.whole_left[:n].copy_(torch.cat([counts, tokens, seats.drafts[:n]], dim=1))
            seats.real_left[:n, 2, :block].copy_(survival)

        return run

    def _foresee_run(self, n: int) -> Run:
        column = torch.arange(self.seats.shape.block, device=self.seats.device)

        def run() -> None:
            seats, text = self.seats, self.seats.next_recorded(n)
            assert text is not None, "an oracle knows the recorded text"
            hit = (seats.drafts[:n] == text[:, : seats.shape.block]).long().cumprod(1)
            certain = (2.0 * hit - 1.0) * CERTAIN
            seats.certain[:n].copy_((certain - seats.offset[:n]) / seats.scale[:n].clamp(min=1e-6))
            seats.taken.copy_((hit * (column < seats.limits(n)[:, None])).sum(0).cumsum(0))

        return run

    def _prefill_run(self, rows: PromptRows) -> Run:
        def run() -> None:
            models = self.models
            logits, taps = models.target.forward(rows.batch, models.pool, models.drafter.taps)
            models.drafter.observe(rows.batch, taps, models.pool)
            first = coupled_choice(logits, rows.sampling, rows.part["end"], None)
            self.seats.sit(rows.newcomers(first))

        return run


def batch_of(packed: Packed, at: Standing, context: Tensor, drafts: Tensor) -> Batch:
    """The rows that `plan` packed: drafts [n, G], context [n] int32."""
    ids, positions, request, slots, cu_rows = packed
    return Batch(
        ids=ids,
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=at.table,
        request=request,
        cache_indices=slots,
        most_rows=drafts.shape[1] + 1,
    )
