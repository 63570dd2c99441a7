"""Each architecture against transformers: logits and greedy tokens of tiny random models, in both config spellings."""

from __future__ import annotations

import pytest
import torch
from published import NEW, TOKENS, change_config, greedy_text, loaded, prompt, run_logits, save_tiny, tiny_config

from dsbench.runtime.targets import dense
from dsbench.runtime.targets.config import read_config, shape_from_config

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32}
LONG = {"short_factor": [1.0, 1.5, 2.0], "long_factor": [2.0, 3.0, 4.0]}
SLIDES = ["sliding_attention", "full_attention"] * 2


def rope(kind: str, theta: float = 10_000.0, **more: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


CASES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-head-dim": ("llama", {"head_dim": 16}),
    "llama3": ("llama", rope("llama3", 5e5, **LLAMA3)),
    "llama-linear": ("llama", rope("linear", factor=3.0)),
    "llama-yarn": ("llama", rope("yarn", **YARN)),
    "yarn-mscale": ("llama", rope("yarn", **YARN, mscale=1.0, mscale_all_dim=0.5, beta_fast=8.0, truncate=False)),
    "yarn-factor": ("qwen3", {"head_dim": 8} | rope("yarn", **YARN, attention_factor=0.7)),
    "qwen2": ("qwen2", {}),
    "qwen2-tied-yarn": ("qwen2", {"tie_word_embeddings": True} | rope("yarn", 1e6, **YARN)),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3-biases": ("qwen3", {"head_dim": 8, "attention_bias": True}),
    "qwen3-layer-types": ("qwen3", {"use_sliding_window": True, "sliding_window": 5, "layer_types": SLIDES}),
    "mistral-window": ("mistral", {"sliding_window": 7}),
    "mistral-full": ("mistral", {"sliding_window": None, "head_dim": 16}),
    "smollm3": ("smollm3", {}),
    "smollm3-no-rope": ("smollm3", {"no_rope_layers": [1, 0, 0, 1], "attention_bias": True, "mlp_bias": True}),
    "smollm3-window": ("smollm3", {"use_sliding_window": True, "sliding_window": 6}),
    "phi3": ("phi3", {"sliding_window": 9}),
    "phi3-longrope": (
        "phi3",
        {"original_max_position_embeddings": 128, "sliding_window": None}
        | rope("longrope", partial_rotary_factor=0.75, **LONG),
    ),
    "gemma": ("gemma", {"head_dim": 16}),
    "gemma2": ("gemma2", {"head_dim": 16, "query_pre_attn_scalar": 24, "sliding_window": 8}),
    "gemma2-caps": ("gemma2", {"head_dim": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
    "gemma3": ("gemma3_text", {"head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 20}),
    "olmo2": ("olmo2", {}),
    "olmo2-biases": ("olmo2", {"attention_bias": True}),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "attention_multiplier": 0.2,
            "logits_scaling": 4.0,
            "tie_word_embeddings": True,
        },
    ),
    "granite-biases": ("granite", {"attention_bias": True, "mlp_bias": True}),
}


def wanted_logits(model, text):
    with torch.inference_mode():
        return model(text[None]).logits[0].float()


@pytest.mark.parametrize("case", CASES)
def test_logits_and_greedy_tokens_are_those_of_transformers(tmp_path, case):
    model_type, changes = CASES[case]
    model = save_tiny(tmp_path, tiny_config(model_type, **changes), shard="20KB" if "tied" in case else "1GB")
    target = loaded(tmp_path)
    text = greedy_text(model, prompt(96))
    made = run_logits(target, text, (TOKENS, 1, 5))
    torch.testing.assert_close(made, wanted_logits(model, text), atol=1e-4, rtol=1e-4)
    assert torch.equal(made[TOKENS - 1 : -1].argmax(-1), text[TOKENS:]) and len(text) == TOKENS + NEW


OLD = {  # model type, changes, then config.json as older versions wrote it: what is dropped, what is put in its place
    "llama-2": ("llama", {}, ("rope_parameters", "head_dim", "tie_word_embeddings"), {"rope_theta": None}),
    "llama3": (
        "llama",
        rope("llama3", 5e5, **LLAMA3),
        ("rope_parameters",),
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
    ),
    "linear": (
        "llama",
        rope("linear", factor=3.0),
        ("rope_parameters",),
        {"rope_scaling": {"type": "linear", "factor": 3.0}},
    ),
    "yarn": (
        "qwen2",
        rope("yarn", 1e6, **YARN),
        ("rope_parameters", "layer_types"),
        {"rope_theta": 1e6, "rope_scaling": {"type": "yarn", **YARN}},
    ),
    "qwen2-window": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3},
        ("rope_parameters", "layer_types"),
        {"rope_theta": 10_000.0},
    ),
    "smollm3": ("smollm3", {}, ("rope_parameters", "layer_types", "no_rope_layers"), {"rope_theta": 2e6}),
    "phi3": (
        "phi3",
        {"original_max_position_embeddings": 128} | rope("longrope", partial_rotary_factor=0.75, **LONG),
        ("rope_parameters",),
        {"rope_theta": 10_000.0, "partial_rotary_factor": 0.75, "rope_scaling": {"type": "su", **LONG}},
    ),
    "gemma2": ("gemma2", {"head_dim": 16, "sliding_window": 8}, ("rope_parameters", "layer_types"), {}),
    "gemma3": (
        "gemma3_text",
        {
            "head_dim": 16,
            "sliding_window": 8,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
            },
        },
        ("rope_parameters", "layer_types"),
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
            "sliding_window_pattern": 6,
        },
    ),
    "gemma-gelu": ("gemma", {"head_dim": 16}, ("rope_parameters",), {"hidden_act": "gelu"}),
}


@pytest.mark.parametrize("case", OLD)
def test_the_older_spelling_of_a_config_is_the_same_model(tmp_path, case):
    model_type, changes, drop, put = OLD[case]
    model = save_tiny(tmp_path, tiny_config(model_type, **changes))
    change_config(tmp_path, put, drop)
    text = prompt(96, 60)
    made = run_logits(loaded(tmp_path), text, (TOKENS, 1, 5))
    torch.testing.assert_close(made, wanted_logits(model, text), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["llama3", "yarn-mscale", "smollm3-window", "phi3-longrope", "gemma2-caps", "gemma3"])
def test_the_field_matters(tmp_path, case):
    """Without what the case is about the logits are others, so that equality above shows something."""
    model_type, changes = CASES[case]
    model = save_tiny(tmp_path, tiny_config(model_type, **changes))
    text = prompt(96, 60)
    full = {"layer_types": ["full_attention"] * 4} if model_type != "phi3" else {}
    change_config(tmp_path, {"rope_parameters": None, "rope_theta": None, "attn_logit_softcapping": None} | full)
    difference = run_logits(loaded(tmp_path), text, ()) - wanted_logits(model, text)
    assert difference.abs().max() > 0.05


def test_a_context_past_the_original_one_is_not_offered_with_longrope(tmp_path):
    model_type, changes = CASES["phi3-longrope"]
    save_tiny(tmp_path, tiny_config(model_type, **changes))
    assert shape_from_config(read_config(tmp_path), "tiny").context == 128


@pytest.mark.parametrize("case", ["llama3", "qwen3-layer-types", "mistral-window", "phi3-longrope", "smollm3"])
def test_fused_layers_take_windows_and_rotary_embeddings_by_layer(tmp_path, case, monkeypatch):
    """On a CPU the fused products run as plain torch; what they are given is the same."""
    model_type, changes = CASES[case]
    model = save_tiny(tmp_path, tiny_config(model_type, **changes))
    text, target = prompt(96, 60), loaded(tmp_path)
    assert target.shape.traits.fusable
    monkeypatch.setattr(dense, "runs_fused", lambda *args, **kwargs: True)
    monkeypatch.setattr(target, "_unfused", None)
    made = run_logits(target, text, (TOKENS, 1, 5))
    torch.testing.assert_close(made, wanted_logits(model, text), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("case", ["qwen2", "gemma2", "gemma3", "olmo2", "granite", "llama-biases"])
def test_other_layers_are_not_fused(tmp_path, case):
    model_type, changes = CASES[case]
    save_tiny(tmp_path, tiny_config(model_type, **changes))
    assert not loaded(tmp_path).shape.traits.fusable
