"""A trained module's file, read back and run over a StatePool, is the module: hidden states, logits, confidences."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest
import torch
from torch.nn import functional as F
from training_tools import CPU, MTP, OPTIONS, pool_of, run_rows, setting_of, toy_target

from dsbench.kernels.draft.loss import training_noise
from dsbench.kernels.draft.stats import coupled_stats_reference, law_stats_reference
from dsbench.runtime.drafters.checkpoint import read_drafter
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.drafters.heads import head_feature
from dsbench.runtime.drafters.load import load_drafter
from dsbench.runtime.drafters.mtp import MtpDrafter
from dsbench.runtime.drafters.mtp_checkpoint import read_mtp
from dsbench.runtime.training.loss import rows_of
from dsbench.runtime.training.options import TrainOptions
from dsbench.runtime.training.save import save_drafter
from dsbench.runtime.training.step import Setting

CHOSEN = (11, 16)  # the longest of both kinds of text: one sampled, one greedy
SEED = torch.tensor([77])


def disturbed(options: TrainOptions) -> Setting:
    """A setting whose every parameter matters; its values are those that a bf16 file keeps."""
    setting = setting_of(options)
    generator = torch.Generator().manual_seed(8)
    with torch.no_grad():
        for name, p in setting.module.named_parameters():
            p.add_(torch.randn(p.shape, generator=generator) * (0.3 if "confidence" in name else 0.05))
            p.copy_(p.bfloat16().float())
    return setting


def card_of(options: TrainOptions) -> dict[str, object]:
    return {
        "data": {"tokens": 1, "sequences": {"train": 1}, "seed": 0},
        "target": "toy",
        "target_digest": "toy-digest",
        "options": asdict(options),
        "draft_vocab": 40,
        "steps": 1,
        "seconds": 1.0,
        "device": "CPU",
        "licence": "Apache-2.0",
        "validation": {"T=1": {"coupled": {"tau": 1.0, "acceptance": [0.1] * 3}}},
    }


def saved(setting: Setting, options: TrainOptions, folder) -> DSparkDrafter | MtpDrafter:
    for _ in range(2):  # the second time over an existing folder
        save_drafter(setting.module, setting.vocabulary, folder / "d", target_layers=4, card=card_of(options))
    assert sorted(p.name for p in folder.iterdir()) == ["d"]
    return load_drafter(folder / "d", toy_target())


def text_of(setting: Setting, sequence: int) -> list[int]:
    f = setting.maker.features
    return f.ids[f.start[sequence] : f.start[sequence] + f.length[sequence]].tolist()


def rounds_of(blocks, row: int) -> list[tuple[int, int]]:
    """Two (block, anchor) of a row in the order of its text: what the first left in the pool, the second overwrites."""
    real = [(int(blocks.anchor[row, a]), a) for a in range(blocks.anchor.shape[1]) if blocks.valid[row, a].all()]
    (first, a), (second, b) = sorted(real)[0], sorted(real)[-1]
    assert second > first + 6
    return [(a, first), (b, second)]


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("head", ["vanilla", "rnn", "gated", "deep", "none"])
def test_blocks_of_the_training_mask_equal_the_saved_drafter_over_a_pool(head: str, window: int | None, tmp_path):
    options = replace(OPTIONS, head=head, window=window)
    setting = disturbed(options)
    drafter = saved(setting, options, tmp_path)
    assert isinstance(drafter, DSparkDrafter) and drafter.shape.windows == ((window,) * 2 if window else (None,) * 2)
    assert drafter.shape.causal == (False, False) and drafter.vocabulary.tolist() == setting.vocabulary.tolist()
    blocks = setting.maker.make(torch.tensor(CHOSEN), torch.Generator().manual_seed(0))
    taps, anchor, embedded, _, bias, cos, sin = setting.module.inputs(blocks, setting.heads.cos, setting.heads.sin)
    hidden = setting.module.backbone(taps, anchor, embedded, bias, cos, sin).detach()
    for row, sequence in enumerate(CHOSEN):
        ids, pool, done = text_of(setting, sequence), pool_of(drafter.pool_layers(), shuffle_seed=3), 0
        for a, at in rounds_of(blocks, row):
            assert window is None or done == 0 or at > window
            _, tapped, batch = run_rows(pool, ids[done:at], done, options.taps)
            drafter.observe(batch, tapped, pool)
            pool.grow(0, at + options.block)
            start = torch.tensor([at], dtype=torch.int32)
            found = drafter.backbone(torch.tensor([ids[at]]), start, pool.table([0]), pool)
            torch.testing.assert_close(found[0], hidden[row, a], atol=1e-4, rtol=1e-4)
            done = at
    check_heads(setting, drafter, blocks, hidden)


@torch.no_grad()
def deep_step(drafter: DSparkDrafter, previous, h, u) -> tuple[torch.Tensor, ...]:
    """What a deep head knows of the token, its feature and its next state, written out."""
    w, embedded = drafter.sequential, drafter.embedding[previous]
    e = (embedded / (embedded.square().mean(-1, keepdim=True) + 1e-6).sqrt()) @ w["token_proj.weight"].T
    z = e + h @ w["hidden_proj.weight"].T + w["hidden_proj.bias"] + u @ w["state_proj.weight"].T
    u = z * z.sigmoid()
    return e, u @ w["feature_proj.weight"].T, u


def check_heads(setting: Setting, drafter: DSparkDrafter, blocks, hidden: torch.Tensor) -> None:
    """Logits and event confidences of every slot by the drafter's own weights, teacher-forced."""
    g, d, module, goals = hidden.shape[2], hidden.shape[-1], setting.module, blocks.goals
    x, seen = module(*module.inputs(blocks, setting.heads.cos, setting.heads.sin))
    _, _, features = rows_of(x, module.w2, setting.heads.head, goals, SEED)
    found = module.confidences(seen, features, d)
    n = x.shape[0]
    noise = training_noise(n, 41, seed=SEED, first=0, device=CPU)[:, :40].view(-1, g, 40)
    rows = [t.view(-1, g, *t.shape[1:]) for t in (x, found.events, found.free_events, found.published, goals.greedy)]
    state = hidden.new_zeros(n // g, drafter.shape.rank * (4 if drafter.shape.head == "deep" else 1))
    for k in range(g):
        x_k, events, free, published, greedy = (t[:, k] for t in rows)
        h, previous, e = hidden[:, :, k].flatten(0, 1), blocks.previous[:, :, k].flatten(), None
        logits, packed = F.linear(h, drafter.head), F.linear(x_k[:, :d], setting.heads.head)
        if drafter.shape.head != "none":
            if drafter.shape.head == "deep":
                e, feature, state = deep_step(drafter, previous, h, state)
            else:
                e = drafter.sequential["markov_w1.weight"][previous]
                feature, state = head_feature(drafter.shape.head, drafter.sequential, e, h, state)
            logits = logits + F.linear(feature, drafter.sequential["markov_w2.weight"])
            packed = packed + F.linear(x_k[:, d:], module.w2)
        torch.testing.assert_close(packed, logits, atol=1e-4, rtol=1e-4)
        ones = torch.ones(len(h))
        cold = coupled_stats_reference(logits, ones * 0, ones.long(), ones.long(), drafter.vocabulary)[1]
        full = law_stats_reference(logits, ones)
        two = (logits + noise[:, k]).sort(dim=-1, descending=True).values
        gap = (two[:, 0] - two[:, 1]).clamp(max=10)
        coupled = torch.cat([full[:, :4], gap[:, None], (gap + 0.1).log()[:, None]], dim=-1)
        for event, (features_k, rows_k) in enumerate(((cold, greedy), (coupled, ~greedy), (full, greedy | ~greedy))):
            assert rows_k.any()
            inputs = (h, features_k) if e is None else (h, e, features_k)
            mine = drafter.events(inputs, torch.full((len(h),), event))
            torch.testing.assert_close(events[rows_k, event], mine[rows_k], atol=2e-3, rtol=1e-3)
            mine = drafter.events_free((h,), torch.full((len(h),), event))
            torch.testing.assert_close(free[:, event], mine, atol=1e-4, rtol=1e-4)
        seen_k = h if e is None else torch.cat([h, e], dim=-1)
        torch.testing.assert_close(published, F.linear(seen_k, *drafter.confidence).squeeze(-1), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [OPTIONS, replace(OPTIONS, head="rnn"), MTP], ids=["vanilla", "rnn", "mtp"])
def test_a_file_holds_every_tensor_of_the_module_by_its_name(options, tmp_path):
    setting = disturbed(options)
    saved(setting, options, tmp_path)
    named = {n.removeprefix("confidences."): p for n, p in setting.module.named_parameters()}
    if options.kind == "mtp":
        drop = ("confidence_events", "confidence_free_events", "confidence_head_free")
        named = {n: p for n, p in named.items() if not n.startswith(drop)}
    read = read_mtp if options.kind == "mtp" else read_drafter
    shape, weights, _ = read(tmp_path / "d", CPU, torch.float32)
    assert shape.draft_vocab == 40 and shape.target_digest == "toy-digest" and shape.block == 3
    assert set(weights) == {*named, "draft_vocab_ids"}
    assert torch.equal(weights["draft_vocab_ids"].int(), setting.vocabulary)
    for name, parameter in named.items():
        assert torch.equal(weights[name], parameter.detach()), name


@torch.no_grad()
def test_steps_of_the_unrolled_chain_equal_the_saved_chain_over_a_pool(tmp_path):
    """Teacher-forced steps 1..3 at two anchors of each text; the second finds the first one's chain in the pool."""
    setting = disturbed(MTP)
    drafter = saved(setting, MTP, tmp_path)
    assert isinstance(drafter, MtpDrafter) and drafter.block == 3
    blocks = setting.maker.make(torch.tensor(CHOSEN), torch.Generator().manual_seed(0))
    module = setting.module
    x, seen = module(*module.inputs(blocks, setting.heads.cos, setting.heads.sin))
    assert torch.equal(x, seen)
    published = module.confidences(seen, torch.zeros(len(x), 6), 32).published.view(2, 6, 3)
    x = x.view(2, 6, 3, -1)
    for row, sequence in enumerate(CHOSEN):
        ids, pool, done = text_of(setting, sequence), pool_of(drafter.pool_layers(), shuffle_seed=3), 0
        for a, at in rounds_of(blocks, row):
            _, tapped, batch = run_rows(pool, ids[done:at], done, drafter.taps)
            drafter.observe(batch, tapped, pool)
            pool.grow(0, at + 3)
            table = pool.table([0])
            hidden = drafter._kept(torch.tensor([at - 1]), table, pool)
            for k in range(3):
                hidden = drafter.step(torch.tensor([ids[at + k]]), hidden, torch.tensor([at + k]), table, pool)
                torch.testing.assert_close(hidden[0], x[row, a, k], atol=1e-4, rtol=1e-4)
                torch.testing.assert_close(drafter._confidence(hidden)[0], published[row, a, k], atol=1e-4, rtol=1e-4)
            done = at
    logits = drafter.unembed(x[0, 0])
    torch.testing.assert_close(logits, F.linear(x[0, 0], setting.heads.head), atol=1e-4, rtol=1e-4)
