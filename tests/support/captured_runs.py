"""Shared by tests: what gpu tests and others run on, eager or captured on a CUDA device."""

from __future__ import annotations

from dataclasses import replace

import torch
from tiny import tiny_drafter, tiny_mtp, tiny_target
from toys import staircase_table

from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.build import make_captured, make_engine, make_models, slot_shape
from dsbench.runtime.loop.eager import EagerDevice
from dsbench.runtime.policy.calibrated import Calibrated


def engine_of(mode, batch, *, captured=False, made=None, truncates=False, device=None):
    """made: a captured device of another engine, to be used again, which has slots for `batch` requests."""
    arm, config = parse_arm(mode), EngineConfig(page=16, prefill_chunk=7, lag=int(captured))
    if made is None:
        target = tiny_target(device or torch.device("cuda"))
        drafters = {"none": lambda t: NoDrafter(t.device), "mtp": tiny_mtp, "dspark": tiny_drafter}
        models = make_models(target, drafters[arm.drafter](target), config, batch * 96, 64)
        shape = replace(slot_shape(models, batch, [], frozenset()), truncates=truncates)
        calibrated = Calibrated(None, "coupled", models.drafter.block)
        if captured:
            made = make_captured(models, arm, config, shape, calibrated, waits=True)
        else:
            made = EagerDevice(models, arm, shape, calibrated.maps, config.prefill_chunk)
    table = staircase_table(batch, 4)
    return make_engine(made, arm, config, Calibrated(None, "coupled", made.block), table)
