"""A round in flight on the device, completed once its results are on the host, and the records made of it. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsbench.runtime.arm import Arm
from dsbench.runtime.loop.scheduler import Residence
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.plan import VerifyPlan
from dsbench.runtime.records import UNSEEN, RoundRecord, StepRecord

# columns of what a round leaves a request; then come its tokens [G + 1] and drafts [G]
COUNTS = ("accepted", "ceiling", "flips", "window", "limit", "delivered", "anchor", "ended")
Stamp = Any  # a moment of the device: a CUDA event, or seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """What a device was given to do: the plan that it runs, rows of the pass, and when its parts were done."""

    plan: VerifyPlan
    tier: int  # rows of the target pass, those of filler included
    ready: Stamp  # its first work
    known: Stamp  # an oracle knows the text; `ready` where none asks
    drafted: Stamp
    done: Stamp
    ints: Any  # [R, counts, tokens, drafts] of the device, to be read once done
    reals: Any  # [R, 3, G] confidence, token-free confidence, survival
    phases: Mapping[str, float] = field(default_factory=dict)  # seconds, where the device waits for each


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingRound:
    """A launched round that was not read yet: who was in its slots, and how long its launch took."""

    launched: Launched
    slots: tuple[Residence, ...]
    rows: Array  # of the history, and the residences in them
    residences: Array
    context: int
    begun: Stamp  # before the prompts that ran with it
    filled: Stamp
    host: float  # seconds the launch took
    compiles: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """What a round left. Of the requests in `counted`, who were still there: output before and of it, and who ended."""

    round: PendingRound
    step: int
    counted: Array  # [n] slots
    before: Array
    delivered: Array
    last: Array
    ints: Array  # [R, counts, tokens, drafts]
    reals: Array  # [R, 3, G]

    def count(self, name: str) -> Array:
        return self.ints[:, COUNTS.index(name)]

    def verified(self, arm: Arm) -> Array:
        """Drafts [R] that the target ran."""
        return self.count("window") if arm.commit == "all" else self.count("limit")

    def ran(self, arm: Arm) -> tuple[int, int]:
        """Rows that ran for requests whose round counted, and for others, drafts included."""
        verified = self.verified(arm)
        rows = len(self.counted) + int(verified[self.counted].sum())
        return rows, len(self.round.slots) + int(verified.sum()) - rows

    def seconds(self, last: Stamp, between: Callable[[Stamp, Stamp], float]) -> float:
        """Seconds since the round before was done, without an oracle's look at the text."""
        launched = self.round.launched
        return between(last, launched.done) - between(launched.ready, launched.known)

    def step_record(
        self,
        arm: Arm,
        *,
        last: Stamp,
        between: Callable[[Stamp, Stamp], float],
        now: float,
        predicted: tuple[float, bool],
        fallback: str,
        replayed: bool,
    ) -> StepRecord:
        """last: when the round before was done; now: this one is read; predicted: seconds, extrapolated?"""
        pending, launched, plan = self.round, self.round.launched, self.round.launched.plan
        granted, (rows, zombies) = int(self.count("window")[self.counted].sum()), self.ran(arm)
        phases: dict[str, Any] = {f"{name}_seconds": seconds for name, seconds in launched.phases.items()} or {
            "draft_seconds": between(launched.known, launched.drafted),
            "verify_seconds": between(launched.drafted, launched.done),
        }
        return StepRecord(
            step=self.step,
            start=now,
            read=now,
            requests=len(self.counted),
            budget=granted,
            rows=rows,
            padding=launched.tier - (rows if arm.commit == "all" else len(self.counted) + granted),
            context=pending.context,
            tier=launched.tier,
            delivered=int(self.delivered.sum()),
            compiles=pending.compiles,
            seconds=self.seconds(last, between),
            predicted_seconds=predicted[0],
            extrapolated=predicted[1],
            confidence_age=plan.age,
            priors=plan.priors,
            fallback=fallback,
            zombies=zombies,
            occupied=len(pending.slots),
            flips=0 if replayed else int(self.count("flips")[self.counted].sum()),
            prefill_seconds=between(pending.begun, pending.filled),
            idle_seconds=0.0
            if launched.phases
            else between(last, pending.begun) + between(pending.filled, launched.ready),
            host_seconds=pending.host,
            **phases,
        )

    def records(self, arm: Arm, block: int, replayed: bool) -> list[RoundRecord]:
        """A record for each request whose round counted."""
        depth, counts = self.round.launched.plan.depth, dict(zip(COUNTS, self.ints.T.tolist(), strict=False))
        drafts = self.ints[:, len(COUNTS) + block + 1 :][:, :depth].tolist()
        verified, reals, out = self.verified(arm).tolist(), self.reals, []
        free = reals[:, 1] if depth else np.full_like(reals[:, 1], np.nan)  # nobody asked
        mine = (x.tolist() for x in (self.counted, self.before, self.delivered, self.last))
        for slot, before, delivered, last in zip(*mine, strict=True):
            request = self.round.slots[slot].request
            out.append(
                RoundRecord(
                    step=self.step,
                    request=request.id,
                    workload=request.workload,
                    position=len(request.prompt_ids) + before - 1,
                    output_index=before,
                    window=counts["window"][slot],
                    verified=verified[slot],
                    accepted=min(counts["accepted"][slot], delivered),
                    delivered=delivered,
                    ceiling=UNSEEN if last else counts["ceiling"][slot],
                    flips=0 if replayed else counts["flips"][slot],
                    drafts=tuple(drafts[slot]),
                    logits=tuple(reals[slot, 0, :depth].tolist()),
                    token_free_logits=tuple(free[slot].tolist()),
                )
            )
        return out
