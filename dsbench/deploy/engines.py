"""Engines of one deployment, arm after arm: graphs are captured once for a drafter and depth, and serve them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dsbench.deploy.deployment import Deployment
from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import LAG, EngineConfig
from dsbench.runtime.drafters.draft import Drafter
from dsbench.runtime.loop.build import captures, make_captured, make_engine, make_models, slot_shape
from dsbench.runtime.loop.captured import CapturedDevice
from dsbench.runtime.loop.eager import EagerDevice
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.passes import Models
from dsbench.runtime.loop.slots import SlotShape
from dsbench.runtime.policy.calibrated import Calibrated
from dsbench.runtime.policy.make import depths_of
from dsbench.runtime.policy.prices import Prices
from dsbench.runtime.request import Request
from dsbench.runtime.watch.device_errors import named_device_errors

Key = tuple[object, ...]


class Engines:
    """Makes engines, one in use at a time: they share pages and graphs.

    `requests` is the most that any of them will run at once, as far as that is known beforehand; graphs are captured
    anew for an engine that needs more requests, tokens in all, or tokens a request.
    """

    def __init__(self, deployment: Deployment, *, requests: int = 1) -> None:
        self.deployment, self.requests = deployment, requests
        self.models: dict[Key, Models] = {}
        self.prices: dict[Key, Prices] = {}
        self.captured: dict[Key, CapturedDevice] = {}

    def make(
        self, arm: Arm, config: EngineConfig, table: CostTable | None, queue: Sequence[Request], batch: int
    ) -> Engine:
        """An engine with room for `batch` requests of the queue at once.

        Calibrations and the table's draft seconds are the block drafter's: a chain runs, and is recorded, without them.
        Raises EnvironmentRefused for a device that is full or fails.
        """
        with named_device_errors():
            return self._make(arm, config, table, queue, batch)

    def _make(
        self, arm: Arm, config: EngineConfig, table: CostTable | None, queue: Sequence[Request], batch: int
    ) -> Engine:
        deployment, drafter, chain = self.deployment, self.deployment.drafter_of(arm), arm.drafter == "mtp"
        captured = deployment.graphs and captures(arm, config.rule)
        if captured:
            batch = self.requests = max(batch, self.requests)
            config = replace(config, lag=config.lag or LAG if deployment.overlap else 1)
        calibrated = Calibrated(None if chain else deployment.calibrations, config.rule, drafter.block)
        models = self._models(drafter, config, queue, batch)
        shape = slot_shape(models, batch, queue, deployment.target.eos)
        device: EagerDevice | CapturedDevice
        if captured:
            device = self._captured(models, arm, config, shape, calibrated)
        else:
            device = EagerDevice(models, arm, shape, calibrated.maps, config.prefill_chunk)
        tokenizer, table = deployment.target.tokenizer, None if chain else table
        stops = sorted({stop for r in queue for stop in r.sampling.stop})
        key = (id(table), drafter.block, depths_of(arm, drafter.block, full=config.draft == "full"))
        engine = make_engine(
            device,
            arm,
            config,
            calibrated,
            table,
            decode=partial(tokenizer.decode, stops=stops) if tokenizer else None,
            prices=self.prices.get(key),
        )
        self.prices[key] = engine.prices
        return engine

    def _models(self, drafter: Drafter, config: EngineConfig, queue: Sequence[Request], batch: int) -> Models:
        """The drafter's, over the pages it had before where these hold the queue; else over new ones."""
        model = self.deployment.target.model
        tokens = pool_tokens(queue, batch, drafter.block, config.page, model.shape.context)
        longest = max(min(len(r.prompt_ids) + r.sampling.max_tokens, model.shape.context) for r in queue)
        key = (drafter.digest, config.rule)
        known = self.models.pop(key, None)
        if known is None or not _holds(known, tokens, longest + drafter.block + 1):
            self.captured = {k: made for k, made in self.captured.items() if made.passes.models is not known}
            del known
            known = make_models(model, drafter, config, tokens, longest)
        self.models[key] = known
        return known

    def _captured(
        self, models: Models, arm: Arm, config: EngineConfig, shape: SlotShape, calibrated: Calibrated
    ) -> CapturedDevice:
        """Graphs that were captured before, where they hold what is asked."""
        depth, waits = arm.depth(models.drafter.block), not self.deployment.overlap
        key = (models.drafter.digest, depth, arm.commit, shape.replayed, shape.truncates)
        made = self.captured.get(key)
        if made is None or made.passes.models is not models or not _fits(made.slots.shape, shape):
            made = make_captured(models, arm, config, shape, calibrated)
        made.waits, made.maps = waits, calibrated.maps
        self.captured[key] = made
        return made


def _fits(mine: SlotShape, asked: SlotShape) -> bool:
    return mine.slots >= asked.slots and mine.recorded >= asked.recorded


def pool_tokens(queue: Sequence[Request], concurrency: int, block: int, page: int, context: int) -> int:
    """Tokens the pool must hold for `concurrency` requests of the queue at once, whichever they are."""
    need = sorted((min(len(r.prompt_ids) + r.sampling.max_tokens, context) + block + 1 for r in queue), reverse=True)
    return sum(-(-n // page) * page for n in need[:concurrency])


def _holds(models: Models, tokens: int, longest: int) -> bool:
    shape = models.pool.shape
    return tokens <= shape.pages * shape.page and longest <= shape.table * shape.page
