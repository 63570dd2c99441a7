"""The passes of a round as captured graphs: a draft graph per request tier, a verify graph per row tier.

A graph runs for as many requests and rows as its tier has. What is left over belongs to nobody: requests that hold the
page that is nobody's, and rows that write there and that no attention reads. Verify graphs have as many request slots
as rows may need, or as few as attention splits (Tiers): windows and the number of requests decide which of them runs.
All buffers are made once, outside the graphs' memory: a replay may overwrite what another left in that memory.
Shapes: S request slots, one of them nobody's; G block, W = G + 1, N pages a request, M rows of a tier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dsbench.kernels.attention import split_requests
from dsbench.runtime.batch import pack_padded
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import DepthRule, Draft, Drafter, Standing
from dsbench.runtime.law.accept import Verdict
from dsbench.runtime.loop.executor import Eager, Executed, Executor
from dsbench.runtime.loop.passes import Models, Phase, Round, draft_pass, verify_pass
from dsbench.runtime.loop.script import Script
from dsbench.runtime.sampling import Sampling
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets.base import Target
from dsbench.runtime.watch.timeline import Timeline, working

Run = Callable[[], None]
Capture = Callable[[Run], Run]  # a pass over fixed buffers -> its replay


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Sizes that are captured, ascending: requests of a draft, rows of a verify pass.

    A pass over rows has as many request slots as rows may need; and, where attention splits the contexts of a `few`
    requests over a device that more of them would fill, a second graph with slots for these alone.
    """

    requests: tuple[int, ...]
    rows: tuple[int, ...]
    few: int = 0

    @classmethod
    def ladder(cls, requests: int, block: int, few: int = 0) -> Tiers:
        """Fine where a step is short: every 8 rows to 64, 16 to 128, 32 to 256, 64 to 512, 128 beyond."""
        most = requests * (block + 1)
        steps = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, 512, 64)]
        rows = [*steps, *range(512, most + 128, 128)]
        slots = [1, 2, 4, *range(8, 32, 8), *range(32, 64, 16), *range(64, requests + 32, 32)]
        return cls(requests=_up_to(slots, requests), rows=_up_to(rows, most), few=few)

    def verify(self) -> list[tuple[int, int]]:
        """(rows, request slots) of each graph of a verify pass, the largest first."""
        return [(m, n) for m in reversed(self.rows) for n in reversed(self.slots(m))]

    def slots(self, rows: int) -> tuple[int, ...]:
        """Requests that the graphs of a row tier hold, ascending."""
        full = min(rows, self.requests[-1])
        return (self.few, full) if 0 < self.few < full else (full,)

    def of(self, requests: int, rows: int) -> tuple[int, int]:
        """The graph that runs `rows` rows of `requests` requests."""
        tier = next_tier(self.rows, rows)
        return tier, next_tier(self.slots(tier), requests)


def _up_to(sizes: Sequence[int], most: int) -> tuple[int, ...]:
    """The sizes below `most` and the next one, so that a smaller run's tiers are among a larger one's."""
    return tuple(s for i, s in enumerate(sizes) if i == 0 or sizes[i - 1] < most)


class Slots:
    """Where S - 1 requests at most stand, and what a round makes of them. Unused slots are nobody's."""

    def __init__(self, models: Models, most: int) -> None:
        device, block, table = models.target.device, models.drafter.block, models.pool.shape.table
        n = most + 1
        self.nobody = models.pool.shape.pages

        def whole(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.int64, device=device)

        def real(*size: int) -> Tensor:
            return torch.zeros(*size, dtype=torch.float32, device=device)

        # read by the passes
        self.anchor, self.start, self.seed, self.round = whole(n), whole(n), whole(n), whole(n)
        self.window, self.verified, self.live = whole(n), whole(n), whole(1)
        self.temperature, self.top_k, self.top_p = real(n), whole(n), real(n)
        self.table = torch.full((n, table), self.nobody, dtype=torch.int32, device=device)
        self.recorded = whole(n, block + 1) - 1
        # left by them
        self.drafts, self.confidence, self.free = whole(n, block), real(n, block), real(n, block)
        self.accepted, self.ceiling, self.flips, self.tokens = whole(n), whole(n), whole(n), whole(n, block + 1)

    def load(self, now: Round) -> None:
        """The requests into the first slots; the rest become nobody's again."""
        n, at, sampling = now.requests, now.standing, now.sampling
        for mine, given in (
            (self.anchor, at.anchor),
            (self.start, at.start),
            (self.temperature, sampling.temperature),
            (self.seed, sampling.seed),
            (self.round, sampling.round),
            (self.top_k, sampling.top_k),
            (self.top_p, sampling.top_p),
        ):
            mine.zero_()
            mine[:n] = given
        self.table.fill_(self.nobody)
        self.table[:n, : at.table.shape[1]] = at.table
        self.recorded.fill_(-1)
        if now.recorded is not None:
            self.recorded[:n] = now.recorded
        self.live.fill_(n)

    def follow(self, script: Script) -> None:
        """Puts the script's drafts over those that a draft graph left."""
        n = script.tokens.shape[0]
        self.drafts[:n], self.confidence[:n], self.free[:n] = script.tokens, script.confidence, script.free

    def first(self, n: int, plain: bool) -> Round:
        """The first n slots as a pass reads them, their top-k and top-p unless `plain`."""
        sampling = Sampling(
            temperature=self.temperature[:n],
            top_k=self.top_k[:n],
            top_p=self.top_p[:n],
            seed=self.seed[:n],
            round=self.round[:n],
            plain=plain,
        )
        standing = Standing(anchor=self.anchor[:n], start=self.start[:n], table=self.table[:n])
        return Round(standing=standing, sampling=sampling, recorded=self.recorded[:n])

    def draft(self, n: int, depth: int) -> Draft:
        tall = torch.full((n,), depth, dtype=torch.int64, device=self.drafts.device)
        return Draft(
            tokens=self.drafts[:n], confidence=self.confidence[:n], free=self.free[:n], probabilities=None, depth=tall
        )

    def verdict(self, n: int) -> Verdict:
        return Verdict(
            accepted=self.accepted[:n], tokens=self.tokens[:n], ceiling=self.ceiling[:n], flips=self.flips[:n]
        )


class Graphs:
    """An executor for the coupled rule at one draft depth; all else it runs eagerly, counted.

    `capture` makes a replay of a pass. It is called once a tier, the largest first, when this is made. Only if this
    `truncates` does it take top-k and top-p: passes that look for them draft from logits in memory.
    """

    def __init__(self, models: Models, tiers: Tiers, depth: int, capture: Capture, *, truncates: bool = False) -> None:
        self.models, self.tiers, self.depth, self.plain = models, tiers, depth, not truncates
        self.eager, self.misses = Eager(models), 0
        self.most: float = tiers.requests[-1]
        self._capture = capture
        self.slots = Slots(models, tiers.requests[-1])
        self.timeline: Timeline | None = None
        self.graph_pool: Any = getattr(capture, "pool", None)  # torch's handle of the graphs' memory
        with torch.inference_mode():
            self.verify_graphs = {size: capture(self._verify_run(*size)) for size in tiers.verify()}
            drafts = reversed(tiers.requests) if depth else ()
            self.draft_graphs = {n: capture(self._draft_run(n, depth)) for n in drafts}

    def draft(self, now: Round, depth: DepthRule) -> Draft:
        """The whole depth for everybody: what a graph draws is not for the host to cut short."""
        if not self._fits(now):
            self.misses += 1
            return self.eager.draft(now, depth)
        self.slots.load(now)
        if self.depth:
            with working(self.timeline, "draft"):
                self.draft_graphs[next_tier(self.tiers.requests, now.requests)]()
        if now.script is not None:
            self.slots.follow(now.script)
        return self.slots.draft(now.requests, self.depth)

    def verify(self, now: Round, draft: Draft, window: Tensor, verified: Tensor, phase: Phase) -> Executed:
        with phase("pack"):
            n, rows = now.requests, int(verified.sum()) + now.requests
            fits = self._fits(now) and rows <= self.tiers.rows[-1]
            if fits:
                self.slots.window[:n], self.slots.verified[:n] = window, verified
        if not fits:
            self.misses += 1
            return self.eager.verify(now, draft, window, verified, phase)
        tier, slots = self.tiers.of(n, rows)
        with phase("verify"), working(self.timeline, "verify"):
            self.verify_graphs[tier, slots]()
        return Executed(verdict=self.slots.verdict(n), rows=rows, tier=tier)

    def passes_of(self, requests: int, rows: int) -> tuple[Run, Run]:
        """The draft (if there is a depth) and the verify pass of a round of this size, to run again over the slots."""
        draft: Run = self.draft_graphs[next_tier(self.tiers.requests, requests)] if self.depth else lambda: None
        return draft, self.verify_graphs[self.tiers.of(requests, rows)]

    def _fits(self, now: Round) -> bool:
        taken = self.models.rule == "coupled" and (now.sampling.plain or not self.plain)
        return taken and now.requests <= self.tiers.requests[-1]

    def shallow_drafts(self, depth: int) -> dict[int, Run]:
        """Draft passes that stop at a depth, by requests; captured anew, for timing."""
        with torch.inference_mode():
            return {n: self._capture(self._draft_run(n, depth)) for n in reversed(self.tiers.requests)}

    def _draft_run(self, n: int, depth: int) -> Run:
        depths = torch.full((n,), depth)  # on the host, where slots are counted

        def run() -> None:
            slots = self.slots
            made = draft_pass(self.models, slots.first(n, self.plain), lambda free: depths)
            for mine, given in (
                (slots.drafts, made.tokens),
                (slots.confidence, made.confidence),
                (slots.free, made.free),
            ):
                mine[:n].copy_(given)

        return run

    def _verify_run(self, rows: int, requests: int) -> Run:
        n = requests + 1

        def run() -> None:
            slots = self.slots
            now, draft, verified = slots.first(n, self.plain), slots.draft(n, self.depth), slots.verified[:n]
            at = now.standing
            page, context = self.models.pool.shape.page, at.start.int()
            batch = pack_padded(at.anchor, draft.tokens, verified, context, at.table, slots.live, rows, page)
            made = verify_pass(self.models, now, batch, draft, slots.window[:n], verified, lambda name: nullcontext())
            slots.accepted[:n], slots.ceiling[:n], slots.flips[:n] = made.accepted, made.ceiling, made.flips
            slots.tokens[:n] = made.tokens

        return run


def next_tier(tiers: tuple[int, ...], size: int) -> int:
    return next(t for t in tiers if t >= size)


def make_executor(models: Models, config: EngineConfig, depth: int) -> Executor:
    """What runs on the models' pool: eager, or graphs where the config asks. Attention's grid follows from the pool."""
    if not config.graphs:
        return Eager(models)
    tiers, capture = tiers_of(models, config.graphs, depth), capture_on(models.target.device)
    return Graphs(models, tiers, depth, capture, truncates=config.truncates)


def tiers_of(models: Models, requests: int, depth: int) -> Tiers:
    """The ladder for so many requests of blocks of `depth`, on the target's heads; a slot is always nobody's."""
    shape = models.target.shape
    half = models.target.dtype.itemsize < 4
    few = split_requests(shape.heads, shape.kv_heads, models.drafter.block + 1, half) - 1
    return Tiers.ladder(requests, depth, few)


def make_models(target: Target, drafter: Drafter, config: EngineConfig, tokens: int, longest: int) -> Models:
    """Target and drafter over a pool of `tokens`, at most `longest` a request."""
    shape = target.shape
    layers = ((shape.kv_heads, shape.head_width),) * shape.layers + drafter.pool_layers()
    pages, table = -(-tokens // config.page), -(-(longest + drafter.block + 1) // config.page)
    pool = StatePool(
        PoolShape(layers=layers, page=config.page, pages=pages, table=table),
        target.device,
        target.dtype,
        shuffle_seed=config.page_seed,
    )
    return Models(target=target, drafter=drafter, pool=pool, rule=config.rule)


def capture_on(device: torch.device) -> Capture:
    """How passes are captured on a device; a CPU has no graphs and runs them, padded, as they are."""
    return CudaCapture(device) if device.type == "cuda" else lambda run: run


class CudaCapture:
    """Captures on one stream into one memory pool, after two runs that compile and choose what a pass needs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(self, run: Run) -> Run:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for _ in range(2):
                run()
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            run()
        return graph.replay
