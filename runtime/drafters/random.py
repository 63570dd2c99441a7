"""A drafter of the published size on random weights, for shape targets: its cost is realistic, its drafts are noise."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dsbench.runtime.drafters.checkpoint import DrafterShape, expected_shapes
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.targets.base import Target
from dsbench.runtime.targets.dense import random_weights
from dsbench.runtime.targets.traits import Traits

LAYERS, RANK, BLOCK, TAPS = 5, 256, 7, 5  # of the released checkpoints


def random_drafter(target: Target, seed: int = 0) -> DSparkDrafter:
    """Five layers of the target's sizes, rank 256, gamma 7, taps spread from layer 1 to the last but two."""
    layers = target.shape.layers
    taps = tuple(sorted({round(1 + i * (layers - 4) / (TAPS - 1)) for i in range(TAPS)}))
    layer = replace(
        target.shape, name="random drafter", layers=LAYERS, qk_norm=True, tied=False, vocab=1, traits=Traits()
    )
    weights = random_weights(layer, target.device, target.dtype, seed)
    weights = {k.removeprefix("model."): w for k, w in weights.items() if k.startswith("model.layers.")}
    shape = DrafterShape(
        layer=replace(layer, vocab=target.shape.vocab),
        block=BLOCK,
        taps=taps,
        head="vanilla",
        rank=RANK,
        confidence=True,
        confidence_with_token=True,
        mask_token=None,
        draft_vocab=target.shape.vocab,
        target_digest=None,
    )
    generator = torch.Generator(device=target.device).manual_seed(seed)

    def made(name: str, size: tuple[int, ...]) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(size, device=target.device, dtype=target.dtype)
        noise = torch.randn(size, generator=generator, device=target.device, dtype=target.dtype)
        return noise * 0.02

    weights |= {name: made(name, size) for name, size in expected_shapes(shape).items()}
    return DSparkDrafter(shape, weights, f"random-{target.shape.name}-{seed}", target)
