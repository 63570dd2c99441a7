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
from dsbench.runtime.drafters.checkpoint import check_sizes, check_trained_for, layer_shape
from dsbench.runtime.drafters.fields import MOST_BLOCK, Fields, check_fixed
from dsbench.runtime.drafters.tensors import IDS, check_contents, check_shapes, layer_names
from dsbench.runtime.targets.config import read_config
from dsbench.runtime.targets.shape import ModelShape
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
    target_layers: int | None = None  # of the target it was trained for; None: not said


def is_mtp(config: Mapping[str, Any], name: str) -> bool:
    """Whether a config.json is that of a chain drafter. Raises UsageError for architectures that are no names."""
    architectures = config.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(isinstance(a, str) for a in architectures)
    ):
        raise UsageError(f"{name}: config field architectures must be a list of names, got {architectures!r}")
    return ARCHITECTURE in (architectures or ()) or config.get("model_type") == MODEL_TYPE


def mtp_shape(config: Mapping[str, Any], name: str) -> MtpShape:
    """From config.json. Raises UsageError, or EnvironmentRefused for what cannot run, naming the field."""
    if not is_mtp(config, name):
        raise UsageError(
            f"{name}: config field architectures is {config.get('architectures')}, a chain drafter's is"
            f" {[ARCHITECTURE]}",
            hint="a block drafter goes to --drafter",
        )
    fields = Fields(config, name, "chain")
    check_fixed(fields)
    fields.need("head_dim")
    layer = layer_shape(fields)
    if layer.layers != 1:
        raise EnvironmentRefused(f"{name}: config field num_hidden_layers = {layer.layers}, only a chain of 1 runs")
    if layer.hidden % 2:  # the pool keeps a state as two halves
        raise EnvironmentRefused(f"{name}: config field hidden_size = {layer.hidden} must be even")
    return MtpShape(
        layer=layer,
        block=fields.integer("block_size", most=MOST_BLOCK),
        confidence=fields.flag("enable_confidence_head", False),
        draft_vocab=fields.integer("draft_vocab_size", layer.vocab),
        target_digest=fields.get("target_digest"),
        target_layers=fields.integer("num_target_layers", 0) or None,
    )


def check_mtp_against_target(shape: MtpShape, target: ModelShape, digest: str) -> None:
    """Raises EnvironmentRefused naming what differs between a chain drafter and the target it is to serve."""
    check_sizes(shape.layer, shape.target_layers, target)
    check_trained_for(shape.layer.name, shape.target_digest, digest)


def expected_mtp_shapes(shape: MtpShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint but the decoder layer's (those are checked as they are fused)."""
    d = shape.layer.hidden
    expected: dict[str, tuple[int, ...]] = {"fc.weight": (d, 2 * d), "embed_norm.weight": (d,), "norm.weight": (d,)}
    if shape.confidence:
        expected |= {"confidence_head.proj.weight": (1, d), "confidence_head.proj.bias": (1,)}
    if shape.draft_vocab != shape.layer.vocab:
        expected[IDS] = (shape.draft_vocab,)
    return expected


def read_mtp(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[MtpShape, dict[str, Tensor], str]:
    """Shape, tensors and digest of a chain drafter's folder. Raises UsageError naming what lacks or misfits."""
    shape = mtp_shape(read_config(folder), folder.name)
    weights = read_weights(folder, device, dtype)
    expected = expected_mtp_shapes(shape)
    check_shapes(folder.name, weights, expected)
    check_contents(folder.name, weights, {*expected, *layer_names(1)}, shape.layer.vocab)
    return shape, weights, folder_digest(folder)
