"""What the eager and the captured device share: pages, slots, the oracle's look, reading what a round left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.compiles import compile_count
from dsbench.runtime.loop.passes import Passes
from dsbench.runtime.loop.rounds import Launched
from dsbench.runtime.loop.scheduler import PromptLimits
from dsbench.runtime.policy.calibrated import Maps
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.plan import Policy, Seen, VerifyPlan
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.watch.timeline import Timeline, spanned
from dsbench.runtime.watch.timing import Clock, Stamp, between, hold, passed, stamp


class TorchDevice:
    """A torch device over the pages and slots of its passes. `timeline`: told of every phase, if there is one."""

    def __init__(self, passes: Passes, maps: Callable[[SamplingParams], Maps], prompts: PromptLimits) -> None:
        self.prompts = prompts
        self.passes, self.slots, self.maps = passes, passes.slots, maps
        self.pool, self.device = passes.models.pool, passes.models.target.device
        self.block, self.context = passes.slots.shape.block, passes.models.target.shape.context
        self.capacity, self.eos = passes.slots.shape.slots, frozenset(passes.slots.shape.eos)
        self.replayed = passes.slots.shape.replayed
        self.timeline: Timeline | None = None
        self.clock = Clock()
        self.compiled = compile_count()
        self.unread = torch.full(self.slots.reals_out.shape, float("nan"), device="cpu")  # of a no-draft round

    def open(self, request: Request) -> bool:
        """Gives a request all pages it may need; False, and nothing taken, where the pool cannot.

        Raises UsageError for a prompt that leaves no room for a token.
        """
        need = request.tokens_needed(self.context, self.block)
        if not self.pool.open(request.id, need):
            return False
        self.pool.grow(request.id, need)
        return True

    def release(self, request: Request) -> None:
        self.pool.release(request.id)

    @torch.inference_mode()
    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        self.slots.move(sources, targets)

    @torch.inference_mode()
    def clear(self, slots: Sequence[int]) -> None:
        self.slots.clear(slots)

    @torch.inference_mode()
    def occupy(self, slots: int) -> None:
        self.slots.set("live", slots)

    @torch.inference_mode()
    def reset(self) -> None:
        """Frees all slots, once nothing runs any more."""
        self.check()
        self.slots.reset()

    def check(self) -> None:
        """Raises where the device no longer answers."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def stamp(self) -> Stamp:
        return stamp(self.device)

    def between(self, first: Stamp, last: Stamp) -> float:
        return between(first, last)

    def wait(self, launched: Launched) -> None:
        """Returns once the round is done."""
        while not passed(launched.done):
            time.sleep(0)

    def read(self, left: Tensor) -> Array:
        """What a copy holds, off pinned memory, which is for the next rounds."""
        return np.array(left.numpy())

    def phase(self, name: str) -> AbstractContextManager[None]:
        return spanned(self.timeline, name)

    def watch(self, timeline: Timeline | None) -> None:
        self.timeline = timeline

    def number(self, step: int) -> None:
        """Tells the timeline which round comes."""
        if self.timeline is not None:
            self.timeline.round = step

    def look(self, n: int, plan: VerifyPlan, policy: Policy, context: int) -> VerifyPlan:
        """Drafts the block, waits for what the text accepts of it, and lets an oracle decide; off the clock."""
        self.slots.set("cap", self.block)
        self._draft_to_look(n)
        accepted = copied(self.slots.accepted[:n])
        there = stamp(self.device)
        hold(self.device)
        while not passed(there):
            time.sleep(0)
        survival = self.read(accepted).astype(np.float64)
        return policy.within(plan, Seen(survival=survival, limits=np.full(n, self.block), context=context))

    def _draft_to_look(self, n: int) -> None:
        depths = torch.full((n,), self.block, dtype=torch.int64)
        self.passes.draft(n, lambda free: depths)
        self.passes.look(n)


def copied(x: Tensor) -> Tensor:
    """A copy on the host, valid once a stamp that follows it has passed."""
    if x.device.type != "cuda":
        return x.clone()
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True)
