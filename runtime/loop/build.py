"""Makes engines: models over pages, an eager or a captured device, an arm's policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dsbench.profiles.calibration import CalibrationSet
from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import CAPTURED, Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import Drafter
from dsbench.runtime.loop.captured import CapturedDevice, tiers_of
from dsbench.runtime.loop.eager import EagerDevice
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.passes import Models
from dsbench.runtime.loop.slots import SlotShape
from dsbench.runtime.policy.calibrated import Calibrated
from dsbench.runtime.policy.make import depths_of, make_policy
from dsbench.runtime.policy.prices import Prices
from dsbench.runtime.request import Request
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets.base import Target
from dsbench.runtime.watch.timing import Clock


def make_models(target: Target, drafter: Drafter, config: EngineConfig, tokens: int, longest: int) -> Models:
    """Target and drafter over a pool of `tokens`, at most `longest` a request."""
    shape = target.shape
    layers = ((shape.kv_heads, shape.head_width),) * shape.layers + drafter.pool_layers()
    pages, table = -(-tokens // config.page), -(-(longest + drafter.block + 1) // config.page)
    pool = StatePool(
        PoolShape(layers=layers, page=config.page, pages=pages, table=table),
        target.device,
        target.dtype,
        shuffle_seed=config.page_seed,
    )
    return Models(target=target, drafter=drafter, pool=pool, rule=config.rule)


def slot_shape(models: Models, slots: int, queue: Sequence[Request], eos: frozenset[int]) -> SlotShape:
    """Slots for requests like those of the queue."""
    return SlotShape(
        slots=slots,
        block=models.drafter.block,
        table=models.pool.shape.table,
        recorded=max((len(r.canonical or ()) for r in queue), default=0) if models.rule == "coupled" else 0,
        eos=tuple(sorted(eos)),
        replayed=any(r.trace is not None for r in queue),
        truncates=any(r.sampling.truncates for r in queue),
    )


def make_captured(
    models: Models, arm: Arm, config: EngineConfig, shape: SlotShape, calibrated: Calibrated, *, waits: bool = False
) -> CapturedDevice:
    """Graphs for arms of this arm's drafter, depth and commit, which may share them; slots are those of a tier."""
    block = models.drafter.block
    depth = arm.depth(block)
    shallow = depths_of(replace(arm, policy="argmax"), block) if arm.fixed is None else (depth,)
    tiers = tiers_of(models, shape.slots, depth)
    return CapturedDevice(
        models, replace(shape, slots=tiers.requests[-1]), tiers, shallow, arm.commit, calibrated.maps, waits=waits
    )


def captures(arm: Arm, rule: str) -> bool:
    """Whether rounds can be captured: no rule asks the host, no window follows from the round's confidences."""
    return rule == "coupled" and arm.policy in CAPTURED


def make_engine(
    device: EagerDevice | CapturedDevice,
    arm: Arm,
    config: EngineConfig,
    calibrated: Calibrated,
    table: CostTable | None,
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
    prices: Prices | None = None,
) -> Engine:
    """An engine of the arm on a device. prices: of an earlier engine of such an arm, which are worked out already."""
    prices = prices or Prices(table, device.block, depths_of(arm, device.block, full=config.draft == "full"))
    policy = make_policy(arm, prices, config.rule)
    device.clock = Clock(counted=policy.looks == "text")
    return Engine(device, arm, policy, prices, calibrated, config, decode=decode)


def eager_engine(
    target: Target,
    drafter: Drafter,
    arm: Arm,
    config: EngineConfig,
    queue: Sequence[Request],
    *,
    slots: int,
    tokens: int,
    table: CostTable | None = None,
    calibrations: CalibrationSet | None = None,
    eos: frozenset[int] = frozenset(),
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Engine:
    """An engine with pages and slots of its own, for requests like those of the queue; `tokens` in all."""
    models = make_models(target, drafter, config, tokens, target.shape.context)
    calibrated = Calibrated(calibrations, config.rule, drafter.block)
    shape = slot_shape(models, slots, queue, eos)
    device = EagerDevice(models, arm, shape, calibrated.maps, config.prefill_chunk)
    return make_engine(device, arm, config, calibrated, table, decode=decode)
