"""What the overlapped loop chooses for a round from what it has read so far; once that fails, fixed windows.

No choice here changes a text: draws are coupled. So a failure of the budget, of the tables behind it or of what was
read gives up choosing, not the run: whole blocks are verified from then on, and the records say why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from dsbench.errors import DsbenchError
from dsbench.profiles.cost import StepShape
from dsbench.runtime.arm import Arm
from dsbench.runtime.policy.book import Book
from dsbench.runtime.policy.budget import Budgets
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.policy.recent import Recent
from dsbench.runtime.request import SamplingParams
from dsbench.runtime.watch.device_errors import first_line

T = TypeVar("T")
Maps = tuple[Array, Array, Array, Array]  # scale and offset [G] of the calibration, and of the token-free head's


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """depth drafts a request, 0 in a plain round, of which `budget` over all are to be verified."""

    depth: int
    budget: int
    priors: int = 0  # requests whose budget came from a prior
    age: int = 0  # steps since the oldest of its requests' own confidences behind the budget; 0: none


class Steering:
    """Chooses for an arm that drafts to one of `depths`, ascending. `failure`: what failed first, in words.

    budgets: of an earlier run of such an arm, which know prices already.
    """

    def __init__(
        self,
        arm: Arm,
        planner: Planner,
        block: int,
        depths: Sequence[int],
        device: torch.device,
        budgets: Budgets | None = None,
    ) -> None:
        self.planner, self.block, self.cap, self.device = planner, block, depths[-1], device
        self.failure = ""
        self.budgets: Budgets | None = None
        self._oracle = arm.policy == "oracle"
        if arm.policy == "argmax" or self._oracle:
            assert planner.table is not None, "an arm that weighs cost has a table"
            plain = (0,) if len(depths) > 1 else ()  # arms that always draft the block have that one depth
            self.budgets = budgets or Budgets(planner.table, block, (*plain, *depths), arm.weight)
        self.recent = Recent(block)

    @property
    def foresees(self) -> bool:
        """Whether rounds go by what the text takes; not once choosing has failed."""
        return self._oracle and self.budgets is not None

    def course(self, book: Book, lines: Array, step: int, context: int) -> Course:
        """Of the round `step`, over seats with these lines of the book and `context` tokens in all."""
        whole = Course(depth=self.cap, budget=len(lines) * self.cap)
        if self.budgets is None or self.foresees:
            return whole
        budgets = self.budgets
        return self.attempt("the budget", lambda: self._chosen(budgets, book, lines, step, context), whole)

    def foreseen(self, course: Course, seats: int, taken: Callable[[], Array], context: int) -> Course:
        """Depth and budget for what the text takes of the round's own drafts [G], once that is known."""
        budgets = self.budgets
        if budgets is None:
            return course

        def chosen() -> Course:
            choice = budgets.certain(taken(), seats, context)
            return Course(depth=choice.depth, budget=choice.rows - seats)

        return self.attempt("the oracle's budget", chosen, course)

    def _chosen(self, budgets: Budgets, book: Book, lines: Array, step: int, context: int) -> Course:
        recent, seen, stays = self.recent, book.seen[lines], book.stay[lines]
        if recent.rests(seen, stays):
            depth, rows = 0, len(lines)
            recent.chose(depth)
        else:
            limits = book.limits(lines, self.cap)
            sets = recent.sets(book.survival[lines], seen, limits > 0)
            choice = budgets.choose(sets, limits, context, plain=not recent.due)
            depth, rows = choice.depth, choice.rows
            recent.chose(depth, stays)
        return Course(depth=depth, budget=rows - len(lines), priors=book.priors(lines), age=book.age(lines, step))

    def predict(self, shape: StepShape, skipped: int) -> tuple[float, bool]:
        """As the planner's."""
        return self.attempt("the cost table", lambda: self.planner.predict(shape, skipped), (float("nan"), False))

    def prior(self, sampling: SamplingParams) -> Array:
        """Survival [G] of a request that sits down."""
        nothing = np.zeros(self.block)
        if self.budgets is None:
            return nothing
        return self.attempt("the prior", lambda: self.planner.relay.prior(sampling), nothing)

    def maps(self, sampling: SamplingParams) -> Maps:
        """Scale and offset [G] of the calibration, and of the token-free head's."""
        one, zero, map_of = np.ones(self.block), np.zeros(self.block), self.planner.relay.map_of
        return self.attempt(
            "the calibration",
            lambda: (*map_of(sampling, "conditioned"), *map_of(sampling, "free")),
            (one, zero, one, zero),
        )

    def attempt(self, what: str, run: Callable[[], T], otherwise: T) -> T:
        """What `run` gives; `otherwise`, and fixed windows for good, if it fails on a device that still answers."""
        try:
            return run()
        except DsbenchError:  # refused, and said so
            raise
        except Exception as problem:
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)  # raises where nothing can go on
            self.budgets = None
            self.failure = self.failure or f"{what} failed: {type(problem).__name__}: {first_line(problem)}"
            return otherwise
