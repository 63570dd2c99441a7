"""Drafter checkpoints in the released layouts against a dense-mask forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
from dense_drafter import DenseDrafter
from drafter_round import Round
from released import SIZES, tensors_of, write
from tiny import tiny_target

from dsbench.runtime.drafters.checkpoint import drafter_shape
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.training.save import drafter_config

DSPARK = ("block_size", "target_layer_ids", "markov_rank", "markov_head_type", "mask_token_id")
FULL, SLIDING = "full_attention", "sliding_attention"
EVERYWHERE = [(None, False)] * 3


def renamed(config):
    """The prefixed spelling, where the mask token is the noise token."""
    config = {("dspark_" + k if k in DSPARK else k): v for k, v in config.items()}
    config["dspark_noise_token_id"] = config.pop("dspark_mask_token_id")
    return config


def nested(name, **more):
    def spelled(config):
        inner = {k: config[k] for k in ("markov_rank", "markov_head_type", "mask_token_id") if k in config}
        return {k: v for k, v in config.items() if k not in inner} | {name: inner | more}

    return spelled


def rope_object(config):
    theta = config.pop("rope_theta")
    return config | {"rope_parameters": {"rope_theta": theta, "rope_type": "default"}}


def also(**more):
    return lambda config: config | more


# name: changed sizes, spelling of the config, own embedding and head, shards, (window, causal) of each layer
VARIANTS = {
    "vanilla": ({}, dict, False, 1, EVERYWHERE),
    "dflash": ({"markov_rank": 0, "enable_confidence_head": False}, rope_object, True, 1, EVERYWHERE),
    "gated prefixed": ({"markov_head_type": "gated"}, renamed, True, 1, EVERYWHERE),
    "rnn nested, two shards": ({"markov_head_type": "rnn"}, nested("dspark_config"), False, 2, EVERYWHERE),
    "token-free confidence": ({"confidence_head_with_markov": False, "block_size": 1}, dict, False, 1, EVERYWHERE),
    "learned mask, wide heads": ({"mask_token_id": None, "head_dim": 12}, dict, False, 1, EVERYWHERE),
    "small vocabulary": ({"draft_vocab_size": 20}, dict, True, 1, EVERYWHERE),
    "sliding layers are causal": (
        {},
        also(layer_types=[SLIDING, FULL, SLIDING], sliding_window=7),
        False,
        1,
        [(7, True), (None, False), (7, True)],
    ),
    "sliding, not causal": (
        {},
        also(layer_types=[FULL, SLIDING, SLIDING], sliding_window=7, use_sliding_window=True, is_causal=False),
        False,
        1,
        [(None, False), (7, False), (7, False)],
    ),
    "window below the block": (
        {"markov_head_type": "gated", "layer_types": [SLIDING] * 3},
        nested("dflash_config", causal=False, swa_window_size=2),
        False,
        1,
        [(2, False)] * 3,
    ),
    "use_swa": ({}, nested("dflash_config", use_swa=True, swa_window_size=3), False, 1, [(3, False)] * 3),
    "causal, full": ({}, nested("dflash_config", causal=True), False, 1, [(None, True)] * 3),
    "window past the context": ({}, also(layer_types=[SLIDING] * 3, sliding_window=1000), False, 1, [(1000, True)] * 3),
    "from max_window_layers on": (
        {"markov_rank": 0},
        also(use_sliding_window=True, sliding_window=4, max_window_layers=2),
        False,
        1,
        [(None, False), (None, False), (4, True)],
    ),
    "a null window": (
        {},
        also(use_sliding_window=True, sliding_window=None, max_window_layers=0),
        False,
        1,
        EVERYWHERE,
    ),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_checkpoint_runs_as_the_dense_forward(name, tmp_path):
    changed, spelled, own, shards, attention = VARIANTS[name]
    sizes, target = SIZES | changed, tiny_target()
    tensors = tensors_of(sizes, own)
    config = spelled({k: v for k, v in sizes.items() if v is not None})
    drafter = load_drafter(write(tmp_path / "d", config, tensors, shards), target)
    reference, text = DenseDrafter(sizes, attention, tensors, target), Round(drafter, target, 64)
    text.observe([20, 1], [0, 0])
    text.observe([13, 9], [4, 3])
    text.check(reference)  # and its block rows lie in the pages from here on
    text.observe([6, 3], [0, 1])
    text.check(reference)


@pytest.mark.parametrize(
    ("windows", "causal"),
    [
        ((), ()),
        ((None, None, None), (False, False, False)),
        ((7, None, 7), (False, False, False)),
        ((7, None, 7), (True, False, True)),
        ((7, None, 7), (True, True, True)),
        ((9, 9, 9), (True, True, True)),
        ((None, None, None), (True, True, True)),
    ],
)
def test_a_saved_config_reads_back_the_windows(windows, causal):
    shape = drafter_shape(SIZES | {"mask_token_id": None, "num_target_layers": 4}, "d")
    shape = replace(shape, windows=windows, causal=causal)
    back = drafter_shape(drafter_config(shape, 4, chain=False), shape.layer.name)
    assert back == replace(shape, windows=windows or (None,) * 3, causal=causal or (False,) * 3)
