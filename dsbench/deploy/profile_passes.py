"""What `profile-cost` runs: engine steps of a shape over shuffled pages, and replays of captured passes alone.

All that times an engine is here; `visits.py` says which shapes and when.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dsbench.deploy.deployment import Deployment
from dsbench.deploy.visits import Shape, Timed
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.graphs import Graphs, next_tier
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.records import StepRecord
from dsbench.runtime.request import Request, SamplingParams

ROOM = 40  # tokens that a standing request may grow by
REPLAYS = 3  # of each graph, a cell and pass


class PassTimer:
    """Times shapes on an engine; where it replays graphs, its passes alone too."""

    def __init__(self, engine: Engine, *, temperature: float, seed: int) -> None:
        self._engine, self._temperature, self._seed = engine, temperature, seed
        self._graphs = engine.executor if isinstance(engine.executor, Graphs) else None
        self._shallow: dict[int, Callable[[], None]] = {}
        if self._graphs is not None and engine.drafter.block > 1:
            self._shallow = self._graphs.shallow_drafts(1)

    @property
    def tiers(self) -> tuple[int, ...] | None:
        """Row totals that the graphs were captured at; None without graphs."""
        return None if self._graphs is None else self._graphs.tiers.rows

    def visit(self, cell: Shape, number: int) -> Timed:
        """The faster of two steps of the cell, after one to warm up: what else the machine does only adds."""
        records = [self._step(cell, number) for _ in range(3)]
        best = min(records[1:], key=lambda record: record.seconds)
        draft, verify, shallow = self._replays(cell) if self._graphs is not None else ((), (), ())
        return Timed(
            cell=cell,
            number=number,
            context=best.context,
            step=best.seconds,
            drafting=best.draft_seconds,
            draft=draft,
            verify=verify,
            shallow=shallow,
        )

    def reference(self, cell: Shape) -> float:
        """One step of the cell; where passes are graphs, replays of its verify pass after that."""
        seconds = self._step(cell, 0).seconds  # replays run on the state that it leaves
        if self._graphs is None:
            return seconds
        _, verify = self._graphs.passes_of(cell.requests, cell.rows)
        return statistics.median(replay_seconds(verify, self._engine.target.device))

    def _replays(self, cell: Shape) -> tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]:
        """Seconds of the draft, of the verify pass and, at one row a request, of the draft's first slot."""
        assert self._graphs is not None
        device, first = self._engine.target.device, tuple[float, ...]()
        draft, verify = (replay_seconds(run, device) for run in self._graphs.passes_of(cell.requests, cell.rows))
        if self._shallow and cell.rows == cell.requests:
            first = replay_seconds(self._shallow[next_tier(tuple(sorted(self._shallow)), cell.requests)], device)
        return draft, verify, first

    def _step(self, cell: Shape, number: int) -> StepRecord:
        """One engine step of the cell: requests in mid-decode, windows of unequal lengths."""
        engine, order = self._engine, random.Random(f"{self._seed} {number}")
        windows = _spread(cell.rows - cell.requests, cell.requests, engine.drafter.block, order)
        contexts = spread_contexts(cell.requests, cell.mean_context, self._seed)
        requests = standing_requests(engine, contexts, self._temperature)
        engine.planner.replay = {(r.id, 1): w for r, w in zip(requests, windows, strict=True)}
        engine.running = requests
        record = engine.step()
        for request in requests:
            engine.pool.release(request.id)
        engine.running = []
        assert record.rows == cell.rows, f"the engine ran {record.rows} rows, the cell is {cell.rows}"
        return record


def pool_of(batches: Sequence[int], contexts: Sequence[int], seed: int) -> tuple[int, int]:
    """Tokens that the requests of the largest cell hold together, with room to grow, and the most that one holds."""
    cells = [[c + ROOM for c in spread_contexts(r, mean, seed)] for r in batches for mean in contexts]
    return max(map(sum, cells)), max(map(max, cells))


def profile_engine(deployment: Deployment, pool: tuple[int, int], requests: int, *, graphs: bool = False) -> Engine:
    """Room for tokens in all and tokens a request, as `pool_of` says; what it runs, its planner's `replay` tells."""
    arm = Arm(name="profile", drafter="dspark", policy="replay", layout="packed", commit="all")
    config = EngineConfig(record_rounds=False, graphs=requests if graphs else 0)
    planner = Planner(
        arm,
        block=deployment.drafter.block,
        rule="coupled",
        lag=0,
        table=None,
        calibrations=deployment.calibrations,
        replay={},
    )
    return Engine(
        deployment.target.model,
        deployment.drafter,
        arm,
        planner,
        config,
        eos=frozenset(),
        tokens=pool[0] + requests * config.page,
        longest=min(pool[1], deployment.target.model.shape.context),
    )


def spread_contexts(requests: int, mean: int, seed: int) -> list[int]:
    """Tokens of each request, half to one and a half times the mean; the same whatever is run of them."""
    place = random.Random(f"{seed} {requests} {mean}")
    return [max(2, round(mean * place.uniform(0.5, 1.5))) for _ in range(requests)]


def replay_seconds(run: Callable[[], None], device: torch.device, repeats: int = REPLAYS) -> tuple[float, ...]:
    """Each of `repeats` runs that follow each other on the device, and one before them."""
    run()
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(repeats):
            run()
            marks.append(time.perf_counter())
        return tuple(b - a for a, b in itertools.pairwise(marks))
    event: Any = torch.cuda.Event
    events = [event(enable_timing=True) for _ in range(repeats + 1)]
    for mark in events[:-1]:
        mark.record()
        run()
    events[-1].record()
    torch.cuda.synchronize(device)
    return tuple(a.elapsed_time(b) / 1e3 for a, b in itertools.pairwise(events))


def standing_requests(engine: Engine, contexts: Sequence[int], temperature: float) -> list[Request]:
    """Requests in mid-decode with arbitrary pages: time does not depend on what the pages hold."""
    made = []
    for index, context in enumerate(contexts):
        sampling = SamplingParams(temperature=temperature, seed=index, max_tokens=64, ignore_eos=True)
        made.append(
            Request(
                id=index, name=str(index), workload="profile", prompt_ids=[1] * context, sampling=sampling, output=[1]
            )
        )
        assert engine.pool.open(index, context + ROOM), "the profile pool is too small"
    return made


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
