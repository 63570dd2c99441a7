"""Tensors of a drafter's checkpoint against what its config.json says; a refusal names the tensor."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from dsbench.errors import UsageError

IDS = "draft_vocab_ids"
IGNORED = "rotary_emb.inv_freq"  # a buffer that older transformers saved: what it holds follows from rope_theta
LAYER = (
    "input_layernorm",
    "post_attention_layernorm",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
    *(f"self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj", "o_proj", "q_norm", "k_norm")),
)


def layer_names(layers: int) -> set[str]:
    """The tensors of that many decoder layers; their shapes are checked as they are fused."""
    return {f"layers.{i}.{part}.weight" for i in range(layers) for part in LAYER}


def check_shapes(drafter: str, weights: Mapping[str, Tensor], expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises UsageError naming the first tensor that lacks or misfits."""
    for name, size in expected.items():
        if name not in weights:
            raise UsageError(
                f"drafter {drafter} lacks the tensor {name}", hint="config.json, or its other half, says it is there"
            )
        if tuple(weights[name].shape) != size:
            raise UsageError(
                f"drafter {drafter}: {name} has shape {list(weights[name].shape)}, the config says {list(size)}"
            )


def check_contents(drafter: str, weights: Mapping[str, Tensor], known: Collection[str], vocab: int) -> None:
    """Raises UsageError naming a tensor that is not `known`, is of the wrong kind or holds a NaN or an infinity."""
    for name, tensor in sorted(weights.items()):
        if name.endswith(IGNORED):
            continue
        if name not in known:
            raise UsageError(
                f"drafter {drafter} holds the tensor {name}, which its config.json does not speak of",
                hint="running without it would run another model",
            )
        if name == IDS:
            _check_ids(drafter, tensor, vocab)
        elif not tensor.is_floating_point():
            raise UsageError(f"drafter {drafter}: {name} holds {_kind(tensor)}, not floating-point numbers")
        elif not bool(tensor.isfinite().all()):
            raise UsageError(
                f"drafter {drafter}: {name} holds a NaN or an infinity",
                hint="the checkpoint is damaged; fetch it again",
            )


def _check_ids(drafter: str, ids: Tensor, vocab: int) -> None:
    """Rows of a head are told apart by their ids, whose order is that of the ids."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise UsageError(f"drafter {drafter}: {IDS} holds {_kind(ids)}, not int32 or int64")
    if int(ids.min()) < 0 or int(ids.max()) >= vocab:
        raise UsageError(f"drafter {drafter}: {IDS} reach outside the vocabulary of {vocab}")
    if not bool((ids[1:] > ids[:-1]).all()):
        raise UsageError(f"drafter {drafter}: {IDS} must increase from each to the next")


def reduced_ids(weights: Mapping[str, Tensor], vocab: int) -> Tensor | None:
    """int64 ids [V'] of a reduced draft vocabulary; None where it is the whole one, whose ids stand in order."""
    ids = weights.get(IDS)
    return None if ids is None or ids.shape[0] == vocab else ids.long()


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
