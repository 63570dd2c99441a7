"""Writes a drafter's folder atomically: config.json, bf16 shards with their index, the card."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from dsbench.profiles.card import card_text
from dsbench.runtime.drafters.checkpoint import DrafterShape
from dsbench.runtime.drafters.fields import FULL, SLIDING
from dsbench.runtime.training.chain import ChainModule
from dsbench.runtime.training.module import DrafterModule

SHARD_BYTES = 15 << 20
CHAIN_DROPS = ("confidence_events", "confidence_free_events", "confidence_head_free")


def drafter_config(shape: DrafterShape, target_layers: int, *, chain: bool) -> dict[str, Any]:
    """config.json: the published layout of block drafters, our own of chains; plus draft vocabulary and digest."""
    layer = shape.layer
    sizes = {
        "architectures": ["DsbenchMTP" if chain else "Qwen3DSparkModel"],
        "model_type": "mtp" if chain else "qwen3",
        "hidden_act": "silu",
        "attention_bias": False,
        "hidden_size": layer.hidden,
        "intermediate_size": layer.mlp,
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_width,
        "num_hidden_layers": layer.layers,
        "num_target_layers": target_layers,
        "vocab_size": layer.vocab,
        "max_position_embeddings": layer.context,
        "rms_norm_eps": layer.norm_eps,
        "rope_theta": layer.rope_theta,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "block_size": shape.block,
        "enable_confidence_head": True,
        "draft_vocab_size": shape.draft_vocab,
        "target_digest": shape.target_digest,
    }
    if chain:
        return sizes
    return (
        sizes
        | _attention_config(shape)
        | {
            "target_layer_ids": list(shape.taps),
            "markov_rank": shape.rank,
            "markov_head_type": "vanilla" if shape.head == "none" else shape.head,
            "confidence_head_with_markov": shape.confidence_with_token,
        }
    )


def _attention_config(shape: DrafterShape) -> dict[str, Any]:
    """`layer_types`, and where layers slide or are causal what `layer_attention` reads back."""
    layers = range(shape.layer.layers)
    windows, causal = [shape.window_of(i) for i in layers], [shape.causal_in(i) for i in layers]
    sliding = [window is not None for window in windows]
    config: dict[str, Any] = {"layer_types": [SLIDING if slides else FULL for slides in sliding]}
    if any(sliding):
        (window,) = {window for window in windows if window is not None}
        config |= {"use_sliding_window": True, "sliding_window": window}
    if causal != sliding:
        (config["is_causal"],) = set(causal)
    return config


def drafter_tensors(module: DrafterModule | ChainModule, vocabulary: Tensor) -> dict[str, Tensor]:
    """The checkpoint's tensors on the CPU, bf16; `draft_vocab_ids` int32."""
    named = {name.removeprefix("confidences."): p for name, p in module.named_parameters()}
    if isinstance(module, ChainModule):  # its arms never plan: the one head is enough
        named = {name: p for name, p in named.items() if not name.startswith(CHAIN_DROPS)}
    tensors = {name: p.detach().to(torch.bfloat16).cpu().contiguous() for name, p in named.items()}
    if module.shape.draft_vocab != module.shape.layer.vocab:
        tensors["draft_vocab_ids"] = vocabulary.to(torch.int32).cpu()
    return tensors


def save_drafter(
    module: DrafterModule | ChainModule, vocabulary: Tensor, out: Path, *, target_layers: int, card: Mapping[str, Any]
) -> None:
    """Replaces the folder `out`; the old one is kept until the new one is complete."""
    partial, old = out.with_name(out.name + ".partial"), out.with_name(out.name + ".old")
    for leftover in (partial, old):
        shutil.rmtree(leftover, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        _fill(partial, module, vocabulary, target_layers, card)
        if out.exists():
            os.replace(out, old)
        os.replace(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(old, ignore_errors=True)


def _fill(
    folder: Path, module: DrafterModule | ChainModule, vocabulary: Tensor, target_layers: int, card: Mapping[str, Any]
) -> None:
    shards = _shards(drafter_tensors(module, vocabulary))
    index: dict[str, str] = {}
    for number, tensors in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file(tensors, str(folder / name), metadata={"format": "pt"})
        index |= dict.fromkeys(tensors, name)
    size = sum(t.numel() * t.element_size() for tensors in shards for t in tensors.values())
    _write(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": index})
    chain = isinstance(module, ChainModule)
    _write(folder / "config.json", drafter_config(module.shape, target_layers, chain=chain))
    _write(folder / "card.json", dict(card))
    (folder / "README.md").write_text(card_text(card), encoding="utf-8")


def _shards(tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    used = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        if shards[-1] and used + size > SHARD_BYTES:
            shards.append({})
            used = 0
        shards[-1][name] = tensor
        used += size
    return shards


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
