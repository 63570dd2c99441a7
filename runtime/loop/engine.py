"""The engine: one decode step on one screen, admission, and what a finished request leaves behind.

It sees ids, never text (a stop string is found by the `decode` it is given), and holds no policy: windows come from
the planner, acceptance from the judges, pages from the pool. One path, whose passes an executor runs: as they are, or
as captured graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.compiles import compile_count
from dsbench.kernels.judge import UNSEEN
from dsbench.profiles.cost import StepShape
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import DepthRule, Draft, Drafter, standing_of
from dsbench.runtime.law.accept import Verdict
from dsbench.runtime.loop.executor import Executed, Executor
from dsbench.runtime.loop.finish import extend
from dsbench.runtime.loop.graphs import make_executor, make_models
from dsbench.runtime.loop.passes import Round
from dsbench.runtime.loop.prefill import prefill
from dsbench.runtime.loop.script import script_of
from dsbench.runtime.policy.planner import PlanInputs, Planner, VerifyPlan
from dsbench.runtime.records import RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request
from dsbench.runtime.sampling import sampling_of
from dsbench.runtime.targets.base import Target
from dsbench.runtime.watch.timeline import Timeline, spanned
from dsbench.runtime.watch.timing import PhaseTimer, sleep_until


class Engine:
    """Runs requests in one arm. `tokens` bounds what all running requests may hold in the pool together, `longest` what
    one of them may; None: the target's context.

    An `executor` of another engine, closed before, may be used again by an arm with the same drafter, depth and rule;
    then its pool is what there is.
    """

    def __init__(
        self,
        target: Target,
        drafter: Drafter,
        arm: Arm,
        planner: Planner,
        config: EngineConfig,
        *,
        eos: frozenset[int],
        tokens: int = 0,
        decode: Callable[[Sequence[int]], str] | None = None,
        executor: Executor | None = None,
        longest: int | None = None,
    ) -> None:
        self.target, self.drafter, self.arm, self.planner, self.config = target, drafter, arm, planner, config
        self.eos, self.decode = eos, decode
        if executor is None:
            models = make_models(target, drafter, config, tokens, longest or target.shape.context)
            executor = make_executor(models, config, arm.depth(drafter.block))
        self.executor = executor
        self.pool = self.executor.models.pool
        self.timer, self._compiles = PhaseTimer(target.device), compile_count()
        self.running: list[Request] = []
        self.steps: list[StepRecord] = []
        self.rounds: list[RoundRecord] = []
        self.finished: list[RequestRecord] = []
        self._admitted: dict[int, tuple[float, float]] = {}  # request id -> when admitted, when its first token came
        self.timeline: Timeline | None = None

    def record(self, timeline: Timeline | None) -> None:
        """Tells the timeline of every phase from here on; None: nobody."""
        self.timeline = self.executor.timeline = timeline
        self.timer.around = (lambda name: nullcontext()) if timeline is None else timeline.span

    @torch.inference_mode()
    def step(self) -> StepRecord:
        """One round for every running request: draft, plan, pack, verify, accept, commit."""
        requests, phase, begin = self.running, self.timer.phase, self.timer.now()
        self.timer.reset()
        self._number_round()
        self.executor.misses, compiled = 0, self._compiles.total
        self._open_round(requests)
        limits, context = self._limits(requests), sum(r.committed for r in requests)
        with phase("draft"):
            now = self._round(requests)
            draft = self.executor.draft(now, self._depth(requests, limits, context))
        with phase("plan"):
            plan, inputs = self.planner.plan(requests, draft, limits, context)
            verified = self._verified(plan, limits, draft.depth)
        done = self.executor.verify(now, draft, plan.window, verified, phase)
        assert done.rows == int(verified.sum()) + len(requests), "executed rows are not the plan's"
        if now.script is not None:  # weights that did not write the text choose otherwise
            done.verdict.flips.zero_()
        with phase("commit"):
            delivered = self._commit(requests, done.verdict)
        self._record_rounds(requests, draft, plan, verified, done.verdict, delivered, now)
        record = self._record(begin, requests, done, plan, inputs, delivered, context, self._compiles.total - compiled)
        self._retire()
        return record

    @torch.inference_mode()
    def admit(self, requests: Sequence[Request]) -> list[Request]:
        """Gives pages to as many requests as fit, in order, and prefills them; returns those that did not fit.

        Raises UsageError for a prompt that leaves no room for a token.
        """
        taken: list[Request] = []
        for request in requests:
            need = request.slots_needed(self.target.shape.context, self.drafter.block)
            if not self.pool.open(request.id, need):
                break
            taken.append(request)
            self._admitted[request.id] = (self.timer.now(), 0.0)
        config = self.config
        self._number_round()
        with spanned(self.timeline if taken else None, "prefill", device=True):
            for request, token in prefill(
                taken, self.target, self.drafter, self.pool, rule=config.rule, chunk=config.prefill_chunk
            ):
                first = request.canonical[0] if config.rule == "coupled" and request.canonical else token
                extend(request, [first], self.eos, self.decode, request.room(self.target.shape.context))
                self._admitted[request.id] = (self._admitted[request.id][0], self.timer.now())
        self.running = self.running + taken
        self._retire()
        return list(requests[len(taken) :])

    def cancel(self, request: Request) -> None:
        """Ends a running request where it is."""
        if any(r is request for r in self.running):
            request.finish_reason = "cancelled"
            self._retire()

    def now(self) -> float:
        """Seconds since it was made."""
        return self.timer.now()

    def rest(self, until: float) -> None:
        """Nobody is there: sleeps until that second, which lies in no step."""
        sleep_until(self.timer.now, until)

    def _number_round(self) -> None:
        if self.timeline is not None:
            self.timeline.round = len(self.steps)

    def _limits(self, requests: Sequence[Request]) -> np.ndarray:
        """Drafts each request may verify: G, or what is allowed less the bonus."""
        return np.array([min(self.drafter.block, r.room(self.target.shape.context) - 1) for r in requests], np.int64)

    def _open_round(self, requests: Sequence[Request]) -> None:
        """Pages up to the end of the block, and a new round for the noise keys."""
        for request in requests:
            self.pool.grow(request.id, request.committed + self.drafter.block + 1)
            request.rounds += 1

    def _depth(self, requests: Sequence[Request], limits: np.ndarray, context: int) -> DepthRule:
        """How many slots the drafter is to fill, once it knows the block's token-free confidences."""
        most = self.arm.depth(self.drafter.block)
        if self.config.draft == "full" or self.arm.sees_whole_block or self.arm.layout == "rectangular":
            return lambda free: torch.full((len(requests),), most)
        return lambda free: self.planner.depth(requests, free, limits, context).clamp(max=most)

    def _verified(self, plan: VerifyPlan, limits: np.ndarray, depth: Tensor) -> Tensor:
        """Drafts per request that the target runs: the window, the whole block to see past it, or one shape for all."""
        if self.arm.layout == "rectangular":
            return depth
        if self.arm.commit == "window":
            return torch.minimum(torch.from_numpy(limits).to(depth), depth)
        return plan.window

    def _round(self, requests: Sequence[Request]) -> Round:
        """Where the requests stand, from the host's lists to the device."""
        device, block = self.target.device, self.drafter.block
        recorded = self._recorded(requests, block + 1)
        return Round(
            standing=standing_of(requests, self.pool, device),
            sampling=sampling_of(requests, device),
            recorded=recorded,
            script=script_of(requests, recorded, block, self.target.shape.vocab),
        )

    def _recorded(self, requests: Sequence[Request], width: int) -> Tensor | None:
        """The pinned text's next `width` tokens per request, -1 where none is recorded; only the coupled rule pins."""
        if self.config.rule != "coupled" or all(r.canonical is None for r in requests):
            return None
        rows = [(r.canonical or [])[len(r.output) : len(r.output) + width] for r in requests]
        return torch.tensor([row + [-1] * (width - len(row)) for row in rows], device=self.target.device)

    def _commit(self, requests: Sequence[Request], verdict: Verdict) -> list[int]:
        """Extends each request by what was accepted and the token after it; returns tokens delivered per request."""
        delivered, context = [], self.target.shape.context
        for request, accepted, tokens in zip(requests, verdict.accepted.tolist(), verdict.tokens.tolist(), strict=True):
            delivered.append(extend(request, tokens[: accepted + 1], self.eos, self.decode, request.room(context)))
            self.pool.truncate(request.id, request.committed)
        return delivered

    def close(self) -> None:
        """Lets go of the requests still running, and of their pages; nobody records any more."""
        self.record(None)
        for request in self.running:
            self.pool.release(request.id)
        self.running = []

    def _retire(self) -> None:
        now = self.timer.now()
        for request in [r for r in self.running if r.finished]:
            self.pool.release(request.id)
            admitted, first = self._admitted.pop(request.id)
            self.finished.append(RequestRecord.of(request, admitted, first, now))
        self.running = [r for r in self.running if not r.finished]

    def _record(
        self,
        begin: float,
        requests: Sequence[Request],
        done: Executed,
        plan: VerifyPlan,
        inputs: PlanInputs,
        delivered: list[int],
        context: int,
        compiles: int,
    ) -> StepRecord:
        phases: Any = {f"{name}_seconds": seconds for name, seconds in self.timer.seconds.items()}
        seconds, outside = self.planner.predict(StepShape(len(requests), done.rows, context))
        record = StepRecord(
            step=len(self.steps),
            start=begin,
            requests=len(requests),
            budget=plan.budget,
            rows=done.rows,
            padding=done.tier - (plan.rows if self.arm.commit == "all" else done.rows),
            context=context,
            tier=done.tier,
            delivered=sum(delivered),
            misses=self.executor.misses,
            compiles=compiles,
            seconds=(now := self.timer.now()) - begin,
            read=now,
            predicted_seconds=seconds,
            confidence_age=inputs.age,
            priors=inputs.priors,
            extrapolated=outside,
            flips=int(done.verdict.flips.sum()),
            seats=len(requests),
            **phases,
        )
        self.steps.append(record)
        return record

    def _record_rounds(
        self,
        requests: Sequence[Request],
        draft: Draft,
        plan: VerifyPlan,
        verified: Tensor,
        verdict: Verdict,
        delivered: list[int],
        now: Round,
    ) -> None:
        if not self.config.record_rounds:
            return
        columns = zip(
            requests,
            plan.window.tolist(),
            verified.tolist(),
            verdict.accepted.tolist(),
            delivered,
            verdict.ceiling.tolist(),
            verdict.flips.tolist(),
            draft.depth.tolist(),
            draft.tokens.tolist(),
            draft.confidence.tolist(),
            draft.free.tolist(),
            now.standing.start.tolist(),
            strict=True,
        )
        for request, window, sent, accepted, out, ceiling, flips, depth, tokens, logits, free, position in columns:
            if request.finished:  # its end cuts the block, so nobody sees what the whole of it would have given
                ceiling = UNSEEN
            self.rounds.append(
                RoundRecord(
                    step=len(self.steps),
                    request=request.id,
                    workload=request.workload,
                    position=position,
                    output_index=len(request.output) - out,
                    window=window,
                    verified=sent,
                    accepted=min(accepted, out),
                    delivered=out,
                    ceiling=ceiling,
                    flips=flips,
                    drafts=tuple(tokens[:depth]),
                    logits=tuple(logits[:depth]),
                    free_logits=tuple(free),
                )
            )
