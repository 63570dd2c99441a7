"""One repeat of a cell: a fresh engine over a queue, at fixed concurrency or as requests come; records in tables."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from dsbench.deploy.engines import Engines
from dsbench.profiles.cost import CostTable
from dsbench.results.tables import tables_of
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.drive import run_closed_loop, run_open_loop
from dsbench.runtime.request import Request
from dsbench.sweep.warm_up import warm_up
from dsbench.workloads.lengths import under_way

REFILLS = 2  # how often the slots are filled anew, at most, until their pace is flat


def run_repeat(
    engines: Engines,
    arm: Arm,
    config: EngineConfig,
    table: CostTable | None,
    queue: Sequence[Request],
    batch: int,
    measured: range,
    texts: Sequence[list[int]] | None,
    arrivals: Sequence[float] | None = None,
    *,
    spread: bool = False,
) -> tuple[dict[str, pd.DataFrame], dict[str, Any]]:
    """Runs the queue, `batch` requests at a time at most; those at `measured` of it are the measured ones.

    Returns the tables, and `warm_up`. Closed loop (arrivals: None): the first `batch` warm the slots, copies of them
    too while the pace is not flat; the ones after keep the slots full until the last measured request has ended;
    `spread`: as if the first ones had come one after the other (`head_start`). Open loop: requests come at `arrivals`
    seconds, and the ones before the measured ones build the load up.
    """
    requests = [
        replace(r, prompt_ids=list(r.prompt_ids), canonical=None if texts is None else list(texts[i]), output=[])
        for i, r in enumerate(queue)
    ]
    wanted = frozenset(requests[i].id for i in measured)
    first = requests[: measured.start] if arrivals is None else []
    spare = [
        replace(r, id=len(requests) + i, prompt_ids=list(r.prompt_ids), output=[])
        for i, r in enumerate(first * REFILLS)
    ]
    if spread:
        requests[: len(first)] = first = [under_way(r, i, batch) for i, r in enumerate(first)]
    engine = engines.make(arm, config, table, requests + spare, batch)
    warm = came = None
    with uncollected():
        if arrivals is None:
            warm = asdict(warm_up(engine, first + spare, batch))
            run_closed_loop(engine, requests[measured.start :], concurrency=batch, until=wanted)
        else:
            came = run_open_loop(engine, requests, arrivals, concurrency=batch, until=wanted)
    engine.close()
    return tables_of(engine, requests + spare, wanted, config.rule, came), {"warm_up": warm} if warm else {}


@contextmanager
def uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: one of all that a sweep holds would stand in the middle of a round."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
