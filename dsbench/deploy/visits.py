"""Which shapes a profile times, when, and how often: passes in random order, a reference shape between them all along.

Knows neither engine nor device: a `Timer` times. The reference tells a slow machine from a slow shape: each visit is
brought to the machine's usual speed. Shapes whose repeats disagree all the same are visited again.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from dsbench.profiles.robust import agree, slowdowns
from dsbench.within import Deadline

ROWS_PER_REQUEST = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
REFERENCE_SHARE = 0.05  # of the profile's seconds, at most
AGAIN = 2  # rounds of visits to doubtful shapes; all in all half as many visits as a pass has, at most
SPARE = 0.2  # of a deadline's seconds, kept for these


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A cell to time: R requests of mean context `mean_context`, M packed rows."""

    requests: int
    rows: int
    mean_context: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One visit to a cell: an engine step of it and, where passes are graphs, replays of either alone. Seconds."""

    cell: Shape
    number: int  # of the pass over all cells
    context: int  # tokens of all requests
    step: float  # a whole engine step
    drafting: float = 0.0  # of it, drafting
    draft: tuple[float, ...] = ()
    verify: tuple[float, ...] = ()
    shallow: tuple[float, ...] = ()  # the draft's first slot alone
    slowdown: float = 1.0  # of the machine then; the seconds are divided by it
    certain: bool = True  # whether that is well known

    @property
    def passes(self) -> float:
        """What repeats are compared by: the passes where they are timed alone, else the step."""
        return statistics.median(self.draft) + statistics.median(self.verify) if self.verify else self.step

    def at_usual_speed(self, slowdown: float, certain: bool) -> Timed:
        """The same visit, had the machine been at its usual speed."""

        def each(seconds: tuple[float, ...]) -> tuple[float, ...]:
            return tuple(s / slowdown for s in seconds)

        return replace(
            self,
            step=self.step / slowdown,
            drafting=self.drafting / slowdown,
            draft=each(self.draft),
            verify=each(self.verify),
            shallow=each(self.shallow),
            slowdown=slowdown,
            certain=certain,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Visits:
    """What was timed of a profile."""

    timed: tuple[Timed, ...]  # at the machine's usual speed, in the order of time
    reference: Shape
    reference_seconds: tuple[float, ...]  # as the clock said, in the order of time
    made: int  # visits in all, those that were left aside too
    again: int  # visits to shapes whose repeats disagreed
    apart: tuple[Shape, ...]  # shapes whose repeats still do
    left_out: tuple[str, ...]  # for the deadline, in words


class Timer(Protocol):
    """What times a shape."""

    def visit(self, cell: Shape, number: int) -> Timed:
        """The cell, warmed up, in pass `number`."""

    def reference(self, cell: Shape) -> float:
        """Seconds of the cell's pass, timed as cheaply as can be."""


def shapes(
    batches: Sequence[int], contexts: Sequence[int], block: int, tiers: tuple[int, ...] | None = None
) -> list[Shape]:
    """Rows from one to block + 1 a request, halves between, so that R and M do not move together.

    With tiers: every tier that a plan may choose, full, and the fewest and most rows.
    """
    found = []
    for requests in batches:
        most = requests * (block + 1)
        if tiers is None:
            levels = {round(requests * k) for k in ROWS_PER_REQUEST if round(requests * k) <= most}
        else:
            levels = {requests, *(tier for tier in tiers if requests < tier < most), most}
        found += [Shape(requests=requests, rows=m, mean_context=c) for m in sorted(levels) for c in contexts]
    return found


def reference_of(cells: Sequence[Shape]) -> Shape:
    """A cheap one: the fewest requests, with all their rows, at the least context."""
    return min(cells, key=lambda c: (c.requests, -c.rows, c.mean_context))


def visit_all(
    timer: Timer,
    cells: Sequence[Shape],
    *,
    passes: int,
    seed: int,
    notice: Callable[[int, int], None],
    deadline: Deadline | None = None,
    odd: Callable[[Sequence[Timed]], Sequence[Shape]] = lambda timed: (),
) -> Visits:
    """Times each cell `passes` times, and doubtful ones again; fewer for the deadline's sake.

    Doubtful: whose repeats disagree, and those that `odd` names. notice: visits made, and to be made.
    """
    walk = Walk(timer, reference_of(cells), deadline or Deadline(), notice)
    order, every = random.Random(seed), cells
    left_out: list[str] = []
    first: list[Shape] = []
    walk.total = passes * len(cells)
    if walk.deadline.given:
        first = [min(cells, key=_size), max(cells, key=_size)]
        timer.reference(first[0])  # warms up
        for cell in first:
            walk.visit(cell, 0)
        cells, passes, left_out = fit_in(cells, passes, walk.seconds_of, (1 - SPARE) * walk.left_for(first))
    for number in range(passes):
        walk.total = len(walk.visited) + (passes - number) * len(cells) - (len(first) if number == 0 else 0)
        for cell in order.sample(list(cells), len(cells)):
            if number or cell not in first:
                walk.visit(cell, number)
    late = walk.visit_what_fits([cell for cell in every if cell not in cells])
    left_out += [f"but {late} of these shapes fitted after all"] if late else []
    again = walk.visit_again(len(cells) // 2, passes, odd)
    if walk.skipped:
        left_out.append(f"{walk.skipped} visits when the time was up")
    timed = walk.at_usual_speed()
    return Visits(
        timed=tuple(timed),
        reference=walk.reference,
        reference_seconds=tuple(seconds for _, seconds in walk.references),
        made=len(walk.visited),
        again=again,
        apart=tuple(disagreeing(timed)),
        left_out=tuple(left_out),
    )


class Walk:
    """Visits one after the other, the reference between them; it knows how long a visit takes."""

    def __init__(self, timer: Timer, reference: Shape, deadline: Deadline, notice: Callable[[int, int], None]) -> None:
        self.timer, self.reference, self.deadline, self._notice = timer, reference, deadline, notice
        self._clock = deadline.clock
        self.visited: list[tuple[float, float, Timed]] = []  # when (the middle), for how long, what
        self.references: list[tuple[float, float]] = []  # when, seconds
        self.total, self.skipped = 0, 0
        timer.reference(reference)  # warms up
        self._refer()

    def visit(self, cell: Shape, number: int) -> None:
        """Times the cell, unless the deadline comes first."""
        if self.deadline.given and len(self.visited) > 1 and self.seconds_of(cell) > self.deadline.left():
            self.skipped += 1
            return
        begin = self._clock()
        timed = self.timer.visit(cell, number)
        end = self._clock()
        self.visited.append(((begin + end) / 2, end - begin, timed))
        self._since += end - begin
        if self._since * REFERENCE_SHARE >= self._price:
            self._refer()
        self._notice(len(self.visited), max(self.total, len(self.visited)))

    def _refer(self) -> None:
        begin = self._clock()
        seconds = self.timer.reference(self.reference)
        end = self._clock()
        self.references.append(((begin + end) / 2, seconds))
        self._price, self._since = end - begin, 0.0

    def seconds_of(self, cell: Shape) -> float:
        """How long a visit takes: a line over the rows through the visits so far, or the longest of these."""
        sizes = [t.cell.rows for _, _, t in self.visited]
        spent = [seconds for _, seconds, _ in self.visited]
        if len(set(sizes)) < 2:
            return max(spent)
        slope, base = statistics.linear_regression(sizes, spent)
        return max(base + slope * cell.rows, min(spent))

    def left_for(self, made: Sequence[Shape]) -> float:
        """Seconds left of the deadline, the visits that were made counted as if they were still to come."""
        return self.deadline.left() + sum(self.seconds_of(cell) for cell in made)

    def at_usual_speed(self) -> list[Timed]:
        """The visits; of a cell only those at a time whose speed is certain, where it has such."""
        speeds = slowdowns(self.references, [when for when, _, _ in self.visited])
        timed = [t.at_usual_speed(*speed) for speed, (_, _, t) in zip(speeds, self.visited, strict=True)]
        sure = {t.cell for t in timed if t.certain}
        return [t for t in timed if t.certain or t.cell not in sure]

    def visit_what_fits(self, cells: Sequence[Shape]) -> int:
        """Visits those of the cells that leave some time for doubtful ones, in order; returns how many."""
        until, made = self.deadline.share(1 - SPARE), 0
        for cell in cells:
            if self.seconds_of(cell) <= until.left():
                self.visit(cell, 0)
                made += 1
        return made

    def visit_again(self, most: int, passes: int, odd: Callable[[Sequence[Timed]], Sequence[Shape]]) -> int:
        """Visits doubtful shapes, `most` times in all; returns how often."""
        made = 0
        for number in range(passes, passes + AGAIN):
            self._refer()
            timed = self.at_usual_speed()
            doubtful = list(dict.fromkeys([*disagreeing(timed), *odd(timed)]))[: most - made]
            self.total = len(self.visited) + len(doubtful)
            for cell in doubtful:
                self.visit(cell, number)
            made += len(doubtful)
        self._refer()
        return made


def disagreeing(timed: Sequence[Timed]) -> list[Shape]:
    """The shapes whose repeats disagree, or that have none at a certain speed; those that differ most first."""
    repeats: dict[Shape, list[float]] = {}
    for t in timed:
        repeats.setdefault(t.cell, []).append(t.passes)
    apart = {cell: max(times) / min(times) for cell, times in repeats.items() if not agree(times)}
    apart |= {t.cell: math.inf for t in timed if not t.certain}
    return sorted(apart, key=lambda cell: -apart[cell])


def fit_in(
    cells: Sequence[Shape], passes: int, seconds_of: Callable[[Shape], float], seconds: float
) -> tuple[Sequence[Shape], int, list[str]]:
    """The cells and passes that fit into `seconds`, and in words what is left out.

    Passes go first, then every other row total, then the largest batch sizes; one pass over the smallest always stays.
    """

    def fits(some: Sequence[Shape], times: int = 1) -> bool:
        return times * sum(map(seconds_of, some)) <= seconds

    most = max((n for n in range(1, passes + 1) if fits(cells, n)), default=0)
    if most:
        return cells, most, [f"{passes - most} of {passes} passes"] if most < passes else []
    said = [f"{passes - 1} of {passes} passes"] if passes > 1 else []
    thinner = _thinned(cells)
    said.append(f"{len(cells) - len(thinner)} of {len(cells)} shapes (every other row total)")
    batches = sorted({cell.requests for cell in thinner})
    while len(batches) > 1 and not fits(thinner):
        said.append(f"batch size {batches.pop()}")
        thinner = [cell for cell in thinner if cell.requests <= batches[-1]]
    return thinner, 1, said


def _thinned(cells: Sequence[Shape]) -> list[Shape]:
    """Every other row total of each batch size, the last one too."""
    kept = []
    for requests in sorted({cell.requests for cell in cells}):
        levels = sorted({cell.rows for cell in cells if cell.requests == requests})
        keep = {*levels[::2], levels[-1]}
        kept += [cell for cell in cells if cell.requests == requests and cell.rows in keep]
    return kept


def _size(cell: Shape) -> tuple[int, int]:
    return cell.rows, cell.requests * cell.mean_context
