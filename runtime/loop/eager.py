"""The eager device: exactly the requests and rows there are, a phase after the other. For CPUs, and for any rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dsbench.runtime.arm import Arm
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.loop.passes import Models, Passes
from dsbench.runtime.loop.prompt_rows import PromptRows
from dsbench.runtime.loop.rounds import Launched
from dsbench.runtime.loop.scheduler import Residence, eager_prompts
from dsbench.runtime.loop.slots import Slots, SlotShape
from dsbench.runtime.loop.torch_device import TorchDevice, copied
from dsbench.runtime.policy.calibrated import Maps
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.plan import Looks, Policy, Seen, VerifyPlan
from dsbench.runtime.request import SamplingParams
from dsbench.runtime.watch.timeline import spanned, working
from dsbench.runtime.watch.timing import PhaseTimer, stamp


class EagerDevice(TorchDevice):
    """Runs rounds of up to `shape.slots` requests of an arm, as they are launched."""

    def __init__(
        self, models: Models, arm: Arm, shape: SlotShape, maps: Callable[[SamplingParams], Maps], chunk: int
    ) -> None:
        super().__init__(
            Passes(models, Slots(shape, models.pool.shape.pages, models.target.device), arm.commit),
            maps,
            eager_prompts(chunk),
        )
        self.full = arm.layout == "rectangular"
        self.timer = PhaseTimer(models.target.device)

    @torch.inference_mode()
    def prefill(self, part: Sequence[tuple[Residence, int]], at: Sequence[int]) -> list[int]:
        rows = PromptRows(self.slots, sum(count for _, count in part), len(part))
        with spanned(self.timeline, "prefill", device=True):
            rows.load(part, at, self.pool, self.maps)
            return self.passes.prefill(rows)[: len(at)].tolist()

    @torch.inference_mode()
    def launch(self, n: int, plan: VerifyPlan, policy: Policy, context: int) -> Launched:
        self.timer.around = self.phase
        self.timer.reset()
        passes, slots, ready = self.passes, self.slots, stamp(self.device)
        if policy.looks == "text":
            plan = self.look(n, plan, policy, context)
        known, draft = stamp(self.device), None
        slots.set("cap", plan.depth)
        if plan.depth:
            with self.timer.phase("draft"), working(self.timeline, "draft"):
                seen = _Depth(self, n, plan, policy, context)
                draft = passes.draft(n, seen)
                plan = seen.plan
                slots.set("cap", plan.depth)
                passes.fill(n, plan.depth)
        drafted = stamp(self.device)
        plan = self._after(n, plan, policy, draft, context)
        slots.set("budget", plan.budget)
        window = None if plan.window is None else torch.from_numpy(plan.window).to(self.device)
        made = draft if plan.depth else None
        with working(self.timeline, "verify"):
            tier = passes.verify_exactly(n, made, window=window, full=self.full, phase=self.timer.phase)
        ints = copied(slots.ints_out[:n])
        reals = copied(slots.reals_out[:n]) if plan.depth else self.unread[:n]
        return Launched(
            plan=plan,
            tier=tier,
            ready=ready,
            known=known,
            drafted=drafted,
            done=stamp(self.device),
            ints=ints,
            reals=reals,
            phases=dict(self.timer.seconds),
        )

    def _after(self, n: int, plan: VerifyPlan, policy: Policy, draft: Draft | None, context: int) -> VerifyPlan:
        """Lets a policy that looks at the round's confidences decide; an oracle's certainty stands in for them."""
        if policy.looks == "text" and draft is not None:
            self.passes.trust(n)
        if policy.looks != "confidence" or draft is None:
            return plan
        return policy.within(plan, self.seen(n, "confidence", context))

    def seen(self, n: int, looks: Looks, context: int, free: Tensor | None = None) -> Seen:
        """What the round's draft says to the host, in fp64."""
        slots = self.slots
        scale, offset = (slots.free_scale, slots.free_offset) if looks == "token-free" else (slots.scale, slots.offset)
        logits = slots.reals_out[:n, 0] if free is None else free
        chances = torch.sigmoid(logits.double() * scale[:n] + offset[:n])
        return Seen(survival=host(chances.cumprod(1)), limits=host(slots.limits(n)), context=context)


class _Depth:
    """How deep to draft, asked once the token-free confidences are there; `plan` is what came of it."""

    def __init__(self, device: EagerDevice, n: int, plan: VerifyPlan, policy: Policy, context: int) -> None:
        self.device, self.n, self.plan, self.policy, self.context = device, n, plan, policy, context

    def __call__(self, free: Tensor) -> Tensor:
        if self.policy.looks == "token-free":
            self.plan = self.policy.within(self.plan, self.device.seen(self.n, "token-free", self.context, free))
        return torch.full((self.n,), self.plan.depth, dtype=torch.int64)


def host(x: Tensor) -> Array:
    return np.asarray(x.cpu().numpy())
