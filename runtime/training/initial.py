"""Initial weights of a drafter: the target's last layers reading the tap below them, and a head that outputs zeros.

Shapes: D hidden, m taps, E head width, V vocabulary, r head rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.kernels.norm import rms_norm
from dsbench.runtime.drafters.checkpoint import DrafterShape
from dsbench.runtime.targets.base import DecoderTarget
from dsbench.runtime.targets.traits import Traits
from dsbench.runtime.training.chain import ChainModule
from dsbench.runtime.training.features import Features
from dsbench.runtime.training.forward import split_heads
from dsbench.runtime.training.module import DrafterModule, DraftLayer
from dsbench.runtime.training.options import TrainOptions

FC_NOISE = 0.005  # on the taps that do not start as the identity
W1_STD = 0.5
GAIN_ROWS = 8192  # tokens that the query and key gains are measured on


def refuse_layers(target: DecoderTarget) -> None:
    """Raises EnvironmentRefused if training's own forward pass does not compute the target's layers."""
    traits = target.shape.traits
    if not traits.trainable:
        raise EnvironmentRefused(
            f"training for {target.shape.name} is not supported: its layers differ from Llama's"
            f" ({', '.join(traits.differing)})",
            hint="it runs as a target; train for a model of Llama's or Qwen3's layout",
        )


def drafter_shape_of(options: TrainOptions, target: DecoderTarget, draft_vocab: int) -> DrafterShape:
    """Raises UsageError where the options do not fit the target, EnvironmentRefused for layers not known here."""
    refuse_layers(target)
    layers = target.shape.layers
    if options.layers > layers:
        raise UsageError(f"layers must be <= {layers}, the target's, got {options.layers}")
    if options.kind != "mtp" and options.taps[-1] > layers:
        raise UsageError(f"taps must lie in 0..{layers} for this target, got {list(options.taps)}")
    return DrafterShape(
        layer=replace(
            target.shape, name=options.kind, layers=options.layers, tied=False, qk_norm=True, traits=Traits()
        ),
        block=options.block,
        taps=options.taps,
        head=options.head,
        rank=0 if options.head == "none" else options.rank,
        confidence=True,
        confidence_with_token=options.head != "none",
        mask_token=None,
        draft_vocab=draft_vocab,
        target_digest=target.digest,
        windows=(options.window,) * options.layers if options.window else (),
        causal=(False,) * options.layers if options.window else (),
    )


@torch.no_grad()
def initialise(module: DrafterModule | ChainModule, target: DecoderTarget, features: Features, seed: int) -> None:
    """Fills every parameter; needs features to measure the size of queries and keys."""
    shape, d = module.shape, target.shape.hidden
    generator = torch.Generator(device=target.device).manual_seed(seed)

    def noise(like: Tensor, std: float) -> Tensor:
        return torch.randn(like.shape, generator=generator, device=like.device) * std

    first = target.shape.layers - shape.layer.layers
    fc = module.fc.weight
    fc.copy_(noise(fc, FC_NOISE))
    step = max(1, features.ids.shape[0] // GAIN_ROWS)
    if isinstance(module, ChainModule):
        fc[:, :d] = torch.eye(d, device=fc.device)
        _set(module.embed_norm.weight, torch.ones_like(target.norm))
        rows = features.last[::step]
    else:
        read = max((i for i, tap in enumerate(shape.taps) if tap < first), default=0)
        below = slice(read * d, (read + 1) * d)  # the output of the layer that lies under the copied ones, or near it
        fc[:, below] = torch.eye(d, device=fc.device)
        _set(module.hidden_norm.weight, target.layers[first].input_norm)
        rows = features.taps[::step, below]
        _initialise_head(module, target.embedding.float(), noise)
    _set(module.norm.weight, target.norm)
    for layer, index in zip(module.layers, range(first, target.shape.layers), strict=True):
        assert isinstance(layer, DraftLayer)
        _copy_layer(layer, target, index, rows)
    for parameter in module.confidences.parameters():
        parameter.zero_()


def _initialise_head(module: DrafterModule, embedding: Tensor, noise: Callable[[Tensor, float], Tensor]) -> None:
    module.mask_embedding.copy_(embedding.mean(dim=0))
    if module.markov_head is None:
        return
    if module.shape.head != "deep":
        _set(module.markov_head.markov_w1.weight, principal(embedding, module.shape.rank, W1_STD))
    module.markov_head.markov_w2.weight.zero_()
    for name in module.markov_head.projections:
        projection = getattr(module.markov_head, name)
        projection.weight.copy_(noise(projection.weight, 0.02))
        if projection.bias is not None:
            projection.bias.zero_()


def _copy_layer(layer: DraftLayer, target: DecoderTarget, index: int, rows: Tensor) -> None:
    """Weights of a target layer; gains that the target lacks keep the mean size of its queries and keys on `rows`."""
    shape, source = target.shape, target.layers[index]
    q_rows, kv_rows = shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    q, k, v = torch.split(source.qkv.weight, [q_rows, kv_rows, kv_rows])
    gate, up = source.gate_up.weight.chunk(2)
    attention, mlp = layer.self_attn, layer.mlp
    for into, weight in (
        (attention.q_proj, q),
        (attention.k_proj, k),
        (attention.v_proj, v),
        (attention.o_proj, source.output.weight),
        (mlp.gate_proj, gate),
        (mlp.up_proj, up),
        (mlp.down_proj, source.down.weight),
        (layer.input_layernorm, source.input_norm),
        (layer.post_attention_layernorm, source.mlp_norm),
    ):
        _set(into.weight, weight)
    if source.q_norm is not None and source.k_norm is not None:
        _set(attention.q_norm.weight, source.q_norm)
        _set(attention.k_norm.weight, source.k_norm)
        return
    mixed = F.linear(rms_norm(rows, source.input_norm, shape.norm_eps), source.qkv.weight)
    queries, keys, _ = split_heads(mixed, shape, source)
    for gain, heads in ((attention.q_norm, queries), (attention.k_norm, keys)):
        assert gain.weight is not None
        gain.weight.fill_(heads.float().square().mean(dim=-1).sqrt().mean())


def principal(table: Tensor, rank: int, std: float) -> Tensor:
    """Rows of table [V, D] on its `rank` main directions [V, r], scaled to overall `std`; zero columns past D."""
    centred = table - table.mean(dim=0)
    _, directions = torch.linalg.eigh((centred.T @ centred).double().cpu())  # ascending
    kept = min(rank, table.shape[1])
    coordinates = centred @ directions[:, -kept:].flip(1).to(table)
    return F.pad(coordinates * (std / coordinates.std()), (0, rank - kept))


def _set(parameter: Tensor | None, value: Tensor) -> None:
    assert parameter is not None and parameter.shape == value.shape, "a drafter layer is a target layer in size"
    parameter.copy_(value)
