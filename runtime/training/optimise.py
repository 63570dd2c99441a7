"""The optimisers, Muon for matrices inside the drafter and AdamW for all else, and the learning-rate schedule.

Muon (Jordan et al., 2024) takes the orthogonal part of the momentum. Its updates are scaled to the size of AdamW's
(Liu et al., arXiv 2502.16982), so that one schedule serves both. Token tables and single rows use AdamW.
Everything a step needs is on the device, so that a step can be captured in a graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dsbench.runtime.training.options import TrainOptions

WARM_UP = 0.04  # of the time
BETAS = (0.9, 0.95)
MOMENTUM = 0.95
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # coefficients of the quintic; five rounds bring singular values near 1
ROUNDS = 5
RMS = 0.2  # of an AdamW update, which Muon's are scaled to
TABLES = ("markov_w1", "markov_w2")


class Muon:
    """Updates matrices of one shape, up to a transpose, as one stack. Torch's own Muon updates them one by one, 5 ms of
    launches a step here, and cannot be captured.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        by_shape: dict[tuple[int, int], list[nn.Parameter]] = {}
        for p in parameters:
            by_shape.setdefault((min(p.shape), max(p.shape)), []).append(p)
        self.groups = list(by_shape.values())
        self.momentum = [torch.stack([_wide(p.detach()) for p in group]) * 0 for group in self.groups]

    @torch.no_grad()
    def step(self, lr: Tensor) -> None:
        for group, momentum in zip(self.groups, self.momentum, strict=True):
            grads = torch.stack([_wide(p.grad) for p in group if p.grad is not None])
            momentum.lerp_(grads, 1 - MOMENTUM)
            update = orthogonal(grads.lerp(momentum, MOMENTUM))
            size = RMS * math.sqrt(max(group[0].shape))
            for p, u in zip(group, update.unbind(), strict=True):
                p.sub_((u if p.shape == u.shape else u.t()).to(p.dtype) * (lr * size))


@torch.no_grad()
def orthogonal(matrices: Tensor) -> Tensor:
    """The nearest matrices with orthonormal rows, roughly (singular values in 0.7..1.2), of [n, r, c], r <= c.

    In bf16, but in fp32 on a CPU: without instructions for bf16 its products take 30 times as long, minutes a step.
    """
    a, b, c = NEWTON_SCHULZ
    x: Tensor = matrices.bfloat16() if matrices.is_cuda else matrices.float()
    x = x / (x.float().norm(dim=(1, 2), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(ROUNDS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


def _wide(matrix: Tensor) -> Tensor:
    return matrix if matrix.shape[0] <= matrix.shape[1] else matrix.t()


class Optimiser:
    """Both optimisers as one, with the learning rate in the tensor `lr`."""

    def __init__(self, module: nn.Module, options: TrainOptions) -> None:
        named = list(module.named_parameters())
        matrices = [p for n, p in named if options.muon and inside(n, p)]
        chosen = {id(p) for p in matrices}
        rest = [p for _, p in named if id(p) not in chosen]
        device = rest[0].device
        cuda = device.type == "cuda"
        self.lr, self.share = torch.zeros((), device=device), options.muon_share
        self.muon = Muon(matrices)
        self.adam = torch.optim.AdamW(
            rest, lr=self.lr.clone(), betas=BETAS, weight_decay=0.0, fused=cuda, capturable=cuda, foreach=False
        )

    def step(self) -> None:
        self.adam.param_groups[0]["lr"].copy_(self.lr)
        self.adam.step()
        self.muon.step(self.lr * self.share)

    def state(self) -> dict[str, Any]:
        return {"adam": self.adam.state_dict(), "muon": self.muon.momentum}

    def load(self, state: dict[str, Any]) -> None:
        self.adam.load_state_dict(state["adam"])
        for mine, kept in zip(self.muon.momentum, state["muon"], strict=True):
            mine.copy_(kept)


def inside(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a matrix between hidden states."""
    return parameter.ndim == 2 and min(parameter.shape) > 8 and not any(table in name for table in TABLES)


def learning_rate(fraction: float, peak: float) -> float:
    """Linear warm-up over the first 4% of the budget, cosine to 0 over the rest."""
    if fraction < WARM_UP:
        return peak * fraction / WARM_UP
    return peak * 0.5 * (1 + math.cos(math.pi * min(1.0, (fraction - WARM_UP) / (1 - WARM_UP))))
