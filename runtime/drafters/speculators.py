"""Block drafters that vLLM's `speculators` saved, in terms of the published layout.

Theirs differ in four things: sizes of the layers lie in `transformer_layer_config`; a layer id names what enters that
layer, so that it is one more than the layer whose output is tapped; absent fields have defaults of their own; and a
reduced vocabulary is `d2t` [V'], how much an id of the target exceeds its place, beside `t2d` [V], whether it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.drafters.tensors import IDS

KIND, LAYER, TAPS = "speculators_model_type", "transformer_layer_config", "aux_hidden_state_layer_ids"
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "dspark": {
        "sample_from_anchor": True,
        "markov_rank": 256,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    },
    "dflash": {"sample_from_anchor": False, "markov_rank": 0},
}
UNUSED = ("verifier_norm.weight", "verifier_lm_head.weight")  # the target's own, kept for training


def is_speculators(config: Mapping[str, Any]) -> bool:
    return KIND in config


def published_config(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The config in the published layout. Raises EnvironmentRefused for a kind of drafter that does not run."""
    kind = config[KIND]
    if kind not in DEFAULTS:
        raise EnvironmentRefused(
            f"{name}: config field {KIND} = {kind!r} is not supported", hint=f"{' and '.join(DEFAULTS)} are"
        )
    layer, taps = config.get(LAYER), config.get(TAPS)
    if not isinstance(layer, Mapping):
        raise UsageError(f"{name}: config field {LAYER} must be an object, got {layer!r}")
    if not isinstance(taps, list) or not taps or any(type(i) is not int for i in taps):
        raise UsageError(f"{name}: config field {TAPS} must be a list of layer numbers, got {taps!r}")
    if config.get("projector_type", "dflash") != "dflash":
        raise EnvironmentRefused(f"{name}: config field projector_type = {config['projector_type']!r} is not supported")
    width, own = config.get("target_hidden_size"), layer.get("hidden_size")
    if width not in (None, own):
        raise EnvironmentRefused(f"{name}: config field target_hidden_size = {width}, but hidden_size = {own}")
    given = {key: value for key, value in config.items() if key not in (KIND, LAYER, TAPS) and value is not None}
    if config.get("sliding_window_non_causal"):
        given["is_causal"] = False
    return {**layer, **DEFAULTS[kind], **given, "target_layer_ids": [i - 1 for i in taps]}


def published_weights(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """The tensors under their published names. Raises UsageError where `d2t` and `t2d` disagree."""
    kept = {key: tensor for key, tensor in weights.items() if key not in (*UNUSED, "d2t", "t2d")}
    offset, there = weights.get("d2t"), weights.get("t2d")
    if offset is None:
        return kept
    if offset.dim() != 1 or offset.dtype not in (torch.int32, torch.int64):
        raise UsageError(f"drafter {name}: d2t is no list of whole numbers")
    ids = torch.arange(offset.shape[0], device=offset.device) + offset.long()
    if there is not None and not torch.equal(there.bool().nonzero().flatten(), ids):
        raise UsageError(f"drafter {name}: d2t and t2d name different ids", hint="is d2t relative to its place?")
    return kept | {IDS: ids}
