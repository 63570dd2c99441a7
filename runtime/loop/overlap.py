"""The step loop that never waits for the device: it launches a round, then reads what a round some steps ago left.

    launch   prompts that arrived -> seats; budget from confidences that are known; draft, verify (steady.py)
    settle   tokens and confidences of the round `lag` steps ago -> requests, records; who ended gives up the seat

Windows, packing, acceptance, lengths, EOS and token limits are the device's; only stop strings and cancelled requests
end here, some steps late. A seat whose request has ended runs on as a zombie in the rounds that did not know: one row
where the device knew, else a window of them, all dropped. All that the host writes is ordered with the passes on one
stream, so a seat or a page given away is never read or written by a round launched before.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from dsbench.kernels.compiles import compile_count
from dsbench.profiles.cost import StepShape
from dsbench.runtime.arm import CAPTURED, Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.finish import extend
from dsbench.runtime.loop.flight import Flight, Landed, copied, read
from dsbench.runtime.loop.prompts import Prompts, Sitting
from dsbench.runtime.loop.seating import Seating
from dsbench.runtime.loop.seats import COUNTS
from dsbench.runtime.loop.steady import Steady
from dsbench.runtime.policy.budget import Budgets
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.policy.steering import Steering
from dsbench.runtime.records import RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request
from dsbench.runtime.watch.timeline import Timeline, spanned
from dsbench.runtime.watch.timing import Clock, Stamp, hold, passed, stamp


class Overlapped:
    """Runs requests in one arm over a `Steady` of its drafter, depth and kind of commit, under the coupled rule.

    Budgets come from confidences config.lag steps old, at least 1; allocation from the current ones. So many rounds
    at most have been launched and not read.
    """

    def __init__(
        self,
        steady: Steady,
        arm: Arm,
        planner: Planner,
        config: EngineConfig,
        *,
        decode: Callable[[Sequence[int]], str] | None = None,
        budgets: Budgets | None = None,
    ) -> None:
        assert arm.policy in CAPTURED, "windows that the host need not see"
        self.steady, self.seats, self.arm, self.planner, self.config = steady, steady.seats, arm, planner, config
        self.pool, self.device, self.decode = steady.models.pool, steady.models.target.device, decode
        self.shape, self.block = steady.models.target.shape, steady.models.drafter.block
        self.eos = frozenset(self.seats.shape.eos)
        depths = steady.depths[-1:] if config.draft == "full" else steady.depths
        self.steering = Steering(arm, planner, self.block, depths, self.device, budgets)
        self.prompts = Prompts(steady, self.steering.maps)
        self.seating = Seating(self.seats, self.prompts, self.steering.prior)
        self.steps: list[StepRecord] = []
        self.finished: list[RequestRecord] = []
        self.timeline: Timeline | None = None
        self._running: dict[int, Sitting] = {}
        self._landed: list[Landed] = []
        self._flights: deque[Flight] = deque()
        # an oracle's foresight is free: its clock knows of rounds without it, and of nothing else
        self.clock = Clock(counted=self.steering.foresees)
        self._compiles, self._done = compile_count(), stamp(self.device)
        self._unread = torch.full(self.seats.real_left.shape, float("nan"))  # of a plain round
        with torch.inference_mode():
            self.seats.reset()

    @property
    def running(self) -> list[Request]:
        """Seated ones and those whose prompts wait; some may have ended on the device already."""
        return [s.request for s in self._running.values()]

    def record(self, timeline: Timeline | None) -> None:
        """Tells the timeline of every phase from here on; None: nobody."""
        self.timeline = timeline

    @torch.inference_mode()
    def step(self) -> StepRecord | None:
        """Launches a round, and settles the one that is due; what it settled last, None while nothing is."""
        if self.timeline is not None:
            self.timeline.round = len(self.steps) + len(self._flights)
        begun = stamp(self.device)
        self.seating.fill(self.timeline)
        if self.seating:
            self._flights.append(self._launch(begun, stamp(self.device)))
        record = None
        while self._flights and (len(self._flights) >= max(self.config.lag, 1) or not self.seating):
            record = self._settle(self._flights.popleft())
        return record

    def admit(self, requests: Sequence[Request]) -> list[Request]:
        """Gives all pages they may need to as many requests as fit, in order; returns those that did not fit.

        Raises UsageError for a prompt that leaves no room for a token.
        """
        seats = self.seats.shape.seats - len(self._running)
        for count, request in enumerate(requests):
            need = request.tokens_needed(self.shape.context, self.block)
            if count >= seats or not self.pool.open(request.id, need):
                return list(requests[count:])
            self.pool.grow(request.id, need)
            room = request.room(self.shape.context)
            self._running[request.id] = Sitting(request=request, admitted=self.clock.now(), room=room)
            self.prompts.waiting.append(self._running[request.id])
        return []

    def cancel(self, request: Request) -> None:
        """Ends a running request where it is; what is under way for it is dropped when it arrives."""
        sitting = self._running.get(request.id)
        if sitting is None or sitting.request is not request:
            return
        request.finish_reason = "cancelled"
        if sitting in self.prompts.waiting:
            self.prompts.waiting.remove(sitting)
        self._leave(sitting)

    def rest(self, until: float) -> None:
        """Nobody is there: settles what is under way and sleeps until that second, which is no round's idle time."""
        while self._flights:
            self._settle(self._flights.popleft())
        self.clock.rest(until)
        self._done = stamp(self.device)

    def close(self) -> None:
        """Lets go of the requests still running, of their seats and pages."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        for sitting in self._running.values():
            self.pool.release(sitting.request.id)
        self.prompts.waiting, self._running = deque(), {}
        self.seating = Seating(self.seats, self.prompts, self.steering.prior)
        self._flights.clear()
        with torch.inference_mode():
            self.seats.reset()

    def _launch(self, begun: Stamp, sat: Stamp) -> Flight:
        host, compiled, n = time.perf_counter(), self._compiles.total, len(self.seating)
        book, lines = self.seating.book, self.seating.lines.copy()
        context = int(book.held[lines].sum())
        with spanned(self.timeline, "plan"):
            course = self.steering.course(book, lines, len(self.steps) + len(self._flights), context)
        known = ready = stamp(self.device)
        if self.steering.foresees:
            course = self.steering.foreseen(course, n, lambda: self._taken(n), context)
            known = stamp(self.device)
        with spanned(self.timeline, "draft", device=True):
            self.seats.tell("cap", course.depth)
            self.steady.draft(n, course.depth)
            if self.steering.foresees:
                self.steady.trust(n)
        drafted = stamp(self.device)
        rows = n * (course.depth + 1) if self.arm.commit == "window" else n + course.budget
        with spanned(self.timeline, "verify", device=True):
            self.seats.tell("budget", course.budget)
            plain = self.block > 0 and not course.depth
            tier = self.steady.plain(n) if plain else self.steady.verify(n, rows)
            whole = self._on_host(self.seats.whole_left[:n])
            real = self._unread[:n] if plain else self._on_host(self.seats.real_left[:n])
        return Flight(
            seated=tuple(self.seating.seated),
            lines=lines,
            stays=book.stay[lines],
            course=course,
            tier=tier,
            context=context,
            whole=whole,
            real=real,
            stamps=(begun, sat, ready, known, drafted, stamp(self.device)),
            host=time.perf_counter() - host,
            compiles=self._compiles.total - compiled,
        )

    def _on_host(self, left: Tensor) -> Tensor:
        """A copy of what a round left, valid with its last stamp; one that waits, where that fails."""
        there = self.steering.attempt("copying what a round left", lambda: copied(left), None)
        return left.clone().cpu() if there is None else there

    def _taken(self, n: int) -> Array:
        """Drafts [G] of the round's n seats that the text takes, by depth: an upper bound drafts, looks, and waits."""
        self.seats.tell("cap", self.block)
        self.steady.draft(n, self.block)
        taken = copied(self.steady.foresee(n))
        there = stamp(self.device)
        hold(self.device)
        while not passed(there):
            time.sleep(0)
        return read(taken)

    def _settle(self, flight: Flight) -> StepRecord:
        """Waits for the round's results, if they are not there, and hands them out."""
        if self.timeline is not None:
            self.timeline.round = len(self.steps)
        with spanned(self.timeline, "wait"):
            while not passed(flight.stamps[-1]):
                time.sleep(0)
        with spanned(self.timeline, "settle"):
            return self._hand_out(flight)

    def _hand_out(self, flight: Flight) -> StepRecord:
        """The round's results to its requests, whose seats and pages are free if they ended."""
        left, real = self._read(flight)
        counts, book, step = dict(zip(COUNTS, left.T, strict=False)), self.seating.book, len(self.steps)
        seats = self._begun(flight, counts)  # whose rounds count
        lines, put_out = flight.lines[seats], counts["delivered"][seats].copy()
        before, last = book.emitted[lines], np.zeros(len(seats), bool)
        tokens = left[seats, len(COUNTS) : len(COUNTS) + self.block + 1].tolist()
        ended = (counts["ended"][seats] > 0).tolist()
        came = zip(seats.tolist(), tokens, put_out.tolist(), ended, strict=True)
        for i, (seat, mine, count, over) in enumerate(came):
            request = flight.seated[seat].request
            request.rounds += 1
            if over or request.sampling.stop:
                known = len(request.output)
                self._extend(request, mine[:count], ended=over)
                put_out[i], last[i] = len(request.output) - known, request.finished
            else:
                request.output += mine[:count]
        if self.steering.foresees or not flight.course.depth:
            book.emit(lines, put_out)  # certainties of a round that is over say nothing of the next; nor does no draft
        else:
            book.enter(lines, put_out, real[seats, 2], step)
        landed = Landed(
            flight=flight, step=step, seats=seats, before=before, put_out=put_out, last=last, left=left, real=real
        )
        record = self._record(landed)
        if self.config.record_rounds:
            self._landed.append(landed)
        for seat in seats[last].tolist():
            self._leave(flight.seated[seat])
        return record

    def _begun(self, flight: Flight, counts: dict[str, Array]) -> Array:
        """Seats of the round whose requests go on; those new among them get their first token, which may be all."""
        book = self.seating.book
        seats = book.going_on(flight.lines, flight.stays)
        fresh = seats[book.emitted[flight.lines[seats]] == 0].tolist()
        for seat in fresh:
            sitting, over = flight.seated[seat], int(counts["delivered"][seat]) == 0
            sitting.first = self.clock.now()
            self._extend(sitting.request, [int(counts["anchor"][seat])], ended=over)
            book.emit(sitting.line, 1)
            if sitting.request.finished:
                self._leave(sitting)
        return book.going_on(flight.lines, flight.stays) if fresh else seats

    def _read(self, flight: Flight) -> tuple[Array, Array]:
        """What the round left, in whole numbers and in real ones; a reading of tokens that fails is tried again."""
        attempt, nothing = self.steering.attempt, np.full(flight.real.shape, np.nan, np.float32)
        real = attempt("reading the confidences", lambda: read(flight.real), nothing)
        left = attempt("reading the tokens", lambda: read(flight.whole), None)
        return read(flight.whole) if left is None else left, real

    def _extend(self, request: Request, tokens: list[int], *, ended: bool) -> None:
        """What the device delivered, whose word on the end holds; a stop string may lie before it."""
        if request.sampling.stop and self.decode is not None:
            extend(request, tokens, self.eos, self.decode, request.room(self.shape.context))
            return
        request.output.extend(tokens)
        if ended:
            stopped = request.output[-1] in self.eos and not request.sampling.ignore_eos
            request.finish_reason = "stop" if stopped else "length"

    def _record(self, landed: Landed) -> StepRecord:
        flight, table = landed.flight, self.planner.table
        rows, zombies = landed.rows(self.arm)
        ran = flight.tier if table is not None and table.tiers is not None else rows + zombies
        shape = StepShape(len(flight.seated), ran, flight.context)
        predicted = self.steering.predict(shape, self.block - flight.course.depth)
        self.clock.count(flight.seconds(self._done))
        record = landed.step_record(
            self.arm,
            (rows, zombies),
            last=self._done,
            now=self.clock.now(),
            predicted=predicted,
            fallback=self.steering.failure,
            scripted=self.seats.shape.scripted,
        )
        self._done = flight.stamps[-1]
        self.steps.append(record)
        return record

    @property
    def rounds(self) -> list[RoundRecord]:
        """Made when they are asked for: the loop has no time for them."""
        scripted, block = self.seats.shape.scripted, self.block
        return [r for landed in self._landed for r in landed.records(self.arm, block, scripted)]

    def _leave(self, sitting: Sitting) -> None:
        """Its pages are free; its seat is a hole until somebody takes it."""
        request = sitting.request
        del self._running[request.id]
        self.pool.release(request.id)
        self.seating.leave(sitting)
        self.finished.append(RequestRecord.of(request, sitting.admitted, sitting.first, self.clock.now()))

    def now(self) -> float:
        """Seconds since it was made."""
        return self.clock.now()
