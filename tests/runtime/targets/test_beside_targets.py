"""What stands beside a target of another architecture: drafters of their own layers, training only where it computes
the target's."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from published import loaded, prompt, save_tiny, tiny_config
from training_tools import OPTIONS

from dsbench.errors import EnvironmentRefused
from dsbench.runtime.drafters.random import random_drafter
from dsbench.runtime.targets.traits import Traits
from dsbench.runtime.training.forward import padded_forward
from dsbench.runtime.training.initial import drafter_shape_of

LLAMA3 = {"rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 16}


@pytest.mark.parametrize("model_type", ["qwen2", "gemma2", "smollm3", "phi3", "olmo2", "granite"])
def test_training_refuses_layers_that_it_does_not_compute(tmp_path, model_type):
    save_tiny(tmp_path, tiny_config(model_type, head_dim=8))
    with pytest.raises(EnvironmentRefused, match="training for tiny is not supported"):
        drafter_shape_of(replace(OPTIONS, taps=(0, 2)), loaded(tmp_path), 40)


def test_training_computes_scaled_rotary_embeddings_as_transformers_does(tmp_path):
    model = save_tiny(tmp_path, tiny_config("llama", rope_parameters=LLAMA3))
    target, ids = loaded(tmp_path), prompt(96, 100)
    shape = drafter_shape_of(replace(OPTIONS, taps=(0, 2)), target, 40)
    assert shape.layer.traits == Traits() != target.shape.traits
    with torch.inference_mode():
        wanted = model.model(ids[None]).last_hidden_state[0]
        made = padded_forward(target, ids[None])[0][0]
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=1e-4)


def test_a_drafter_beside_a_target_has_layers_of_its_own(tmp_path):
    save_tiny(tmp_path, tiny_config("qwen2", num_hidden_layers=8, tie_word_embeddings=True))
    drafter = random_drafter(loaded(tmp_path))
    assert drafter.shape.layer.traits == Traits() and drafter.layers[0].qkv.bias is None
