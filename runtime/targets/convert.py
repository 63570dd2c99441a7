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
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
CONTROL = 3  # GGUF token type of control tokens


def convert_gguf(path: Path, folder: Path) -> Path:
    """Writes `folder` atomically (a sibling, then renamed) and returns it. fp32 weights.

    Raises UsageError if `path` is no readable GGUF, EnvironmentRefused for an architecture or tokenizer not known.
    """
    reader = _open(path)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    architecture = str(fields.get("general.architecture"))
    if architecture not in ARCHITECTURES:
        raise EnvironmentRefused(
            f"{path}: GGUF architecture {architecture!r} is not supported", hint="llama and qwen3 are"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
    try:
        config = _config(fields, architecture, {t.name for t in reader.tensors})
        save_file(_weights(reader, architecture, config), str(draft / "model.safetensors"), metadata={"format": "pt"})
        (draft / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        write_tokenizer(fields, draft)
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(draft, folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder


def _open(path: Path) -> Any:
    import gguf

    try:
        return gguf.GGUFReader(str(path))
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist") from None
    except (ValueError, IndexError, OSError) as problem:
        raise UsageError(
            f"{path} is not a whole GGUF file: {problem}", hint="it may be truncated; fetch it again"
        ) from None


def _config(fields: dict[str, Any], architecture: str, tensors: set[str]) -> dict[str, Any]:
    def value(name: str) -> Any:
        return fields[f"{architecture}.{name}"]

    heads = int(value("attention.head_count"))
    width = int(fields.get(f"{architecture}.attention.key_length", int(value("embedding_length")) // heads))
    if any(f"{architecture}.rope.scaling.type" == name and text != "none" for name, text in fields.items()):
        raise EnvironmentRefused("this GGUF scales its rotary embedding, which is not supported")
    return {
        "architectures": [ARCHITECTURES[architecture]],
        "model_type": architecture,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "num_hidden_layers": int(value("block_count")),
        "hidden_size": int(value("embedding_length")),
        "intermediate_size": int(value("feed_forward_length")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(value("attention.head_count_kv")),
        "head_dim": width,
        "vocab_size": len(fields["tokenizer.ggml.tokens"]),
        "max_position_embeddings": int(value("context_length")),
        "rms_norm_eps": float(value("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(fields.get(f"{architecture}.rope.freq_base", 10_000.0)),
        "tie_word_embeddings": "output.weight" not in tensors,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "torch_dtype": "float32",
    }


def _weights(reader: Any, architecture: str, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    from gguf import dequantize

    weights: dict[str, torch.Tensor] = {}
    for tensor in reader.tensors:
        array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        name = _hugging_face_name(tensor.name)
        if architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            array = _half_split_rows(array, config["num_attention_heads" if ".q_" in name else "num_key_value_heads"])
        weights[name] = torch.from_numpy(array.copy())  # the reader's own pages are read-only
    return weights


def _hugging_face_name(name: str) -> str:
    outer = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in outer:
        return outer[name]
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.weight"


def _half_split_rows(array: np.ndarray[Any, Any], heads: int) -> np.ndarray[Any, Any]:
    """GGUF keeps Llama's q and k rows for interleaved rotary pairs; undo that for the half-split rotation."""
    rows, columns = array.shape
    pairs = array.reshape(heads, rows // heads // 2, 2, columns)
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows, columns))


def write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    """tokenizer.json rebuilt from the GGUF's tokens and merges, and tokenizer_config.json with the chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre")
    if kind != "gpt2" or pre != "smollm":
        raise EnvironmentRefused(f"tokenizer {kind}/{pre} of this GGUF is not supported", hint="gpt2/smollm is")
    tokens, types = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [t for t, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    extra = {
        "chat_template": fields.get("tokenizer.chat_template"),
        "bos_token": tokens[int(fields["tokenizer.ggml.bos_token_id"])],
        "eos_token": tokens[int(fields["tokenizer.ggml.eos_token_id"])],
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(extra, indent=2, ensure_ascii=False) + "\n")
