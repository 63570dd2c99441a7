"""One training step: forward and loss, eager or compiled; a compiled forward must agree with the eager one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.kernels.draft.loss import Shares
from dsbench.runtime.training.batches import BatchMaker, Blocks
from dsbench.runtime.training.chain import ChainModule
from dsbench.runtime.training.generate import Log
from dsbench.runtime.training.loss import HeadLoss, LossParts, confidence_loss
from dsbench.runtime.training.module import DrafterModule

Forward = Callable[..., tuple[Tensor, Tensor]]
Module = DrafterModule | ChainModule


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """The target's side of the loss and the rotary table, on the device."""

    head: Tensor  # [V', D] rows of the target's head in the order of the draft vocabulary
    cos: Tensor
    sin: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The module being trained and its data."""

    module: Module
    maker: BatchMaker
    heads: Heads
    vocabulary: Tensor  # [V'] int32
    splits: dict[int, Tensor]  # sequence indices of each split
    shares: Shares


def loss_of(forward: Forward, setting: Setting, blocks: Blocks, seed: Tensor) -> LossParts:
    """The loss of a batch; `seed` keys the noise of the coupled event."""
    module, heads, goals = setting.module, setting.heads, blocks.goals
    x, seen = forward(*module.inputs(blocks, heads.cos, heads.sin))
    total, ce, accept, soft, match, features = HeadLoss.apply(x, module.w2, heads.head, goals, seed, setting.shares)  # type: ignore[no-untyped-call]
    logits = module.confidences(seen, features, module.shape.layer.hidden)
    confidence, free = confidence_loss(logits, goals, accept, match)
    weight = goals.weight
    return LossParts(
        total=total + confidence + free,
        ce=(weight * ce).sum(),
        l1=(weight * 2 * (1 - accept)).sum(),
        coupled=(weight * (1 - soft)).sum(),
        confidence=confidence,
        free=free,
        accept=accept,
        match=match,
    )


def compiled(setting: Setting, blocks: Blocks, log: Log) -> Forward:
    """The compiled forward, tried on `blocks` against the eager one; the eager one where that fails."""
    module, began = setting.module, time.perf_counter()
    eager = _gradient_of(module, setting, blocks)
    try:
        forward: Forward = torch.compile(module, dynamic=False)
        fast = _gradient_of(forward, setting, blocks)
    except Exception as problem:  # the compiler's failures have no common type
        log({"stage": "compile", "fallback": f"{type(problem).__name__}: {problem}"[:2000]})
        module.zero_grad(set_to_none=True)
        return module
    seconds = round(time.perf_counter() - began, 1)
    agree = all(abs(a - b) <= 0.05 * abs(a) + 1e-3 for a, b in zip(eager, fast, strict=True))
    log({"stage": "compile", "seconds": seconds, "eager": eager, "compiled": fast, "agree": agree})
    return forward if agree else module


def _gradient_of(forward: Forward, setting: Setting, blocks: Blocks) -> tuple[float, float]:
    """Loss and gradient norm of a batch; leaves no gradients behind."""
    parts = loss_of(forward, setting, blocks, torch.zeros(1, dtype=torch.int64, device=blocks.anchor.device))
    torch.autograd.backward(parts.total)
    size = torch.nn.utils.clip_grad_norm_(list(setting.module.parameters()), math.inf)
    setting.module.zero_grad(set_to_none=True)
    return parts.total.item(), size.item()
