"""Who sits where: prompts that are done take seats, and where none waits those behind move up into the holes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsbench.runtime.loop.prompts import Prompts, Sitting
from dsbench.runtime.loop.seats import Seats
from dsbench.runtime.policy.book import Book
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import SamplingParams
from dsbench.runtime.watch.timeline import Timeline, spanned


class Seating:
    """The stays in the order of their seats. A hole is a seat whose stay is over: it keeps the stay, not the line."""

    def __init__(self, seats: Seats, prompts: Prompts, prior: Callable[[SamplingParams], Array]) -> None:
        self.seats, self.prompts, self.prior = seats, prompts, prior
        self.book = Book(seats.shape.seats, seats.shape.block)
        self.seated: list[Sitting] = []
        self._lines = np.full(seats.shape.seats, self.book.nobody, np.int64)

    def __len__(self) -> int:
        return len(self.seated)

    @property
    def lines(self) -> Array:
        """Lines in the book of those seated; nobody's for a hole."""
        return self._lines[: len(self.seated)]

    def fill(self, timeline: Timeline | None) -> None:
        """A chunk of prompts if one is due, more while more wait than sit. Holes wait with the prompts."""
        holes = np.flatnonzero(self.lines == self.book.nobody).tolist()
        while self.prompts.due(len(self.seated) - len(holes)):
            with spanned(timeline, "prefill", device=True):
                part = self.prompts.next_chunk()
                at = [self._sit_down(sitting, holes) for sitting, _ in part if sitting.done]
                self.prompts.run(part, at)
            if len(self.prompts.waiting) <= len(self.seated) - len(holes):
                break
        if holes and not self.prompts.waiting:
            self._move_up(holes)
        elif holes:
            self.seats.clear(holes)
        self.seats.tell("live", len(self.seated))

    def leave(self, sitting: Sitting) -> None:
        """Its stay is over: its seat is a hole until somebody takes it."""
        sitting.left = True
        if sitting.line >= 0:
            self._lines[self._lines == sitting.line] = self.book.nobody
            self.book.close(sitting.line)

    def _sit_down(self, sitting: Sitting, holes: list[int]) -> int:
        seat = holes.pop(0) if holes else len(self.seated)
        self.seated[seat : seat + 1] = [sitting]
        prior = self.prior(sitting.request.sampling)
        sitting.line = self._lines[seat] = self.book.open(len(sitting.request.prompt_ids), sitting.room, prior)
        return seat

    def _move_up(self, holes: Sequence[int]) -> None:
        """The last ones into the holes, ascending, before them."""
        kept = len(self.seated) - len(holes)
        behind = [i for i in range(kept, len(self.seated)) if not self.seated[i].left]
        before = [hole for hole in holes if hole < kept]
        if behind:
            self.seats.move(behind, before)
        for source, target in zip(behind, before, strict=True):
            self.seated[target], self._lines[target] = self.seated[source], self._lines[source]
        self.seats.clear(range(kept, len(self.seated)))
        del self.seated[kept:]
