"""The registry's ops between a draft and its verdict: planning, packing, judging."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dsbench.kernels.check import costs
from dsbench.kernels.check.calls import triton_side
from dsbench.kernels.check.inputs import Inputs
from dsbench.kernels.check.inputs_step import (
    COMMIT_CASES,
    JUDGE_CASES,
    PACK_CASES,
    PLAN_CASES,
    commit_inputs,
    judge_inputs,
    pack_inputs,
    plan_inputs,
)
from dsbench.kernels.check.op import Op
from dsbench.kernels.commit import commit, commit_reference
from dsbench.kernels.judge import Judged, judge_rows, judge_rows_reference
from dsbench.kernels.pack import Packed, pack, pack_reference
from dsbench.kernels.plan import Planned, plan, plan_reference


def step_ops() -> tuple[Op, ...]:
    return (*_plan(), *_pack(), *_judge(), *_commit())


def _plan() -> tuple[Op, ...]:
    made = triton_side("plan", "plan")
    why = "bitwise equal fp32 arithmetic, and integers made of it"

    def part(name: str, pick: Callable[[Planned], Tensor]) -> Op:
        return Op(
            name=f"plan {name}",
            compiled=lambda **inputs: pick(plan(**inputs)),
            reference=lambda **inputs: pick(plan_reference(**inputs)),
            make_inputs=plan_inputs,
            cases=PLAN_CASES,
            tolerance=0.0,
            why=why,
            cuda=lambda **inputs: pick(made(**inputs)),
            cost=costs.plan_cost,
            bind=lambda inputs: partial(plan, **inputs),
        )

    return (
        part("survival", lambda planned: planned[0]),
        part("windows", lambda planned: planned[1]),
        part("rows", lambda planned: rows_of(planned[2])),
        part("cu_rows", lambda planned: planned[2][-1]),
    )


def _pack() -> tuple[Op, ...]:
    shared: dict[str, Any] = {
        "make_inputs": pack_inputs,
        "cases": PACK_CASES,
        "tolerance": 0.0,
        "why": "integers",
        "cost": costs.pack_cost,
        "bind": lambda inputs: partial(pack, **inputs),
    }
    made = triton_side("pack", "pack")
    return (
        Op(
            name="pack",
            compiled=lambda **inputs: rows_of(pack(**inputs)),
            reference=lambda **inputs: rows_of(pack_reference(**inputs)),
            cuda=lambda **inputs: rows_of(made(**inputs)),
            **shared,
        ),
        Op(
            name="pack cu_rows",
            compiled=lambda **inputs: pack(**inputs)[-1],
            reference=lambda **inputs: pack_reference(**inputs)[-1],
            cuda=lambda **inputs: made(**inputs)[-1],
            **shared,
        ),
    )


def _judge() -> tuple[Op, ...]:
    return (
        Op(
            name="judge",
            compiled=lambda **inputs: verdicts_of(judge_rows(**inputs)),
            reference=lambda **inputs: verdicts_of(judge_rows_reference(**inputs)),
            make_inputs=judge_inputs,
            cases=JUDGE_CASES,
            tolerance=0.0,
            why="integers",
            cuda=lambda **inputs: verdicts_of(triton_side("judge", "judge_rows")(**inputs)),
            cost=costs.judge_cost,
            bind=lambda inputs: partial(judge_rows, **inputs),
        ),
    )


def _commit() -> tuple[Op, ...]:
    return (
        Op(
            name="commit",
            compiled=lambda **inputs: slots_after(commit, inputs),
            reference=lambda **inputs: slots_after(commit_reference, inputs),
            make_inputs=commit_inputs,
            cases=COMMIT_CASES,
            tolerance=0.0,
            why="integers",
            cuda=lambda **inputs: slots_after(triton_side("commit", "commit"), inputs),
            cost=costs.commit_cost,
            bind=lambda inputs: partial(commit, **inputs),
        ),
    )


def slots_after(run: Callable[..., Tensor], inputs: Inputs) -> Tensor:
    """Delivered tokens and the six moved on, [S, 7], after a run on copies of these."""
    state = {name: inputs[name].clone() for name in ("anchor", "start", "emitted", "room", "round_", "ended")}
    return torch.stack([run(**inputs | state), *state.values()], dim=1)


def rows_of(packed: Packed) -> Tensor:
    """ids, positions, request, cache index of each row, [M, 4]."""
    return torch.stack(packed[:-1], dim=1)


def verdicts_of(judged: Judged) -> Tensor:
    """accepted, ceiling, flips and tokens of each request, [R, 3 + W]."""
    accepted, tokens, ceiling, flips = judged
    return torch.cat([torch.stack([accepted, ceiling, flips], dim=1), tokens], dim=1)
