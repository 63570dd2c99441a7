"""GGUF files: the model that was written is the model that is read; what is not known is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from published import loaded, prompt, run_logits, save_tiny, tiny_config
from tokenizers import pre_tokenizers

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.targets.convert import convert_gguf
from dsbench.runtime.targets.gguf_tokenizer import write_tokenizer
from dsbench.runtime.targets.tokenizer import ChatTokenizer

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Query or key rows as llama.cpp's converter lays them out for Llama: pairs side by side."""
    return weight.view(heads, 2, len(weight) // heads // 2, -1).transpose(1, 2).reshape(weight.shape)


def write_gguf(path, model: Any, arch: str, *, put=None, lacks=(), tensors=None, pre="smollm") -> None:
    import gguf

    config, writer = model.config, gguf.GGUFWriter(str(path), arch)
    keys = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "context_length": config.max_position_embeddings,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "rope.dimension_count": config.head_dim if hasattr(config, "head_dim") else 8,
    } | (put or {})
    for key, value in keys.items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{arch}.{key}", value) if key not in lacks else None
    writer.add_float32(f"{arch}.attention.layer_norm_rms_epsilon", config.rms_norm_eps)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([*ALPHABET[: config.vocab_size - 1], ALPHABET[0] + ALPHABET[1]])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges([f"{ALPHABET[0]} {ALPHABET[1]}"])
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(5)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, weight in model.state_dict().items():
        stem, _, kind = name.rpartition(".")
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(stem[-6:])
        weight = interleaved(weight, heads) if arch == "llama" and heads else weight
        layer = stem.split(".")[2] if stem.startswith("model.layers.") else None
        short = NAMES[stem] if layer is None else f"blk.{layer}.{NAMES[stem.split('.', 3)[3]]}"
        if name != "lm_head.weight" or not config.tie_word_embeddings:
            writer.add_tensor(f"{short}.{kind}", weight.float().numpy().copy())
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(width: int = 8) -> np.ndarray:
    """What llama.cpp's converter writes for rope type llama3 [E/2], by its own rule."""
    out = []
    for i in range(width // 2):
        wave = 2 * np.pi * 1e4 ** (2 * i / width)
        if wave < 64 / 4.0:
            out.append(1.0)
        elif wave > 64 / 1.0:
            out.append(8.0)
        else:
            smooth = (64 / wave - 1.0) / (4.0 - 1.0)
            out.append(1 / ((1 - smooth) / 8.0 + smooth))
    return np.array(out, np.float32)


CASES = {
    "llama": ("llama", {}, {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}, {}),
    "llama-3": ("llama", {"rope_parameters": LLAMA3}, {"tensors": {"rope_freqs.weight": llama3_factors()}}),
    "llama-biases": ("llama", {"attention_bias": True}, {}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}, {"pre": "qwen2"}),
    "qwen3": ("qwen3", {"head_dim": 16}, {"put": {"attention.key_length": 16}, "pre": "qwen2"}),
    "linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
        {"put": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_gguf_is_the_model_that_was_written(tmp_path, case):
    arch, changes, rest = CASES[case]
    model = save_tiny(tmp_path / "hf", tiny_config(arch, **changes))
    write_gguf(tmp_path / "m.gguf", model, arch, **rest)
    folder = convert_gguf(tmp_path / "m.gguf", tmp_path / "made")
    made = run_logits(loaded(folder), prompt(96, 80), (40, 1))
    with torch.inference_mode():
        wanted = model(prompt(96, 80)[None]).logits[0]
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-4)
    assert json.loads((folder / "config.json").read_text())["eos_token_id"] == [2, 5]


REFUSED = [
    ({"tensors": {"blk.0.ffn_gate_exps.weight": np.zeros((2, 3), np.float32)}}, EnvironmentRefused, "ffn_gate_exps"),
    ({"tensors": {"blk.0.attn_q.bias": np.zeros(32, np.float32)}}, UsageError, "bias"),
    ({"tensors": {"blk.9.ffn_up.weight": np.zeros((48, 32), np.float32)}}, EnvironmentRefused, r"layers\.9"),
    ({"tensors": {"mm.0.weight": np.zeros(3, np.float32)}}, EnvironmentRefused, r"mm\.0"),
    ({"put": {"expert_count": 8}}, EnvironmentRefused, "expert_count"),
    ({"put": {"attention.sliding_window": 64}}, EnvironmentRefused, "sliding_window"),
    ({"put": {"rope.dimension_count": 4}}, EnvironmentRefused, "dimension_count"),
    ({"put": {"rope.scaling.type": "longrope"}}, EnvironmentRefused, "longrope"),
    ({"lacks": ("block_count",)}, UsageError, "llama.block_count"),
    ({"lacks": ("attention.head_count",)}, UsageError, "head_count"),
    ({"pre": "tekken"}, EnvironmentRefused, "gpt2/tekken"),
]


@pytest.mark.parametrize(("rest", "error", "named"), REFUSED, ids=lambda x: x if isinstance(x, str) else "")
def test_what_a_gguf_holds_beyond_the_model_is_refused_in_one_line(tmp_path, rest, error, named):
    model = save_tiny(tmp_path / "hf", tiny_config("llama"))
    write_gguf(tmp_path / "m.gguf", model, "llama", **rest)
    with pytest.raises(error, match=named) as raised:
        convert_gguf(tmp_path / "m.gguf", tmp_path / "made")
    assert "\n" not in str(raised.value) and not (tmp_path / "made").exists()


@pytest.mark.parametrize("kept", [0, 3, 40, 2000, -100])
def test_a_truncated_gguf_is_refused_in_one_line(tmp_path, kept):
    model = save_tiny(tmp_path / "hf", tiny_config("llama"))
    write_gguf(tmp_path / "m.gguf", model, "llama")
    data = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(data[:kept])
    with pytest.raises(UsageError, match="not a whole GGUF") as raised:
        convert_gguf(tmp_path / "m.gguf", tmp_path / "made")
    assert "\n" not in str(raised.value)


def tokenizer_of(folder, pre, merges=("a b", "1 2", "12 3"), extra=("<|end|>", "<tool>")):
    made = list(dict.fromkeys("".join(m.split(" ")) for m in merges))
    tokens = [*ALPHABET, *made, *extra]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [3, 4],
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": len(tokens) - 2,
        "tokenizer.chat_template": "{{ messages[0]['content'] }}",
    }
    write_tokenizer(fields, folder)
    return ChatTokenizer(folder), tokens


def test_qwen2_text_is_split_as_transformers_splits_it(tmp_path):
    from transformers import Qwen2Tokenizer

    merges = ["t h", "th e", "Ġ the", "1 2", "' s", "Ġ a", "Ã ©", "Ċ Ċ"]
    made, tokens = tokenizer_of(tmp_path, "qwen2", merges)
    vocab = {t: i for i, t in enumerate(tokens)}
    theirs = Qwen2Tokenizer(vocab=vocab, merges=[tuple(m.split(" ")) for m in merges])
    for text in ("the 12345 cat's é e\u0301 THE'S\n\n  x", " a  b\r\n\tc!?...", "数字12 ½ don't", ""):
        assert made.encode(text) == theirs.encode(text, add_special_tokens=False), text
        assert made.decode(made.encode(text)) == text.replace("e\u0301", "é")


def test_llama_3_takes_up_to_three_digits_and_whole_words_whatever_their_merges(tmp_path):
    made, tokens = tokenizer_of(tmp_path, "llama-bpe", ["1 2", "12 3", "4 5", "b c", "a b"], ("<|end|>", "<tool>"))
    assert [tokens[i] for i in made.encode("12345")] == ["123", "45"]
    assert [tokens[i] for i in made.encode("abc")] == ["a", "bc"]
    folder = tmp_path / "whole"
    folder.mkdir()
    whole, tokens = tokenizer_of(folder, "llama-bpe", ["b c", "a bc", "ab c", "a b"])
    assert [tokens[i] for i in whole.encode("abc")] == ["abc"]


def test_merges_that_are_no_pairs_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no pair"):
        tokenizer_of(tmp_path, "qwen2", ["a b c"])
