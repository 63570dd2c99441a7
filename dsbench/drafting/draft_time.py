"""Milliseconds of drafting: `propose` of a full block and of its first drafts, and `observe`, drafters timed in turn.

Coupled rule, temperature 1; on CUDA replays of a captured graph. The pages hold arbitrary values: they
do not affect the time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dsbench.deploy.deployment import Deployment, environment
from dsbench.deploy.profile_passes import ROOM, ProfileDevice, profile_device, stand
from dsbench.drafting.results_file import Timing
from dsbench.errors import EnvironmentRefused
from dsbench.runtime.batch import pack_rows
from dsbench.runtime.targets.load import free_bytes
from dsbench.stats.intervals import quantile_of

CONTEXT = 300  # committed tokens a request
REPEATS, WARM = 40, 5  # calls measured, and calls before them
STEPS = (1, 2, 3)  # depths timed beside the full block: the steps of a chain
EAGER, GRAPH = "eager", "graph"  # executors


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One timed call: its drafter, its size, and the function to call."""

    drafter: int  # index of the deployment
    what: str
    depth: int
    rows: int
    run: Callable[[], object]
    executor: str = EAGER


def draft_times(
    deployments: Sequence[Deployment], batches: Sequence[int], seed: int, notice: Callable[[str], None]
) -> list[list[Timing]]:
    """Timings by deployment. All calls of a batch size are made in turn, in a new random order each repeat."""
    device = deployments[0].device
    context = _context(deployments)
    found: list[list[Timing]] = [[] for _ in deployments]
    together, facts = tuple(d.contract["drafter"] for d in deployments), environment(device)
    for batch in batches:
        calls = [call for i, d in enumerate(deployments) for call in _calls(d, i, batch, context, notice)]
        for call, times in zip(calls, interleaved([c.run for c in calls], device, seed), strict=True):
            median = quantile_of(times, 0.5, seed=seed)
            assert median is not None
            found[call.drafter].append(
                Timing(
                    what=call.what,
                    batch=batch,
                    depth=call.depth,
                    rows=call.rows,
                    context=context,
                    milliseconds=median,
                    executor=call.executor,
                    together=together,
                    environment=facts,
                )
            )
        notice(f"timed {len(calls)} calls at batch size {batch}, {REPEATS} times each")
    return found


def check_room(deployments: Sequence[Deployment], batch: int) -> None:
    """Raises EnvironmentRefused if the pages and logits of `batch` requests cannot lie in the memory that is free.

    All drafters' calls of a batch size are in memory at once.
    """
    model = deployments[0].target.model
    shape, element = model.shape, 4 if model.device.type == "cpu" else model.dtype.itemsize
    tokens, need = _context(deployments) + ROOM, 0
    for drafter in (d.drafter for d in deployments):
        layers = ((shape.kv_heads, shape.head_width),) * shape.layers + drafter.pool_layers()
        need += batch * tokens * 2 * element * sum(heads * width for heads, width in layers)
        need += batch * drafter.block * shape.hidden * element
    have = free_bytes(model.device)
    if have is not None and need > 0.9 * have:
        raise EnvironmentRefused(
            f"timing at batch size {batch} needs {need / 2**30:.1f} GiB, {have / 2**30:.1f} GiB are free on"
            f" {model.device}",
            hint="give --time smaller batch sizes",
        )


def _context(deployments: Sequence[Deployment]) -> int:
    return min([CONTEXT, *(d.target.model.shape.context - d.drafter.block - 49 for d in deployments)])


def interleaved(
    runs: Sequence[Callable[[], object]],
    device: torch.device,
    seed: int,
    *,
    repeats: int = REPEATS,
    warm: int = WARM,
    behind: bool = False,
) -> list[list[float]]:
    """Milliseconds of each run, `repeats` of them, interleaved so that all share the drift; the first `warm` rounds are
    dropped.

    behind: each follows an untimed call of its kind.
    """
    order, times = random.Random(seed), [[0.0] * 0 for _ in runs]
    for number in range(warm + repeats):
        for at in order.sample(range(len(runs)), len(runs)):
            spent = milliseconds(runs[at], device, behind=behind)
            if number >= warm:
                times[at].append(spent)
    return times


def milliseconds(run: Callable[[], object], device: torch.device, *, behind: bool = False) -> float:
    """Time of one call, from an idle device to its last kernel; what the host waits for in between counts.

    behind: from the end of another call on the device, which hides how long it takes to submit one.
    """
    if device.type != "cuda":
        begin = time.perf_counter()
        run()
        return (time.perf_counter() - begin) * 1e3
    event: Any = torch.cuda.Event
    first, last = event(enable_timing=True), event(enable_timing=True)
    torch.cuda.synchronize(device)
    if behind:
        run()
    first.record()
    run()
    last.record()
    torch.cuda.synchronize(device)
    return float(first.elapsed_time(last))


def captured(
    run: Callable[[], object], device: torch.device, notice: Callable[[str], None]
) -> tuple[Callable[[], object], str]:
    """The run and its executor: on CUDA the replay of a graph of it, or the run itself where capture is refused."""
    if device.type != "cuda":
        return run, EAGER
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(WARM):  # kernels are compiled and libraries choose theirs before a capture
            run()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            made = run()
    except RuntimeError as error:
        torch.cuda.synchronize(device)
        notice(f"timed {EAGER}, not captured: {str(error).splitlines()[0]}")
        return run, EAGER

    def replay(inputs: Callable[[], object] = run) -> object:  # holds what the graph reads by its address
        graph.replay()
        return made

    return replay, GRAPH


def propose_call(device: ProfileDevice, batch: int, depth: int) -> Callable[[], object]:
    """The timed draft of `depth` tokens for every request in the slots, after its host part."""
    models, slots, depths = device.passes.models, device.slots, torch.full((batch,), depth)
    rows, sampling = slots.standing(batch), slots.sampling(batch)
    return lambda: models.drafter.propose(rows, sampling, models.pool, rule="coupled", depth=lambda free: depths)


def observe_call(device: ProfileDevice, batch: int) -> Callable[[], object]:
    """The timed intake of a verified block: the anchor and G drafts of every request in the slots."""
    models, rows = device.passes.models, device.slots.standing(batch)
    drafts = torch.zeros(batch, device.block, dtype=torch.int64, device=device.device)
    verified = torch.full((batch,), device.block, device=device.device)
    packed = pack_rows(rows.anchor, drafts, verified, rows.start.int(), rows.table)
    width = len(models.drafter.taps) * models.target.shape.hidden
    taps = torch.zeros(packed.rows, width, dtype=models.target.dtype, device=device.device)
    return lambda: models.drafter.observe(packed, taps, models.pool)


def _calls(deployment: Deployment, index: int, batch: int, context: int, notice: Callable[[str], None]) -> list[Call]:
    """Whole block first, then the first 1, 2, 3 drafts of it, then observe."""
    device, block = (
        profile_device(deployment, (batch * (context + ROOM), context + ROOM), batch),
        deployment.drafter.block,
    )
    stand(device, [context] * batch, [0] * batch, temperature=1.0)
    depths = sorted({block, *(step for step in STEPS if step < block)}, reverse=True)
    wanted = [("propose", depth, batch * block, propose_call(device, batch, depth)) for depth in depths]
    wanted.append(("observe", 0, batch * (block + 1), observe_call(device, batch)))
    calls = []
    for what, depth, rows, eager in wanted:
        run, executor = captured(eager, deployment.device, notice)
        calls.append(Call(drafter=index, what=what, depth=depth, rows=rows, run=run, executor=executor))
    return calls
