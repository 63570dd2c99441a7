"""How many drafts of each request are verified: survival -> row tier (a budget) -> agreement of ranks -> allocation.

`want_tier` weighs the survival of drafts against measured step cost; `agree` takes the largest tier any rank needs;
`allocate` gives the budget's rows to the likeliest drafts. Survival: a[r, j] = product of the calibrated conditional
acceptances up to draft j. Shapes: R requests, G block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsbench.errors import UsageError
from dsbench.profiles.calibration import CalibrationSet
from dsbench.profiles.cost import CostTable, StepShape
from dsbench.runtime.arm import Arm
from dsbench.runtime.confidence import ConfidenceRelay
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.request import Request

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierChoice:
    """A number of packed rows M worth running, the step seconds predicted for it, and why."""

    rows: int
    seconds: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPlan:
    """window [R] int64: drafts verified (and, in a commit=window arm, the most that may be committed)."""

    window: Tensor
    budget: int  # K, drafts granted over all requests
    tier: int  # rows of the executed shape; = rows on the CPU
    seconds: float  # predicted step time, nan without a cost table
    reason: str

    @property
    def rows(self) -> int:
        return self.budget + self.window.shape[0]


def bounded(survival: Array, limits: Array) -> Array:
    """Survival with what may not be verified (past the request's limit) at -1, so that it sorts last."""
    column = np.arange(survival.shape[1])
    return np.where(column < limits[:, None], survival, -1.0)


def want_tier(survival: Array, limits: Array, table: CostTable, context: int) -> TierChoice:
    """The M that maximises (R + sum of the M - R best survivals) / step seconds, over all candidates.

    A global argmax: cost is a staircase, so the objective is not unimodal. survival [R, G], limits [R] drafts allowed.
    """
    requests, block = survival.shape
    rows = table.candidates(requests, block)
    seconds = table.verify_curve(requests, rows, context) + table.draft_seconds(requests, context)
    best, _ = best_rows(survival, limits, rows, seconds)
    return TierChoice(rows=int(rows[best]), seconds=float(seconds[best]), reason="argmax")


def best_rows(survival: Array, limits: Array, rows: Array, seconds: Array) -> tuple[int, float]:
    """Index of the row total [m] with the most expected tokens a second, and that rate; seconds [m] of whole steps."""
    requests = len(limits)
    ranked = np.sort(bounded(survival, limits), axis=None)[::-1]
    ranked = ranked[ranked >= 0]
    gain = np.concatenate([[0.0], np.cumsum(ranked)])
    rate = (requests + gain[np.minimum(rows - requests, len(ranked))]) / seconds
    best = int(np.argmax(rate))
    return best, float(rate[best])


def agree(choices: Sequence[TierChoice]) -> TierChoice:
    """What all data-parallel ranks run: the largest tier any of them needs."""
    return max(choices, key=lambda choice: choice.rows)


def allocate(survival: Tensor, limits: Tensor, budget: int) -> Tensor:
    """window [R]: the `budget` best drafts by (survival descending, position ascending, request ascending).

    Survival does not increase along a request, so the order is prefix-safe; the same on every rank and device.
    """
    requests, block = survival.shape
    column = torch.arange(block, device=survival.device)
    legal = column < limits[:, None]
    score = torch.where(legal, survival.double().cummin(dim=1).values, torch.full_like(survival, -1).double())
    order = (
        score.t().reshape(-1).sort(descending=True, stable=True).indices
    )  # position-major: ties by position, request
    granted = torch.zeros(block * requests, dtype=torch.bool, device=survival.device)
    granted[order[:budget]] = True
    return (granted.view(block, requests).t() & legal).sum(-1)


def early_stop(survival: Array, limits: Array, table: CostTable, context: int) -> int:
    """Budget K of the paper's Algorithm 1: admit by survival, stop at the first that does not raise throughput."""
    requests, block = survival.shape
    ranked = np.sort(bounded(survival, limits), axis=None)[::-1]
    ranked = ranked[ranked > 0]
    rows = requests + np.arange(len(ranked) + 1)
    seconds = table.verify_curve(requests, rows, context) + table.draft_seconds(requests, context)
    rate = (requests + np.concatenate([[0.0], np.cumsum(ranked)])) / seconds
    drops = np.flatnonzero(rate[1:] <= rate[:-1])
    return int(drops[0]) if len(drops) else len(ranked)


def threshold_windows(confidence: Tensor, limits: Tensor, threshold: float) -> Tensor:
    """window [R]: drafts before the first whose conditional confidence [R, G] is below the threshold."""
    kept = (confidence >= threshold).long().cumprod(dim=1).sum(dim=1)
    return torch.minimum(kept, limits)


def predicted_seconds(table: CostTable | None, shape: StepShape, *, drafts: bool, skipped: int = 0) -> float:
    """Step seconds by the table, without its draft part for an arm that drafts nothing; nan without a table."""
    if table is None:
        return float("nan")
    return table.step_seconds(shape, skipped) if drafts else table.verify_seconds(shape)


def refuse_anticipation(arm: Arm, rule: str, lag: int) -> None:
    """Raises UsageError for a policy that would look at the block it admits, under a rule whose text it would bias."""
    if rule != "coupled" and ((arm.policy == "argmax" and lag < 1) or arm.policy == "oracle"):
        raise UsageError(
            f"mode {arm.name} would anticipate under the {rule} rule", hint="give --lag 2, or --accept coupled"
        )


class Planner:
    """One arm's policy over a run: calibrates, recalls what the lag allows, and chooses the windows.

    Unless the rule is coupled only non-anticipating policies are accepted: a budget that looks at the confidences of
    the block it admits would bias the text (arXiv 2607.05147, section 3.2.2). Raises UsageError for such a pair.
    """

    def __init__(
        self,
        arm: Arm,
        *,
        block: int,
        rule: str,
        lag: int,
        table: CostTable | None,
        calibrations: CalibrationSet | None,
        replay: Mapping[tuple[int, int], int] | None = None,
    ) -> None:
        refuse_anticipation(arm, rule, lag)
        if arm.planned and table is None:
            raise UsageError(
                f"mode {arm.name} needs a cost table", hint="run `dsbench profile-cost`, or give --cost FILE"
            )
        self.arm, self.block, self.table, self.replay = arm, block, table, replay
        self.lag = lag if arm.policy == "argmax" else 0
        self.relay = ConfidenceRelay(calibrations, rule, block, self.lag)

    def depth(self, requests: Sequence[Request], free: Tensor, limits: Array, context: int) -> Tensor:
        """Slots worth drafting, int64 [R] on the host: the windows that token-free confidences [R, G] would get.

        They are known before any token of the block is drawn, so the sequential head stops early without anticipating.
        Policies that do not weigh cost want the whole block.
        """
        if self.replay is not None:
            return torch.tensor([self.replay[r.id, r.rounds] for r in requests])
        if self.arm.policy not in ("argmax", "early-stop") or self.table is None:
            return torch.full((len(requests),), self.block)
        conditional = self.relay.conditional(requests, free.double().cpu().numpy(), "free")
        survival = np.cumprod(conditional, axis=1)
        choice = want_tier(survival, limits, self.table, context)
        return allocate(torch.from_numpy(survival), torch.from_numpy(limits), choice.rows - len(requests))

    def plan(
        self, requests: Sequence[Request], draft: Draft, limits: Array, context: int
    ) -> tuple[VerifyPlan, PlanInputs]:
        """Windows for R requests that may verify at most limits [R] drafts each, with `context` tokens in all."""
        depth = draft.depth.cpu().numpy()
        cap = np.minimum(limits, depth)
        conditional = self.relay.conditional(requests, draft.confidence.double().cpu().numpy())
        undrafted = np.arange(self.block) >= depth[:, None]
        if undrafted.any():  # later budgets recall these slots: the token-free head knows them
            free = self.relay.conditional(requests, draft.free.double().cpu().numpy(), "free")
            conditional = np.where(undrafted, free, conditional)
        survival = np.cumprod(conditional, axis=1)
        self.relay.remember(requests, survival)
        window, reason, priors = self._windows(requests, draft, conditional, survival, cap, context)
        budget = int(window.sum())
        rows = len(requests) + budget
        shape = StepShape(len(requests), rows, context)
        plan = VerifyPlan(
            window=window, budget=budget, tier=self.table.tier(rows) if self.table else rows, reason=reason,
            seconds=predicted_seconds(self.table, shape, drafts=self.block > 0),
        )  # fmt: skip
        return plan, PlanInputs(survival=survival, priors=priors, age=self.lag)

    def predict(self, shape: StepShape, skipped: int = 0) -> tuple[float, bool]:
        """Step seconds (nan without a table), and whether the table extrapolates, for a shape that is run.

        skipped: slots of the block that a captured draft leaves out.
        """
        if self.table is None:
            return float("nan"), False
        seconds = predicted_seconds(self.table, shape, drafts=self.block > 0, skipped=skipped)
        return seconds, self.table.outside(shape)

    def _windows(
        self, requests: Sequence[Request], draft: Draft, conditional: Array, survival: Array, cap: Array, context: int
    ) -> tuple[Tensor, str, int]:
        device = draft.tokens.device
        limits = torch.from_numpy(cap).long().to(device)
        policy = self.arm.policy
        if self.replay is not None:
            wanted = torch.tensor([self.replay[r.id, r.rounds] for r in requests], dtype=torch.int64, device=device)
            return torch.minimum(wanted, limits), "replay", 0
        if policy in ("full", "fixed"):
            most = self.block if self.arm.fixed is None else self.arm.fixed
            return limits.clamp(max=most), policy, 0
        if policy == "threshold":
            confidence = torch.from_numpy(conditional).to(device)
            return threshold_windows(confidence, limits, self.arm.threshold), policy, 0
        assert self.table is not None
        if policy == "oracle":
            survival = oracle_survival(requests, draft)
        if policy == "early-stop":
            budget, priors = early_stop(survival, cap, self.table, context), 0
        else:
            past, priors = (survival, 0) if self.lag == 0 else self.relay.recall(requests)
            choice = agree([want_tier(past, cap, self.table, context)])
            budget = choice.rows - len(requests)
        return allocate(torch.from_numpy(survival).to(device), limits, budget), policy, priors


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """What a plan was made from: survival [R, G] of this step, requests that used a prior, age of the confidences."""

    survival: Array
    priors: int
    age: int


def oracle_survival(requests: Sequence[Request], draft: Draft) -> Array:
    """1 while a request's drafts equal its recorded text, 0 from the first that does not: [R, G].

    Raises UsageError if a request has no recorded text to know the future from.
    """
    out = np.zeros(draft.tokens.shape, np.float64)
    for row, (request, tokens) in enumerate(zip(requests, draft.tokens.tolist(), strict=True)):
        if request.canonical is None:
            raise UsageError("the oracle needs a recorded text", hint="run it in a sweep with --text pinned")
        future = request.canonical[len(request.output) :]
        for j, (mine, theirs) in enumerate(zip(tokens, future, strict=False)):
            if mine != theirs:
                break
            out[row, j] = 1.0
    return out
