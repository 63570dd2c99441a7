"""Shared by tests: what engine tests and others run on."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import torch
from tiny import tiny_drafter, tiny_mtp, tiny_target
from toys import staircase_table

from dsbench.runtime.arm import Arm, parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.build import eager_engine
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.policy.plan import Blind, VerifyPlan
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
    calibrations=None,
    table=None,
):
    """An eager run of the requests; `replay`: the window of each (request, round)."""
    target = target or tiny_target()
    arm = mode if isinstance(mode, Arm) else parse_arm(mode)
    drafter = drafter or (tiny_mtp(target) if arm.drafter == "mtp" else tiny_drafter(target))
    if arm.drafter == "none":
        drafter = NoDrafter(target.device)
    config = config or EngineConfig(rule=rule, lag=lag, page=4, prefill_chunk=7, draft=draft)
    engine = eager_engine(
        target,
        drafter,
        arm,
        config,
        requests,
        slots=batch,
        tokens=batch * 80,
        table=table or staircase_table(batch, 4),
        calibrations=calibrations,
        eos=eos,
        decode=decode,
    )
    if replay is not None:
        engine.policy.policy = Replay(engine, replay)
    run_closed_loop(engine, requests, concurrency=batch)
    engine.device.pool.check()
    assert engine.device.pool.free_pages == engine.device.pool.shape.pages, "pages leaked"
    return engine


class Replay(Blind):
    """Verifies the windows that are given for each (request, round)."""

    looks = "confidence"

    def __init__(self, engine, windows):
        self.engine, self.windows = engine, windows

    def choose(self, history):
        return VerifyPlan(depth=self.engine.device.block, budget=0, reason="replay")

    def within(self, plan, seen):
        wanted = [self.windows[r.request.id, r.request.rounds + 1] for r in self.engine.scheduler.slots]
        window = np.minimum(wanted, seen.limits)
        return replace(plan, budget=int(window.sum()), window=window)


@cache
def plain_texts(count, temperature, max_tokens):
    requests = make_requests(count, temperature=temperature, max_tokens=max_tokens)
    run("none", requests, batch=count)
    return [r.output for r in requests]
