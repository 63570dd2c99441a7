"""The chain drafter's checkpoint: config.json (`DsbenchMTP`), tensors, and a refusal that names what misfits.

Tensors: fc, embed_norm, norm, layers.0.* (a Qwen3 layer), confidence_head.proj, and draft_vocab_ids [V'] where the
draft vocabulary is reduced. Embedding and head are the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.drafters.checkpoint import check_sizes, check_tensors, check_trained_for
from dsbench.runtime.targets.shape import ModelShape, read_config, rope_theta
from dsbench.runtime.targets.weights import folder_digest, read_weights

ARCHITECTURE, MODEL_TYPE = "DsbenchMTP", "mtp"


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpShape:
    """Sizes of a chain drafter: one layer with per-head q/k norms, `block` steps at most."""

    layer: ModelShape
    block: int
    confidence: bool
    draft_vocab: int
    target_digest: str | None


def is_mtp(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a chain drafter."""
    return ARCHITECTURE in (config.get("architectures") or ()) or config.get("model_type") == MODEL_TYPE


def mtp_shape(config: Mapping[str, Any], name: str) -> MtpShape:
    """From config.json. Raises UsageError, or EnvironmentRefused for what cannot run, naming the field."""
    if not is_mtp(config):
        raise UsageError(
            f"{name}: config field architectures is {config.get('architectures')}, a chain drafter's is"
            f" {[ARCHITECTURE]}",
            hint="a block drafter goes to --drafter",
        )
    try:
        return _mtp_shape(config, name)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"{name}: config.json holds a value of the wrong kind: {problem}") from None


def _mtp_shape(config: Mapping[str, Any], name: str) -> MtpShape:
    def field(key: str) -> Any:
        if key not in config:
            raise UsageError(f"{name}: config.json lacks the field {key}", hint="is this a chain drafter?")
        return config[key]

    def size(key: str) -> int:
        value = int(field(key))
        if value < 1:
            raise UsageError(f"{name}: config field {key} must be >= 1, got {value}")
        return value

    layer = ModelShape(
        name=name, layers=size("num_hidden_layers"), hidden=size("hidden_size"), mlp=size("intermediate_size"),
        heads=size("num_attention_heads"), kv_heads=size("num_key_value_heads"), head_width=size("head_dim"),
        vocab=size("vocab_size"), context=size("max_position_embeddings"), rope_theta=rope_theta(config, name),
        norm_eps=float(field("rms_norm_eps")), tied=False, qk_norm=True,
    )  # fmt: skip
    if layer.layers != 1:
        raise EnvironmentRefused(f"{name}: config field num_hidden_layers = {layer.layers}, only a chain of 1 runs")
    if layer.hidden % 2:  # the pool keeps a state as two halves
        raise EnvironmentRefused(f"{name}: config field hidden_size = {layer.hidden} must be even")
    draft_vocab = layer.vocab if config.get("draft_vocab_size") is None else size("draft_vocab_size")
    return MtpShape(
        layer=layer, block=size("block_size"), confidence=bool(config.get("enable_confidence_head", False)),
        draft_vocab=draft_vocab, target_digest=config.get("target_digest"),
    )  # fmt: skip


def check_mtp_against_target(shape: MtpShape, target: ModelShape, digest: str) -> None:
    """Raises EnvironmentRefused naming what differs between a chain drafter and the target it is to serve."""
    check_sizes(shape.layer, target)
    check_trained_for(shape.layer.name, shape.target_digest, digest)


def expected_mtp_shapes(shape: MtpShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint but the decoder layer's (those are checked as they are fused)."""
    d = shape.layer.hidden
    expected: dict[str, tuple[int, ...]] = {"fc.weight": (d, 2 * d), "embed_norm.weight": (d,), "norm.weight": (d,)}
    if shape.confidence:
        expected |= {"confidence_head.proj.weight": (1, d), "confidence_head.proj.bias": (1,)}
    if shape.draft_vocab != shape.layer.vocab:
        expected["draft_vocab_ids"] = (shape.draft_vocab,)
    return expected


def read_mtp(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[MtpShape, dict[str, Tensor], str]:
    """Shape, tensors and digest of a chain drafter's folder. Raises UsageError naming what lacks or misfits."""
    shape = mtp_shape(read_config(folder), folder.name)
    weights = read_weights(folder, device, dtype)
    check_tensors(folder.name, weights, expected_mtp_shapes(shape))
    ids = weights.get("draft_vocab_ids")
    if ids is not None and not 0 <= int(ids.min()) <= int(ids.max()) < shape.layer.vocab:
        raise UsageError(f"drafter {folder.name}: draft_vocab_ids lie outside the vocabulary of {shape.layer.vocab}")
    return shape, weights, folder_digest(folder)
