"""`selftest`: every arm at several batch sizes must write one text per request; a difference must be a rounding tie.

Coupled rule, or any rule at temperature 0. Where two texts diverge, the target's law at that position is computed
again: the difference is a tie only if the two tokens' perturbed scores (logits / T + noise) lie within the rounding
of the dtype. Exact numerics leave no room for ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dsbench.deploy.deployment import Deployment
from dsbench.deploy.engines import Engines
from dsbench.kernels.philox import gumbel_noise
from dsbench.profiles.cost import CostTable
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.request import Request
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.sweep.generate import build_requests, run_requests
from dsbench.within import Deadline

ROUNDING = {torch.float32: 2e-3, torch.bfloat16: 1.0}  # of logits that differ by the order of their sums alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where a text diverges from that of arm none at batch size 1, and whether rounding explains it."""

    mode: str
    batch: int
    temperature: float
    prompt: str
    index: int  # of the first output token that differs
    gap: float  # |difference of the two tokens' perturbed scores|
    tie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One arm at one batch size and temperature."""

    mode: str
    batch: int
    temperature: float
    same: int
    requests: int
    tokens: int  # compared and equal: each text up to where it parts; none of the texts compared with
    differences: tuple[Difference, ...]


def selftest(
    deployment: Deployment,
    table: CostTable | None,
    config: EngineConfig,
    *,
    modes: Sequence[str],
    batches: Sequence[int],
    temperatures: Sequence[float],
    workloads: Sequence[str],
    prompts: int,
    max_tokens: int,
    seed: int,
    notice: Callable[[Outcome], None],
    deadline: Deadline | None = None,
) -> tuple[list[Outcome], list[str]]:
    """Runs `prompts` requests in all, spread over the workloads, in every combination; those left out, in words.

    Left out are those that would not end before the deadline: each is taken to last as long as the longest of its
    batch size, or of all, so far.

    The reference texts are those of arm none: on a captured device run eagerly at the largest batch size, else at
    the first batch size.
    """
    outcomes: list[Outcome] = []
    left_out: list[str] = []
    until, took = deadline or Deadline(), dict[int, float]()
    engines, eager = Engines(deployment, requests=max(batches)), replace(deployment, graphs=False)
    for temperature in temperatures:
        sampling = {"temperature": temperature, "max_tokens": max_tokens}
        wanted: list[Request] | None = None
        for mode in ("none", *(m for m in modes if m != "none")):
            for batch in batches:
                longest = took.get(batch, max(took.values(), default=0.0))
                if wanted is not None and longest > until.left():
                    left_out.append(f"{mode} at T = {temperature:g}, batch {batch}")
                    continue
                begin = until.clock()
                requests = _requests(deployment, workloads, prompts, seed, sampling)
                if wanted is None and deployment.graphs:
                    wanted = _requests(deployment, workloads, prompts, seed, sampling)
                    run_requests(Engines(eager), parse_arm("none"), config, None, wanted, max(batches))
                run_requests(engines, parse_arm(mode), config, table, requests, batch)
                wanted = wanted or requests
                outcome = _compare(deployment, mode, batch, temperature, requests, wanted)
                outcomes.append(outcome)
                notice(outcome)
                took[batch] = max(took.get(batch, 0.0), until.clock() - begin)
    return outcomes, left_out


def _requests(
    deployment: Deployment, workloads: Sequence[str], prompts: int, seed: int, sampling: dict[str, Any]
) -> list[Request]:
    each = -(-prompts // len(workloads))
    found: list[Request] = []
    for name in workloads:
        found += build_requests(
            deployment, name, limit=each, seed=seed, sampling=sampling, home=deployment.home, skip_long=True
        )
    for index, request in enumerate(found[:prompts]):
        request.id = index
    return found[:prompts]


def _compare(
    deployment: Deployment,
    mode: str,
    batch: int,
    temperature: float,
    mine: Sequence[Request],
    wanted: Sequence[Request],
) -> Outcome:
    differences, tokens, model = [], 0, deployment.target.model
    for request, other in zip(mine, wanted, strict=True):
        if request.output == other.output:
            tokens += 0 if request is other else len(request.output)
            continue
        pairs = list(zip(request.output, other.output, strict=False))
        index = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        tokens += index
        gap = float("inf") if index == len(pairs) else perturbed_gap(deployment, other, index, pairs[index])
        tie = not model.exact and gap <= ROUNDING[model.dtype] / (temperature or 1.0)
        differences.append(
            Difference(
                mode=mode, batch=batch, temperature=temperature, prompt=request.name, index=index, gap=gap, tie=tie
            )
        )
    return Outcome(
        mode=mode,
        batch=batch,
        temperature=temperature,
        same=len(mine) - len(differences),
        requests=len(mine),
        tokens=tokens,
        differences=tuple(differences),
    )


@torch.inference_mode()
def perturbed_gap(deployment: Deployment, request: Request, index: int, tokens: tuple[int, int]) -> float:
    """|score of one token - score of the other| at output position `index`; score = logits / T + noise, or logits."""
    target = deployment.target.model
    ids = request.prompt_ids + request.output[:index]
    layers = ((target.shape.kv_heads, target.shape.head_width),) * target.shape.layers
    pages = -(-len(ids) // 16)
    pool = StatePool(
        PoolShape(layers=layers, page=16, pages=pages, table=pages), target.device, target.dtype, shuffle_seed=None
    )
    assert pool.open(0, len(ids))
    pool.grow(0, len(ids))
    context = torch.zeros(1, dtype=torch.int32, device=target.device)
    cu_rows, rows, positions = ragged_positions(context, torch.tensor([len(ids)], device=target.device))
    batch = Batch(
        ids=torch.tensor(ids, device=target.device),
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=pool.table([0]),
        request=rows,
        logit_rows=cu_rows[1:].long() - 1,
    )
    scores = target.forward(batch, pool)[0][0].float()[list(tokens)]
    if request.sampling.temperature > 0:
        position = torch.tensor([len(ids)], device=target.device)
        seed = torch.tensor([request.sampling.seed], device=target.device)
        noise = gumbel_noise(seed, position, torch.tensor(tokens, device=target.device))[0]
        scores = scores / request.sampling.temperature + noise
    return float((scores[0] - scores[1]).abs())
