"""Who waits, whose prompt runs when, and who has which slot. No torch.

Pages are given to a request before its prompt runs, so that no round ever asks the pool for one. Prompts run in chunks
between rounds; a request takes a slot within the pass that completes its prompt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsbench.runtime.policy.history import History
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import Request, SamplingParams


@dataclass(slots=True, kw_only=True, eq=False)
class Residence:
    """A request from its admission to its end. Rounds in flight hold it, so that they tell it from a successor's."""

    request: Request
    admitted: float  # seconds on the engine's clock
    room: int  # tokens it may emit in all
    first: float = 0.0  # when its first token was read
    prefilled: int = 0  # prompt tokens run
    row: int = -1  # of the history, once it has a slot
    left: bool = False

    @property
    def done(self) -> bool:
        """Whether its prompt has run."""
        return self.prefilled == len(self.request.prompt_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptLimits:
    """Sizes of a device's prefill passes, and how long prompts wait for each other.

    A pass is due once one request waits for every `share` that run, or `patience` rounds have passed.
    """

    requests: int  # of a pass at most
    rows: int  # of a pass at most
    share: int
    patience: int


CHUNKS = (32, 64, 128, 256, 512, 1024)  # prompt rows of captured prefill passes
# Prompts wait until there is one for so many requests that run, but no longer than so many rounds: a pass costs much
# whatever it holds. Against 32 and 3: 10 to 20% more tokens a second of 16 to 256 requests whose ends are spread, first
# tokens up to a third later (simulated, SmolLM2 and the 8B on an H200); twice as long brings nothing more.
CAPTURED_PROMPTS = PromptLimits(requests=32, rows=CHUNKS[-1], share=12, patience=8)


def eager_prompts(chunk: int) -> PromptLimits:
    """Of a device whose passes cost what their rows do: prompts never wait, `chunk` rows a pass."""
    always = 10**9
    return PromptLimits(requests=always, rows=chunk, share=always, patience=0)


class Slotted(Protocol):
    """What the scheduler asks of a device."""

    capacity: int

    @property
    def prompts(self) -> PromptLimits: ...

    def prefill(self, part: Sequence[tuple[Residence, int]], at: Sequence[int]) -> list[int] | None:
        """Runs prompt rows; the first len(at) requests go to those slots. Their first tokens, where they are known."""

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None: ...

    def clear(self, slots: Sequence[int]) -> None: ...

    def occupy(self, slots: int) -> None:
        """The first `slots` belong to the coming round."""


class Scheduler:
    """Residences in the order of their slots. A free slot keeps the residence that left it until it is taken."""

    def __init__(
        self, device: Slotted, history: History, prior: Callable[[SamplingParams], Array], limits: PromptLimits
    ) -> None:
        self.device, self.history, self.prior, self.limits = device, history, prior, limits
        self.waiting: deque[Residence] = deque()
        self.slots: list[Residence] = []
        self._rows = np.full(device.capacity, history.none, np.int64)
        self._waited = 0  # rounds without a prefill pass

    def __len__(self) -> int:
        return len(self.slots)

    def fill(self, first: Callable[[Residence, int], None]) -> None:
        """Runs prompts that are due, and closes up free slots; `first` hears of first tokens that are known at once."""
        free = np.flatnonzero(self._rows[: len(self.slots)] == self.history.none).tolist()
        while self._due(len(self.slots) - len(free)):
            part = self._next_chunk()
            at = [self._take_slot(residence, free) for residence, _ in part if residence.done]
            tokens = self.device.prefill(part, at)
            for (residence, _), token in zip(part, tokens or (), strict=False):
                first(residence, token)
            if tokens is not None:
                free = np.flatnonzero(self._rows[: len(self.slots)] == self.history.none).tolist()
            if len(self.waiting) <= len(self.slots) - len(free):
                break
        if free and (not self.waiting or self.limits.patience == 0):  # exact passes have no rows for free slots
            self._close_up(free)
        elif free:
            self.device.clear(free)
        self.history.rows = self._rows[: len(self.slots)].copy()
        self.device.occupy(len(self.slots))

    def leave(self, residence: Residence) -> None:
        """Frees the request's slot, or takes it off those that wait."""
        residence.left = True
        if residence in self.waiting:
            self.waiting.remove(residence)
        if residence.row >= 0:
            self._rows[self._rows == residence.row] = self.history.none
            self.history.leave(residence.row)

    def _due(self, running: int) -> bool:
        """Asked once a round, and after each prefill pass."""
        if not self.waiting:
            return False
        limits, left = self.limits, sum(len(r.request.prompt_ids) - r.prefilled for r in self.waiting)
        full = len(self.waiting) >= limits.requests or left >= limits.rows or self.waiting[0].prefilled > 0
        if full or len(self.waiting) * limits.share >= running or self._waited >= limits.patience:
            self._waited = 0
            return True
        self._waited += 1
        return False

    def _next_chunk(self) -> list[tuple[Residence, int]]:
        """Who runs next, and how many prompt rows of each; those done with theirs wait no longer."""
        part: list[tuple[Residence, int]] = []
        left = self.limits.rows
        for residence in self.waiting:
            count = min(left, len(residence.request.prompt_ids) - residence.prefilled)
            if count == 0 or len(part) == self.limits.requests:
                break
            part.append((residence, count))
            left -= count
        for residence, count in part:
            residence.prefilled += count
            if residence.done:
                self.waiting.popleft()
        return part

    def _take_slot(self, residence: Residence, free: list[int]) -> int:
        slot = free.pop(0) if free else len(self.slots)
        self.slots[slot : slot + 1] = [residence]
        prior, prompt = self.prior(residence.request.sampling), len(residence.request.prompt_ids)
        residence.row = self._rows[slot] = self.history.enter(prompt, residence.room, prior)
        return slot

    def _close_up(self, free: Sequence[int]) -> None:
        """Moves the last requests into the free slots, ascending, before them."""
        kept = len(self.slots) - len(free)
        behind = [i for i in range(kept, len(self.slots)) if not self.slots[i].left]
        before = [slot for slot in free if slot < kept]
        if behind:
            self.device.move(behind, before)
        for source, target in zip(behind, before, strict=True):
            self.slots[target], self._rows[target] = self.slots[source], self._rows[source]
        self.device.clear(range(kept, len(self.slots)))
        self._rows[kept : len(self.slots)] = self.history.none
        del self.slots[kept:]
