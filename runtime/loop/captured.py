"""The captured device: a round's passes as replays of CUDA graphs, launched ahead of the host's reading.

    draft    a graph per request tier and depth
    verify   a graph per row tier; one per request tier for no-draft rounds, one row a request
    prefill  a graph per number of prompt rows

A replay waits for nobody and asks nobody. All that the host writes is ordered with the passes on one stream, so a slot
or a page given away is never read or written by a round launched before. Tensors that a graph reads are owned by this
device. On a CPU, which has no graphs, the passes run padded, as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsbench.kernels.attention import split_requests
from dsbench.runtime.loop.passes import Models, Passes
from dsbench.runtime.loop.prompt_rows import PromptRows
from dsbench.runtime.loop.rounds import Launched
from dsbench.runtime.loop.scheduler import CAPTURED_PROMPTS, CHUNKS, Residence
from dsbench.runtime.loop.slots import Slots, SlotShape
from dsbench.runtime.loop.tiers import Tiers, next_tier
from dsbench.runtime.loop.torch_device import TorchDevice, copied
from dsbench.runtime.policy.calibrated import Maps
from dsbench.runtime.policy.plan import Policy, VerifyPlan
from dsbench.runtime.request import SamplingParams
from dsbench.runtime.watch.timeline import spanned
from dsbench.runtime.watch.timing import stamp

Run = Callable[[], object]
Capture = Callable[[Run], Run]  # a pass over fixed buffers -> its replay


class CapturedDevice(TorchDevice):
    """Graphs of one drafter, of `depths`, and one kind of commit, over slots of their own.

    waits: the host waits after each phase, so that nothing overlaps. Serves one engine at a time.
    """

    def __init__(
        self,
        models: Models,
        shape: SlotShape,
        tiers: Tiers,
        depths: tuple[int, ...],
        commit: str,
        maps: Callable[[SamplingParams], Maps],
        *,
        waits: bool = False,
    ) -> None:
        passes = Passes(models, Slots(shape, models.pool.shape.pages, models.target.device), commit)
        super().__init__(passes, maps, CAPTURED_PROMPTS)
        self.tiers, self.depths, self.commit, self.waits = tiers, depths, commit, waits
        capture = capture_on(self.device)
        self.graph_pool: Any = getattr(capture, "pool", None)  # torch's handle of the graphs' memory
        self.chunks = {rows: PromptRows(self.slots, rows, CAPTURED_PROMPTS.requests) for rows in CHUNKS}
        requests, deep = tuple(reversed(tiers.requests)), [d for d in reversed(depths) if d]
        with torch.inference_mode():
            self.verify_graphs = {at: capture(partial(passes.verify, *at, drafts=True)) for at in tiers.verify()}
            bare = requests if 0 in depths and deep else ()
            self.no_draft_graphs = {n: capture(partial(passes.verify, n, n, drafts=False)) for n in bare}
            self.draft_graphs = {(n, d): capture(self._draft_run(n, d)) for n in requests for d in deep}
            looks = requests if shape.recorded and depths[-1] == shape.block > 0 else ()
            self.look_graphs = {n: capture(partial(passes.look, n)) for n in looks}
            self.prefill_graphs = {n: capture(partial(passes.prefill, self.chunks[n])) for n in reversed(CHUNKS)}

    @torch.inference_mode()
    def prefill(self, part: Sequence[tuple[Residence, int]], at: Sequence[int]) -> None:
        count = sum(rows for _, rows in part)
        rows = next_tier(CHUNKS, count)
        with spanned(self.timeline, "prefill", device=True):
            self.chunks[rows].load(part, at, self.pool, self.maps)
            self.prefill_graphs[rows]()

    @torch.inference_mode()
    def launch(self, n: int, plan: VerifyPlan, policy: Policy, context: int) -> Launched:
        ready = known = stamp(self.device)
        if policy.looks == "text":
            plan, known = self.look(n, plan, policy, context), stamp(self.device)
        slots, drafts = self.slots, plan.depth > 0 or self.block == 0
        with spanned(self.timeline, "draft", device=True):
            slots.set("cap", plan.depth)
            if plan.depth:
                self.draft_graphs[next_tier(self.tiers.requests, n), plan.depth]()
            if policy.looks == "text" and plan.depth:
                self.passes.trust(n)
        drafted = self._phase_end()
        with spanned(self.timeline, "verify", device=True):
            slots.set("budget", plan.budget)
            rows = n * (plan.depth + 1) if self.commit == "window" else n + plan.budget
            tier = self._verify(n, rows) if drafts else self._no_draft(n)
            ints = self._on_host(slots.ints_out[:n], policy)
            reals = self._on_host(slots.reals_out[:n], policy) if drafts else self.unread[:n]
        done = self._phase_end()
        return Launched(
            plan=plan, tier=tier, ready=ready, known=known, drafted=drafted, done=done, ints=ints, reals=reals
        )

    def _on_host(self, left: Tensor, policy: Policy) -> Tensor:
        """A copy of what a round left, valid with its last stamp; one that waits, where that fails."""
        return policy.attempt("copying what a round left", lambda: copied(left), lambda: left.clone().cpu())

    def _verify(self, n: int, rows: int) -> int:
        size = self.tiers.of(n, rows)
        self.verify_graphs[size]()
        return size[0]

    def _no_draft(self, n: int) -> int:
        size = next_tier(self.tiers.requests, n)
        self.no_draft_graphs[size]()
        return size

    def _phase_end(self) -> Any:
        end = stamp(self.device)
        if self.waits:
            self.check()
        return end

    def _draft_to_look(self, n: int) -> None:
        size = next_tier(self.tiers.requests, n)
        self.draft_graphs[size, self.block]()
        self.look_graphs[size]()

    def _draft_run(self, n: int, depth: int) -> Run:
        depths = torch.full((n,), depth)  # on the host, where depths are counted

        def rule(free: Tensor) -> Tensor:
            return depths

        def run() -> None:
            self.passes.draft(n, rule)
            self.passes.fill(n, depth)

        return run


def tiers_of(models: Models, requests: int, depth: int) -> Tiers:
    """The ladder for so many requests of blocks of `depth`, on the target's heads."""
    shape = models.target.shape
    half = models.target.dtype.itemsize < 4
    few = split_requests(shape.heads, shape.kv_heads, models.drafter.block + 1, half) - 1
    return Tiers.ladder(requests, depth, few)


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
        return _Replay(graph, run)


class _Replay:
    """A captured graph, which keeps the pass, and so every tensor that it reads, alive."""

    def __init__(self, graph: Any, run: Run) -> None:
        self.graph, self.run = graph, run

    def __call__(self) -> None:
        self.graph.replay()
