"""The shape of a dense model, read from a Hugging Face config.json or named in the catalogue of shapes. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsbench.errors import EnvironmentRefused, UsageError

ARCHITECTURES = {"LlamaForCausalLM": False, "Qwen3ForCausalLM": True}  # name -> per-head q/k norms


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a Llama or Qwen3 decoder. `qk_norm`: RMS norm of each query and key head before the rotary embedding."""

    name: str
    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_width: int
    vocab: int
    context: int
    rope_theta: float
    norm_eps: float
    tied: bool
    qk_norm: bool

    @property
    def parameters(self) -> int:
        """Weights in all, embedding and head counted once if tied."""
        attention = self.hidden * self.head_width * (2 * self.heads + 2 * self.kv_heads)
        embedding = self.vocab * self.hidden * (1 if self.tied else 2)
        return self.layers * (attention + 3 * self.hidden * self.mlp) + embedding


def shape_from_config(config: Mapping[str, Any], name: str) -> ModelShape:
    """Raises EnvironmentRefused, naming the field, for what this runtime does not implement."""
    architecture = (config.get("architectures") or ["?"])[0]
    if architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise EnvironmentRefused(f"{name}: architecture {architecture} is not supported", hint=f"supported: {known}")
    for field, wanted in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False)):
        if config.get(field, wanted) != wanted:
            raise EnvironmentRefused(f"{name}: config field {field} = {config[field]!r} is not supported")
    if config.get("use_sliding_window"):
        raise EnvironmentRefused(f"{name}: config field use_sliding_window = true is not supported")
    try:
        heads = int(config["num_attention_heads"])
        return ModelShape(
            name=name,
            layers=int(config["num_hidden_layers"]),
            hidden=int(config["hidden_size"]),
            mlp=int(config["intermediate_size"]),
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_width=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            vocab=int(config["vocab_size"]),
            context=int(config["max_position_embeddings"]),
            rope_theta=rope_theta(config, name),
            norm_eps=float(config["rms_norm_eps"]),
            tied=bool(config.get("tie_word_embeddings", False)),
            qk_norm=ARCHITECTURES[architecture],
        )
    except KeyError as missing:
        raise UsageError(f"{name}: config.json lacks the field {missing.args[0]}") from None


def rope_theta(config: Mapping[str, Any], name: str) -> float:
    """The rotary base, from `rope_parameters` (transformers 5) or the flat `rope_theta`; scaling is refused."""
    nested = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind != "default":
        raise EnvironmentRefused(f"{name}: rope_type {kind!r} is not supported", hint="only the unscaled default is")
    return float(nested.get("rope_theta", config.get("rope_theta", 10_000.0)))


def read_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder. Raises UsageError if it is absent or not JSON."""
    path = folder / "config.json"
    try:
        loaded = json.loads(path.read_text())
    except FileNotFoundError:
        raise UsageError(f"{folder} holds no config.json", hint="a Hugging Face model folder is expected") from None
    except (OSError, ValueError) as problem:
        raise UsageError(f"{path} cannot be read: {problem}") from None
    if not isinstance(loaded, dict):
        raise UsageError(f"{path} is not a JSON object")
    return loaded


def _qwen3(name: str, layers: int, hidden: int, mlp: int, heads: int, tied: bool) -> ModelShape:
    return ModelShape(
        name=name,
        layers=layers,
        hidden=hidden,
        mlp=mlp,
        heads=heads,
        kv_heads=8,
        head_width=128,
        vocab=151_936,
        context=40_960,
        rope_theta=1e6,
        norm_eps=1e-6,
        tied=tied,
        qk_norm=True,
    )


def catalogue_shapes() -> dict[str, ModelShape]:
    """The shapes that `shape:<name>` accepts: true sizes of public models, for cost work on random weights."""
    smollm2 = ModelShape(
        name="smollm2-135m",
        layers=30,
        hidden=576,
        mlp=1536,
        heads=9,
        kv_heads=3,
        head_width=64,
        vocab=49_152,
        context=8192,
        rope_theta=1e5,
        norm_eps=1e-5,
        tied=True,
        qk_norm=False,
    )
    shapes = [
        smollm2,
        _qwen3("qwen3-0.6b", 28, 1024, 3072, 16, True),
        _qwen3("qwen3-1.7b", 28, 2048, 6144, 16, True),
        _qwen3("qwen3-4b", 36, 2560, 9728, 32, True),
        _qwen3("qwen3-8b", 36, 4096, 12_288, 32, False),
    ]
    return {shape.name: shape for shape in shapes}
