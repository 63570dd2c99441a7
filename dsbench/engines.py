"""Engines of one deployment, arm after arm: graphs are captured once for a drafter and depth, and serve them all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dsbench.deployment import Deployment
from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import Arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.engine import Engine
from dsbench.runtime.executor import Executor
from dsbench.runtime.planner import Planner
from dsbench.runtime.request import Request
from dsbench.texts import pool_tokens


class Engines:
    """Makes engines, one in use at a time: they share pages and graphs.

    `requests` is the most that any of them will run at once, as far as that is known beforehand; graphs are captured
    anew for an engine that needs more requests, tokens in all, or tokens a request.
    """

    def __init__(self, deployment: Deployment, *, requests: int = 1) -> None:
        self.deployment, self.requests = deployment, requests
        self.captured: dict[tuple[str, int, str, bool], Executor] = {}

    def make(
        self, arm: Arm, config: EngineConfig, table: CostTable | None, queue: Sequence[Request], batch: int
    ) -> Engine:
        """An engine with room for `batch` requests of the queue at once.

        Calibrations and the table's draft seconds are the block drafter's: a chain runs, and is recorded, without them.
        """
        deployment, drafter = self.deployment, self.deployment.drafter_of(arm)
        chain, model = arm.drafter == "mtp", deployment.target.model
        planner = Planner(
            arm, block=drafter.block, rule=config.rule, lag=config.lag, table=None if chain else table,
            calibrations=None if chain else deployment.calibrations,
        )  # fmt: skip
        if deployment.graphs:
            batch = self.requests = max(batch, self.requests)
            config = replace(config, graphs=batch, truncates=any(r.sampling.truncates for r in queue))
        tokens = pool_tokens(queue, batch, drafter.block, config.page, model.shape.context)
        longest = max(min(len(r.prompt_ids) + r.sampling.max_tokens, model.shape.context) for r in queue)
        key = (drafter.digest, arm.depth(drafter.block), config.rule, config.truncates)
        executor = self.captured.get(key)
        if executor is not None and not _holds(executor, batch, tokens, longest + drafter.block + 1):
            executor = None
        tokenizer = deployment.target.tokenizer
        engine = Engine(
            model, drafter, arm, planner, config, eos=deployment.target.eos, tokens=tokens, longest=longest,
            executor=executor, decode=tokenizer.decode if tokenizer else None,
        )  # fmt: skip
        if deployment.graphs:
            self.captured[key] = engine.executor
        return engine


def _holds(executor: Executor, requests: int, tokens: int, longest: int) -> bool:
    shape = executor.models.pool.shape
    return requests <= executor.most and tokens <= shape.pages * shape.page and longest <= shape.table * shape.page
