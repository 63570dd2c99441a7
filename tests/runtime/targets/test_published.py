"""Configs of published models load or are refused for a true reason, as docs/models.md says by name."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from published import change_config, loaded, prompt, run_logits, save_tiny
from published_configs import LOADS, REFUSED

from dsbench.errors import EnvironmentRefused
from dsbench.runtime.targets.config import shape_from_config
from dsbench.runtime.targets.quantised import quantisation_of

CARD = Path(__file__).parents[3] / "docs" / "models.md"
SMALLER = {"num_hidden_layers": 8, "hidden_size": 64, "intermediate_size": 48, "vocab_size": 96, "head_dim": 16}
SMALLER |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256, "pad_token_id": 0}
PUBLISHED_LATER = {"quantization_config", "full_attn_mod", "interpolate_factor", "rope_interleaved"}


@pytest.mark.parametrize("name", LOADS)
def test_the_tiny_model_of_a_published_config_is_transformers(tmp_path, name):
    """All fields as published but the sizes; both sides read the same config.json."""
    from transformers import AutoConfig

    published = {k: v for k, v in LOADS[name].items() if k not in PUBLISHED_LATER}
    shape_from_config(LOADS[name], name)
    quantisation_of(LOADS[name], name)
    small = published | SMALLER
    if published["model_type"] == "smollm3":
        small |= {"no_rope_layers": [1, 1, 1, 0] * 2, "layer_types": ["full_attention"] * 8}
    if "original_max_position_embeddings" in small:
        small["original_max_position_embeddings"] = 128
    if isinstance(small.get("rope_scaling"), dict) and "short_factor" in small["rope_scaling"]:
        factors = {key: small["rope_scaling"][key][:6] for key in ("short_factor", "long_factor")}
        small["rope_scaling"] = small["rope_scaling"] | factors
    windowed = bool(small.get("use_sliding_window", True)) and bool(small.get("sliding_window"))
    small |= {"sliding_window": 24} if windowed else {}
    theirs = AutoConfig.for_model(**copy.deepcopy(small))
    model = save_tiny(tmp_path, theirs)
    (tmp_path / "config.json").write_text("{}")
    change_config(tmp_path, small)
    text = prompt(96, 60)
    with torch.inference_mode():
        wanted = model(text[None]).logits[0].float()
    torch.testing.assert_close(run_logits(loaded(tmp_path), text, (40, 1)), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", REFUSED)
def test_a_published_config_that_does_not_load_says_why(name):
    config, named = REFUSED[name]
    with pytest.raises(EnvironmentRefused, match=named) as raised:
        shape_from_config(config, name)
        quantisation_of(config, name)
    assert "\n" not in str(raised.value)


def test_the_card_names_every_config_that_is_tried_here():
    text = CARD.read_text(encoding="utf-8")
    loads, refused = text.split("## Refused")
    assert all(f"`{name}`" in loads for name in LOADS) and all(f"`{name}`" in refused for name in REFUSED)
    assert len(LOADS) >= 20
