"""The tensors that a checkpoint of a shape must hold, by Hugging Face name, and what else it may hold. No torch."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.targets.shape import ModelShape

Sizes = dict[str, tuple[int, ...]]
EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
UNUSED = re.compile(r"(^|\.)rotary_emb\.(inv_freq|cos_cached|sin_cached)$")  # buffers that follow from the config


def expected_tensors(shape: ModelShape) -> Sizes:
    """Names and sizes of all tensors that the target reads."""
    table = (shape.vocab, shape.hidden)
    sizes: Sizes = {EMBEDDING: table, NORM: (shape.hidden,)}
    if not shape.tied:
        sizes[HEAD] = table
    layer = layer_tensors(shape)
    return sizes | {f"model.layers.{i}.{name}": size for i in range(shape.layers) for name, size in layer.items()}


def layer_tensors(shape: ModelShape) -> Sizes:
    """Names within a layer, and sizes."""
    d, q, kv = shape.hidden, shape.heads * shape.head_width, shape.kv_heads * shape.head_width
    mlp, traits = shape.mlp, shape.traits
    maps: dict[str, tuple[int, int, bool]]
    if traits.packed:
        maps = {"self_attn.qkv_proj": (q + 2 * kv, d, False), "mlp.gate_up_proj": (2 * mlp, d, False)}
    else:
        maps = {f"self_attn.{n}_proj": (size, d, traits.qkv_bias) for n, size in (("q", q), ("k", kv), ("v", kv))}
        maps |= {f"mlp.{n}_proj": (mlp, d, traits.mlp_bias) for n in ("gate", "up")}
    maps |= {"self_attn.o_proj": (d, q, traits.output_bias), "mlp.down_proj": (d, mlp, traits.mlp_bias)}
    sizes: Sizes = {name + ".weight": (rows, columns) for name, (rows, columns, _) in maps.items()}
    sizes |= {name + ".bias": (rows,) for name, (rows, _, biased) in maps.items() if biased}
    sizes |= {name + ".weight": (d,) for name in norm_names(shape).values()}
    if shape.qk_norm:
        sizes |= {f"self_attn.{n}_norm.weight": (shape.head_width,) for n in "qk"}
    if traits.whole_qk_norm:
        sizes |= {"self_attn.q_norm.weight": (q,), "self_attn.k_norm.weight": (kv,)}
    return sizes


def norm_names(shape: ModelShape) -> dict[str, str]:
    """Field of Layer -> the checkpoint's name of its norm."""
    return {
        "before": {"input_norm": "input_layernorm", "mlp_norm": "post_attention_layernorm"},
        "after": {"input_norm": "post_attention_layernorm", "mlp_norm": "post_feedforward_layernorm"},
        "both": {
            "input_norm": "input_layernorm",
            "after_attention": "post_attention_layernorm",
            "mlp_norm": "pre_feedforward_layernorm",
            "after_mlp": "post_feedforward_layernorm",
        },
    }[shape.traits.norms]


def check_tensors(found: Mapping[str, tuple[int, ...]], shape: ModelShape) -> None:
    """Every tensor of a checkpoint is one that the target reads, of the right size, or known to be of no use.

    A head beside tied embeddings passes here; whether it is the embedding is seen when it is read.
    Raises UsageError naming the first that lacks or misfits, EnvironmentRefused naming one that nobody would read.
    """
    expected = expected_tensors(shape)
    for name, size in found.items():
        if name in expected:
            if size != expected[name]:
                raise UsageError(f"tensor {name} has shape {list(size)}, the config says {list(expected[name])}")
        elif not UNUSED.search(name) and not (name == HEAD and shape.tied):
            raise EnvironmentRefused(
                f"{shape.name}: tensor {name} {list(size)} is none that this architecture reads",
                hint="the config may belong to another model",
            )
    for name in expected:
        if name not in found:
            raise UsageError(f"the checkpoint lacks the tensor {name}", hint="config.json may belong to another model")
