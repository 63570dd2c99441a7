"""One step's forward and loss, plain or compiled, and what a training holds. Compiled code is believed
once it agrees with the plain code on a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dsbench.runtime.training.batches import BatchMaker, Blocks
from dsbench.runtime.training.evaluate import Heads, drafter_inputs
from dsbench.runtime.training.generate import Log
from dsbench.runtime.training.loss import LossParts, RowsFn, draft_loss, rows_gradient
from dsbench.runtime.training.module import DrafterModule

Forward = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What the loop trains and on what."""

    module: DrafterModule
    maker: BatchMaker
    heads: Heads
    vocabulary: Tensor  # [V'] int32
    splits: dict[int, Tensor]  # sequence indices of each split


def loss_of(forward: Forward, rows: RowsFn, setting: Setting, blocks: Blocks) -> LossParts:
    x, with_token, free = forward(*drafter_inputs(blocks, setting.heads))
    head = setting.module.markov_head
    w2 = None if head is None else head.markov_w2.weight
    return draft_loss(
        x, with_token, free, w2, setting.heads.head, blocks.last, blocks.lse, blocks.label, blocks.weight, rows
    )


def compiled(setting: Setting, blocks: Blocks, log: Log) -> tuple[Forward, RowsFn]:
    """The compiled forward and loss, tried on `blocks` against the plain ones; the plain ones where that fails."""
    module, began = setting.module, time.perf_counter()
    plain = _gradient_of(module, rows_gradient, setting, blocks)
    try:
        forward: Forward = torch.compile(module, dynamic=False)
        rows: RowsFn = torch.compile(rows_gradient, dynamic=False)
        fast = _gradient_of(forward, rows, setting, blocks)
    except Exception as problem:  # the compiler's failures have no common type
        log({"stage": "compile", "fallback": f"{type(problem).__name__}: {problem}"[:2000]})
        module.zero_grad(set_to_none=True)
        return module, rows_gradient
    seconds = round(time.perf_counter() - began, 1)
    agree = all(abs(a - b) <= 0.05 * abs(a) + 1e-3 for a, b in zip(plain, fast, strict=True))
    log({"stage": "compile", "seconds": seconds, "plain": plain, "compiled": fast, "agree": agree})
    return (forward, rows) if agree else (module, rows_gradient)


def _gradient_of(forward: Forward, rows: RowsFn, setting: Setting, blocks: Blocks) -> tuple[float, float]:
    """Loss and gradient norm of a batch; leaves no gradients behind."""
    parts = loss_of(forward, rows, setting, blocks)
    torch.autograd.backward(parts.total)
    size = torch.nn.utils.clip_grad_norm_(list(setting.module.parameters()), math.inf)
    setting.module.zero_grad(set_to_none=True)
    return parts.total.item(), size.item()
