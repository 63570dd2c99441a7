"""One repeat of a cell: a fresh engine over a queue, at fixed concurrency or as requests come; records in tables."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Any

import pandas as pd

from dsbench.deploy.engines import Engines
from dsbench.kernels.judge import UNSEEN
from dsbench.profiles.cost import CostTable
from dsbench.results.latency import with_latencies
from dsbench.results.store import records_frame
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.loop.drive import Loop, run_closed_loop, run_open_loop
from dsbench.runtime.records import RequestRecord, RoundRecord, StepRecord
from dsbench.runtime.request import Request, prompt_name
from dsbench.sweep.warm_up import warm_up
from dsbench.workloads.lengths import head_start

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
        requests[: len(first)] = first = [_under_way(r, i, batch) for i, r in enumerate(first)]
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


def _under_way(request: Request, place: int, batch: int) -> Request:
    text, sampling = request.canonical, request.sampling
    left = head_start(sampling.max_tokens if text is None else len(text), place, batch)
    return replace(
        request,
        canonical=None if text is None else text[:left],
        sampling=replace(sampling, max_tokens=min(sampling.max_tokens, left)),
    )


def tables_of(
    engine: Loop, requests: Sequence[Request], wanted: frozenset[int], rule: str, came: Sequence[float] | None
) -> dict[str, pd.DataFrame]:
    """The records as tables. came: when each request came by the schedule; None: when it took its slot."""
    by_id = {r.id: r for r in requests}
    recorded = engine.rounds
    steps = records_frame(engine.steps, StepRecord)
    rounds = records_frame(recorded, RoundRecord)
    rounds["ceiling"] = [later_ceiling(r, by_id[r.request], rule) for r in recorded]
    rounds["name"] = [prompt_of(by_id[i]) for i in rounds["request"]]
    rounds["measured"] = rounds["request"].isin(wanted)
    done = records_frame(engine.finished, RequestRecord)
    done["name"] = [prompt_of(by_id[i]) for i in done["request"]]
    done["measured"] = done["request"].isin(wanted)
    done["repetition"] = [repetition(by_id[i].output) for i in done["request"]]
    schedule = {} if came is None else {r.id: at for r, at in zip(requests, came, strict=True)}
    done["arrived"] = [schedule.get(i, at) for i, at in zip(done["request"], done["admitted"], strict=True)]
    return {"steps": steps, "rounds": rounds, "requests": with_latencies(done, rounds, steps)}


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


def prompt_of(request: Request) -> str:
    """The prompt's name without the replica number: replicas share a prompt, and intervals resample prompts."""
    return prompt_name(request.name)


def later_ceiling(record: RoundRecord, request: Request, rule: str) -> int:
    """The round's ceiling, judged against the text that came, where the verify pass could not see it.

    Exact under the coupled rule: the text does not depend on what was verified. A round whose drafts equal the text up
    to where the text ends, or to where the sequential head stopped short of the block, stays UNSEEN.
    """
    if record.ceiling != UNSEEN or rule != "coupled":
        return record.ceiling
    block = len(record.token_free_logits)
    future = request.output[record.output_index :]
    for depth, draft in enumerate(record.drafts):
        if depth >= len(future):
            return UNSEEN
        if draft != future[depth]:
            return depth + 1
    return block + 1 if len(record.drafts) == block else UNSEEN


def repetition(tokens: Sequence[int], n: int = 4) -> float:
    """Share of the output's n-grams that occurred before in it: looping text flatters acceptance."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
