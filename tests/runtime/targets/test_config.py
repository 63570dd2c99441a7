"""Fields of a target's config.json: defaults, sizes, what is refused by name; ends of sequence from both files."""

from __future__ import annotations

import json

import pytest

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.targets.architectures import architectures
from dsbench.runtime.targets.config import read_config, shape_from_config, stop_ids

BASE = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 64,
    "rms_norm_eps": 1e-5,
}
TYPES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "SmolLM3ForCausalLM": "smollm3",
    "Phi3ForCausalLM": "phi3",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Olmo2ForCausalLM": "olmo2",
    "GraniteForCausalLM": "granite",
}


def test_every_architecture_is_compared_with_transformers():
    assert set(TYPES) == set(architectures())


@pytest.mark.parametrize("name", TYPES)
def test_absent_fields_take_the_default_of_the_class(name):
    """transformers' own configuration class, given only the sizes, says what the rest is."""
    from transformers import AutoConfig

    heads = {} if name == "Qwen2ForCausalLM" else {"num_attention_heads": 32}
    sizes = {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 12, "vocab_size": 64}
    theirs = AutoConfig.for_model(TYPES[name], **sizes, **heads)
    config = {"architectures": [name], "num_attention_heads": theirs.num_attention_heads, **sizes}
    shape, rope = shape_from_config(config, "x"), theirs.rope_parameters
    width = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert shape.head_width == width and shape.kv_heads == theirs.num_key_value_heads
    assert (shape.norm_eps, shape.tied) == (theirs.rms_norm_eps, theirs.tie_word_embeddings)
    assert shape.context == theirs.max_position_embeddings
    assert shape.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert shape.traits.logit_cap == getattr(theirs, "final_logit_softcapping", None)
    assert shape.traits.score_cap == getattr(theirs, "attn_logit_softcapping", None)
    window = getattr(theirs, "sliding_window", None)
    kinds = getattr(theirs, "layer_types", None) or [f"{'sliding' if window else 'full'}_attention"] * 12
    windows = tuple(window if kind == "sliding_attention" else None for kind in kinds)
    assert (shape.traits.windows or (None,) * 12) == windows


@pytest.mark.parametrize("field", ["rope_theta", "tie_word_embeddings", "head_dim", "num_key_value_heads", "mlp_bias"])
def test_null_is_as_good_as_absent(field):
    assert shape_from_config(BASE | {field: None}, "x") == shape_from_config(BASE, "x")


REFUSED = [
    ({"partial_rotary_factor": 0.5}, EnvironmentRefused, "partial_rotary_factor"),
    ({"logits_scaling": 8.0}, EnvironmentRefused, "logits_scaling"),
    ({"residual_multiplier": 0.2}, EnvironmentRefused, "residual_multiplier"),
    ({"final_logit_softcapping": 30.0}, EnvironmentRefused, "final_logit_softcapping"),
    ({"sliding_window": 4096}, EnvironmentRefused, "sliding_window"),
    ({"layer_types": ["sliding_attention", "full_attention"]}, EnvironmentRefused, "layer_types"),
    ({"layer_types": ["linear_attention"] * 2}, UsageError, "layer_types"),
    ({"num_experts": 8}, EnvironmentRefused, "num_experts"),
    ({"some_new_field": "x"}, EnvironmentRefused, "some_new_field"),
    ({"hidden_act": "relu"}, EnvironmentRefused, "hidden_act"),
    ({"architectures": ["MixtralForCausalLM"]}, EnvironmentRefused, "MixtralForCausalLM"),
    ({"architectures": []}, EnvironmentRefused, "architecture"),
    ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, EnvironmentRefused, "dynamic"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "odd": 1}}, EnvironmentRefused, "odd"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 0}}, UsageError, "factor"),
    ({"rope_scaling": 7}, UsageError, "rope_scaling"),
    ({"rope_parameters": {"full_attention": {}}}, EnvironmentRefused, "by kind of layer"),
    ({"rope_theta": -1.0}, UsageError, "rope_theta"),
    ({"rms_norm_eps": float("nan")}, UsageError, "rms_norm_eps"),
    ({"hidden_size": 0}, UsageError, "hidden_size"),
    ({"hidden_size": 33}, UsageError, "hidden_size"),
    ({"hidden_size": 10**12}, UsageError, "hidden_size"),
    ({"num_hidden_layers": 100_000}, UsageError, "num_hidden_layers"),
    ({"num_attention_heads": "four"}, UsageError, "num_attention_heads"),
    ({"num_key_value_heads": 3}, UsageError, "num_key_value_heads"),
    ({"head_dim": 7}, UsageError, "head_dim"),
    ({"vocab_size": True}, UsageError, "vocab_size"),
    ({"vocab_size": None}, UsageError, "vocab_size"),
    ({"tie_word_embeddings": "yes"}, UsageError, "tie_word_embeddings"),
    ({"max_position_embeddings": 2.5}, UsageError, "max_position_embeddings"),
]


@pytest.mark.parametrize(("changes", "error", "named"), REFUSED, ids=str)
def test_what_is_not_computed_is_refused_by_name_in_one_line(changes, error, named):
    with pytest.raises(error, match=named) as raised:
        shape_from_config(BASE | changes, "x")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "harmless",
    [
        {"pretraining_tp": 1, "use_cache": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.0"},
        {"num_experts": None, "use_mrope": False},
        {"partial_rotary_factor": 1.0, "layer_types": ["full_attention"] * 2},
        {"_name_or_path": "x", "auto_map": {"AutoConfig": "y.Z"}},
    ],
    ids=str,
)
def test_what_changes_nothing_is_passed_over(harmless):
    assert shape_from_config(BASE | harmless, "x") == shape_from_config(BASE, "x")


def test_a_window_as_long_as_the_context_is_none():
    mistral = BASE | {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2, "max_position_embeddings": 64}
    assert shape_from_config(mistral | {"sliding_window": 64}, "x").traits.windows == ()
    assert shape_from_config(mistral | {"sliding_window": 63}, "x").traits.windows == (63, 63)


STOPS = [
    (None, {"eos_token_id": [9, 32]}, {9, 32}),
    (2, {"eos_token_id": [9, 32]}, {2, 9, 32}),
    ([2, 3], None, {2, 3}),
    (2, {}, {2}),
    (None, None, set()),
]


@pytest.mark.parametrize(("own", "other", "stops"), STOPS, ids=str)
def test_both_files_name_ends_of_sequence(tmp_path, own, other, stops):
    if other is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(other))
    assert stop_ids(tmp_path, {"eos_token_id": own}, 64) == stops


@pytest.mark.parametrize("bad", [64, -1, "2", [1, None], True])
def test_an_end_of_sequence_that_is_no_id_is_refused(tmp_path, bad):
    with pytest.raises(UsageError, match="eos_token_id"):
        stop_ids(tmp_path, {"eos_token_id": bad}, 64)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "\xff"])
def test_a_config_that_is_no_object_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"config\.json"):
        read_config(tmp_path)


def test_a_byte_order_mark_is_no_harm(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(BASE), encoding="utf-8-sig")
    assert read_config(tmp_path) == BASE
