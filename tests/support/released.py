"""Drafter folders in the released layout with random weights: config.json and safetensors."""

from __future__ import annotations

import json

import torch
from safetensors.torch import save_file

SIZES = {
    "num_hidden_layers": 3,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 64,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 3e4,
    "block_size": 5,
    "target_layer_ids": [0, 2],
    "markov_rank": 6,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
    "mask_token_id": 63,
}


def tensors_of(sizes, own: bool) -> dict[str, torch.Tensor]:
    """The state dict of the released layout, random; written from the paper's table of shapes."""
    d, v, r, e = sizes["hidden_size"], sizes["vocab_size"], sizes["markov_rank"], sizes["head_dim"]
    q, kv, small = e * sizes["num_attention_heads"], e * sizes["num_key_value_heads"], sizes.get("draft_vocab_size", v)
    shapes = {"fc": (d, d * len(sizes["target_layer_ids"])), "hidden_norm": (d,), "norm": (d,)}
    for i in range(sizes["num_hidden_layers"]):
        attention = {"q_proj": (q, d), "k_proj": (kv, d), "v_proj": (kv, d), "o_proj": (d, q)}
        attention |= {"q_norm": (e,), "k_norm": (e,)}
        shapes |= {f"layers.{i}.self_attn.{n}": s for n, s in attention.items()}
        shapes |= {f"layers.{i}.mlp.{n}_proj": (sizes["intermediate_size"], d) for n in ("gate", "up")}
        shapes |= {f"layers.{i}.mlp.down_proj": (d, sizes["intermediate_size"])}
        shapes |= {f"layers.{i}.{n}_layernorm": (d,) for n in ("input", "post_attention")}
    if r:
        shapes |= {"markov_head.markov_w1": (v, r), "markov_head.markov_w2": (small, r)}
        shapes |= {
            "gated": {"markov_head.gate_proj": (r, d + r)},
            "rnn": {"markov_head.joint_proj": (3 * r, 2 * r + d)},
        }.get(sizes["markov_head_type"], {})
    if sizes["enable_confidence_head"]:
        shapes["confidence_head.proj"] = (1, d + (r if sizes["confidence_head_with_markov"] else 0))
    if own:
        shapes |= {"embed_tokens": (v, d), "lm_head": (v, d)}
    generator = torch.Generator().manual_seed(11)

    def drawn(name, size):
        if name.endswith("norm"):
            return 1 + 0.3 * torch.randn(size, generator=generator)
        return torch.randn(size, generator=generator) * (1 if "embed" in name or "w1" in name else size[-1] ** -0.5)

    made = {name + ".weight": drawn(name, size) for name, size in shapes.items()}
    biased = ("markov_head.gate_proj", "markov_head.joint_proj", "confidence_head.proj")
    made |= {n + ".bias": torch.randn(shapes[n][0], generator=generator) for n in biased if n in shapes}
    if sizes["mask_token_id"] is None:
        made["mask_embedding"] = torch.randn(d, generator=generator)
    if small != v:
        made["draft_vocab_ids"] = torch.randperm(v, generator=generator)[:small].sort().values.int()
    return made


def write(folder, config, tensors, shards=1):
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return folder
    names = sorted(tensors)
    files = {n: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, n in enumerate(names)}
    for file in set(files.values()):
        save_file({n: tensors[n] for n in names if files[n] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    return folder
