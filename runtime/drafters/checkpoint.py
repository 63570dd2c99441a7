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
from dsbench.runtime.drafters.fields import (
    MOST_BLOCK,
    MOST_LAYERS,
    Fields,
    check_fixed,
    layer_attention,
    rotary_base,
    samples_from_anchor,
)
from dsbench.runtime.drafters.heads import KINDS, head_shapes, token_width
from dsbench.runtime.drafters.speculators import is_speculators, published_config, published_weights
from dsbench.runtime.drafters.tensors import IDS, check_contents, check_shapes, layer_names
from dsbench.runtime.targets.config import read_config
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.targets.weights import folder_digest, read_weights

EMBEDDING = -1  # as a tap: what enters the first layer


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterShape:
    """Sizes and wiring of a block drafter. `layer` reuses the decoder's sizes with per-head q/k norms.

    `block`: drafts of a round; a block that does not draw from its anchor has a row more (`rows`).
    """

    layer: ModelShape
    block: int
    taps: tuple[int, ...]  # layers whose outputs are read; -1: the target's embedding
    head: str  # none, vanilla, gated, rnn
    rank: int
    confidence: bool
    confidence_with_token: bool
    mask_token: int | None  # None: the learned mask vector
    draft_vocab: int
    target_digest: str | None
    target_layers: int | None = None  # of the target it was trained for; None: not said
    windows: tuple[int | None, ...] = ()  # sliding window of each layer; empty: every layer sees the whole context
    causal: tuple[bool, ...] = ()  # layers whose block rows see no row after themselves; empty: none
    from_anchor: bool = True  # the anchor's row proposes the first draft; False: each row proposes its own token

    @property
    def rows(self) -> int:
        return self.block + (not self.from_anchor)

    def window_of(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def causal_in(self, layer: int) -> bool:
        return bool(self.causal) and self.causal[layer]


def drafter_shape(config: Mapping[str, Any], name: str) -> DrafterShape:
    """From config.json, with or without the `dspark_` prefix or a nested `dspark_config`, or as `speculators` has it.

    Raises naming the field.
    """
    fields = Fields(published_config(config, name) if is_speculators(config) else config, name)
    check_fixed(fields)
    rank = fields.integer("markov_rank", 0, least=0)
    head = "none" if rank == 0 else str(fields.get("markov_head_type") or "vanilla")
    if head not in KINDS or (head == "none") != (rank == 0):
        raise EnvironmentRefused(f"{name}: config field markov_head_type = {head!r} is not supported")
    layer = layer_shape(fields)
    mask = fields.integer("mask_token_id" if fields.get("mask_token_id") is not None else "noise_token_id", -1, least=0)
    if mask >= layer.vocab:
        raise UsageError(f"{name}: config field mask_token_id = {mask} lies outside the vocabulary of {layer.vocab}")
    draft_vocab = fields.integer("draft_vocab_size", layer.vocab)
    if draft_vocab > layer.vocab:
        raise fields.wrong("draft_vocab_size", f"<= vocab_size = {layer.vocab}")
    windows, causal = layer_attention(fields, layer.layers)
    from_anchor = samples_from_anchor(fields)
    return DrafterShape(
        layer=layer,
        block=fields.integer("block_size", least=1 if from_anchor else 2, most=MOST_BLOCK) - (not from_anchor),
        taps=fields.layer_ids("target_layer_ids"),
        head=head,
        rank=rank,
        confidence=fields.flag("enable_confidence_head", False),
        confidence_with_token=fields.flag("confidence_head_with_markov", True),
        mask_token=None if mask < 0 else mask,
        draft_vocab=draft_vocab,
        target_digest=fields.get("target_digest"),
        target_layers=fields.integer("num_target_layers", 0) or None,
        windows=windows,
        causal=causal,
        from_anchor=from_anchor,
    )


def layer_shape(fields: Fields) -> ModelShape:
    """Sizes of a drafter's layers, with per-head q/k norms. Raises UsageError naming the field."""
    hidden, heads, kv_heads = (
        fields.integer(key) for key in ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    if heads % kv_heads:
        raise fields.wrong("num_key_value_heads", f"a divisor of num_attention_heads = {heads}")
    width = fields.integer("head_dim", hidden // heads)
    if width % 2:  # the rotary embedding turns pairs
        raise UsageError(f"{fields.name}: config field head_dim must be even, got {width}")
    return ModelShape(
        name=fields.name,
        layers=fields.integer("num_hidden_layers", most=MOST_LAYERS),
        hidden=hidden,
        mlp=fields.integer("intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_width=width,
        vocab=fields.integer("vocab_size"),
        context=fields.integer("max_position_embeddings"),
        rope_theta=rotary_base(fields),
        norm_eps=fields.number("rms_norm_eps"),
        tied=False,
        qk_norm=True,
    )


def check_against_target(shape: DrafterShape, target: ModelShape, digest: str) -> None:
    """Raises EnvironmentRefused naming what differs between a drafter and the target it is to serve.

    A drafter trained here may tap the last layer's output and, as the tap after it, the final norm's; of a published
    one nobody knows which it means.
    """
    check_sizes(shape.layer, shape.target_layers, target)
    most = target.layers - (2 if shape.target_digest is None else 0)
    if max(shape.taps) > most or min(shape.taps) < EMBEDDING:
        raise EnvironmentRefused(
            f"drafter {shape.layer.name} does not fit target {target.name}: target_layer_ids {list(shape.taps)} must"
            f" lie in {EMBEDDING}..{most}"
        )
    check_trained_for(shape.layer.name, shape.target_digest, digest)


def check_sizes(layer: ModelShape, target_layers: int | None, target: ModelShape) -> None:
    """Raises EnvironmentRefused if a drafter cannot read the target's states, propose its ids, or names its depth."""
    for name, mine, theirs in (
        ("hidden_size", layer.hidden, target.hidden),
        ("vocab_size", layer.vocab, target.vocab),
        ("num_target_layers", target_layers or target.layers, target.layers),
    ):
        if mine != theirs:
            raise EnvironmentRefused(
                f"drafter {layer.name} does not fit target {target.name}: {name} is {mine}, the target's {theirs}"
            )


def check_trained_for(name: str, wanted: str | None, digest: str) -> None:
    """Raises EnvironmentRefused if the drafter names another target than the one with `digest`."""
    if wanted is not None and wanted != digest:
        raise EnvironmentRefused(
            f"drafter {name} was trained for target {wanted}, this target is {digest}",
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
        if shape.head != "deep":
            expected["markov_head.markov_w1.weight"] = (v, r)
        expected["markov_head.markov_w2.weight"] = (shape.draft_vocab, r)
        expected |= {"markov_head." + k: s for k, s in head_shapes(shape.head, d, r).items()}
    if shape.confidence:
        width = d + (token_width(shape.head, r) if shape.confidence_with_token else 0)
        expected |= {"confidence_head.proj.weight": (1, width), "confidence_head.proj.bias": (1,)}
    if shape.mask_token is None:
        expected["mask_embedding"] = (d,)
    return expected


def optional_shapes(shape: DrafterShape) -> dict[str, tuple[int, ...]]:
    """Tensors that may be absent; a head's rows are the vocabulary or the draft vocabulary."""
    d, v = shape.layer.hidden, shape.layer.vocab
    return {
        "embed_tokens.weight": (v, d),
        "lm_head.weight": (v, d),
        IDS: (shape.draft_vocab,),
        "confidence_head_free.proj.weight": (1, d),
        "confidence_head_free.proj.bias": (1,),
        **event_shapes(d, token_width(shape.head, shape.rank)),
    }


def read_drafter(folder: Path, device: torch.device, dtype: torch.dtype) -> tuple[DrafterShape, dict[str, Tensor], str]:
    """Shape, tensors and digest of a drafter folder. Raises UsageError naming a tensor that does not fit."""
    if not folder.is_dir():
        raise UsageError(f"drafter folder {folder} does not exist")
    config = read_config(folder)
    shape = drafter_shape(config, folder.name)
    weights = read_weights(folder, device, dtype)
    if is_speculators(config):
        weights = published_weights(weights, folder.name)
    _check_tensors(shape, weights, folder.name)
    return shape, weights, folder_digest(folder)


def _check_tensors(shape: DrafterShape, weights: Mapping[str, Tensor], drafter: str) -> None:
    expected, optional = expected_shapes(shape), optional_shapes(shape)
    if shape.draft_vocab != shape.layer.vocab:
        expected[IDS] = optional.pop(IDS)
        if weights.get("lm_head.weight", torch.empty(0)).shape[0] == shape.draft_vocab:
            optional["lm_head.weight"] = (shape.draft_vocab, shape.layer.hidden)
    for name in ("confidence_head_free.proj", "confidence_events", "confidence_free_events"):
        for part, other in ((".weight", ".bias"), (".bias", ".weight")):
            if name + part in weights:
                expected[name + other] = optional[name + other]
    check_shapes(drafter, weights, expected | {t: size for t, size in optional.items() if t in weights})
    known = {*expected, *optional, *layer_names(shape.layer.layers)}
    check_contents(drafter, weights, known, shape.layer.vocab)
