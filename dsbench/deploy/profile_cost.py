"""`profile-cost`: times every (requests, rows, context) shape over shuffled pages, in shuffled order, several passes.

What a step costs is split so that it can be planned with. Eager: whole engine steps; `draft` is what drafting costs
whatever the windows (the block pass and one slot of the sequential head), all that grows with the windows, deeper
slots of the head included, belongs to the verify part. Captured graphs: replays of the draft and the verify graph
alone (phases draft and pass) beside whole engine steps (phase step) that wait after each phase; what these take beyond
their passes is the host's, a median for each R, and is added to the verify part unless rounds are to overlap.
"""

from __future__ import annotations

import datetime
import itertools
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dsbench.deploy.deployment import Deployment, environment
from dsbench.profiles.cost import CostTable
from dsbench.profiles.fit import CostSample, FitReport, fit_cost_table
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.graphs import Graphs, next_tier
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.records import StepRecord
from dsbench.runtime.request import Request, SamplingParams

ROWS_PER_REQUEST = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


ROOM = 40  # tokens that a standing request may grow by
REPLAYS = 3  # of each graph, a cell and pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A cell to time: R requests of mean context `mean_context`, M packed rows."""

    requests: int
    rows: int
    mean_context: int


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


def profile_cost(
    deployment: Deployment,
    *,
    batches: Sequence[int],
    contexts: Sequence[int],
    passes: int,
    seed: int,
    temperature: float,
    notice: Callable[[int, int], None],
) -> tuple[CostTable, FitReport, list[CostSample]]:
    """Times each cell `passes` times (a warm-up step before each), fits the table; tiers are those of the graphs."""
    block = deployment.drafter.block
    order = random.Random(seed)
    timed: list[Timed] = []
    tiers: tuple[int, ...] | None = None
    shallow: dict[int, Callable[[], None]] = {}
    engine = profile_engine(deployment, pool_of(batches, contexts, seed), max(batches), graphs=deployment.graphs)
    if isinstance(engine.executor, Graphs):
        tiers = engine.executor.tiers.rows
        shallow = engine.executor.shallow_drafts(1) if block > 1 else {}
    cells = shapes(batches, contexts, block, tiers)
    for number in range(passes):
        for cell in order.sample(cells, len(cells)):
            timed.append(_time_cell(engine, cell, temperature, number, seed, shallow))
            notice(len(timed), passes * len(cells))
    samples = pass_samples(timed, block, overlap=deployment.overlap) if deployment.graphs else step_samples(timed)
    if deployment.graphs:
        del engine, shallow  # their pages make room
        samples += _plain_samples(deployment, batches, contexts, passes, seed, temperature)
    facts = environment(deployment.device) | {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "passes": str(passes),
        "temperature": str(temperature),
        "seed": str(seed),
        "executor": deployment.contract["executor"],
        "random_weights": str(deployment.target.random).lower(),
    }
    table, report = fit_cost_table(samples, tiers=tiers, contract=deployment.contract, provenance=facts, seed=seed)
    return table, report, samples


def _plain_samples(
    deployment: Deployment, batches: Sequence[int], contexts: Sequence[int], passes: int, seed: int, temperature: float
) -> list[CostSample]:
    """Times arm none: phase no-draft, a pass alone, and phase no-draft step. Raw samples; no fit reads them."""
    alone = replace(deployment, drafter=deployment.none, calibrations=None)
    engine = profile_engine(alone, pool_of(batches, contexts, seed), max(batches), graphs=True)
    samples = []
    for number in range(passes):
        for cell in shapes(batches, contexts, 0):
            t = _time_cell(engine, cell, temperature, number, seed, {})
            at = (cell.requests, cell.rows, t.record.context)
            samples += [CostSample(*at, seconds, "no-draft", number) for seconds in t.verify]
            samples.append(CostSample(*at, t.record.seconds, "no-draft step", number))
    return samples


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """One visit to a cell: an engine step of it and, where passes are graphs, seconds of replays of either alone."""

    cell: Shape
    number: int  # of the pass over all cells
    record: StepRecord
    draft: tuple[float, ...] = ()
    verify: tuple[float, ...] = ()
    shallow: tuple[float, ...] = ()  # the draft's first slot alone


def step_samples(timed: Sequence[Timed]) -> list[CostSample]:
    """Draft samples from cells without a draft row; verify samples are what a step takes beyond their draft time."""
    drafts: dict[tuple[int, int], list[float]] = {}
    for t in timed:
        if t.cell.rows == t.cell.requests:
            drafts.setdefault((t.cell.requests, t.cell.mean_context), []).append(t.record.draft_seconds)
    base = {key: statistics.median(seconds) for key, seconds in drafts.items()}
    samples = []
    for t in timed:
        cell, record = t.cell, t.record
        # deeper slots only add: a draft shorter than the base was timed while the machine did something else then
        verify = record.seconds - min(base[cell.requests, cell.mean_context], record.draft_seconds)
        if cell.rows == cell.requests:
            verify = record.seconds - record.draft_seconds
            samples.append(CostSample(cell.requests, 0, record.context, record.draft_seconds, "draft", t.number))
        samples.append(CostSample(cell.requests, cell.rows, record.context, verify, "verify", t.number))
    return samples


def pass_samples(timed: Sequence[Timed], block: int, *, overlap: bool) -> list[CostSample]:
    """Draft and verify samples of replays, the host's share of a step with the latter; and raw: phases pass, step."""
    beyond: dict[int, list[float]] = {}
    for t in timed:
        spent = t.record.seconds - statistics.median(t.draft) - statistics.median(t.verify)
        beyond.setdefault(t.cell.requests, []).append(spent)
    host = {n: 0.0 if overlap else max(0.0, statistics.median(seconds)) for n, seconds in beyond.items()}
    samples = []
    for t in timed:
        at = (t.cell.requests, t.cell.rows, t.record.context)
        samples += [CostSample(*at, seconds + host[at[0]], "verify", t.number) for seconds in t.verify]
        samples += [CostSample(*at, seconds, "pass", t.number) for seconds in t.verify]
        samples.append(CostSample(*at, t.record.seconds, "step", t.number))
        if t.cell.rows == t.cell.requests:
            samples += [CostSample(at[0], 0, at[2], seconds, "draft", t.number) for seconds in t.draft]
            samples += [CostSample(at[0], block, at[2], seconds, "shallow", t.number) for seconds in t.shallow]
    return samples


def spread_contexts(requests: int, mean: int, seed: int) -> list[int]:
    """Tokens of each request, half to one and a half times the mean; the same whatever is run of them."""
    place = random.Random(f"{seed} {requests} {mean}")
    return [max(2, round(mean * place.uniform(0.5, 1.5))) for _ in range(requests)]


def _time_cell(
    engine: Engine, cell: Shape, temperature: float, number: int, seed: int, shallow: Mapping[int, Callable[[], None]]
) -> Timed:
    """The faster of two steps of the cell, after one to warm up: what else the machine does only adds."""
    contexts = spread_contexts(cell.requests, cell.mean_context, seed)
    windows = _spread(cell.rows - cell.requests, cell.requests, engine.drafter.block, random.Random(f"{seed} {number}"))
    records: list[StepRecord] = []
    for _ in range(3):
        requests = standing_requests(engine, contexts, temperature)
        engine.planner.replay = {(r.id, 1): w for r, w in zip(requests, windows, strict=True)}
        engine.running = requests
        records.append(engine.step())
        for request in requests:
            engine.pool.release(request.id)
        engine.running = []
        assert records[-1].rows == cell.rows, f"the engine ran {records[-1].rows} rows, the cell is {cell.rows}"
    best = min(records[1:], key=lambda record: record.seconds)
    if not isinstance(engine.executor, Graphs):
        return Timed(cell=cell, number=number, record=best)
    device, passes = engine.target.device, engine.executor.passes_of(cell.requests, cell.rows)
    draft, verify = (replay_seconds(run, device) for run in passes)
    first: tuple[float, ...] = ()
    if shallow and cell.rows == cell.requests:
        first = replay_seconds(shallow[next_tier(tuple(sorted(shallow)), cell.requests)], device)
    return Timed(cell=cell, number=number, record=best, draft=draft, verify=verify, shallow=first)


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
