"""What a batch holds each slot to: features, labels, laws and masks, written out position by position."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from training_tools import MTP, OPTIONS, pool_of, quiet, random_data, run_rows, setting_of, toy_target

from dsbench.errors import UsageError
from dsbench.runtime.training import features as features_module
from dsbench.runtime.training.features import make_features
from dsbench.runtime.training.options import TrainOptions

CHOSEN = (2, 10, 4, 12)  # of different lengths; the second and third are greedy


@pytest.mark.parametrize("tokens", [65_536, 100])
def test_features_hold_the_taps_and_the_log_sum_exp_of_every_token(tokens, monkeypatch):
    monkeypatch.setattr(features_module, "PASS_TOKENS", tokens)  # one pass, and many
    monkeypatch.setattr(features_module, "HEAD_VALUES", 7 * 97)
    data = random_data(11)
    features = make_features(toy_target(), data, (0, 2), quiet)
    for i in (0, 7, len(data) - 1):
        at = slice(int(data.starts[i]), int(data.starts[i + 1]))
        logits, taps, _ = run_rows(pool_of(), data.ids[at].tolist(), 0, (0, 2))
        torch.testing.assert_close(features.taps[at], taps, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features.lse[at], logits.logsumexp(-1), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features.last[at] @ toy_target().head.T, logits, atol=1e-4, rtol=1e-4)
    assert features.greedy.tolist() == (data.temperature == 0).tolist()
    assert features.length.tolist() == data.lengths.tolist() and features.prompt.tolist() == data.prompt.tolist()


@pytest.mark.parametrize("window", [None, 3, 7])
def test_batches_hold_each_slot_to_the_right_token_law_and_context(window):
    setting = setting_of(replace(OPTIONS, window=window))
    data, f, ids = random_data(24), setting.maker.features, setting.vocabulary.tolist()
    sequences = torch.tensor(CHOSEN)
    blocks = setting.maker.make(sequences, torch.Generator().manual_seed(1))
    width, shape = setting.maker.width, (4, 6, 3)
    goals = blocks.goals
    label, weight, greedy, lse = (t.view(shape) for t in (goals.label, goals.weight, goals.greedy, goals.lse))
    last, seen = goals.last.view(*shape, -1), blocks.bias.view(*shape, -1)
    assert set(seen.unique().tolist()) == {0, float("-inf")}
    raw = torch.zeros(shape)
    for b, s in enumerate(CHOSEN):
        text, first = data.ids[data.starts[s] : data.starts[s + 1]], int(data.starts[s])
        real = [int(a) for i, a in enumerate(blocks.anchor[b]) if blocks.valid[b, i, 0]]
        assert len(set(real)) == len(real) == min(6, len(text) - 1 - data.prompt[s])
        assert torch.equal(blocks.taps[b, : len(text)], f.taps[first : first + len(text)])
        assert bool((greedy[b] == (data.temperature[s] == 0)).all())
        for i, a in enumerate(blocks.anchor[b].tolist()):
            assert torch.equal(blocks.embedded[b, i], toy_target().embedding[blocks.previous[b, i]])
            for k in range(3):
                valid = i < len(real) and a + k + 1 < len(text)
                assert bool(blocks.valid[b, i, k]) == valid and (valid or weight[b, i, k] == 0)
                if not valid:
                    continue
                raw[b, i, k] = np.exp(-k / 4)
                assert data.prompt[s] <= a
                token = int(text[a + k + 1])
                assert label[b, i, k] == (ids.index(token) if token in ids else -1)
                assert blocks.previous[b, i, k] == text[a + k]
                assert torch.equal(last[b, i, k], f.last[first + a + k]) and lse[b, i, k] == f.lse[first + a + k]
                # depth k stands at position a + k: context at j < a, a block row at a + j, both within |i - j| < window
                near = window or 10**6
                context = [j < a and abs(a + k - j) < near for j in range(width)]
                rows = [r // 3 == i and abs(k - r % 3) < near for r in range(18)]
                assert (seen[b, i, k] == 0).tolist() == context + rows
    torch.testing.assert_close(weight, raw / raw.sum())
    assert greedy.any() and not greedy.all() and (label[weight > 0] < 0).any()


def test_a_chains_batch_is_the_text_and_the_targets_states():
    setting = setting_of(MTP)
    data, f = random_data(24), setting.maker.features
    blocks = setting.maker.make(torch.tensor(CHOSEN), torch.Generator().manual_seed(1))
    assert blocks.taps.shape == blocks.text.shape == (4, setting.maker.width, 32) and blocks.bias.numel() == 0
    for b, s in enumerate(CHOSEN):
        at = slice(int(data.starts[s]), int(data.starts[s + 1]))
        n = at.stop - at.start
        assert torch.equal(blocks.taps[b, :n], f.last[at])
        assert torch.equal(blocks.text[b, :n], toy_target().embedding[torch.from_numpy(data.ids[at]).long()])
    block = setting_of(OPTIONS).maker.make(torch.tensor(CHOSEN), torch.Generator().manual_seed(1))
    assert torch.equal(block.goals.label, blocks.goals.label) and torch.equal(block.goals.last, blocks.goals.last)


def test_anchors_are_drawn_evenly_and_depend_on_the_generator_alone():
    maker = setting_of(OPTIONS).maker
    prompt, last = int(maker.features.prompt[11]), int(maker.features.length[11]) - 1
    generator, counts = torch.Generator().manual_seed(0), torch.zeros(64)
    for _ in range(100):
        anchor = maker.make(torch.tensor([11] * 8), generator).anchor
        counts += torch.bincount(anchor.flatten(), minlength=64)
    assert counts[prompt:last].min() > 0 and counts.sum() == counts[prompt:last].sum() == 4800
    expected = 4800 / (last - prompt)
    assert ((counts[prompt:last] - expected).abs() < 5 * expected**0.5).all()
    one, two = (maker.make(torch.tensor([3]), torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(one.anchor, two.anchor)


@pytest.mark.parametrize(
    "wrong",
    [
        {"head": "moe"},
        {"taps": (3, 1)},
        {"max_tokens": 600},
        {"seconds": 0},
        {"coupled": 1.5},
        {"kind": "medusa"},
        {"window": 6},
        {"kind": "mtp"},
        {"kind": "mtp", "layers": 1},
        {"muon_share": 0.0},
        {"kind": "mtp", "layers": 1, "head": "none", "window": 9},
        {"rank": 0},
        {"batch": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError):
        replace(TrainOptions(), **wrong)


def test_the_options_that_the_refusals_border_on_stand():
    assert TrainOptions(window=7).window == 7 and TrainOptions(kind="mtp", layers=1, head="none", rank=0).rank == 0
