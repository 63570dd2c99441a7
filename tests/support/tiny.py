"""A real but tiny dense target, DSpark and chain drafter with random weights: the whole path without a download."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save_file

from dsbench.runtime.drafters.checkpoint import DrafterShape, expected_shapes
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.drafters.events import event_shapes
from dsbench.runtime.drafters.heads import token_width
from dsbench.runtime.drafters.mtp import MtpDrafter
from dsbench.runtime.drafters.mtp_checkpoint import MtpShape, expected_mtp_shapes
from dsbench.runtime.targets.base import Target
from dsbench.runtime.targets.dense import random_weights
from dsbench.runtime.targets.load import build_target
from dsbench.runtime.targets.shape import ModelShape


def tiny_shape(*, layers: int = 4, qk_norm: bool = False) -> ModelShape:
    return ModelShape(
        name="tiny",
        layers=layers,
        hidden=32,
        mlp=48,
        heads=4,
        kv_heads=2,
        head_width=8,
        vocab=64,
        context=256,
        rope_theta=1e4,
        norm_eps=1e-5,
        tied=True,
        qk_norm=qk_norm,
    )


def tiny_target(device: torch.device | None = None, seed: int = 0) -> Target:
    """Weights drawn on the CPU, so that every device gets the same ones; larger than usual, so that logits differ."""
    weights = tiny_target_weights(seed)
    return build_target(tiny_shape(), {k: w.to(device or "cpu") for k, w in weights.items()}, digest=f"tiny-{seed}")


def tiny_target_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    weights = random_weights(tiny_shape(), torch.device("cpu"), torch.float32, seed)
    return {k: w * (8 if w.dim() == 2 else 1) for k, w in weights.items()}


def tiny_drafter(
    target: Target, *, block: int = 4, head: str = "vanilla", vocab: int = 64, events: bool = False
) -> DSparkDrafter:
    """`events`: with a confidence head per event, drawn after the other weights, which stay as they are."""
    shape = DrafterShape(
        layer=replace(tiny_shape(layers=2, qk_norm=True), tied=False),
        block=block,
        taps=(0, 2),
        head=head,
        rank=8,
        confidence=True,
        confidence_with_token=True,
        mask_token=None,
        draft_vocab=vocab,
        target_digest=None,
    )
    generator = torch.Generator().manual_seed(7)
    weights = random_weights(shape.layer, torch.device("cpu"), torch.float32, 5)
    weights = {k.removeprefix("model."): w * (8 if w.dim() == 2 else 1) for k, w in weights.items()}
    for name, size in expected_shapes(shape).items():
        one = name.endswith("norm.weight")
        weights[name] = torch.ones(size) if one else torch.randn(size, generator=generator) * 0.3
    weights["confidence_head_free.proj.weight"] = torch.randn(1, 32, generator=generator) * 0.3
    weights["confidence_head_free.proj.bias"] = torch.zeros(1)
    if events:
        for name, size in event_shapes(32, token_width(head, 8)).items():
            weights[name] = torch.randn(size, generator=generator) * 0.3
    if vocab != 64:
        weights["draft_vocab_ids"] = torch.arange(0, 64, 64 // vocab, dtype=torch.int32)[:vocab]
    for borrowed in ("embed_tokens.weight", "lm_head.weight"):
        weights.pop(borrowed, None)
    return DSparkDrafter(shape, {k: w.to(target.device) for k, w in weights.items()}, "tiny", target)


def tiny_mtp_weights(shape: MtpShape) -> dict[str, torch.Tensor]:
    """All tensors of a chain checkpoint, large enough that the layer, the token and the state before it all matter."""
    generator = torch.Generator().manual_seed(9)
    weights = random_weights(shape.layer, torch.device("cpu"), torch.float32, 6)
    weights = {k.removeprefix("model."): w * (8 if w.dim() == 2 else 1) for k, w in weights.items() if ".layers." in k}
    for name, size in expected_mtp_shapes(shape).items():
        if name == "draft_vocab_ids":
            weights[name] = torch.arange(0, 64, 64 // shape.draft_vocab, dtype=torch.int32)[: shape.draft_vocab]
        else:
            weights[name] = torch.randn(size, generator=generator) * 0.2 + name.endswith("norm.weight")
    return weights


def tiny_mtp_shape(*, block: int = 3, vocab: int = 64, target_digest: str | None = None) -> MtpShape:
    return MtpShape(
        layer=replace(tiny_shape(layers=1, qk_norm=True), tied=False),
        block=block,
        confidence=True,
        draft_vocab=vocab,
        target_digest=target_digest,
    )


def tiny_mtp(target: Target, *, block: int = 3, vocab: int = 64) -> MtpDrafter:
    shape = tiny_mtp_shape(block=block, vocab=vocab)
    return MtpDrafter(shape, {k: w.to(target.device) for k, w in tiny_mtp_weights(shape).items()}, "tiny-mtp", target)


def write_mtp(folder: Path, *, block: int = 3, vocab: int = 64, lacks: str = "", holds=None, **changes: object) -> Path:
    """The tiny chain drafter's checkpoint; `changes` to its config, `lacks` a field or tensor to leave out, `holds`
    tensors in place of its own."""
    shape = tiny_mtp_shape(block=block, vocab=vocab)
    layer = shape.layer
    folder.mkdir()
    weights = tiny_mtp_weights(shape) | (holds or {})
    save_file({k: w.clone() for k, w in weights.items() if k != lacks}, folder / "model.safetensors")
    config = {
        "architectures": ["DsbenchMTP"],
        "model_type": "mtp",
        "num_hidden_layers": 1,
        "block_size": block,
        "hidden_size": layer.hidden,
        "intermediate_size": layer.mlp,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_width,
        "vocab_size": layer.vocab,
        "max_position_embeddings": layer.context,
        "rms_norm_eps": layer.norm_eps,
        "rope_theta": layer.rope_theta,
        "draft_vocab_size": vocab,
        "enable_confidence_head": True,
    }
    kept = {k: v for k, v in (config | changes).items() if k != lacks}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder
