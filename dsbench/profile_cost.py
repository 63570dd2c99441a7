"""`profile-cost`: times real engine steps of every (requests, rows, context) shape, in shuffled order, several passes.

What a step costs is split so that it can be planned with: `draft` is what drafting costs whatever the windows (the
block pass and one slot of the sequential head); all that grows with the windows, deeper slots of the head included,
belongs to the verify part.
"""

from __future__ import annotations

import datetime
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from dsbench.deployment import Deployment, environment
from dsbench.profiles.cost import CostTable
from dsbench.profiles.fit import CostSample, FitReport, fit_cost_table
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.engine import Engine
from dsbench.runtime.graphs import Tiers
from dsbench.runtime.planner import Planner
from dsbench.runtime.records import StepRecord
from dsbench.runtime.request import Request, SamplingParams

ROWS_PER_REQUEST = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


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
    deployment: Deployment, *, batches: Sequence[int], contexts: Sequence[int], passes: int, seed: int,
    temperature: float, notice: Callable[[int, int], None],
) -> tuple[CostTable, FitReport, list[CostSample]]:  # fmt: skip
    """Times each cell `passes` times (a warm-up step before each), fits the table; tiers are those of the graphs."""
    block = deployment.drafter.block
    tiers = Tiers.ladder(max(batches), block).rows if deployment.graphs else None
    cells = shapes(batches, contexts, block, tiers)
    order = random.Random(seed)
    times: list[tuple[Shape, int, StepRecord]] = []
    engine = profile_engine(deployment, max(batches), max(contexts), graphs=deployment.graphs)
    done = 0
    for number in range(passes):
        for cell in order.sample(cells, len(cells)):
            record = _time_cell(engine, cell, temperature, number, seed)
            times.append((cell, number, record))
            done += 1
            notice(done, passes * len(cells))
    samples = as_samples(times)
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


def profile_engine(deployment: Deployment, requests: int, context: int, *, graphs: bool = False) -> Engine:
    """Room for `requests` of twice the mean context; what it runs is told by its planner's `replay`."""
    arm = Arm(name="profile", drafter="dspark", policy="replay", layout="packed", commit="all")
    config = EngineConfig(record_rounds=False, graphs=requests if graphs else 0)
    planner = Planner(
        arm, block=deployment.drafter.block, rule="coupled", lag=0, table=None, calibrations=deployment.calibrations,
        replay={},
    )  # fmt: skip
    return Engine(
        deployment.target.model, deployment.drafter, arm, planner, config, eos=frozenset(),
        tokens=requests * (2 * context + 64), longest=min(2 * context + 64, deployment.target.model.shape.context),
    )  # fmt: skip


def as_samples(times: Sequence[tuple[Shape, int, StepRecord]]) -> list[CostSample]:
    """Draft samples from cells without a draft row; verify samples are what a step takes beyond their draft time."""
    drafts: dict[tuple[int, int], list[float]] = {}
    for cell, _, record in times:
        if cell.rows == cell.requests:
            drafts.setdefault((cell.requests, cell.mean_context), []).append(record.draft_seconds)
    base = {key: statistics.median(seconds) for key, seconds in drafts.items()}
    samples = []
    for cell, number, record in times:
        # deeper slots only add: a draft shorter than the base was timed while the machine did something else then
        verify = record.seconds - min(base[cell.requests, cell.mean_context], record.draft_seconds)
        if cell.rows == cell.requests:
            verify = record.seconds - record.draft_seconds
            samples.append(CostSample(cell.requests, 0, record.context, record.draft_seconds, "draft", number))
        samples.append(CostSample(cell.requests, cell.rows, record.context, verify, "verify", number))
    return samples


def _time_cell(engine: Engine, cell: Shape, temperature: float, number: int, seed: int) -> StepRecord:
    """The faster of two steps of the cell, after one to warm up: what else the machine does only adds."""
    place = random.Random(f"{seed} {cell.requests} {cell.mean_context}")  # the same contexts for every M and pass
    contexts = [max(2, round(cell.mean_context * place.uniform(0.5, 1.5))) for _ in range(cell.requests)]
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
    return min(records[1:], key=lambda record: record.seconds)


def standing_requests(engine: Engine, contexts: Sequence[int], temperature: float) -> list[Request]:
    """Requests in mid-decode with arbitrary pages: time does not depend on what the pages hold."""
    vocab = engine.target.shape.vocab
    made = []
    for index, context in enumerate(contexts):
        sampling = SamplingParams(temperature=temperature, seed=index, max_tokens=64, ignore_eos=True)
        ids = torch.arange(context).remainder(vocab).tolist()
        made.append(
            Request(id=index, name=str(index), workload="profile", prompt_ids=ids, sampling=sampling, output=[1])
        )
        assert engine.pool.open(index, context + 40), "the profile pool is too small"
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
