"""How the passes of a round are run: as they are, or (graphs.py) as replays of captured graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dsbench.runtime.batch import pack_rows
from dsbench.runtime.drafters.draft import DepthRule, Draft
from dsbench.runtime.law.accept import Verdict
from dsbench.runtime.loop.passes import Models, Phase, Round, draft_pass, verify_pass
from dsbench.runtime.watch.timeline import Timeline, working


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """What a verify pass came to. rows: those of requests; tier: all that ran, padding included."""

    verdict: Verdict
    rows: int
    tier: int


class Executor(Protocol):
    """`misses` counts the passes that no captured graph fitted, since it was last set."""

    misses: int
    models: Models
    most: float  # requests it runs without a miss
    timeline: Timeline | None  # told what the passes take of the device

    def draft(self, now: Round, depth: DepthRule) -> Draft: ...

    def verify(self, now: Round, draft: Draft, window: Tensor, verified: Tensor, phase: Phase) -> Executed:
        """window, verified [R] beside the drafts: what may be committed, and what the target runs."""


class Eager:
    """Exactly the requests and rows there are."""

    misses = 0
    most = math.inf

    def __init__(self, models: Models) -> None:
        self.models = models
        self.timeline: Timeline | None = None

    def draft(self, now: Round, depth: DepthRule) -> Draft:
        with working(self.timeline, "draft"):
            return draft_pass(self.models, now, depth)

    def verify(self, now: Round, draft: Draft, window: Tensor, verified: Tensor, phase: Phase) -> Executed:
        at = now.standing
        with phase("pack"):
            batch = pack_rows(at.anchor, draft.tokens, verified, at.start.int(), at.table)
        with working(self.timeline, "verify"):
            verdict = verify_pass(self.models, now, batch, draft, window, verified, phase)
        return Executed(verdict=verdict, rows=batch.rows, tier=batch.rows)
