"""Engines of one deployment, arm after arm: graphs are captured once for a drafter and depth, and serve them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from dsbench.deploy.deployment import Deployment
from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import STEADY, Arm
from dsbench.runtime.config import LAG, EngineConfig
from dsbench.runtime.drafters.draft import Drafter
from dsbench.runtime.loop.drive import Loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.executor import Executor
from dsbench.runtime.loop.graphs import make_executor, make_models
from dsbench.runtime.loop.overlap import Overlapped
from dsbench.runtime.loop.passes import Models
from dsbench.runtime.loop.steady import Steady, make_steady
from dsbench.runtime.policy.budget import Budgets
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.request import Request
from dsbench.runtime.watch.device_errors import named_device_errors


class Engines:
    """Makes engines, one in use at a time: they share pages and graphs.

    `requests` is the most that any of them will run at once, as far as that is known beforehand; graphs are captured
    anew for an engine that needs more requests, tokens in all, or tokens a request.
    """

    def __init__(self, deployment: Deployment, *, requests: int = 1) -> None:
        self.deployment, self.requests = deployment, requests
        self.models: dict[tuple[str, str], Models] = {}
        self.budgets: dict[tuple[object, ...], Budgets] = {}
        self.captured: dict[tuple[object, ...], Executor | Steady] = {}

    def make(
        self, arm: Arm, config: EngineConfig, table: CostTable | None, queue: Sequence[Request], batch: int
    ) -> Loop:
        """An engine with room for `batch` requests of the queue at once.

        Calibrations and the table's draft seconds are the block drafter's: a chain runs, and is recorded, without them.
        Raises EnvironmentRefused for a device that is full or fails.
        """
        with named_device_errors():
            return self._make(arm, config, table, queue, batch)

    def _make(
        self, arm: Arm, config: EngineConfig, table: CostTable | None, queue: Sequence[Request], batch: int
    ) -> Loop:
        deployment, drafter = self.deployment, self.deployment.drafter_of(arm)
        overlapped = deployment.overlap and overlaps(arm, config, queue)
        config = replace(config, lag=config.lag or LAG) if overlapped else config
        if deployment.graphs:
            batch = self.requests = max(batch, self.requests)
            config = replace(config, graphs=batch, truncates=any(r.sampling.truncates for r in queue))
        planner = self._planner(arm, drafter, config, table)
        models = self._models(drafter, config, queue, batch)
        tokenizer = deployment.target.tokenizer
        stops = sorted({stop for r in queue for stop in r.sampling.stop})
        decode = partial(tokenizer.decode, stops=stops) if tokenizer else None
        if overlapped:
            steady = self._steady(models, arm, config, queue)
            key = (id(table), steady.depths, config.draft, arm.weight)
            engine = Overlapped(steady, arm, planner, config, decode=decode, budgets=self.budgets.get(key))
            if engine.steering.budgets is not None:
                self.budgets[key] = engine.steering.budgets
            return engine
        return Engine(
            deployment.target.model,
            drafter,
            arm,
            planner,
            config,
            eos=deployment.target.eos,
            executor=self._executor(models, arm, config),
            decode=decode,
        )

    def _planner(self, arm: Arm, drafter: Drafter, config: EngineConfig, table: CostTable | None) -> Planner:
        chain = arm.drafter == "mtp"
        return Planner(
            arm,
            block=drafter.block,
            rule=config.rule,
            lag=config.lag,
            table=None if chain else table,
            calibrations=None if chain else self.deployment.calibrations,
        )

    def _models(self, drafter: Drafter, config: EngineConfig, queue: Sequence[Request], batch: int) -> Models:
        """The drafter's, over the pages it had before where these hold the queue; else over new ones."""
        model = self.deployment.target.model
        tokens = pool_tokens(queue, batch, drafter.block, config.page, model.shape.context)
        longest = max(min(len(r.prompt_ids) + r.sampling.max_tokens, model.shape.context) for r in queue)
        key = (drafter.digest, config.rule)
        known = self.models.pop(key, None)
        if known is None or not _holds(known, tokens, longest + drafter.block + 1):
            self.captured = {k: made for k, made in self.captured.items() if made.models is not known}
            del known
            known = make_models(model, drafter, config, tokens, longest)
        self.models[key] = known
        return known

    def _executor(self, models: Models, arm: Arm, config: EngineConfig) -> Executor:
        depth = arm.depth(models.drafter.block)
        key = ("round by round", models.drafter.digest, config.rule, depth, config.truncates)
        made = self.captured.get(key)
        if made is None or isinstance(made, Steady) or made.models is not models or made.most < config.graphs:
            made = make_executor(models, config, depth)
        if config.graphs:
            self.captured[key] = made
        return made

    def _steady(self, models: Models, arm: Arm, config: EngineConfig, queue: Sequence[Request]) -> Steady:
        depth, scripted = arm.depth(models.drafter.block), queue[0].trace is not None
        recorded = max(len(r.canonical or ()) for r in queue)
        key = ("overlapped", models.drafter.digest, depth, arm.commit, scripted)
        made = self.captured.get(key)
        if (
            not isinstance(made, Steady)
            or made.models is not models
            or made.seats.shape.seats < config.graphs
            or made.seats.shape.recorded < recorded
        ):
            eos = self.deployment.target.eos
            made = make_steady(models, arm, config, recorded=recorded, eos=eos, scripted=scripted)
        self.captured[key] = made
        return made


def overlaps(arm: Arm, config: EngineConfig, queue: Sequence[Request]) -> bool:
    """Whether rounds may be launched before those before them are read.

    Not where rows follow from this step's confidences, a rule asks the host, or logits are cut by top-k or top-p.
    """
    truncates = any(r.sampling.truncates for r in queue)
    return config.rule == "coupled" and arm.policy in STEADY and not truncates


def pool_tokens(queue: Sequence[Request], concurrency: int, block: int, page: int, context: int) -> int:
    """Tokens the pool must hold for `concurrency` requests of the queue at once, whichever they are."""
    need = sorted((min(len(r.prompt_ids) + r.sampling.max_tokens, context) + block + 1 for r in queue), reverse=True)
    return sum(-(-n // page) * page for n in need[:concurrency])


def _holds(models: Models, tokens: int, longest: int) -> bool:
    shape = models.pool.shape
    return tokens <= shape.pages * shape.page and longest <= shape.table * shape.page
