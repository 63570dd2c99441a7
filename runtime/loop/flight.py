"""A round of the overlapped loop: under way on the device, and, once its copies are there, landed on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.judge import UNSEEN
from dsbench.runtime.arm import Arm
from dsbench.runtime.loop.prompts import Sitting
from dsbench.runtime.loop.seats import COUNTS
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.steering import Course
from dsbench.runtime.records import RoundRecord, StepRecord
from dsbench.runtime.watch.timing import Stamp, between


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A round under way: who sits where, what the host chose for it, and where its results will lie."""

    seated: tuple[Sitting, ...]
    lines: Array  # of the seats in the book, and whose they are
    stays: Array
    course: Course
    tier: int
    context: int
    compiles: int
    host: float  # seconds the launch took
    whole: Tensor  # counts, tokens, drafts; in pinned memory
    real: Tensor  # confidence, free, survival
    stamps: tuple[Stamp, ...]  # begun, prompts done, planned, known what an oracle knows, drafted, done

    def seconds(self, last: Stamp) -> float:
        """Since the round before was done, without an oracle's foresight."""
        *_, ready, known, _, done = self.stamps
        return between(last, done) - between(ready, known)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """What a round left, on the host; of the requests of `seats`: output tokens before it and of it, and who ended."""

    flight: Flight
    step: int
    seats: Array
    before: Array
    put_out: Array
    last: Array
    left: Array  # [n, counts, tokens, drafts]
    real: Array  # [n, 3, G]

    def count(self, name: str) -> Array:
        return self.left[:, COUNTS.index(name)]

    def verified(self, arm: Arm) -> Array:
        """Drafts [n] that the target ran."""
        return self.count("window") if arm.commit == "all" else self.count("limit")

    def rows(self, arm: Arm) -> tuple[int, int]:
        """That ran for requests whose round counted, and for others: zombies, drafts included."""
        verified = self.verified(arm)
        rows = len(self.seats) + int(verified[self.seats].sum())
        return rows, len(self.flight.seated) + int(verified.sum()) - rows

    def step_record(
        self,
        arm: Arm,
        rows: tuple[int, int],
        *,
        last: Stamp,
        now: float,
        predicted: tuple[float, bool],
        fallback: str,
        scripted: bool,
    ) -> StepRecord:
        """rows: as above; last: when the round before was done; now: this is read; predicted: seconds, extrapolated?"""
        flight, seats, course = self.flight, self.seats, self.flight.course
        begun, sat, ready, known, drafted, done = flight.stamps
        granted = int(self.count("window")[seats].sum())
        useful = rows[0] if arm.commit == "all" else len(seats) + granted
        return StepRecord(
            step=self.step,
            start=now,
            read=now,
            requests=len(seats),
            budget=granted,
            rows=rows[0],
            padding=flight.tier - useful,
            context=flight.context,
            tier=flight.tier,
            delivered=int(self.put_out.sum()),
            misses=0,
            compiles=flight.compiles,
            seconds=flight.seconds(last),
            draft_seconds=between(known, drafted),
            plan_seconds=0.0,
            pack_seconds=0.0,
            verify_seconds=between(drafted, done),
            accept_seconds=0.0,
            commit_seconds=0.0,
            predicted_seconds=predicted[0],
            extrapolated=predicted[1],
            confidence_age=course.age,
            priors=course.priors,
            fallback=fallback,
            zombies=rows[1],
            occupied=len(flight.seated),
            flips=0 if scripted else int(self.count("flips")[seats].sum()),
            prefill_seconds=between(begun, sat),
            idle_seconds=between(last, begun) + between(sat, ready),
            host_seconds=flight.host,
        )

    def records(self, arm: Arm, block: int, scripted: bool) -> list[RoundRecord]:
        """A record for each request whose round counted."""
        cap = self.flight.course.depth
        out, counts = [], dict(zip(COUNTS, self.left.T.tolist(), strict=False))
        drafts, verified = self.left[:, len(COUNTS) + block + 1 :][:, :cap].tolist(), self.verified(arm).tolist()
        mine = (x.tolist() for x in (self.seats, self.before, self.put_out, self.last))
        free = self.real[:, 1] if cap else np.full_like(self.real[:, 1], np.nan)  # nobody asked
        for seat, before, delivered, last in zip(*mine, strict=True):
            request = self.flight.seated[seat].request
            out.append(
                RoundRecord(
                    step=self.step,
                    request=request.id,
                    workload=request.workload,
                    position=len(request.prompt_ids) + before - 1,
                    output_index=before,
                    window=counts["window"][seat],
                    verified=verified[seat],
                    accepted=min(counts["accepted"][seat], delivered),
                    delivered=delivered,
                    ceiling=UNSEEN if last else counts["ceiling"][seat],
                    flips=0 if scripted else counts["flips"][seat],
                    drafts=tuple(drafts[seat]),
                    logits=tuple(self.real[seat, 0, :cap].tolist()),
                    token_free_logits=tuple(free[seat].tolist()),
                )
            )
        return out


def copied(x: Tensor) -> Tensor:
    """A copy on the host, valid once a stamp that follows it has passed."""
    if x.device.type != "cuda":
        return x.clone()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def read(x: Tensor) -> Array:
    """What a copy holds, off pinned memory, which is for the next rounds."""
    return x.numpy().copy()
