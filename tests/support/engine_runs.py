"""Shared by tests: what engine tests and others run on."""

from __future__ import annotations

from functools import cache

import torch
from tiny import tiny_drafter, tiny_mtp, tiny_target
from toys import staircase_table

from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.request import Request, SamplingParams


def make_requests(
    count: int, *, temperature: float = 1.0, max_tokens: int = 24, vocab: int = 64, **sampling
) -> list[Request]:
    generator = torch.Generator().manual_seed(11)
    return [
        Request(
            id=i,
            name=f"p{i}",
            workload="tiny",
            prompt_ids=torch.randint(0, vocab, (3 + 5 * i % 17,), generator=generator).tolist(),
            sampling=SamplingParams(temperature=temperature, seed=100 + i, max_tokens=max_tokens, **sampling),
        )
        for i in range(count)
    ]


def run(
    mode,
    requests,
    *,
    batch,
    rule="coupled",
    lag=0,
    replay=None,
    target=None,
    drafter=None,
    eos=frozenset(),
    decode=None,
    config=None,
    draft="planned",
    executor=None,
):
    target = target or tiny_target()
    arm = parse_arm(mode)
    drafter = drafter or (tiny_mtp(target) if arm.drafter == "mtp" else tiny_drafter(target))
    if arm.drafter == "none":
        drafter = NoDrafter(target.device)
    planner = Planner(
        arm, block=drafter.block, rule=rule, lag=lag, table=staircase_table(batch, 4), calibrations=None, replay=replay
    )
    config = config or EngineConfig(rule=rule, lag=lag, page=4, prefill_chunk=7, draft=draft)
    engine = Engine(target, drafter, arm, planner, config, tokens=batch * 80, eos=eos, decode=decode, executor=executor)
    run_closed_loop(engine, requests, concurrency=batch)
    engine.pool.check()
    assert engine.pool.free_pages == engine.pool.shape.pages, "pages leaked"
    return engine


@cache
def plain_texts(count, temperature, max_tokens):
    requests = make_requests(count, temperature=temperature, max_tokens=max_tokens)
    run("none", requests, batch=count)
    return [r.output for r in requests]
