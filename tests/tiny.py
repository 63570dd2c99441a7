"""A real but tiny dense target and DSpark drafter with random weights: the whole path without a download."""

from __future__ import annotations

from dataclasses import replace

import torch

from dsbench.runtime.drafters.checkpoint import DrafterShape, expected_shapes
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.drafters.events import event_shapes
from dsbench.runtime.targets.dense import DenseTarget, random_weights
from dsbench.runtime.targets.shape import ModelShape


def tiny_shape(*, layers: int = 4, qk_norm: bool = False) -> ModelShape:
    return ModelShape(
        name="tiny", layers=layers, hidden=32, mlp=48, heads=4, kv_heads=2, head_width=8, vocab=64, context=256,
        rope_theta=1e4, norm_eps=1e-5, tied=True, qk_norm=qk_norm,
    )  # fmt: skip


def tiny_target(device: torch.device | None = None, seed: int = 0) -> DenseTarget:
    """Weights drawn on the CPU, so that every device gets the same ones; larger than usual, so that logits differ."""
    shape = tiny_shape()
    weights = random_weights(shape, torch.device("cpu"), torch.float32, seed)
    weights = {k: w * (8 if w.dim() == 2 else 1) for k, w in weights.items()}
    return DenseTarget(shape, {k: w.to(device or "cpu") for k, w in weights.items()}, digest=f"tiny-{seed}")


def tiny_drafter(
    target: DenseTarget, *, block: int = 4, head: str = "vanilla", vocab: int = 64, events: bool = False
) -> DSparkDrafter:
    """`events`: with a confidence head per event, drawn after the other weights, which stay as they are."""
    shape = DrafterShape(
        layer=replace(tiny_shape(layers=2, qk_norm=True), tied=False), block=block, taps=(0, 2), head=head, rank=8,
        confidence=True, confidence_with_token=True, mask_token=None, draft_vocab=vocab, target_digest=None,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(7)
    weights = random_weights(shape.layer, torch.device("cpu"), torch.float32, 5)
    weights = {k.removeprefix("model."): w * (8 if w.dim() == 2 else 1) for k, w in weights.items()}
    for name, size in expected_shapes(shape).items():
        one = name.endswith("norm.weight")
        weights[name] = torch.ones(size) if one else torch.randn(size, generator=generator) * 0.3
    weights["confidence_head_free.proj.weight"] = torch.randn(1, 32, generator=generator) * 0.3
    weights["confidence_head_free.proj.bias"] = torch.zeros(1)
    if events:
        for name, size in event_shapes(32, 0 if head == "none" else 8).items():
            weights[name] = torch.randn(size, generator=generator) * 0.3
    if vocab != 64:
        weights["draft_vocab_ids"] = torch.arange(0, 64, 64 // vocab, dtype=torch.int32)[:vocab]
    for borrowed in ("embed_tokens.weight", "lm_head.weight"):
        weights.pop(borrowed, None)
    return DSparkDrafter(shape, {k: w.to(target.device) for k, w in weights.items()}, "tiny", target)
