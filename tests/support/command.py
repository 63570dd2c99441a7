"""Shared by tests: what cli tests and others run on."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch
import typer.main
from safetensors.torch import save_file
from tiny import tiny_drafter, tiny_shape

from dsbench.cli.main import main
from dsbench.runtime.targets.dense import random_weights

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


parser = cache(typer.main.get_command)  # made anew in each call otherwise, which takes longer than most refusals


def dsbench(*arguments: str, home: Path) -> Done:
    """The command in this process, with `home` as its cache and its working folder."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(home),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch.dict("os.environ", {"DSBENCH_HOME": str(home)}),
        mock.patch.object(sys, "argv", ["dsbench", *arguments]),
        mock.patch("typer.main.get_command", parser),
        pytest.raises(SystemExit) as left,
    ):
        main()
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny target with a tokenizer of single bytes, in Hugging Face layout."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    folder = tmp_path / "model"
    folder.mkdir()
    shape = tiny_shape()
    weights = random_weights(shape, torch.device("cpu"), torch.float32, 0)
    save_file({k: v.clone() for k, v in weights.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": shape.layers,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.context,
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet[:64])}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def write_drafter(folder: Path, **changes: object) -> Path:
    """The tiny drafter's checkpoint; `changes` to its config."""
    from dsbench.runtime.targets.load import build_target

    shape = tiny_shape()
    target = build_target(shape, random_weights(shape, torch.device("cpu"), torch.float32, 0), digest="x")
    drafter = tiny_drafter(target)
    folder.mkdir()
    weights = {
        "fc.weight": drafter.fc.weight,
        "hidden_norm.weight": drafter.hidden_norm,
        "norm.weight": drafter.norm,
        "mask_embedding": drafter.mask,
    }
    weights |= {"markov_head." + k: v for k, v in drafter.sequential.items()}
    names = ("confidence_head.proj", "confidence_head_free.proj")
    for name, pair in zip(names, (drafter.confidence, drafter.confidence_free), strict=True):
        weights |= {name + ".weight": pair[0], name + ".bias": pair[1]}
    for i, layer in enumerate(drafter.layers):
        q, k, v = torch.split(layer.qkv.weight, [32, 16, 16])
        gate, up = layer.gate_up.weight.chunk(2)
        parts = {
            "input_layernorm": layer.input_norm,
            "post_attention_layernorm": layer.mlp_norm,
            "self_attn.q_proj": q,
            "self_attn.k_proj": k,
            "self_attn.v_proj": v,
            "self_attn.o_proj": layer.output.weight,
            "mlp.up_proj": up,
            "mlp.gate_proj": gate,
            "mlp.down_proj": layer.down.weight,
            "self_attn.q_norm": layer.q_norm,
            "self_attn.k_norm": layer.k_norm,
        }
        weights |= {f"layers.{i}.{name}.weight": tensor for name, tensor in parts.items()}
    save_file({k: v.clone().contiguous() for k, v in weights.items()}, folder / "model.safetensors")
    config = {
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": 64,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "block_size": 4,
        "target_layer_ids": [0, 2],
        "markov_rank": 8,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def refused(done: Done, code: int, *words: str) -> None:
    assert done.returncode == code, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("dsbench: ")
    for word in words:
        assert word in lines[0], lines[0]
    assert done.stdout == ""


def sweep_flags(model: Path, tmp_path: Path, name: str = "p", **changes: str) -> list[str]:
    prompts = tmp_path / f"{name}.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"{i} + {i}"}) + "\n" for i in range(6)))
    flags = {"target": str(model), "workload": str(prompts), "batch": "1", "mode": "none", "max-tokens": "6"}
    flags |= {"requests": "2", "repeats": "1", "out": "run"} | {k.replace("_", "-"): v for k, v in changes.items()}
    return ["sweep", *(part for k, v in flags.items() for part in (f"--{k}", v))]
