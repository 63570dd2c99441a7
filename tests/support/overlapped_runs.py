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
from dsbench.runtime.loop.build import make_captured, make_engine, make_models, slot_shape
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.policy.calibrated import Calibrated


def overlapped(
    mode,
    slots,
    *,
    lag=2,
    eos=frozenset(),
    decode=None,
    recorded=0,
    tokens=90,
    replayed=False,
    device=None,
    made=None,
    slot=0.0,
    draft=0.0,
    full=False,
    truncates=False,
    calibrations=None,
):
    """An engine on captured passes, uncaptured on a CPU. made: another engine's device, to be used again."""
    target, arm = tiny_target(device), parse_arm(mode)
    dspark = random_drafter if replayed else tiny_drafter
    drafters = {"none": lambda t: NoDrafter(t.device), "mtp": tiny_mtp, "dspark": dspark}
    drafter = drafters[arm.drafter](target)
    config = EngineConfig(lag=lag, page=4, draft="full" if full else "planned")
    calibrated = Calibrated(calibrations, "coupled", drafter.block)
    if made is None:
        models = make_models(target, drafter, config, slots * tokens, tokens)
        shape = replace(slot_shape(models, slots, [], eos), recorded=recorded, replayed=replayed, truncates=truncates)
        made = make_captured(models, arm, config, shape, calibrated)
    table = replace(staircase_table(slots, 4), depth_bias=slot, draft_bias=draft)
    return make_engine(made, arm, config, calibrated, table, decode=decode)


def finish(engine, requests, concurrency):
    run_closed_loop(engine, requests, concurrency=concurrency)
    engine.close()
    engine.device.pool.check()
    assert engine.device.pool.free_pages == engine.device.pool.shape.pages, "pages leaked"
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
