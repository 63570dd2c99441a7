"""What `profile-cost` runs: rounds of a shape over shuffled pages, and replays of captured passes alone.

All that times a device is here; `visits.py` says which shapes and when.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dsbench.deploy.deployment import Deployment
from dsbench.deploy.visits import Shape, Timed
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.build import make_models
from dsbench.runtime.loop.captured import CapturedDevice, tiers_of
from dsbench.runtime.loop.eager import EagerDevice
from dsbench.runtime.loop.prompt_rows import page_tables
from dsbench.runtime.loop.rounds import Launched
from dsbench.runtime.loop.slots import SlotShape
from dsbench.runtime.loop.tiers import next_tier
from dsbench.runtime.policy.calibrated import Calibrated
from dsbench.runtime.policy.fixed import Fixed
from dsbench.runtime.policy.plan import VerifyPlan

ROOM = 40  # tokens that a standing request may grow by
REPLAYS = 3  # of each graph, a cell and pass
ProfileDevice = EagerDevice | CapturedDevice


class PassTimer:
    """Times shapes on a device; where it replays graphs, its passes alone too."""

    def __init__(self, device: ProfileDevice, *, temperature: float, seed: int) -> None:
        self._device, self._temperature, self._seed = device, temperature, seed
        self._graphs = device if isinstance(device, CapturedDevice) else None
        self._cell: Shape | None = None  # whose requests stand in the slots

    @property
    def tiers(self) -> tuple[int, ...] | None:
        """Row totals that the graphs were captured at; None without graphs."""
        return None if self._graphs is None else self._graphs.tiers.rows

    def visit(self, cell: Shape, number: int) -> Timed:
        """The faster of two rounds of the cell, after one to warm up: what else the machine does only adds."""
        context = self._stand(cell, number)
        block, first = self._device.block, tuple[float, ...]()
        found = [self._round(cell, block) for _ in range(3)]
        step, drafting = min(found[1:])
        draft: tuple[float, ...] = (drafting,)
        verify: tuple[float, ...] = (step - drafting,)
        shallow = cell.rows == cell.requests and block > 1
        if self._graphs is not None:
            draft, verify = self._replays(cell, block), self._verify_seconds(cell)
            first = self._replays(cell, 1) if shallow else first
        elif shallow:
            first = (min(self._round(cell, 1)[1] for _ in range(2)),)
        return Timed(
            cell=cell,
            number=number,
            context=context,
            step=step,
            drafting=drafting,
            draft=draft,
            verify=verify,
            shallow=first,
        )

    def reference(self, cell: Shape) -> float:
        """Seconds of one round of the cell; where passes are graphs, of replays of its verify pass."""
        self._stand(cell, 0)
        if self._graphs is None:
            return self._round(cell, self._device.block)[0]
        return statistics.median(self._verify_seconds(cell))

    def _stand(self, cell: Shape, number: int) -> int:
        """Puts requests in mid-decode, with windows of unequal lengths, into the slots; their tokens in all."""
        order, block = random.Random(f"{self._seed} {number}"), self._device.block
        windows = _spread(cell.rows - cell.requests, cell.requests, block, order)
        contexts = spread_contexts(cell.requests, cell.mean_context, self._seed)
        stand(self._device, contexts, windows, self._temperature)
        return sum(contexts)

    def _round(self, cell: Shape, depth: int) -> tuple[float, float]:
        """Seconds of a round launched and waited for, and of its draft."""
        device, slots, budget = self._device, self._device.slots, cell.rows - cell.requests
        kept = slots.room[: cell.requests].clone(), slots.start[: cell.requests].clone()
        plan = VerifyPlan(depth=depth, budget=budget, reason="profile")
        begin = time.perf_counter()
        done: Launched = device.launch(cell.requests, plan, Fixed(depth, 0), 0)
        device.wait(done)
        device.check()
        seconds = time.perf_counter() - begin
        assert done.tier >= min(cell.rows, cell.requests * (depth + 1)), f"{done.tier} rows ran of {cell.rows}"
        self._restore(cell.requests, *kept)
        drafting = done.phases["draft"] if done.phases else device.between(done.known, done.drafted)
        return seconds, drafting

    @torch.inference_mode()
    def _restore(self, n: int, room: torch.Tensor, start: torch.Tensor) -> None:
        """Where the requests stood before a round."""
        slots = self._device.slots
        slots.room[:n], slots.start[:n] = room, start
        slots.ended[:n], slots.emitted[:n], slots.anchor[:n] = 0, 1, 1

    def _replays(self, cell: Shape, depth: int) -> tuple[float, ...]:
        """Seconds of replays of the draft to a depth."""
        assert self._graphs is not None
        if not depth:
            return (0.0,)
        run = self._graphs.draft_graphs[next_tier(self._graphs.tiers.requests, cell.requests), depth]
        return replay_seconds(run, self._device.device)

    def _verify_seconds(self, cell: Shape) -> tuple[float, ...]:
        """Seconds of replays of the verify pass, the slots as they were before each."""
        assert self._graphs is not None
        slots, n = self._device.slots, cell.requests
        kept = slots.room[:n].clone(), slots.start[:n].clone()
        slots.set("cap", self._device.block)
        slots.set("budget", cell.rows - n)
        run = self._graphs.verify_graphs[self._graphs.tiers.of(n, cell.rows)]
        return replay_seconds(run, self._device.device, between=lambda: self._restore(n, *kept))


@torch.inference_mode()
def stand(device: ProfileDevice, contexts: Sequence[int], windows: Sequence[int], temperature: float) -> None:
    """Puts requests in mid-decode into the slots, with arbitrary pages: time does not depend on what the pages hold.

    Each may verify as many drafts as its window: it has room for these and one token more.
    """
    slots, pool, n = device.slots, device.pool, len(contexts)
    for owner in list(pool.owners):
        pool.release(owner)
    for owner, context in enumerate(contexts):
        assert pool.open(owner, context + ROOM), "the profile pool is too small"
        pool.grow(owner, context + device.block + 1)
    slots.reset()
    slots.set("live", n)
    slots.table[:n] = torch.from_numpy(page_tables(pool, range(n))).to(slots.device)
    given = {
        "start": np.array(contexts),
        "room": np.array(windows) + 1,
        "seed": np.arange(n),
        "anchor": np.ones(n, np.int64),
        "emitted": np.ones(n, np.int64),
        "round": np.ones(n, np.int64),
        "ended": np.zeros(n, np.int64),
    }
    for name, values in given.items():
        getattr(slots, name)[:n] = torch.from_numpy(values).to(slots.device)
    slots.temperature[:n] = temperature
    slots.scale[:n], slots.free_scale[:n] = 1.0, 1.0


def pool_of(batches: Sequence[int], contexts: Sequence[int], seed: int) -> tuple[int, int]:
    """Tokens that the requests of the largest cell hold together, with room to grow, and the most that one holds."""
    cells = [[c + ROOM for c in spread_contexts(r, mean, seed)] for r in batches for mean in contexts]
    return max(map(sum, cells)), max(map(max, cells))


def profile_device(
    deployment: Deployment, pool: tuple[int, int], requests: int, *, graphs: bool = False
) -> ProfileDevice:
    """Room for tokens in all and tokens a request, as `pool_of` says."""
    target, drafter, config = deployment.target.model, deployment.drafter, EngineConfig()
    models = make_models(target, drafter, config, pool[0] + requests * config.page, min(pool[1], target.shape.context))
    shape = SlotShape(slots=requests, block=drafter.block, table=models.pool.shape.table, recorded=0, eos=())
    maps = Calibrated(deployment.calibrations, config.rule, drafter.block).maps
    if not graphs:
        return EagerDevice(models, parse_arm("no-trim"), shape, maps, config.prefill_chunk)
    tiers = tiers_of(models, requests, drafter.block)
    depths = tuple(sorted({min(1, drafter.block), drafter.block}))
    return CapturedDevice(models, replace(shape, slots=tiers.requests[-1]), tiers, depths, "all", maps, waits=True)


def replay_seconds(
    run: Callable[[], object], device: torch.device, repeats: int = REPLAYS, between: Callable[[], None] = lambda: None
) -> tuple[float, ...]:
    """Seconds of each of `repeats` runs after one to warm up; `between` restores what a run changes, untimed."""
    run()
    between()
    if device.type != "cuda":
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - begin)
            between()
        return tuple(seconds)
    event: Any = torch.cuda.Event
    marks = [(event(enable_timing=True), event(enable_timing=True)) for _ in range(repeats)]
    for first, last in marks:
        first.record()
        run()
        last.record()
        between()
    torch.cuda.synchronize(device)
    return tuple(first.elapsed_time(last) / 1e3 for first, last in marks)


def spread_contexts(requests: int, mean: int, seed: int) -> list[int]:
    """Tokens of each request, half to one and a half times the mean; the same whatever is run of them."""
    place = random.Random(f"{seed} {requests} {mean}")
    return [max(2, round(mean * place.uniform(0.5, 1.5))) for _ in range(requests)]


def _spread(drafts: int, requests: int, block: int, order: random.Random) -> list[int]:
    """Windows of random unequal lengths <= block that sum to `drafts`."""
    windows = [0] * requests
    open_slots = list(range(requests))
    for _ in range(drafts):
        at = order.choice(open_slots)
        windows[at] += 1
        if windows[at] == block:
            open_slots.remove(at)
    return windows
