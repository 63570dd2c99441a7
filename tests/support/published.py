"""Tiny random models of published architectures, saved by transformers, and what transformers makes of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets.config import read_config, shape_from_config
from dsbench.runtime.targets.load import build_target
from dsbench.runtime.targets.quantised import quantisation_of
from dsbench.runtime.targets.weights import read_target_weights

TOKENS = 40  # of the prompt; longer than every window here
NEW = 48


def tiny_config(model_type: str, **changes: Any) -> Any:
    from transformers import AutoConfig

    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4}
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "max_position_embeddings": 512}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return AutoConfig.for_model(model_type, **(heads | sizes | tokens | changes))


def save_tiny(folder: Path, config: Any, *, shard: str = "1GB") -> Any:
    """The random model that was saved into `folder`; weights so large that attention and caps matter."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.2)
            elif "embed_tokens" not in name:
                weight.normal_(std=0.25)
            else:
                weight.normal_(std=0.5)
    model.save_pretrained(folder, max_shard_size=shard)
    return model


def change_config(folder: Path, changes: Mapping[str, Any], drop: tuple[str, ...] = ()) -> None:
    """Rewrites config.json in another spelling; None is written as null."""
    path = folder / "config.json"
    config = {k: v for k, v in json.loads(path.read_text()).items() if k not in drop} | dict(changes)
    path.write_text(json.dumps(config))


def loaded(folder: Path, name: str = "tiny") -> Any:
    """The target of a folder in fp32, without a tokenizer."""
    config = read_config(folder)
    shape = shape_from_config(config, name)
    weights = read_target_weights(folder, shape, quantisation_of(config, name), torch.device("cpu"), torch.float32)
    return build_target(shape, weights, digest="")


def prompt(vocab: int, tokens: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, vocab, (tokens,), generator=torch.Generator().manual_seed(11))


@torch.inference_mode()
def run_logits(target: Any, ids: torch.Tensor, chunks: tuple[int, ...]) -> torch.Tensor:
    """Logits [S, V] of one sequence, its rows run in passes of these sizes, then the rest, over shuffled pages."""
    shape = target.shape
    pages = -(-(len(ids) + 16) // 16)
    layers = ((shape.kv_heads, shape.head_width),) * shape.layers
    pool = StatePool(
        PoolShape(layers=layers, page=16, pages=pages, table=pages), target.device, target.dtype, shuffle_seed=1
    )
    pool.open(0, len(ids))
    pool.grow(0, len(ids))
    made, done = [], 0
    for count in (*chunks, len(ids) - sum(chunks)):
        context = torch.tensor([done], dtype=torch.int32, device=target.device)
        cu_rows, index, positions = ragged_positions(context, torch.tensor([count], device=target.device))
        batch = Batch(
            ids=ids[done : done + count].to(target.device),
            positions=positions,
            cu_rows=cu_rows,
            context=context,
            pages=pool.table([0]),
            request=index,
            most_rows=count,
        )
        made.append(target.forward(batch, pool)[0])
        done += count
    return torch.cat(made).float().cpu()


@torch.inference_mode()
def greedy_text(model: Any, ids: torch.Tensor, new: int = NEW) -> torch.Tensor:
    """The prompt with `new` greedy tokens of transformers' model, which runs the whole prefix for each."""
    for _ in range(new):
        ids = torch.cat([ids, model(ids[None], use_cache=False).logits[0, -1:].argmax(-1)])
    return ids
