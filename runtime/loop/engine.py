"""The engine: one decode step for every device. No torch.

    fill      prompts that are due run; requests take slots
    choose    the policy plans the round from what was read so far
    launch    the device drafts, verifies and commits
    complete  tokens and confidences of the round that is due -> requests, history, records

Windows, packing, acceptance, lengths, EOS and token limits are the device's; only stop strings and cancelled requests
end here. A request that has ended runs on in rounds launched before that was known; what they bring it is dropped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from dsbench.profiles.cost import StepShape
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.finish import extend
from dsbench.runtime.loop.rounds import COUNTS, Completed, Launched, PendingRound, Stamp
from dsbench.runtime.loop.scheduler import Residence, Scheduler, Slotted
from dsbench.runtime.policy.calibrated import Calibrated, Maps
from dsbench.runtime.policy.guard import Guard
from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.plan import Policy, VerifyPlan
from dsbench.runtime.policy.prices import Prices
from dsbench.runtime.records import RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request, SamplingParams


class Clock(Protocol):
    """Seconds since the engine's device was made."""

    def now(self) -> float: ...

    def count(self, seconds: float) -> None: ...

    def rest(self, until: float) -> None: ...


class Compiles(Protocol):
    """Kernels compiled in this process so far."""

    @property
    def total(self) -> int: ...


class Device(Slotted, Protocol):
    """What launches a round and knows when it is done."""

    block: int
    context: int  # tokens a request may have in all
    eos: frozenset[int]
    replayed: bool  # drafts are a trace's
    maps: Callable[[SamplingParams], Maps]  # of the confidences of a request that takes a slot

    @property
    def clock(self) -> Clock: ...

    @property
    def compiled(self) -> Compiles: ...

    def open(self, request: Request) -> bool:
        """Gives a request all pages it may need; False, and nothing taken, where there are too few."""

    def release(self, request: Request) -> None: ...

    def launch(self, n: int, plan: VerifyPlan, policy: Policy, context: int) -> Launched:
        """Starts a round of the first n slots, which hold `context` tokens in all."""

    def wait(self, launched: Launched) -> None: ...

    def read(self, left: Any) -> Array: ...

    def stamp(self) -> Stamp: ...

    def between(self, first: Stamp, last: Stamp) -> float: ...

    def phase(self, name: str) -> AbstractContextManager[None]:
        """What a part of the host's work runs within."""

    def number(self, step: int) -> None: ...

    def watch(self, timeline: Any) -> None: ...

    def check(self) -> None: ...

    def reset(self) -> None: ...


class Engine:
    """Runs requests in one arm on a device. `delay`: rounds that are launched before one is read."""

    def __init__(
        self,
        device: Device,
        arm: Arm,
        policy: Policy,
        prices: Prices,
        calibrated: Calibrated,
        config: EngineConfig,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self.device, self.arm, self.prices, self.config, self.decode = device, arm, prices, config, decode
        self.delay = max(config.lag, 1) - 1
        self.policy = Guard(policy, arm.depth(device.block), device.check)
        self.calibrated, device.maps = calibrated, self._maps
        self.history = History(device.capacity, device.block)
        self.scheduler = Scheduler(device, self.history, self._prior, device.prompts)
        self.steps: list[StepRecord] = []
        self.finished: list[RequestRecord] = []
        self._running: dict[int, Residence] = {}
        self._pending: deque[PendingRound] = deque()
        self._completed: list[Completed] = []
        self._last = device.stamp()  # when the last completed round was done
        device.reset()

    def step(self) -> StepRecord | None:
        """Launches a round, completes the one that is due; returns what it completed last, None while nothing is."""
        device, scheduler, history = self.device, self.scheduler, self.history
        device.number(history.step)
        begun = device.stamp()
        scheduler.fill(self._first_token)
        if scheduler:
            with device.phase("plan"):
                plan = self.policy.choose(history)
            self._pending.append(self._launch(plan, begun))
        record = None
        while self._pending and (len(self._pending) > self.delay or not scheduler):
            record = self._complete(self._pending.popleft())
        return record

    @property
    def running(self) -> list[Request]:
        """Requests in slots and those whose prompts wait; some may have ended on the device already."""
        return [residence.request for residence in self._running.values()]

    @property
    def rounds(self) -> list[RoundRecord]:
        """Made when they are asked for: the loop has no time for them."""
        arm, block, replayed = self.arm, self.device.block, self.device.replayed
        return [record for one in self._completed for record in one.records(arm, block, replayed)]

    def admit(self, requests: Sequence[Request]) -> list[Request]:
        """Takes as many requests as slots and pages allow, in order; returns those that did not fit.

        Raises UsageError for a prompt that leaves no room for a token.
        """
        free = self.device.capacity - len(self._running)
        for count, request in enumerate(requests):
            if count >= free or not self.device.open(request):
                return list(requests[count:])
            residence = Residence(request=request, admitted=self.now(), room=request.room(self.device.context))
            self._running[request.id] = residence
            self.scheduler.waiting.append(residence)
        return []

    def cancel(self, request: Request) -> None:
        """Ends a running request where it is; what is in flight for it is dropped when it arrives."""
        residence = self._running.get(request.id)
        if residence is not None and residence.request is request:
            request.finish_reason = "cancelled"
            self._leave(residence)

    def record(self, timeline: Any) -> None:
        """Tells a timeline of every phase from here on; None: nobody."""
        self.device.watch(timeline)

    def now(self) -> float:
        """Seconds on the clock of the records."""
        return self.device.clock.now()

    def rest(self, until: float) -> None:
        """Completes what is in flight and sleeps until that second, which is no round's idle time."""
        while self._pending:
            self._complete(self._pending.popleft())
        self.device.clock.rest(until)
        self._last = self.device.stamp()

    def close(self) -> None:
        """Lets go of the requests still running, of their slots and pages."""
        self.device.reset()
        for residence in self._running.values():
            self.device.release(residence.request)
        self._running = {}
        self._pending.clear()
        self.history = History(self.device.capacity, self.device.block)
        self.scheduler = Scheduler(self.device, self.history, self._prior, self.device.prompts)

    def _prior(self, sampling: SamplingParams) -> Array:
        known, nothing = self.calibrated, np.zeros(self.device.block)
        return self.policy.attempt("the prior", lambda: known.prior(sampling), lambda: nothing)

    def _maps(self, sampling: SamplingParams) -> Maps:
        known, one, zero = self.calibrated, np.ones(self.device.block), np.zeros(self.device.block)
        return self.policy.attempt("the calibration", lambda: known.maps(sampling), lambda: (one, zero, one, zero))

    def _launch(self, plan: VerifyPlan, begun: Stamp) -> PendingRound:
        device, history, slots = self.device, self.history, tuple(self.scheduler.slots)
        host, compiled, filled = time.perf_counter(), device.compiled.total, device.stamp()
        context = history.context
        launched = device.launch(len(slots), plan, self.policy, context)
        history.step += 1
        return PendingRound(
            launched=launched,
            slots=slots,
            rows=history.rows,
            residences=history.residence[history.rows],
            context=context,
            begun=begun,
            filled=filled,
            host=time.perf_counter() - host,
            compiles=device.compiled.total - compiled,
        )

    def _complete(self, pending: PendingRound) -> StepRecord:
        """Waits for the round, hands its results to its requests, and frees the slots of those that ended."""
        device, history, launched, step = self.device, self.history, pending.launched, len(self.steps)
        device.number(step)
        with device.phase("wait"):
            device.wait(launched)
        ints, reals = self._read(launched)
        counts = dict(zip(COUNTS, ints.T, strict=False))
        slots = self._present(pending, counts)
        rows, delivered = pending.rows[slots], counts["delivered"][slots].copy()
        before, last = history.emitted[rows], np.zeros(len(slots), bool)
        tokens = ints[slots, len(COUNTS) : len(COUNTS) + device.block + 1].tolist()
        ended = (counts["ended"][slots] > 0).tolist()
        for i, (slot, mine, count, over) in enumerate(
            zip(slots.tolist(), tokens, delivered.tolist(), ended, strict=True)
        ):
            request = pending.slots[slot].request
            request.rounds += 1
            delivered[i], last[i] = self._extend(request, mine[:count], ended=over), request.finished
        history.emit(rows, delivered)
        if launched.plan.depth and self.policy.looks != "text":  # an oracle's certainties say nothing of the next round
            history.observe(rows, reals[slots, 2], step)
        one = Completed(
            round=pending,
            step=step,
            counted=slots,
            before=before,
            delivered=delivered,
            last=last,
            ints=ints,
            reals=reals,
        )
        record = self._record(one)
        if self.config.record_rounds:
            self._completed.append(one)
        for slot in slots[last].tolist():
            self._leave(pending.slots[slot])
        return record

    def _read(self, launched: Launched) -> tuple[Array, Array]:
        """What the round left; reading the tokens is tried again where it fails."""
        read, attempt, nothing = (
            self.device.read,
            self.policy.attempt,
            np.full(launched.reals.shape, np.nan, np.float32),
        )
        reals = attempt("reading the confidences", lambda: read(launched.reals), lambda: nothing)
        return attempt("reading the tokens", lambda: read(launched.ints), lambda: read(launched.ints)), reals

    def _present(self, pending: PendingRound, counts: dict[str, Array]) -> Array:
        """Slots of the round whose requests are still there; new ones among them get their first token."""
        history = self.history
        slots = history.present(pending.rows, pending.residences)
        fresh = slots[history.emitted[pending.rows[slots]] == 0].tolist()
        for slot in fresh:
            residence, over = pending.slots[slot], int(counts["delivered"][slot]) == 0
            self._begin(residence, int(counts["anchor"][slot]), over)
        return history.present(pending.rows, pending.residences) if fresh else slots

    def _first_token(self, residence: Residence, token: int) -> None:
        """From a device that knows it at once."""
        sampling = residence.request.sampling
        stops = token in self.device.eos and not sampling.ignore_eos
        self._begin(residence, token, stops or residence.room <= 1)

    def _begin(self, residence: Residence, token: int, over: bool) -> None:
        residence.first = self.now()
        self._extend(residence.request, [token], ended=over)
        self.history.emit(residence.row, 1)
        if residence.request.finished:
            self._leave(residence)

    def _extend(self, request: Request, tokens: list[int], *, ended: bool) -> int:
        """Adds what the device delivered, up to a stop string; returns how many tokens. ended: the device says so."""
        if request.sampling.stop and self.decode is not None:
            return extend(request, tokens, self.device.eos, self.decode, request.room(self.device.context))
        request.output += tokens
        if ended:
            stopped = request.output[-1] in self.device.eos and not request.sampling.ignore_eos
            request.finish_reason = "stop" if stopped else "length"
        return len(tokens)

    def _record(self, one: Completed) -> StepRecord:
        pending, table, device = one.round, self.prices.table, self.device
        rows = pending.launched.tier if table is not None and table.tiers is not None else sum(one.ran(self.arm))
        shape, depth = StepShape(len(pending.slots), rows, pending.context), pending.launched.plan.depth
        nothing = float("nan"), False
        predicted = self.policy.attempt("the cost table", lambda: self.prices.predict(shape, depth), lambda: nothing)
        device.clock.count(one.seconds(self._last, device.between))
        record = one.step_record(
            self.arm,
            last=self._last,
            between=device.between,
            now=self.now(),
            predicted=predicted,
            fallback=self.policy.failure,
            replayed=device.replayed,
        )
        self._last = pending.launched.done
        self.steps.append(record)
        return record

    def _leave(self, residence: Residence) -> None:
        """Its pages and its slot are free."""
        request = residence.request
        del self._running[request.id]
        self.device.release(request)
        self.scheduler.leave(residence)
        self.finished.append(RequestRecord.of(request, residence.admitted, residence.first, self.now()))
