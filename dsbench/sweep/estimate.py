"""Estimates a sweep's duration from a cost table, without loading a model: `sweep --dry-run`."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from dsbench.errors import DsbenchError
from dsbench.profiles.calibration import Rule, load_calibration_set
from dsbench.profiles.cost import CostTable, StepShape, load_cost_table
from dsbench.runtime.arm import Arm
from dsbench.sweep.plan import SweepPlan
from dsbench.sweep.traffic import measured_of

GUESS = 0.6  # of the drafts of each depth accepted, where no calibration says
LETTERS = 4  # of a prompt a token, about
BLOCK = 7  # drafts a round, where the table's contract does not say


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Seconds of all repeats and of recording the texts, prompts not counted; and the table and acceptance it is based
    on.
    """

    seconds: float
    basis: str


def estimate(plan: SweepPlan, table: CostTable, survival: Sequence[float], basis: str) -> Estimate:
    """Assumes that every answer reaches its token limit and that the first k drafts are accepted with probability
    `survival` [G].

    In the open loop a pass takes as long as its requests come, or longer where they come faster than they are served.
    """
    config, seconds = plan.config, 0.0
    for workload in plan.workloads:
        letters = [sum(len("".join(text)) for _, text in prompt.messages) for prompt in workload.prompts]
        context = float(np.mean(letters or [0])) / LETTERS + config.max_tokens / 2
        for batch in plan.batches:
            for arm, load in itertools.product(plan.arms, plan.traffic.loads):
                count = measured_of(load, batch, config.requests)[0].stop
                tokens = (count + batch // 2) * config.max_tokens
                busy = tokens * token_seconds(arm, table, survival, batch, context)
                seconds += config.repeats * max(busy, count / load.rate if load else 0.0)
        if plan.pinned and plan.trace is None:
            batch = max(plan.batches)
            texts = (2 * batch + max(config.requests, batch) + batch // 2) * config.max_tokens
            none = next(a for a in (*plan.arms, NONE) if a.name == "none")
            seconds += texts * token_seconds(none, table, survival, max(batch, 16), context)
    return Estimate(seconds=seconds, basis=basis)


NONE = Arm(name="none", drafter="none", policy="fixed", layout="packed", commit="all", fixed=0)


def token_seconds(arm: Arm, table: CostTable, survival: Sequence[float], batch: int, context: float) -> float:
    """Seconds a token of the full batch: seconds of a round over the tokens it delivers, with one window for all
    requests.

    A planned arm uses the best common window. Chains are assumed to cost as much as a block drafter.
    """
    block, total = len(survival), int(batch * context)
    delivered = 1 + np.concatenate([[0.0], np.cumsum(survival)])

    def pace(window: int, verified: int, drafted: int) -> float:
        shape = StepShape(requests=batch, rows=batch * (verified + 1), context=total)
        drafting = table.draft_seconds(batch, total, block - drafted) if drafted else 0.0
        return float((table.verify_seconds(shape) + drafting) / (batch * delivered[window]))

    if arm.fixed is not None:
        window = min(arm.fixed, block)
        return pace(window, window, window)
    if arm.policy == "fixed":
        return pace(block, block, block)
    if arm.drafts_full_block:
        best = min(range(block + 1), key=lambda w: pace(w, w, block))
        return pace(best, block, block)
    return min(pace(w, w, max(w, 1)) for w in range(block + 1))


def find_estimate(plan: SweepPlan, known: Mapping[str, str], calibration: Path | None, home: Path) -> Estimate | None:
    """By the named table, the run's own, or one of this machine that agrees with what is `known` of the contract.

    None where there is no such table. Raises UsageError for a named one that cannot be read.
    """
    config = plan.config
    if config.cost:
        return _by(plan, Path(config.cost), calibration)
    for path in (Path(config.out) / "cost.json", *sorted((home / "costs").glob("*.json"))):
        if path.exists() and not path.name.endswith(".samples.json"):
            try:
                contract = load_cost_table(path).contract
                if all(contract.get(name) == value for name, value in known.items()):
                    return _by(plan, path, calibration)
            except DsbenchError:
                continue
    return None


def _by(plan: SweepPlan, path: Path, calibration: Path | None) -> Estimate:
    table, config = load_cost_table(path), plan.config
    block = int(table.contract.get("block", BLOCK)) or BLOCK
    survival, how = [GUESS**k for k in range(1, block + 1)], f"{GUESS:.0%} of drafts accepted at each depth"
    try:
        if calibration is not None and calibration.exists():
            rule = cast(Rule, plan.engine.rule)
            found = load_calibration_set(calibration).choose(rule, config.temperature, config.top_k, config.top_p)
            survival, how = list(found.calibration.prior_survival), "drafts accepted as at calibration"
    except DsbenchError:
        pass
    return estimate(plan, table, survival, f"cost table {path}; {how}")
