"""A recorded trace served on a virtual clock: each round lasts what a cost table says, and nothing runs. No torch.

The loop is the overlapped one's: R requests at a time, seats back-filled from a queue, depth and rows from confidences
of a chosen age, windows from the current ones, acceptance and text the trace's. Prefill takes no time: it is the same
for every age. Shapes: R seats, G block, A anchors of all texts one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsbench.profiles.cost import CostTable
from dsbench.runtime.budget import DEPTHS, Budgets
from dsbench.runtime.objective import Array
from dsbench.runtime.recent import Recent
from dsbench.trace import TraceRow


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Texts:
    """Recorded texts side by side, and the survival that a request without history is given."""

    names: tuple[str, ...]
    prompt: Array  # tokens [texts]
    output: Array  # tokens [texts]
    begin: Array  # first anchor [texts]
    match: Array  # [A]
    passes: Array  # [A, G] P(draft j passes | those before it did)
    free: Array  # [A, G] the same, token-free
    prior: Array  # survival [G]

    @classmethod
    def of(cls, rows: Sequence[TraceRow], prior: Array) -> Texts:
        """Texts of at least two tokens; of a single one nothing is ever drafted."""
        rows = [row for row in rows if len(row.output) > 1]
        sizes = np.array([len(row.output) for row in rows])
        return cls(
            names=tuple(row.name for row in rows), prompt=np.array([len(row.prompt) for row in rows]), output=sizes,
            begin=np.concatenate([[0], np.cumsum(sizes - 1)[:-1]]),
            match=np.concatenate([row.drafts.match for row in rows]).astype(np.int64),
            passes=sigmoid(np.concatenate([row.drafts.logits for row in rows])),
            free=sigmoid(np.concatenate([row.drafts.free for row in rows])), prior=prior,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Served:
    """What a run came to, over its measured requests, by text: tokens and seconds in a seat, [texts] each."""

    tokens: Array
    seconds: Array
    rounds: int
    delivered: int  # tokens of all rounds
    clock: float  # seconds of all rounds


class Clocked:
    """R seats over texts that are served in turn, again and again.

    age: rounds between the confidences that set a round's depth and rows, and the round; 0 is the round's own, as if
    waiting for them took no time. free: these confidences are the token-free ones, known before any draft is drawn.
    late: rounds that a seat stays taken after its request has ended.
    """

    def __init__(self, texts: Texts, table: CostTable, *, batch: int, age: int, free: bool, late: int) -> None:
        block = texts.passes.shape[1]
        self.texts, self.batch, self.age, self.free, self.late = texts, batch, age, free, late
        self.budgets = Budgets(table, block, (*(d for d in DEPTHS if d < block), block))
        self.recent, self.block, self.served = Recent(block), block, 0  # requests that have sat down
        self.text, self.order = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        self.out, self.over = np.zeros(batch, np.int64), np.zeros(batch, np.int64)  # tokens; rounds since the end
        self.since = np.zeros(batch)
        self.known = deque([self._nothing() for _ in range(age)], maxlen=age + 1)
        self.clock, self.rounds, self.delivered = 0.0, 0, 0
        self._seat(np.ones(batch, bool))

    def run(self, measured: int) -> Served:
        """Until requests `batch` .. `batch + measured` have left: those before warm the seats, later ones fill them."""
        tokens, seconds = np.zeros(len(self.texts.names)), np.zeros(len(self.texts.names))
        missing = measured
        while missing:
            self.step()
            self.over += self.out >= self.texts.output[self.text]
            leaves = self.over > self.late
            for seat in np.flatnonzero(leaves & (self.order >= self.batch) & (self.order < self.batch + measured)):
                tokens[self.text[seat]] += self.out[seat]
                seconds[self.text[seat]] += self.clock - self.since[seat]
                missing -= 1
            self._seat(leaves)
        return Served(tokens=tokens, seconds=seconds, rounds=self.rounds, delivered=self.delivered, clock=self.clock)

    def step(self) -> None:
        """A round of all seats."""
        texts = self.texts
        size, live = texts.output[self.text], self.out < texts.output[self.text]
        at = texts.begin[self.text] + np.minimum(self.out, size - 1) - 1
        passes, context = texts.passes[at], int((texts.prompt[self.text] + self.out - 1).sum())
        told = np.cumprod(texts.free[at] if self.free else passes, axis=1)
        self.known.append((told, self.out.copy()))
        survival, out = self.known[0]
        limits = np.clip(size - out - 1, 0, self.block)
        sets = self.recent.sets(survival, (out > 0) & (limits > 0)) if self.age else survival
        choice = self.budgets.choose(sets, limits, context)
        undrafted = np.arange(self.block) >= choice.depth
        current = np.cumprod(np.where(undrafted, texts.free[at], passes), axis=1)
        limits = np.where(live, np.clip(size - self.out - 1, 0, choice.depth), 0)
        window = best_windows(current, limits, choice.rows - self.batch)
        delivered = np.where(live, np.minimum(texts.match[at], window) + 1, 0)
        self.out += delivered
        self.known[-1] = (told if self.free else current, self.out.copy())
        self.clock += choice.seconds
        self.rounds += 1
        self.delivered += int(delivered.sum())

    def _seat(self, empty: Array) -> None:
        """The next requests of the queue into the empty seats; their first tokens are there."""
        seats = np.flatnonzero(empty)
        self.order[seats] = self.served + np.arange(len(seats))
        self.text[seats] = self.order[seats] % len(self.texts.names)
        self.out[seats], self.over[seats], self.since[seats] = 1, 0, self.clock
        self.served += len(seats)
        for survival, out in self.known:
            survival[seats], out[seats] = self.texts.prior, 0

    def _nothing(self) -> tuple[Array, Array]:
        return np.tile(self.texts.prior, (self.batch, 1)), np.zeros(self.batch, np.int64)


def best_windows(survival: Array, limits: Array, budget: int) -> Array:
    """Drafts [R] of the `budget` best within limits; ties go to the shallower, then to the request that is first."""
    requests, block = survival.shape
    score = np.where(np.arange(block) < limits[:, None], np.minimum.accumulate(survival, axis=1), -1.0)
    best = np.argsort(-score.T.ravel(), kind="stable")[:budget]
    best = best[score.T.ravel()[best] >= 0]
    return np.bincount(best % requests, minlength=requests)


def sigmoid(logits: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-logits.astype(np.float64))))
