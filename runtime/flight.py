"""A round of the overlapped loop: under way on the device, and, once its copies are there, landed on the host."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.kernels.judge import UNSEEN
from dsbench.runtime.arm import Arm
from dsbench.runtime.objective import Array
from dsbench.runtime.prompts import Sitting
from dsbench.runtime.records import RoundRecord
from dsbench.runtime.seats import COUNTS
from dsbench.runtime.steering import Course
from dsbench.runtime.timing import Stamp


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
    stamps: tuple[Stamp, ...]  # begun, prompts done, planned, drafted, known how much to verify, done


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

    def zombies(self, arm: Arm) -> int:
        """Rows that ran for requests whose round did not count, drafts included."""
        whole = len(self.flight.seated) + int(self.verified(arm).sum())
        return whole - len(self.seats) - int(self.verified(arm)[self.seats].sum())

    def records(self, arm: Arm, block: int, scripted: bool) -> list[RoundRecord]:
        """A record for each request whose round counted."""
        cap = self.flight.course.depth
        out, counts = [], dict(zip(COUNTS, self.left.T.tolist(), strict=False))
        drafts, verified = self.left[:, len(COUNTS) + block + 1 :][:, :cap].tolist(), self.verified(arm).tolist()
        mine = (x.tolist() for x in (self.seats, self.before, self.put_out, self.last))
        for seat, before, delivered, last in zip(*mine, strict=True):
            request = self.flight.seated[seat].request
            out.append(
                RoundRecord(
                    step=self.step, request=request.id, workload=request.workload,
                    position=len(request.prompt_ids) + before - 1, output_index=before, window=counts["window"][seat],
                    verified=verified[seat], accepted=min(counts["accepted"][seat], delivered), delivered=delivered,
                    ceiling=UNSEEN if last else counts["ceiling"][seat],
                    flips=0 if scripted else counts["flips"][seat], drafts=tuple(drafts[seat]),
                    logits=tuple(self.real[seat, 0, :cap].tolist()), free_logits=tuple(self.real[seat, 1].tolist()),
                )
            )  # fmt: skip
        return out


def copied(x: Tensor) -> Tensor:
    """A copy on the host, valid once a stamp that follows it has passed."""
    if x.device.type != "cuda":
        return x.clone()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)


def read(x: Tensor) -> Array:
    """What a copy holds, off pinned memory, which is for the next rounds."""
    return x.numpy().copy()
