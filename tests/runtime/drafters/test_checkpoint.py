"""Drafter checkpoints in the released layouts against a dense-mask forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from dense_drafter import DenseDrafter
from released import SIZES, tensors_of, write
from tiny import tiny_target

from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.drafters.checkpoint import drafter_shape
from dsbench.runtime.drafters.draft import standing_of
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.sampling import sampling_of
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.training.save import drafter_config

CPU = torch.device("cpu")
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


class Round:
    """Two requests whose context is observed chunk by chunk; rows past what is then committed were rejected."""

    def __init__(self, drafter, target, width):
        self.drafter, self.generator = drafter, torch.Generator().manual_seed(4)
        layers = ((1, 1),) * target.shape.layers + drafter.pool_layers()
        self.pool = StatePool(PoolShape(layers=layers, page=4, pages=40, table=16), CPU, torch.float32, shuffle_seed=8)
        assert self.pool.open(0, 64) and self.pool.open(1, 64)
        self.taps = [torch.empty(0, width), torch.empty(0, width)]  # of committed tokens

    def observe(self, counts, rejected):
        start = torch.tensor([t.shape[0] for t in self.taps], dtype=torch.int32)
        cu_rows, request, positions = ragged_positions(start, torch.tensor(counts, dtype=torch.int32))
        for r, count in enumerate(counts):
            self.pool.grow(r, int(start[r]) + count + self.drafter.block)
        rows = torch.randn(sum(counts), self.taps[0].shape[1], generator=self.generator)
        batch = Batch(
            ids=positions,
            positions=positions,
            cu_rows=cu_rows,
            context=start,
            pages=self.pool.table([0, 1]),
            request=request,
        )
        self.drafter.observe(batch, rows, self.pool)
        for r, new in enumerate(rows.split(counts)):
            self.taps[r] = torch.cat([self.taps[r], new[: counts[r] - rejected[r]]])
            self.pool.truncate(r, self.taps[r].shape[0])
            self.pool.grow(r, self.taps[r].shape[0] + self.drafter.block)

    def check(self, reference):
        block, seeds = self.drafter.block, (3, 8)
        requests = [
            Request(
                id=r,
                name=str(r),
                workload="x",
                prompt_ids=[1] * t.shape[0],
                output=[7 + 20 * r],
                sampling=SamplingParams(temperature=1.0, seed=seeds[r]),
            )
            for r, t in enumerate(self.taps)
        ]
        anchor, start = (torch.tensor([getattr(r, n) for r in requests]) for n in ("anchor", "committed"))
        hidden = self.drafter.backbone(anchor, start.int(), self.pool.table([0, 1]), self.pool)
        draft = self.drafter.propose(
            standing_of(requests, self.pool, CPU),
            sampling_of(requests, CPU),
            self.pool,
            rule="residual",
            depth=lambda free: torch.full((2,), block),
        )
        for r in (0, 1):
            wanted = reference.hidden(self.taps[r], int(anchor[r]))
            close(hidden[r], wanted)
            previous = [int(anchor[r]), *draft.tokens[r, :-1].tolist()]
            logits, confidence = reference.slots(wanted, previous)
            close(draft.probabilities[r].log(), logits.log_softmax(-1))  # the law is the logits up to a constant
            close(draft.confidence[r], confidence)


def close(made, wanted):
    torch.testing.assert_close(made, wanted, atol=1e-4, rtol=0)


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
