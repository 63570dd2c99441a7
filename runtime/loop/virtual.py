"""The virtual device: a counted clock, recorded text and drafts, priced by a cost table. No torch.

It leaves out noise, kernels that compile, and the host beyond what the table holds.
Shapes: R requests, G block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dsbench.runtime.arm import Arm
from dsbench.runtime.loop.rounds import COUNTS, Launched
from dsbench.runtime.loop.scheduler import PromptLimits, Residence
from dsbench.runtime.loop.tiers import next_tier
from dsbench.runtime.policy.calibrated import Maps
from dsbench.runtime.policy.objective import Array, allocate
from dsbench.runtime.policy.plan import Policy, Seen, VerifyPlan
from dsbench.runtime.records import UNSEEN
from dsbench.runtime.request import Request, SamplingParams

CERTAIN = 40.0  # as a torch device's oracle leaves it


class RoundCosts(Protocol):
    """Seconds of the parts of a round."""

    def draft(self, requests: int, context: int, skipped: int) -> float: ...

    def verify(self, requests: int, rows: int, context: int) -> float: ...

    def alone(self, requests: int, context: int) -> float:
        """A pass of one row a request where there is no drafter."""

    def bare(self, requests: int, context: int) -> float:
        """A no-draft round of an arm that drafts in others."""

    def prefill(self, requests: int, rows: int, context: int) -> float: ...

    def tier(self, rows: int) -> int: ...


class CountedClock:
    """Seconds that the loop was told of, and no others."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def count(self, seconds: float) -> None:
        """A round's seconds lie on the device's clock already."""

    def rest(self, until: float) -> None:
        self.seconds = max(self.seconds, until)


class NothingCompiles:
    total = 0


@dataclass(slots=True)
class Standing:
    """A request in a slot: output tokens so far, whether its end has come, and the maps of its confidences."""

    request: Request
    out: int
    room: int  # output tokens it may still have
    ended: bool
    maps: Maps

    @property
    def text(self) -> list[int]:
        return self.request.canonical or []

    @property
    def context(self) -> int:
        """Tokens in its pages, those included that the host has not read yet."""
        return len(self.request.prompt_ids) + self.out - 1

    def row(self) -> Array:
        """The trace's row [1 + 2 G] at its anchor; the last one again once it has ended."""
        assert self.request.trace is not None
        packed = self.request.trace.packed
        return np.asarray(packed[min(max(self.out - 1, 0), len(packed) - 1)])


class VirtualDevice:
    """Runs an arm's rounds of requests that bring their text and what was drafted along it.

    exact: passes run the rows there are, and first tokens are known at once, as on an eager device; else rows of tiers,
    and prompts in passes of the sizes `chunks`.
    """

    replayed = True

    def __init__(
        self,
        costs: RoundCosts,
        arm: Arm,
        block: int,
        *,
        slots: int,
        context: int,
        maps: Callable[[SamplingParams], Maps],
        prompts: PromptLimits,
        chunks: tuple[int, ...],
        exact: bool,
        eos: frozenset[int] = frozenset(),
    ) -> None:
        self.costs, self.arm, self.block, self.capacity, self.context = costs, arm, block, slots, context
        self.maps, self.prompts, self.chunks, self.exact, self.eos = maps, prompts, chunks, exact, eos
        self.clock, self.compiled = CountedClock(), NothingCompiles()
        self.busy = 0.0  # when the device is done with all that was launched
        self.slots: list[Standing | None] = [None] * slots
        self.prefill_seconds = 0.0

    def open(self, request: Request) -> bool:
        request.tokens_needed(self.context, self.block)  # raises for a prompt that leaves no room
        return True

    def release(self, request: Request) -> None:
        """There are no pages."""

    def prefill(self, part: Sequence[tuple[Residence, int]], at: Sequence[int]) -> list[int] | None:
        rows = sum(count for _, count in part)
        context = sum(residence.prefilled for residence, _ in part)
        self.busy = max(self.busy, self.clock.now()) + self.costs.prefill(
            len(part), rows if self.exact else next_tier(self.chunks, rows), context
        )
        first = []
        for slot, (residence, _) in zip(at, part, strict=False):
            request, room = residence.request, residence.room - 1
            standing = Standing(request=request, out=1, room=room, ended=room < 1, maps=self.maps(request.sampling))
            standing.ended |= self._stops(standing, standing.text[0])
            self.slots[slot] = standing
            first.append(standing.text[0])
        if self.exact:
            self.clock.seconds = self.busy
        return first if self.exact else None

    def move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        for source, target in zip(sources, targets, strict=True):
            self.slots[target] = self.slots[source]

    def clear(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.slots[slot] = None

    def occupy(self, slots: int) -> None:
        """Rounds name their slots."""

    def reset(self) -> None:
        self.slots = [None] * self.capacity

    def launch(self, n: int, plan: VerifyPlan, policy: Policy, context: int) -> Launched:
        standing, limits, ready = self.slots[:n], self._limits(n, self.block), self.busy
        match = np.array([0 if s is None or not self.block else int(s.row()[0]) for s in standing], np.int64)
        if policy.looks == "text":
            accepted = np.minimum(match, limits)[:, None] > np.arange(self.block)
            plan = policy.within(plan, Seen(survival=accepted.astype(float), limits=limits, context=context))
        reals = self._confidences(n)
        if policy.looks == "token-free":
            plan = policy.within(plan, Seen(survival=self._free(n, reals), limits=limits, context=context))
        limits = self._limits(n, plan.depth)
        reals[:, 2] = survival = self._survival(n, reals, plan.depth, match if policy.looks == "text" else None)
        if policy.looks == "confidence":
            plan = policy.within(plan, Seen(survival=survival, limits=limits, context=context))
        wanted = allocate(survival, limits, plan.budget) if plan.window is None else np.minimum(plan.window, limits)
        window = wanted if plan.depth else np.zeros(n, np.int64)
        verified = window if self.arm.commit == "all" else limits
        tier, drafted = self._price(n, plan, verified)
        ints = self._deliver(n, plan, window, limits, match)
        if not plan.depth:
            reals = np.full_like(reals, np.nan)
        return Launched(
            plan=plan, tier=tier, ready=ready, known=ready, drafted=drafted, done=self.busy, ints=ints, reals=reals
        )

    def wait(self, launched: Launched) -> None:
        self.clock.seconds = max(self.clock.seconds, launched.done)

    def read(self, left: Array) -> Array:
        return left

    def stamp(self) -> float:
        return self.busy

    def between(self, first: float, last: float) -> float:
        return last - first

    def phase(self, name: str) -> AbstractContextManager[None]:
        return nullcontext()

    def watch(self, timeline: object) -> None:
        """It has no phases that a timeline could show."""

    def number(self, step: int) -> None:
        """Nobody watches."""

    def check(self) -> None:
        """It always answers."""

    def _price(self, n: int, plan: VerifyPlan, verified: Array) -> tuple[int, float]:
        """Rows that run, and when drafts are there; the round is done at `busy`."""
        full, context = n * (plan.depth + 1), sum(s.context for s in self.slots[:n] if s is not None)
        if self.exact:
            rows = full if self.arm.layout == "rectangular" else n + int(verified.sum())
        else:
            rows = full if self.arm.commit == "window" else n + plan.budget
        draft = self.costs.draft(n, context, self.block - plan.depth) if plan.depth else 0.0
        if not self.block:
            verify = self.costs.alone(n, context)
        else:
            verify = self.costs.verify(n, rows, context) if plan.depth else self.costs.bare(n, context)
        drafted = self.busy + draft
        self.busy = drafted + verify
        return rows if self.exact else self.costs.tier(rows), drafted

    def _limits(self, n: int, most: int) -> Array:
        """Drafts [n] that may be accepted now: room for one more token, at most `most`."""
        left = [0 if s is None or s.ended else min(s.room - 1, most) for s in self.slots[:n]]
        return np.maximum(np.array(left, np.int64), 0)

    def _confidences(self, n: int) -> Array:
        """[n, 3, G] fp32: confidence and token-free confidence logits of the trace, and room for survival."""
        out = np.zeros((n, 3, self.block), np.float32)
        for row, standing in zip(out, self.slots[:n], strict=True):
            if standing is not None and self.block:
                row[:2] = standing.row()[1:].reshape(2, self.block)
        return out

    def _maps(self, n: int) -> Array:
        """Scales and offsets [n, 4, G]."""
        none = np.stack([np.ones(self.block), np.zeros(self.block)] * 2)
        return np.array([none if s is None else np.stack(s.maps) for s in self.slots[:n]]).reshape(n, 4, self.block)

    def _free(self, n: int, reals: Array) -> Array:
        maps = self._maps(n)
        return np.cumprod(_chance(reals[:, 1].astype(np.float64) * maps[:, 2] + maps[:, 3]), axis=1)

    def _survival(self, n: int, reals: Array, depth: int, match: Array | None) -> Array:
        """Survival [n, G]; past `depth` by the token-free head, of an oracle by what the text accepts."""
        maps, drafted = self._maps(n).astype(np.float32), np.arange(self.block) < depth
        if match is not None:
            certain = (2.0 * (np.arange(self.block) < match[:, None]) - 1.0) * CERTAIN
            return np.cumprod(_chance(certain), axis=1)
        own, free = reals[:, 0] * maps[:, 0] + maps[:, 1], reals[:, 1] * maps[:, 2] + maps[:, 3]
        return np.asarray(np.cumprod(_chance(np.where(drafted, own, free)), axis=1, dtype=np.float32))

    def _stops(self, standing: Standing, token: int) -> bool:
        return token in self.eos and not standing.request.sampling.ignore_eos

    def _deliver(self, n: int, plan: VerifyPlan, window: Array, limits: Array, match: Array) -> Array:
        """Moves the requests on; [n, counts, tokens, drafts] as a torch device leaves them."""
        width = self.block + 1
        out = np.zeros((n, len(COUNTS) + width + self.block), np.int64)
        for slot, standing in enumerate(self.slots[:n]):
            if standing is None:
                continue
            text, at = standing.text, standing.out
            accepted = min(int(match[slot]), int(window[slot]))
            came = 0 if standing.ended else min(accepted + 1, standing.room, len(text) - at)
            tokens = text[at : at + came]
            stop = next((i + 1 for i, token in enumerate(tokens) if self._stops(standing, token)), 0)
            came = stop or came
            future = text[at : at + plan.depth]
            future = future + [-1] * (plan.depth - len(future))  # as slots hold a text
            drafts = [t if j < match[slot] else t + 1 for j, t in enumerate(future)]
            full = plan.depth == self.block > 0 and int(window[slot]) == self.block
            ceiling = accepted + 1 if accepted < window[slot] or full else UNSEEN
            if self.arm.commit == "window" and plan.depth:
                seen = min(int(match[slot]), int(limits[slot]))
                ceiling = seen + 1 if seen < limits[slot] or limits[slot] == self.block else UNSEEN
            anchor = text[at - 1]
            standing.out, standing.room = at + came, standing.room - came
            standing.ended |= bool(stop) or standing.room < 1
            counts = [accepted, ceiling, 0, int(window[slot]), int(limits[slot]), came, anchor, int(standing.ended)]
            out[slot, : len(COUNTS)] = counts
            out[slot, len(COUNTS) : len(COUNTS) + came] = tokens[:came]
            out[slot, len(COUNTS) + width : len(COUNTS) + width + plan.depth] = drafts
        return out


def _chance(logits: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-logits)))
