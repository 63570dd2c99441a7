"""Shared by tests: what gpu graphs tests and others run on."""

from __future__ import annotations

import torch
from tiny import tiny_drafter, tiny_mtp, tiny_target
from toys import staircase_table

from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.policy.planner import Planner


def engine_of(mode, batch, graphs, executor=None, replay=None, **changes):
    target = tiny_target(torch.device("cuda")) if executor is None else executor.models.target
    arm = parse_arm(mode)
    made = {"none": lambda t: NoDrafter(t.device), "mtp": tiny_mtp, "dspark": tiny_drafter}
    drafter = made[arm.drafter](target) if executor is None else executor.models.drafter
    planner = Planner(
        arm,
        block=drafter.block,
        rule="coupled",
        lag=0,
        table=staircase_table(batch, 4),
        calibrations=None,
        replay=replay,
    )
    config = EngineConfig(page=16, prefill_chunk=7, graphs=graphs, **changes)
    return Engine(
        target, drafter, arm, planner, config, tokens=batch * 96, eos=frozenset(), executor=executor, longest=64
    )
