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

    `requests` and `tokens` are the most that any of them will hold at once, as far as that is known beforehand; graphs
    are captured anew for one that needs more.
    """

    def __init__(self, deployment: Deployment, *, requests: int = 1, tokens: int = 0) -> None:
        self.deployment, self.requests, self.tokens = deployment, requests, tokens
        self.captured: dict[tuple[str, int, str], Executor] = {}

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
        tokens = pool_tokens(queue, batch, drafter.block, config.page, model.shape.context)
        executor = None
        if deployment.graphs:
            if batch > self.requests or tokens > self.tokens:
                self.captured.clear()
                self.requests, self.tokens = max(batch, self.requests), max(tokens, self.tokens)
            config = replace(config, graphs=self.requests)
            executor = self.captured.get((drafter.digest, arm.depth(drafter.block), config.rule))
            tokens = self.tokens
        tokenizer = deployment.target.tokenizer
        engine = Engine(
            model, drafter, arm, planner, config, eos=deployment.target.eos, tokens=tokens, executor=executor,
            decode=tokenizer.decode if tokenizer else None,
        )  # fmt: skip
        if deployment.graphs:
            self.captured[drafter.digest, arm.depth(drafter.block), config.rule] = engine.executor
        return engine
