"""Drafter checkpoints that misfit themselves or their target: one line that names the field or the tensor."""

from __future__ import annotations

import json
import math

import pytest
import torch
from released import SIZES, tensors_of, write
from tiny import tiny_target

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.runtime.drafters.checkpoint import drafter_shape
from dsbench.runtime.drafters.load import load_drafter

FULL, SLIDING = "full_attention", "sliding_attention"
REQUIRED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "block_size",
    "target_layer_ids",
)
TWO = [FULL, SLIDING]
CONFIGS = [
    *(({name: None}, UsageError, f"lacks the field {name}") for name in REQUIRED),
    ({"hidden_size": "32"}, UsageError, "hidden_size must be an integer, got '32'"),
    ({"block_size": 2.5}, UsageError, "block_size"),
    ({"block_size": 0}, UsageError, "block_size must be >= 1"),
    ({"markov_rank": True}, UsageError, "markov_rank"),
    ({"markov_rank": -1}, UsageError, "markov_rank"),
    ({"markov_head_type": "moe"}, EnvironmentRefused, "markov_head_type = 'moe'"),
    *(
        ({name: value}, UsageError, f"{name} must be above 0 and finite, got {value}")
        for name in ("rms_norm_eps", "rope_theta")
        for value in (0, -1, math.inf, math.nan, 10**400)
    ),
    ({"rope_parameters": {"rope_theta": -1.0}}, UsageError, "rope_theta must be above 0"),
    ({"block_size": 65}, UsageError, "block_size must be <= 64, got 65"),
    ({"block_size": 10**30}, UsageError, "block_size must be <= 64"),
    ({"block_size": math.inf}, UsageError, "block_size must be an integer"),
    ({"num_hidden_layers": 10**30}, UsageError, "num_hidden_layers must be <= 256"),
    ({"sliding_window": 10**30, "layer_types": [SLIDING] * 3}, UsageError, "sliding_window must be <= "),
    ({"head_dim": 7}, UsageError, "head_dim must be even, got 7"),
    ({"num_target_layers": "4"}, UsageError, "num_target_layers must be an integer"),
    ({"rms_norm_eps": "small"}, UsageError, "rms_norm_eps must be a number"),
    ({"enable_confidence_head": "yes"}, UsageError, "enable_confidence_head must be true or false"),
    ({"rope_theta": "big"}, UsageError, "rope_theta must be a number"),
    ({"rope_parameters": {"rope_theta": []}}, UsageError, "rope_theta must be a number"),
    ({"rope_parameters": 3}, UsageError, "rope_parameters must be an object"),
    ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, EnvironmentRefused, "rope_type 'yarn'"),
    ({"dflash_config": 3}, UsageError, "dflash_config must be an object"),
    ({"target_layer_ids": 2}, UsageError, "target_layer_ids must be a list"),
    ({"target_layer_ids": []}, UsageError, "target_layer_ids must be a list"),
    ({"target_layer_ids": [2, 0]}, UsageError, "target_layer_ids must be ascending"),
    ({"mask_token_id": 64}, UsageError, "mask_token_id = 64"),
    ({"draft_vocab_size": 65}, UsageError, "draft_vocab_size"),
    ({"num_key_value_heads": 3}, UsageError, "num_key_value_heads must be a divisor"),
    ({"hidden_act": "gelu"}, EnvironmentRefused, "hidden_act"),
    ({"attention_bias": True}, EnvironmentRefused, "attention_bias"),
    ({"sample_from_anchor": "no"}, UsageError, "sample_from_anchor must be true or false"),
    ({"sample_from_anchor": False, "block_size": 1}, UsageError, "block_size must be >= 2, got 1"),
    ({"architectures": ["LlamaForCausalLMEagle3"]}, EnvironmentRefused, "architectures = ['LlamaForCausalLMEagle3']"),
    ({"architectures": ["Gemma4DSparkModel"]}, EnvironmentRefused, "architectures = ['Gemma4DSparkModel']"),
    ({"architectures": ["DFlash2DraftModel"]}, EnvironmentRefused, "architectures = ['DFlash2DraftModel']"),
    ({"speculators_model_type": "eagle3"}, EnvironmentRefused, "speculators_model_type = 'eagle3'"),
    ({"speculators_model_type": "dspark"}, UsageError, "transformer_layer_config must be an object"),
    ({"layer_types": [*TWO, "chunked_attention"]}, EnvironmentRefused, "layer_types holds 'chunked_attention'"),
    ({"layer_types": TWO, "sliding_window": 7}, UsageError, "layer_types must be a list of 3 names"),
    ({"layer_types": SLIDING, "sliding_window": 7}, UsageError, "layer_types must be a list of 3 names"),
    ({"layer_types": [*TWO, FULL]}, UsageError, "lacks the field sliding_window"),
    ({"layer_types": [*TWO, FULL], "sliding_window": 0}, UsageError, "sliding_window must be >= 1, got 0"),
    ({"layer_types": [*TWO, FULL], "sliding_window": 7, "use_sliding_window": False}, UsageError, "use_sliding_window"),
    ({"dflash_config": {"use_swa": True, "swa_window_size": -1}}, UsageError, "swa_window_size must be >= 1"),
]


@pytest.mark.parametrize(("change", "error", "words"), CONFIGS, ids=lambda x: str(x) if isinstance(x, dict) else "")
def test_a_config_that_misfits_is_refused_by_its_field(change, error, words):
    with pytest.raises(error) as caught:
        drafter_shape(SIZES | change, "d")
    assert words in caught.value.message and "\n" not in caught.value.message


def cut(name):
    return lambda tensors: {k: t for k, t in tensors.items() if k != name}


def put(name, *size):
    return lambda tensors: tensors | {name: torch.zeros(size)}


def fill(name, value, kind=torch.float32):
    return lambda tensors: tensors | {name: torch.full_like(tensors[name], value, dtype=kind)}


def ids(*values, kind=torch.int32):
    return lambda tensors: tensors | {"draft_vocab_ids": torch.tensor(values, dtype=kind)}


SMALL = {"draft_vocab_size": 2}
TENSORS = [
    *(
        ({}, fill(name, value), f"{name} holds a NaN or an infinity")
        for name in ("fc.weight", "layers.1.mlp.up_proj.weight", "confidence_head.proj.bias")
        for value in (math.nan, math.inf)
    ),
    ({}, fill("norm.weight", 1, torch.int32), "norm.weight holds int32"),
    ({}, fill("layers.0.self_attn.q_norm.weight", 1, torch.bool), "layers.0.self_attn.q_norm.weight holds bool"),
    ({}, fill("markov_head.markov_w1.weight", 1, torch.int8), "markov_head.markov_w1.weight holds int8"),
    (SMALL, ids(3, 4, kind=torch.float32), "draft_vocab_ids holds float32"),
    (SMALL, ids(0, 0), "draft_vocab_ids must increase"),
    (SMALL, ids(4, 3), "draft_vocab_ids must increase"),
    (SMALL, ids(-1, 3), "draft_vocab_ids reach outside"),
    ({}, cut("fc.weight"), "lacks the tensor fc.weight"),
    ({}, cut("layers.1.mlp.up_proj.weight"), "lacks the tensor layers.1.mlp.up_proj.weight"),
    ({}, cut("confidence_head.proj.bias"), "lacks the tensor confidence_head.proj.bias"),
    ({"mask_token_id": None}, cut("mask_embedding"), "lacks the tensor mask_embedding"),
    ({"draft_vocab_size": 20}, cut("draft_vocab_ids"), "lacks the tensor draft_vocab_ids"),
    ({}, put("confidence_head_free.proj.weight", 1, 32), "lacks the tensor confidence_head_free.proj.bias"),
    ({}, put("norm.weight", 31), "norm.weight has shape [31], the config says [32]"),
    ({}, put("layers.2.self_attn.q_norm.weight", 4), "layers.2.self_attn.q_norm.weight has shape [4]"),
    ({}, put("lm_head.weight", 63, 32), "lm_head.weight has shape [63, 32], the config says [64, 32]"),
    ({}, put("embed_tokens.weight", 64, 16), "embed_tokens.weight has shape [64, 16]"),
    (SMALL, ids(3, 64), "draft_vocab_ids reach"),
    ({"markov_rank": 0}, put("markov_head.markov_w1.weight", 64, 6), "holds the tensor markov_head.markov_w1.weight"),
    ({"num_hidden_layers": 2}, put("layers.2.mlp.up_proj.weight", 40, 32), "holds the tensor layers.2.mlp.up_proj"),
    ({}, put("layers.0.self_attn.q_proj.bias", 32), "holds the tensor layers.0.self_attn.q_proj.bias"),
    ({}, put("mask_embedding", 32), "holds the tensor mask_embedding"),
    ({"enable_confidence_head": False}, put("confidence_head.proj.weight", 1, 38), "confidence_head.proj.weight"),
]


@pytest.mark.parametrize(("changed", "spoil", "words"), TENSORS, ids=[words for _, _, words in TENSORS])
def test_tensors_that_misfit_are_refused_by_name(changed, spoil, words, tmp_path):
    sizes = SIZES | changed
    with pytest.raises(UsageError) as caught:
        load_drafter(write(tmp_path / "d", sizes, spoil(tensors_of(sizes, False))), tiny_target())
    assert words in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"hidden_size": 40}, "hidden_size is 40, the target's 32"),
        ({"vocab_size": 65}, "vocab_size is 65, the target's 64"),
        ({"num_target_layers": 5}, "num_target_layers is 5, the target's 4"),
        ({"target_layer_ids": [-2, 2]}, "target_layer_ids [-2, 2] must lie in -1..2"),
    ],
)
def test_a_drafter_of_another_target_is_refused_by_its_field(changed, words, tmp_path):
    sizes = SIZES | changed
    with pytest.raises(EnvironmentRefused) as caught:
        load_drafter(write(tmp_path / "d", sizes, tensors_of(sizes, False)), tiny_target())
    assert words in caught.value.message and "\n" not in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "null",
        "3",
        "{}",
        "{",
        "[" * 100_000,
        "\udcff",
        '{"weight_map": {}}',
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": ["x"]}}',
        '{"weight_map": {"a": ""}}',
        '{"weight_map": {"a": "../x.safetensors"}}',
        '{"weight_map": {"a": "config.json"}}',
    ],
)
def test_an_index_that_is_none_is_refused(text, tmp_path):
    folder = write(tmp_path / "d", SIZES, tensors_of(SIZES, False))
    (folder / "model.safetensors.index.json").write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError, match=r"index\.json") as caught:
        load_drafter(folder, tiny_target())
    assert "\n" not in caught.value.message and len(caught.value.message) < 400


@pytest.mark.parametrize("value", [5, True, math.nan, "DsbenchMTP", [1], {}])
def test_architectures_that_are_no_names_are_refused(value, tmp_path):
    folder = write(tmp_path / "d", SIZES, tensors_of(SIZES, False))
    (folder / "config.json").write_text(json.dumps(SIZES | {"architectures": value}))
    with pytest.raises(UsageError, match="architectures must be a list of names"):
        load_drafter(folder, tiny_target())


def test_a_checkpoint_that_says_its_targets_depth_loads(tmp_path):
    sizes = SIZES | {"num_target_layers": 4, "architectures": ["Qwen3DSparkModel"]}
    load_drafter(write(tmp_path / "d", sizes, tensors_of(sizes, False)), tiny_target())
