"""How many drafts of each request are verified: survival -> row tier (a budget) -> agreement of ranks -> allocation.

budget.py weighs the survival of drafts against measured step cost; `allocate` gives the budget's rows to the
likeliest drafts. Survival: a[r, j] = product of the calibrated conditional acceptances up to draft j. Shapes: R
requests, G block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dsbench.errors import UsageError
from dsbench.profiles.calibration import CalibrationSet
from dsbench.profiles.cost import CostTable, StepShape
from dsbench.runtime.arm import Arm
from dsbench.runtime.drafters.draft import Draft
from dsbench.runtime.policy.budget import agree, early_stop, want_tier
from dsbench.runtime.policy.confidence import ConfidenceRelay
from dsbench.runtime.policy.objective import Array
from dsbench.runtime.request import Request


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


def token_free(survival: Array, limits: Array, table: CostTable, context: int) -> tuple[int, int]:
    """Budget K, and how deep its drafts reach, by survival [R, G] that no token of the block has entered.

    Both are settled before the block's first draw, so no draft has a say in whether it is admitted: without bias under
    any rule, though nothing here is old. Deeper slots need not be drafted, whoever gets the rows.
    """
    budget = want_tier(survival, limits, table, context).rows - len(limits)
    window = allocate(torch.from_numpy(survival), torch.from_numpy(limits), budget)
    return budget, int(window.max())


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
        self._known: dict[tuple[int, int, int], tuple[float, float, bool]] = {}  # by R, M and slots left out
        self.relay = ConfidenceRelay(calibrations, rule, block, self.lag)

    def depth(self, requests: Sequence[Request], free: Tensor, limits: Array, context: int) -> Tensor:
        """Slots worth drafting, int64 [R] on the host: the windows that token-free confidences [R, G] would get.

        They are known before any token of the block is drawn, so the sequential head stops early without anticipating.
        The policy `free` drafts for all as deep as for the deepest, because the drafts then made compete for the rows.
        Policies that do not weigh cost want the whole block.
        """
        if self.replay is not None:
            return torch.tensor([self.replay[r.id, r.rounds] for r in requests])
        if self.arm.policy not in ("argmax", "free", "early-stop") or self.table is None:
            return torch.full((len(requests),), self.block)
        survival = self._free_survival(requests, free)
        if self.arm.policy == "free":
            return torch.full((len(requests),), token_free(survival, limits, self.table, context)[1])
        choice = want_tier(survival, limits, self.table, context, self.arm.weight)
        return allocate(torch.from_numpy(survival), torch.from_numpy(limits), choice.rows - len(requests))

    def _free_survival(self, requests: Sequence[Request], free: Tensor) -> Array:
        conditional = self.relay.conditional(requests, free.double().cpu().numpy(), "free")
        return np.asarray(np.cumprod(conditional, axis=1))

    def plan(
        self, requests: Sequence[Request], draft: Draft, limits: Array, context: int
    ) -> tuple[VerifyPlan, PlanInputs]:
        """Windows for R requests that may verify at most limits [R] drafts each, with `context` tokens in all."""
        depth = draft.depth.cpu().numpy()
        cap = np.minimum(limits, depth)
        conditional = self.relay.conditional(requests, draft.confidence.double().cpu().numpy())
        undrafted = np.arange(self.block) >= depth[:, None]
        if undrafted.any():  # later budgets recall these slots: the token-free head knows them
            free = self.relay.conditional(requests, draft.token_free.double().cpu().numpy(), "free")
            conditional = np.where(undrafted, free, conditional)
        survival = np.cumprod(conditional, axis=1)
        self.relay.remember(requests, survival)
        window, reason, priors = self._windows(requests, draft, conditional, survival, cap, context)
        budget = int(window.sum())
        rows = len(requests) + budget
        shape = StepShape(len(requests), rows, context)
        plan = VerifyPlan(
            window=window,
            budget=budget,
            tier=self.table.tier(rows) if self.table else rows,
            reason=reason,
            seconds=predicted_seconds(self.table, shape, drafts=self.block > 0),
        )
        return plan, PlanInputs(survival=survival, priors=priors, age=self.lag)

    def predict(self, shape: StepShape, skipped: int = 0) -> tuple[float, bool]:
        """Step seconds (nan without a table), and whether the table extrapolates, for a shape that is run.

        skipped: slots of the block that a captured draft leaves out; all of them in a plain round.
        """
        table, key = self.table, (shape.requests, shape.rows, skipped)
        if table is None:
            return float("nan"), False
        if key not in self._known:
            start = StepShape(shape.requests, shape.rows, 0)
            seconds = predicted_seconds(table, start, drafts=self.block > 0, skipped=skipped)
            per_token = table.per_token(shape.requests, drafts=self.block > 0)
            if skipped >= self.block > 0:
                seconds, per_token = table.no_draft_parts(shape.requests)
            self._known[key] = seconds, per_token, table.outside(replace(start, context=table.box.context[0]))
        seconds, per_token, outside = self._known[key]
        least, most = table.box.context
        return seconds + per_token * shape.context, outside or not least <= shape.context <= most

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
        elif policy == "free":
            budget, priors = token_free(self._free_survival(requests, draft.token_free), cap, self.table, context)[0], 0
        else:
            past, priors = (survival, 0) if self.lag == 0 else self.relay.recall(requests)
            choice = agree([want_tier(past, cap, self.table, context, self.arm.weight)])
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
