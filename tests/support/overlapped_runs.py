"""Shared by tests: what overlap tests and others run on."""

from __future__ import annotations

from dataclasses import replace

from engine_runs import make_requests, run
from tiny import tiny_drafter, tiny_mtp, tiny_target
from toys import staircase_table

from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.drafters.random import random_drafter
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.graphs import make_models
from dsbench.runtime.loop.overlap import Overlapped
from dsbench.runtime.loop.steady import make_steady
from dsbench.runtime.policy.planner import Planner


def overlapped(
    mode,
    seats,
    *,
    lag=2,
    eos=frozenset(),
    decode=None,
    recorded=0,
    tokens=90,
    scripted=False,
    device=None,
    steady=None,
    slot=0.0,
    draft=0.0,
    whole=False,
):
    target, arm = tiny_target(device), parse_arm(mode)
    dspark = random_drafter if scripted else tiny_drafter
    drafters = {"none": lambda t: NoDrafter(t.device), "mtp": tiny_mtp, "dspark": dspark}
    drafter = drafters[arm.drafter](target)
    config = EngineConfig(lag=lag, page=4, graphs=seats, draft="full" if whole else "planned")
    models = make_models(target, drafter, config, seats * tokens, tokens)
    steady = make_steady(models, arm, config, recorded=recorded, eos=eos, scripted=scripted)
    planner = Planner(
        arm,
        block=drafter.block,
        rule="coupled",
        lag=lag,
        calibrations=None,
        table=replace(staircase_table(seats, 4), depth_bias=slot, draft_bias=draft),
    )
    return Overlapped(steady, arm, planner, config, decode=decode)


def finish(engine, requests, concurrency):
    run_closed_loop(engine, requests, concurrency=concurrency)
    engine.close()
    engine.pool.check()
    assert engine.pool.free_pages == engine.pool.shape.pages, "pages leaked"
    return [r.output for r in requests]


def strayed_texts(count):
    """The model's own texts of 16 tokens, but for one token."""
    wanted = make_requests(count, max_tokens=16)
    run("none", wanted, batch=count)
    texts = [list(r.output) for r in wanted]
    texts[1][4] = (texts[1][4] + 1) % 64
    return texts


def pinned_to(texts):
    requests = make_requests(len(texts), max_tokens=16)
    for request, text in zip(requests, texts, strict=True):
        request.canonical = text
    return requests
