"""A closed loop on a virtual clock: recorded acceptance through the real planner, rounds priced by a cost table.

A pure function of its arguments: no model, no device, no file. It leaves out noise, kernels that compile, and the host
beyond what the table holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from dsbench.profiles.cost import StepShape
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.policy.budget import Budgets
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.recent import Recent
from dsbench.simulate.choose import Choice, Chooser, Pace
from dsbench.simulate.costs import Costs
from dsbench.simulate.records import HANDED, Delivered, Spent, request_row, round_row, step_row
from dsbench.simulate.requests import Script, Seat

WAITING_ROWS = EngineConfig().prefill_chunk  # prompt rows of a pass that is waited for


@dataclass(slots=True, kw_only=True)
class Played:
    """Records with the columns of the engine's own."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)


def play(
    queue: Iterable[Script],
    arm: Arm,
    block: int,
    costs: Costs,
    pace: Pace,
    *,
    concurrency: int,
    until: frozenset[int],
    prior: Array,
    depths: Sequence[int] = (),
    full: bool = False,
) -> Played:
    """Plays the queue, which may be endless, at a fixed concurrency until the requests `until` have ended.

    block: G, 0 without a drafter; prior: survival [G] of a request that nothing is known of; depths: shallower drafts
    that are captured; full: planned arms draft the whole block.
    """
    budgets = None
    if arm.policy in ("argmax", "free", "oracle") and not pace.waits:
        shallow = [d for d in depths if d < block] if arm.commit == "all" and not full else []
        plain = [0] if shallow else []
        budgets = Budgets(costs.table, block, (*plain, *shallow, block), arm.weight)
    chooser = Chooser(
        arm=arm,
        block=block,
        table=costs.table,
        pace=pace,
        prior=prior[:block],
        budgets=budgets,
        full=full,
        recent=Recent(block),
    )
    loop = _Loop(chooser=chooser, costs=costs)
    waiting, open_ids = iter(queue), set(until)
    while open_ids:
        loop.admit(list(islice(waiting, concurrency - loop.running)))
        assert loop.seats or loop.prompts, f"requests {sorted(open_ids)[:5]} never end"
        if loop.seats:
            loop.round()
        open_ids -= loop.over
    return loop.played


@dataclass(slots=True, kw_only=True)
class _Loop:
    """State of one play. `done`: when each round ended; `clock`: when the device is free."""

    chooser: Chooser
    costs: Costs
    seats: list[Seat] = field(default_factory=list)
    prompts: deque[Seat] = field(default_factory=deque)
    done: list[float] = field(default_factory=list)
    clock: float = 0.0
    prefill: float = 0.0  # seconds of prompts before the round to come
    waited: int = 0  # rounds without a pass of prompts while some wait
    over: set[int] = field(default_factory=set)
    played: Played = field(default_factory=Played)

    @property
    def pace(self) -> Pace:
        return self.chooser.pace

    @property
    def read(self) -> int:
        """The last round that the host has read when it launches the next."""
        return len(self.done) - 1 - self.pace.delay

    def gone(self, seat: Seat) -> bool:
        """Whether the host knows that the seat's request has ended."""
        return seat.ended is not None and seat.ended <= self.read

    @property
    def running(self) -> int:
        """Requests that the host takes to be under way, those whose prompts wait among them."""
        return len(self.prompts) + sum(not self.gone(seat) for seat in self.seats)

    def admit(self, scripts: Sequence[Script]) -> None:
        """Takes requests in. Where every phase is waited for their prompts run at once, else when they are due."""
        now = self.clock if self.pace.waits else (self.done[self.read] if self.read >= 0 else 0.0)
        self.prompts.extend(Seat(script=script, admitted=now) for script in scripts)
        if self.pace.waits:
            self.seats = [s for s in self.seats if not self.gone(s)]
            while self.prompts:
                self.seats += self._prompt_pass()
            return
        holes = [i for i, seat in enumerate(self.seats) if self.gone(seat)]
        while self._due(len(self.seats) - len(holes)):
            for seat in self._prompt_pass():
                at = holes.pop(0) if holes else len(self.seats)
                self.seats[at : at + 1] = [seat]
            if len(self.prompts) <= len(self.seats) - len(holes):
                break
        if holes and not self.prompts:
            self._move_up(holes)

    def _due(self, sitting: int) -> bool:
        """As `Prompts.due`: prompts wait for each other, but not long."""
        if not self.prompts:
            return False
        passes = self.pace.prompts
        left = sum(seat.script.prompt_tokens - seat.prefilled for seat in self.prompts)
        full = len(self.prompts) >= passes.most or left >= passes.chunks[-1] or self.prompts[0].prefilled > 0
        if full or len(self.prompts) * passes.share >= sitting or self.waited >= passes.patience:
            self.waited = 0
            return True
        self.waited += 1
        return False

    def _move_up(self, holes: Sequence[int]) -> None:
        """The last ones into the holes, as the overlapped loop does: who sits where decides between equal survivals."""
        kept = len(self.seats) - len(holes)
        behind = [seat for seat in self.seats[kept:] if not self.gone(seat)]
        for hole, seat in zip([h for h in holes if h < kept], behind, strict=True):
            self.seats[hole] = seat
        del self.seats[kept:]

    def _prompt_pass(self) -> list[Seat]:
        """Prompt rows of the next requests, as many as a pass holds; who is done with theirs."""
        chunks = self.pace.prompts.chunks
        most = WAITING_ROWS if self.pace.waits else chunks[-1]
        room, part, context = most, list[tuple[Seat, int]](), 0
        for seat in self.prompts:
            count = min(room, seat.script.prompt_tokens - seat.prefilled)
            if count == 0 or (not self.pace.waits and len(part) == self.pace.prompts.most):
                break
            part.append((seat, count))
            room, context = room - count, context + seat.prefilled + count
        rows = most - room
        seconds = self.costs.prefill(
            len(part), rows if self.pace.waits else next(c for c in chunks if c >= rows), context
        )
        self.clock, self.prefill = self.clock + seconds, self.prefill + seconds
        done = []
        for seat, count in part:
            seat.prefilled += count
            if seat.prefilled == seat.script.prompt_tokens:
                done.append(self.prompts.popleft())
                seat.joined, seat.first, seat.out = len(self.done), self.clock, 1
                if seat.script.room == 1:
                    self._end(seat, self.read if self.pace.waits else len(self.done))
        return done

    def round(self) -> None:
        """One round of everybody that sits; who has ended, unknown to the host, is a zombie: one row, no token."""
        arm, n = self.chooser.arm, len(self.seats)
        context = sum(s.context for s in self.seats if not self.gone(s))
        choice = self.chooser.choose(self.seats, len(self.done))
        deep = int(choice.depth.max())
        if arm.drafter == "none":
            draft, verify = 0.0, self.costs.alone(n, context)
        elif not deep and not self.pace.waits:
            draft, verify = 0.0, self.costs.bare(n, context)
        else:
            draft = self.costs.draft(n, context, self.chooser.block - deep)
            verify = self.costs.verify(n, choice.rows, context)
        start = self.clock
        self.clock += draft + verify
        spent = Spent(start=start, end=self.clock, prefill=self.prefill, draft=draft, verify=verify)
        came = self._deliver(choice)
        self._record(choice, spent, came, context)
        self.prefill = 0.0
        self.done.append(self.clock)

    def _deliver(self, choice: Choice) -> list[Delivered]:
        found, drafted = list[Delivered](), bool(choice.depth.max()) or self.pace.waits
        for row, seat in enumerate(self.seats):
            if seat.ended is None:
                before, tokens = seat.out, min(seat.match, int(choice.window[row])) + 1
                seat.out += tokens
                found.append(Delivered(seat=seat, row=row, before=before, tokens=tokens))
            seat.past.append((seat.out, choice.survival[row] if drafted else None))
            if seat.ended is None and seat.out == seat.script.room:
                self._end(seat, len(self.done))
        return found

    def _end(self, seat: Seat, number: int) -> None:
        """Its last token came with round `number`. Rounds that are not waited for are read whole, with first tokens."""
        seat.ended = number
        first = seat.first
        if not self.pace.waits:
            first = (self.done[seat.joined] if seat.joined < len(self.done) else self.clock) - 2 * HANDED
        self.over.add(seat.script.id)
        self.played.requests.append(request_row(seat, first=first, finished=self.clock))

    def _record(self, choice: Choice, spent: Spent, came: Sequence[Delivered], context: int) -> None:
        chooser, number, table = self.chooser, len(self.done), self.costs.table
        shape = StepShape(len(self.seats), choice.rows, context)
        self.played.steps.append(
            step_row(
                number,
                chooser.arm,
                self.pace,
                choice,
                spent,
                came,
                tier=table.tier(choice.rows),
                context=context,
                extrapolated=table.outside(shape),
            )
        )
        self.played.rounds += [round_row(number, chooser.block, choice, one) for one in came]
