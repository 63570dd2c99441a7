"""GGUF -> a Hugging Face folder: dequantised safetensors, config, tokenizer and chat template. Done once, then cached.

The dequantised numbers *are* the target from then on; nothing claims to be the original full-precision model.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.targets.config import shape_from_config
from dsbench.runtime.targets.gguf_tokenizer import write_tokenizer
from dsbench.runtime.targets.tensors import check_tensors

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}
OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
ROPE_FACTORS = "rope_freqs.weight"  # what each frequency is divided by
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
NO_EFFECT = {"vocab_size", "rope.scaling.finetuned", "attention.causal"}  # keys below the architecture's name
STOPS = ("eos_token_id", "eot_token_id", "eom_token_id")
DAMAGED = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, OSError)


def convert_gguf(path: Path, folder: Path) -> Path:
    """Writes `folder` atomically (a sibling, then renamed) and returns it. fp32 weights.

    Raises UsageError if `path` is no readable GGUF, EnvironmentRefused for an architecture or tokenizer not known.
    """
    reader, fields = _open(path)
    architecture = str(fields.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise EnvironmentRefused(
            f"{path}: GGUF architecture {architecture!r} is not supported",
            hint=f"supported: {', '.join(ARCHITECTURES)}",
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        config = _config(fields, architecture, {t.name: t for t in reader.tensors}, str(path))
        weights = _weights(reader, architecture, config, str(path))
        check_tensors({name: tuple(w.shape) for name, w in weights.items()}, shape_from_config(config, str(path)))
        save_file(weights, str(draft / "model.safetensors"), metadata={"format": "pt"})
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_tokenizer(fields, draft)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _open(path: Path) -> tuple[Any, dict[str, Any]]:
    """The reader and all key-value pairs. Raises UsageError if it is no whole GGUF file."""
    import gguf

    try:
        reader = gguf.GGUFReader(str(path))
        return reader, {n: field.contents() for n, field in reader.fields.items() if not n.startswith("GGUF.")}
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except DAMAGED as problem:
        raise UsageError(
            f"{path} is not a whole GGUF file: {problem}", hint="it may be truncated; fetch it again"
        ) from None


class _Keys:
    """The keys below an architecture's name, and which of them were read."""

    def __init__(self, fields: dict[str, Any], architecture: str, name: str) -> None:
        prefix = architecture + "."
        self.found = {key.removeprefix(prefix): value for key, value in fields.items() if key.startswith(prefix)}
        self.prefix, self.name, self.read = prefix, name, set(NO_EFFECT)

    def value(self, key: str, default: Any = None) -> Any:
        """Raises UsageError naming a key that lacks, without a default."""
        self.read.add(key)
        if key not in self.found and default is None:
            raise UsageError(f"{self.name}: this GGUF lacks the key {self.prefix}{key}")
        return self.found.get(key, default)

    def need(self, key: str, wanted: int) -> None:
        """Raises EnvironmentRefused if the key says something else."""
        if self.value(key, wanted) != wanted:
            said = self.found[key]
            raise EnvironmentRefused(f"{self.name}: GGUF key {self.prefix}{key} = {said!r} is not supported")

    def refuse_rest(self) -> None:
        """Raises EnvironmentRefused naming a key that was not read and is not off."""
        for key, value in self.found.items():
            if key not in self.read and value not in (0, False, None, "", "none"):
                raise EnvironmentRefused(f"{self.name}: GGUF key {self.prefix}{key} = {value!r:.60} is not known")


def _config(fields: dict[str, Any], architecture: str, tensors: dict[str, Any], name: str) -> dict[str, Any]:
    keys = _Keys(fields, architecture, name)
    heads, hidden = int(keys.value("attention.head_count")), int(keys.value("embedding_length"))
    width = int(keys.value("attention.key_length", hidden // max(heads, 1)))
    keys.need("attention.value_length", width)
    keys.need("rope.dimension_count", width)
    context = int(keys.value("context_length"))
    scaling = _rope_scaling(keys, tensors.get(ROPE_FACTORS), context)
    theta = float(keys.value("rope.freq_base", 10_000.0))
    tokens = fields.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list):
        raise UsageError(f"{name}: this GGUF lacks the key tokenizer.ggml.tokens")
    biased = "blk.0.attn_q.bias" in tensors
    stops = sorted({int(fields[k]) for n in STOPS if (k := f"tokenizer.ggml.{n}") in fields})
    config = {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "attention_bias": biased and architecture != "qwen2",  # whose class has them without a field
        "mlp_bias": False,
        "num_hidden_layers": int(keys.value("block_count")),
        "hidden_size": hidden,
        "intermediate_size": int(keys.value("feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(keys.value("attention.head_count_kv", heads)),
        "head_dim": width,
        "vocab_size": len(tokens),
        "max_position_embeddings": context,
        "rms_norm_eps": float(keys.value("attention.layer_norm_rms_epsilon")),
        "rope_theta": theta,
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": stops[0] if len(stops) == 1 else stops,
        "torch_dtype": "float32",
    }
    keys.refuse_rest()
    return config | ({"rope_scaling": scaling} if scaling else {})


def _rope_scaling(keys: _Keys, factors: Any, context: int) -> dict[str, Any]:
    """`rope_scaling` of a config for the keys and the file's own factors; empty without any."""
    kind = str(keys.value("rope.scaling.type", "none"))
    scaling: dict[str, Any] = {}
    if kind in ("linear", "yarn"):
        scaling = {"rope_type": kind, "factor": float(keys.value("rope.scaling.factor"))}
    elif kind != "none":
        raise EnvironmentRefused(f"{keys.name}: GGUF key {keys.prefix}rope.scaling.type = {kind!r} is not supported")
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = int(keys.value("rope.scaling.original_context_length"))
    if factors is not None:
        if scaling:
            raise EnvironmentRefused(f"{keys.name}: {ROPE_FACTORS} beside rope.scaling.type {kind!r} is not supported")
        divide = [float(f) for f in factors.data]
        scaling = {"rope_type": "longrope", "short_factor": divide, "long_factor": divide, "attention_factor": 1.0}
        scaling |= {"factor": 1.0, "original_max_position_embeddings": context}
    return scaling


def _weights(reader: Any, architecture: str, config: dict[str, Any], path: str) -> dict[str, torch.Tensor]:
    from gguf import dequantize

    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        if tensor.name == ROPE_FACTORS:
            continue
        name = _hugging_face_name(tensor.name, path)
        try:
            array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except (NotImplementedError, *DAMAGED) as problem:
            raise EnvironmentRefused(f"{path}: tensor {tensor.name} cannot be dequantised: {problem}") from None
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = _half_split_rows(array, config["num_attention_heads" if ".q_" in name else "num_key_value_heads"])
        weights[name] = torch.from_numpy(array.copy())  # the reader's own pages are read-only
    return weights


def _hugging_face_name(name: str, path: str) -> str:
    """Raises EnvironmentRefused naming a tensor of another kind of layer."""
    if name in OUTER:
        return OUTER[name]
    parts = name.split(".")
    if len(parts) != 4 or parts[0] != "blk" or parts[2] not in NAMES or parts[3] not in ("weight", "bias"):
        raise EnvironmentRefused(f"{path}: tensor {name} is none that this architecture reads")
    return f"model.layers.{parts[1]}.{NAMES[parts[2]]}.{parts[3]}"


def _half_split_rows(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF keeps Llama's q and k rows for interleaved rotary pairs; undo that for the half-split rotation."""
    rows = array.shape[0]
    pairs = array.reshape(heads, rows // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(array.shape))
