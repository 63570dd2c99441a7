"""The drafter checkpoint: the published layout, our extensions, and a refusal that names the field that misfits.

Published keys (no "model." prefix): fc, hidden_norm, norm, layers.N.*, markov_head.markov_w1 / markov_w2 (gate_proj,
joint_proj), confidence_head.proj; embed_tokens and lm_head may be absent, the target's are used.
Extensions: mask_embedding [D] (a learned mask vector), confidence_head_free.proj (token-free), draft_vocab_ids [V'],
confidence_events and confidence_free_events (a row per event; at run time they replace the two heads).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.drafters.events import event_shapes
from dsbench.runtime.drafters.heads import KINDS, head_shapes
from dsbench.runtime.targets.shape import ModelShape, read_config, rope_theta
from dsbench.runtime.targets.weights import folder_digest, read_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """Sizes and wiring of a block drafter. `layer` reuses the decoder's sizes with per-head q/k norms."""

    layer: ModelShape
    block: int
    taps: tuple[int, ...]
    head: str  # none, vanilla, gated, rnn
    rank: int
    confidence: bool
    confidence_with_token: bool
    mask_token: int | None  # None: the learned mask vector
    draft_vocab: int
    target_digest: str | None


def drafter_shape(config: Mapping[str, Any], name: str) -> DrafterShape:
    """From config.json, with or without the `dspark_` prefix or a nested `dspark_config`. Raises naming the field."""
    try:
        return _drafter_shape(config, name)
    except (TypeError, ValueError) as problem:
        raise UsageError(f"{name}: config.json holds a value of the wrong kind: {problem}") from None


def _drafter_shape(config: Mapping[str, Any], name: str) -> DrafterShape:
    flat = {**config, **(config.get("dspark_config") or config.get("dflash_config") or {})}

    def field(key: str, *default: Any) -> Any:
        for candidate in (key, "dspark_" + key):
            if candidate in flat:
                return flat[candidate]
        if default:
            return default[0]
        raise UsageError(f"{name}: config.json lacks the field {key}", hint="is this a DSpark or DFlash drafter?")

    kinds = field("layer_types", None) or []
    if any(kind != "full_attention" for kind in kinds):
        raise EnvironmentRefused(
            f"{name}: config field layer_types asks for {sorted(set(kinds))}, only full_attention runs"
        )
    rank = int(field("markov_rank", 0))
    head = "none" if rank == 0 else str(field("markov_head_type", "vanilla"))
    if head not in KINDS:
        raise EnvironmentRefused(f"{name}: config field markov_head_type = {head!r} is not supported")
    heads = int(field("num_attention_heads"))
    layer = ModelShape(
        name=name, layers=int(field("num_hidden_layers")), hidden=int(field("hidden_size")),
        mlp=int(field("intermediate_size")), heads=heads, kv_heads=int(field("num_key_value_heads")),
        head_width=int(field("head_dim", int(field("hidden_size")) // heads)), vocab=int(field("vocab_size")),
        context=int(field("max_position_embeddings")), rope_theta=rope_theta(flat, name),
        norm_eps=float(field("rms_norm_eps")), tied=False, qk_norm=True,
    )  # fmt: skip
    block = int(field("block_size"))
    if block < 1:
        raise UsageError(f"{name}: config field block_size must be >= 1, got {block}")
    mask = field("mask_token_id", None)
    if mask is not None and not 0 <= int(mask) < layer.vocab:
        raise UsageError(f"{name}: config field mask_token_id = {mask} lies outside the vocabulary of {layer.vocab}")
    return DrafterShape(
        layer=layer, block=block, taps=tuple(int(t) for t in field("target_layer_ids")), head=head, rank=rank,
        confidence=bool(field("enable_confidence_head", False)),
        confidence_with_token=bool(field("confidence_head_with_markov", True)),
        mask_token=None if mask is None else int(mask), draft_vocab=int(field("draft_vocab_size", layer.vocab)),
        target_digest=field("target_digest", None),
    )  # fmt: skip


def check_against_target(shape: DrafterShape, target: ModelShape, digest: str) -> None:
    """Raises EnvironmentRefused naming what differs between a drafter and the target it is to serve."""
    sizes = (("hidden_size", shape.layer.hidden, target.hidden), ("vocab_size", shape.layer.vocab, target.vocab))
    for name, mine, theirs in sizes:
        if mine != theirs:
            raise EnvironmentRefused(
                f"drafter {shape.layer.name} does not fit target {target.name}: {name} is {mine}, the target's {theirs}"
            )
    if max(shape.taps) >= target.layers - 1 or min(shape.taps) < 0:
        raise EnvironmentRefused(
            f"drafter {shape.layer.name} does not fit target {target.name}: target_layer_ids {list(shape.taps)} must"
            f" lie in 0..{target.layers - 2}"
        )
    if shape.target_digest is not None and shape.target_digest != digest:
        raise EnvironmentRefused(
            f"drafter {shape.layer.name} was trained for target {shape.target_digest}, this target is {digest}",
            hint="retrain it with `dsbench train`, or name its own target",
        )


def expected_shapes(shape: DrafterShape) -> dict[str, tuple[int, ...]]:
    """Every tensor of a checkpoint but the decoder layers' (those are checked as they are fused)."""
    d, r, v = shape.layer.hidden, shape.rank, shape.layer.vocab
    expected: dict[str, tuple[int, ...]] = {
        "fc.weight": (d, d * len(shape.taps)),
        "hidden_norm.weight": (d,),
        "norm.weight": (d,),
    }
    if shape.head != "none":
        expected |= {"markov_head.markov_w1.weight": (v, r), "markov_head.markov_w2.weight": (shape.draft_vocab, r)}
        expected |= {"markov_head." + k: s for k, s in head_shapes(shape.head, d, r).items()}
    if shape.confidence:
        width = d + (r if shape.confidence_with_token and shape.head != "none" else 0)
        expected |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    if shape.mask_token is None:
        expected["mask_embedding"] = (d,)
    return expected


def _optional_shapes(shape: DrafterShape, weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The event heads, weight and bias, of which a checkpoint holds any part."""
    sizes = event_shapes(shape.layer.hidden, 0 if shape.head == "none" else shape.rank)
    held = {name.partition(".")[0] for name in weights}
    return {name: size for name, size in sizes.items() if name.partition(".")[0] in held}


def read_drafter(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[DrafterShape, dict[str, Tensor], str]:
    """Shape, tensors and digest of a drafter folder. Raises UsageError naming a tensor that lacks or misfits."""
    if not folder.is_dir():
        raise UsageError(f"drafter folder {folder} does not exist")
    shape = drafter_shape(read_config(folder), folder.name)
    weights = read_weights(folder, device, dtype)
    for name, size in (expected_shapes(shape) | _optional_shapes(shape, weights)).items():
        if name not in weights:
            raise UsageError(
                f"drafter {folder.name} lacks the tensor {name}",
                hint="config.json, or its other half, says it is there",
            )
        if tuple(weights[name].shape) != size:
            raise UsageError(
                f"drafter {folder.name}: {name} has shape {list(weights[name].shape)}, the config says {list(size)}"
            )
    if shape.draft_vocab != shape.layer.vocab and "draft_vocab_ids" not in weights:
        raise UsageError(f"drafter {folder.name} lacks draft_vocab_ids, its vocabulary is reduced")
    return shape, weights, folder_digest(folder)
