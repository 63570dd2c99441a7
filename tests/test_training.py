"""Training against independent references: plain forwards, plain autograd, the runtime drafter over a StatePool."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from dsbench.errors import DsbenchError, EnvironmentRefused, UsageError
from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.drafters.checkpoint import read_drafter
from dsbench.runtime.drafters.dspark import DSparkDrafter
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets.dense import DenseTarget, random_weights
from dsbench.runtime.targets.load import LoadedTarget
from dsbench.runtime.targets.shape import ModelShape
from dsbench.runtime.training.data import (
    TRAIN,
    VALIDATION_MIXED,
    VALIDATION_T1,
    Job,
    TokenData,
    assemble,
    draft_vocabulary,
    load_data,
    obtain_data,
    plan_jobs,
    repetition,
    save_data,
)
from dsbench.runtime.training.features import make_features
from dsbench.runtime.training.forward import padded_forward
from dsbench.runtime.training.generate import Decoder, generate
from dsbench.runtime.training.loss import HeadLoss
from dsbench.runtime.training.options import TrainOptions
from dsbench.runtime.training.step import loss_of
from dsbench.runtime.training.fit import Sums, fit
from dsbench.runtime.training.optimise import learning_rate
from dsbench.runtime.training.train import prepare, train_drafter

CPU = torch.device("cpu")
SHAPE = ModelShape(
    name="toy", layers=4, hidden=32, mlp=48, heads=4, kv_heads=2, head_width=8, vocab=97, context=256, rope_theta=1e4,
    norm_eps=1e-5, tied=True, qk_norm=False,
)  # fmt: skip
OPTIONS = TrainOptions(
    seconds=60, layers=2, taps=(0, 2), rank=8, block=3, draft_vocab=40, sequences=40, validation=8, max_tokens=40,
    width=64, decode_batch=16, batch=4, anchors=6, seed=5, log_every=60,
)  # fmt: skip
EOS = frozenset({2})


def quiet(record: dict[str, object]) -> None:
    """A log that keeps nothing."""


@pytest.fixture(scope="module")
def target() -> DenseTarget:
    weights = random_weights(SHAPE, CPU, torch.float32, seed=1)
    return DenseTarget(SHAPE, {k: w * 6 if w.ndim == 2 else w for k, w in weights.items()}, digest="toy-digest")


def random_data(sequences: int, seed: int = 0) -> TokenData:
    rng = np.random.default_rng(seed)
    jobs = [
        Job(prompt=tuple(rng.integers(0, 97, rng.integers(3, 9))), temperature=1.0, split=i % 8)
        for i in range(sequences)
    ]
    jobs = [replace(j, split=j.split if j.split in (VALIDATION_T1, VALIDATION_MIXED) else TRAIN) for j in jobs]
    answers = [(97 * rng.random(rng.integers(8, 40)) ** 2).astype(np.int32) for _ in jobs]
    return assemble(jobs, answers, OPTIONS, "toy-digest")


def full_logits(target: DenseTarget, ids: list[int]) -> torch.Tensor:
    """Logits [S, V] by the runtime's own forward over a pool, one sequence."""
    pool = StatePool(
        PoolShape(layers=((2, 8),) * SHAPE.layers, page=16, pages=8, table=8), CPU, torch.float32, shuffle_seed=None
    )
    return run_rows(target, pool, ids, 0, ())[0]


def run_rows(
    target: DenseTarget, pool: StatePool, ids: list[int], start: int, taps: tuple[int, ...]
) -> tuple[torch.Tensor, torch.Tensor, Batch]:
    """Target rows ids at positions start.. of request 0, into the pool."""
    if start == 0:
        assert pool.open(0, 120)
    pool.grow(0, start + len(ids))
    context = torch.tensor([start], dtype=torch.int32)
    cu_rows, request, positions = ragged_positions(context, torch.tensor([len(ids)], dtype=torch.int32))
    batch = Batch(
        ids=torch.tensor(ids),
        positions=positions,
        cu_rows=cu_rows,
        context=context,
        pages=pool.table([0]),
        request=request,
    )
    logits, tapped = target.forward(batch, pool, taps)
    return logits, tapped, batch


def test_greedy_generation_is_the_argmax_of_plain_forwards(target: DenseTarget) -> None:
    rng = np.random.default_rng(3)
    prompts = [rng.integers(3, 97, n).tolist() for n in (9, 2, 5, 14, 5)]
    answers = generate(
        target, prompts, [0.0] * 5, eos=EOS, limit=70, width=80, seed=0, batch=3, log=quiet
    )  # two waves, compaction, several buckets
    for prompt, answer in zip(prompts, answers, strict=True):
        assert len(answer) == min(70, 80 - len(prompt)) or answer[-1] == 2
        logits = full_logits(target, prompt + answer.tolist())
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == answer.tolist()


def test_rows_that_only_pad_the_batch_disturb_nothing(target: DenseTarget, monkeypatch) -> None:
    """On CUDA batch sizes are rounded up, so rows that are through ride along: here by 4, past the cache's end."""
    ends = frozenset(range(0, 97, 5))
    prompts = [[3 + i, 50 - i, 7] for i in range(7)]
    alone = [
        generate(target, [p], [0.0], eos=ends, limit=120, width=128, seed=0, batch=1, log=quiet)[0] for p in prompts
    ]
    assert len({len(a) for a in alone}) > 2
    monkeypatch.setattr(Decoder, "_padded", lambda self, live: min(self.batch, -(-live // 4) * 4))
    together = generate(target, prompts, [0.0] * 7, eos=ends, limit=120, width=128, seed=0, batch=6, log=quiet)
    assert [a.tolist() for a in together] == [a.tolist() for a in alone]


def test_sampled_tokens_follow_the_targets_law_and_stop_at_the_end_token(target: DenseTarget) -> None:
    prompt, n = [5, 6, 7], 6000
    answers = generate(target, [prompt] * n, [0.7] * n, eos=EOS, limit=1, width=8, seed=4, batch=n, log=quiet)
    law = (full_logits(target, prompt)[-1] / 0.7).softmax(-1)
    seen = torch.bincount(torch.tensor([a[0] for a in answers]), minlength=97) / n
    assert (seen - law).abs().sum() < 0.15 and (seen - law).abs().max() < 5 * (law.max() / n) ** 0.5
    ends = generate(
        target,
        [prompt] * 64,
        [1.0] * 64,
        eos=frozenset(range(0, 97, 7)),
        limit=50,
        width=64,
        seed=4,
        batch=64,
        log=quiet,
    )
    assert all(all(t % 7 for t in a[:-1]) and (a[-1] % 7 == 0 or len(a) == 50) for a in ends)
    assert len({len(a) for a in ends}) > 5


def test_features_hold_the_taps_and_the_log_sum_exp_of_every_token(target: DenseTarget) -> None:
    data = random_data(11)
    features = make_features(target, data, (0, 2), quiet)
    for i in (0, 7, len(data) - 1):
        at = slice(int(data.starts[i]), int(data.starts[i + 1]))
        pool = StatePool(
            PoolShape(layers=((2, 8),) * 4, page=16, pages=8, table=8), CPU, torch.float32, shuffle_seed=None
        )
        logits, taps, _ = run_rows(target, pool, data.ids[at].tolist(), 0, (0, 2))
        torch.testing.assert_close(features.taps[at], taps, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features.lse[at], logits.logsumexp(-1), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(features.last[at] @ target.head.T, logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("head", ["vanilla", "rnn", "gated", "none"])
def test_training_blocks_equal_the_runtime_drafter_over_a_pool(target: DenseTarget, head: str, tmp_path) -> None:
    """Saved, read back and run round by round, the drafter gives the hidden states that the training mask gives."""
    options = replace(OPTIONS, head=head)
    setting = prepare(options, target, random_data(24), EOS, quiet)
    with torch.no_grad():
        for p in setting.module.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) * 0.05)
    drafter = saved_and_read(setting, target, options, tmp_path)
    module = setting.module
    with torch.no_grad():  # the file is bf16
        for p in module.parameters():
            p.copy_(p.bfloat16().float())
    blocks = setting.maker.make(torch.tensor([3, 5]), torch.Generator().manual_seed(0))
    hidden = module.backbone(
        blocks.taps, blocks.anchor, blocks.embedded, blocks.bias, setting.heads.cos, setting.heads.sin
    )
    x, with_token, free = module(
        blocks.taps, blocks.anchor, blocks.embedded, blocks.previous, blocks.bias, setting.heads.cos, setting.heads.sin
    )
    for b, sequence in enumerate((3, 5)):
        f = setting.maker.features
        ids = f.ids[f.start[sequence] : f.start[sequence] + f.length[sequence]].tolist()
        a1, a2 = sorted(range(6), key=lambda a: int(blocks.anchor[b, a]))[2:4]
        pool = StatePool(
            PoolShape(layers=((2, 8),) * 4 + drafter.pool_layers(), page=16, pages=8, table=8), CPU, torch.float32,
            shuffle_seed=3,
        )  # fmt: skip
        done = 0
        for a in (a1, a2):  # two rounds: the second one's context is written after the first one's block
            anchor = int(blocks.anchor[b, a])
            _, taps, batch = run_rows(target, pool, ids[done:anchor], done, options.taps)
            drafter.observe(batch, taps, pool)
            pool.grow(0, anchor + options.block)
            found = drafter.backbone(
                torch.tensor([ids[anchor]]), torch.tensor([anchor], dtype=torch.int32), pool.table([0]), pool
            )
            torch.testing.assert_close(found[0], hidden[b, a].detach(), atol=1e-4, rtol=1e-4)
            done = anchor
    check_head(drafter, blocks, hidden.detach(), x.detach(), with_token.detach(), free.detach())


def check_head(drafter, blocks, hidden, x, with_token, free) -> None:
    """The drafter's own sequential head, teacher-forced by hand, against the module's packed one."""
    from dsbench.runtime.drafters.heads import head_feature

    g = hidden.shape[2]
    state = hidden.new_zeros(hidden.shape[0] * hidden.shape[1], max(drafter.shape.rank, 1))
    d = hidden.shape[-1]
    for k in range(g):
        h, previous = hidden[:, :, k].flatten(0, 1), blocks.previous[:, :, k].flatten()
        logits, e = F.linear(h, drafter.head), None
        packed = F.linear(x.view(-1, g, x.shape[-1])[:, k, :d], drafter.head)
        if drafter.shape.head != "none":
            e = drafter.sequential["markov_w1.weight"][previous]
            feature, state = head_feature(drafter.shape.head, drafter.sequential, e, h, state)
            logits = logits + F.linear(feature, drafter.sequential["markov_w2.weight"])
            packed = packed + F.linear(x.view(-1, g, x.shape[-1])[:, k, d:], drafter.sequential["markov_w2.weight"])
        torch.testing.assert_close(packed, logits, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(with_token.view(-1, g)[:, k], drafter._confidence(h, e), atol=1e-4, rtol=1e-4)
        mine = F.linear(h, *drafter.confidence_free).squeeze(-1)
        torch.testing.assert_close(free.view(-1, g)[:, k], mine, atol=1e-4, rtol=1e-4)


def saved_and_read(setting, target: DenseTarget, options: TrainOptions, folder) -> DSparkDrafter:
    from dsbench.runtime.training.save import save_drafter

    card = {
        "data": {"tokens": 1, "sequences": {"train": 1}, "seed": 0}, "target": "toy", "target_digest": "toy-digest",
        "options": {"block": 3, "layers": 2, "taps": (0, 2), "head": options.head, "seed": 0, "lr": 1e-3},
        "draft_vocab": 40,
        "steps": 1, "seconds": 1.0, "device": "CPU", "validation": {"T=1": {"tau": 1.0, "acceptance": [0.1] * 3}},
        "extensions": [], "licence": "Apache-2.0",
    }  # fmt: skip
    for _ in range(2):  # the second time over an existing folder
        save_drafter(setting.module, setting.vocabulary, folder / "d", target_layers=4, anchors=6, card=card)
    assert sorted(p.name for p in folder.iterdir()) == ["d"]
    shape, weights, digest = read_drafter(folder / "d", CPU, torch.float32)
    names = {name for name, _ in setting.module.named_parameters()} | {"draft_vocab_ids"}
    assert set(weights) == names and shape.draft_vocab == 40 and shape.target_digest == "toy-digest"
    for name, parameter in setting.module.named_parameters():
        assert torch.equal(weights[name], parameter.detach().bfloat16().float()), name
    return DSparkDrafter(shape, weights, digest, target)


def plain_loss(x, w2, head, full_head, ids, last, label, weight, logits_with, logits_free):
    """The loss of the paper in whole tensors over the full vocabulary, for autograd."""
    z = x[:, : head.shape[1]] @ head.T + (0 if w2 is None else x[:, head.shape[1] :] @ w2.T)
    q = torch.zeros(x.shape[0], full_head.shape[0]).index_copy(1, ids, z.softmax(-1))
    p = (last @ full_head.T).softmax(-1)
    l1 = (q - p).abs().sum(-1)
    ce = torch.where(label >= 0, -z.log_softmax(-1).gather(1, label.clamp(min=0)[:, None]).squeeze(1), 0.0)
    goal = (1 - l1 / 2).detach()
    bce = sum(F.binary_cross_entropy_with_logits(c, goal, reduction="none") for c in (logits_with, logits_free))
    return (weight * (0.1 * ce + 0.9 * l1 + bce)).sum(), goal


@pytest.mark.parametrize("sequential", [True, False])
def test_loss_and_gradients_equal_plain_autograd_over_the_full_vocabulary(sequential: bool, monkeypatch) -> None:
    monkeypatch.setattr("dsbench.runtime.training.loss.CHUNK_VALUES", 300)  # several chunks
    g = torch.Generator().manual_seed(2)
    rows, d, r, vocab, small = 24, 16, 5, 61, 23
    full_head, last = torch.randn(vocab, d, generator=g), torch.randn(rows, d, generator=g)
    ids = torch.randperm(vocab, generator=g)[:small].sort().values
    label = torch.randint(-1, small, (rows,), generator=g)
    label[:4] = -1
    weight = torch.rand(rows, generator=g) * (torch.arange(rows) % 5 != 0)
    weight = weight / weight.sum()
    leaves = [torch.randn(rows, d + (r if sequential else 0), generator=g), torch.randn(small, r, generator=g)]
    leaves += [torch.randn(rows, generator=g), torch.randn(rows, generator=g)]
    sides = []
    for fast in (True, False):
        x, w2, a, b = (t.clone().requires_grad_() for t in leaves)
        w = w2 if sequential else None
        if fast:
            parts = draft_loss(x, a, b, w, full_head[ids], last, (last @ full_head.T).logsumexp(-1), label, weight)
            total, accept = parts.total, parts.accept
        else:
            total, accept = plain_loss(x, w, full_head[ids], full_head, ids, last, label, weight, a, b)
        (3 * total).backward()
        sides.append([total.detach(), accept, x.grad, a.grad, b.grad] + ([w2.grad] if sequential else []))
    for mine, reference in zip(*sides, strict=True):
        torch.testing.assert_close(mine, reference, atol=1e-5, rtol=1e-4)
    lse = (last @ full_head.T).logsumexp(-1)
    held = slot_acceptance(leaves[0], leaves[1] if sequential else None, full_head[ids], last, lse)
    torch.testing.assert_close(held, sides[1][1], atol=1e-5, rtol=1e-4)


def test_batches_hold_each_slot_to_the_right_token_and_law(target: DenseTarget) -> None:
    data = random_data(24)
    setting = prepare(OPTIONS, target, data, EOS, quiet)
    f, ids = setting.maker.features, setting.vocabulary.tolist()
    sequences = torch.tensor([2, 9, 4])
    blocks = setting.maker.make(sequences, torch.Generator().manual_seed(1))
    label, weight = blocks.label.view(3, 6, 3), blocks.weight.view(3, 6, 3)
    last, seen = blocks.last.view(3, 6, 3, -1), blocks.bias.view(3, 6, 3, -1) == 0
    for b, s in enumerate(sequences.tolist()):
        text, first = data.ids[data.starts[s] : data.starts[s + 1]], int(data.starts[s])
        real = [int(a) for i, a in enumerate(blocks.anchor[b]) if blocks.valid[b, i, 0]]
        assert len(set(real)) == len(real) == min(6, len(text) - 1 - data.prompt[s])
        for i, a in enumerate(blocks.anchor[b].tolist()):
            for k in range(3):
                if not blocks.valid[b, i, k]:
                    assert weight[b, i, k] == 0
                    continue
                assert data.prompt[s] <= a and a + k + 1 < len(text)
                token = int(text[a + k + 1])
                assert label[b, i, k] == (ids.index(token) if token in ids else -1)
                assert blocks.previous[b, i, k] == text[a + k]
                assert torch.equal(last[b, i, k], f.last[first + a + k])
                width = setting.maker.width
                assert seen[b, i, k, :width].tolist() == [j < a for j in range(width)]
                assert seen[b, i, k, width:].nonzero().flatten().tolist() == [3 * i + j for j in range(3)]
    assert weight.sum() == pytest.approx(1) and (weight[0, 0, 1] / weight[0, 0, 0]).item() == pytest.approx(
        np.exp(-0.25)
    )


@pytest.mark.parametrize("head", ["vanilla", "rnn"])
def test_a_short_training_reduces_the_loss(target: DenseTarget, head: str) -> None:
    setting = prepare(replace(OPTIONS, head=head), target, random_data(40), EOS, quiet)
    held = setting.maker.make(setting.splits[TRAIN][:8], torch.Generator().manual_seed(9))

    def loss() -> float:
        with torch.no_grad():
            return loss_of(setting.module, rows_gradient, setting, held).total.item()

    before = loss()
    assert fit(replace(OPTIONS, lr=1e-2), setting, quiet, most_steps=30) == 30
    assert loss() < before - 0.1


def test_train_drafter_from_a_data_file_writes_a_drafter_that_loads(target: DenseTarget, tmp_path) -> None:
    path = tmp_path / "data.npz"
    save_data(random_data(48), path)
    loaded = LoadedTarget(name="toy", model=target, tokenizer=None, eos=EOS, random=False)
    log: list[dict[str, object]] = []
    options = replace(OPTIONS, seconds=1.0, log_every=0.3, data_path=path)
    card = train_drafter(options, loaded, [], tmp_path / "out" / "drafter", log.append)
    shape, weights, digest = read_drafter(tmp_path / "out" / "drafter", CPU, torch.float32)
    assert (
        DSparkDrafter(shape, weights, digest, target).vocabulary.tolist()[:1] <= [2] and 2 in weights["draft_vocab_ids"]
    )
    assert card["steps"] > 3 and 1 < card["validation"]["T=1"]["tau"] <= 4
    lines = [r for r in log if r.get("stage") == "train"]
    assert len(lines) >= 2 and lines[-1]["step"] == card["steps"] and "tau_val" in lines[-1]
    other = LoadedTarget(name="toy", model=DenseTarget.__new__(DenseTarget), tokenizer=None, eos=EOS, random=False)
    other.model.digest = "another"
    with pytest.raises(EnvironmentRefused, match="another|toy-digest"):
        obtain_data(options, other, [], quiet)


def test_data_survives_its_file_and_the_draft_vocabulary_is_the_most_frequent(tmp_path) -> None:
    data = random_data(30)
    save_data(data, tmp_path / "d.npz")
    back = load_data(tmp_path / "d.npz")
    for name in ("ids", "starts", "prompt", "temperature", "split"):
        assert np.array_equal(getattr(data, name), getattr(back, name)), name
    assert back.meta == data.meta
    counts = np.zeros(97, int)
    for i in range(len(data)):
        if data.split[i] == TRAIN:
            for token in data.answer(i):
                counts[token] += 1
    ids = draft_vocabulary(data, 20, 97, frozenset({96}))
    assert 96 in ids and len(ids) == 20 and list(ids) == sorted(ids)
    assert min(counts[i] for i in ids if i != 96) >= max(counts[i] for i in range(97) if i not in ids)
    (tmp_path / "bad.npz").write_bytes(b"PK garbage")
    with pytest.raises(UsageError, match="not a training data file"):
        load_data(tmp_path / "bad.npz")


def test_jobs_keep_the_mix_and_the_validation_prompts_apart() -> None:
    options = replace(OPTIONS, sequences=2000, validation=100)
    asked, own = [(1, i) for i in range(150)], [(2, i) for i in range(2000)]
    jobs = plan_jobs(asked, own, options)
    by_split = {s: [j for j in jobs if j.split == s] for s in (TRAIN, VALIDATION_T1, VALIDATION_MIXED)}
    prompts = {s: {j.prompt for j in js} for s, js in by_split.items()}
    assert not prompts[TRAIN] & prompts[VALIDATION_T1] and not prompts[TRAIN] & prompts[VALIDATION_MIXED]
    assert not prompts[VALIDATION_T1] & prompts[VALIDATION_MIXED]
    assert [len(by_split[s]) for s in (TRAIN, VALIDATION_T1, VALIDATION_MIXED)] == [2000, 100, 100]
    assert {j.temperature for j in by_split[VALIDATION_T1]} == {1.0}
    share = {t: sum(j.temperature == t for j in by_split[TRAIN]) / 2000 for t in (1.0, 0.7, 0.0)}
    assert share == pytest.approx({1.0: 0.55, 0.7: 0.25, 0.0: 0.2}, abs=0.01)
    assert jobs == plan_jobs(asked, own, options)


def test_repetition_counts_four_grams_seen_before() -> None:
    assert repetition(np.arange(20, dtype=np.int32)) == 0
    assert repetition(np.array([1, 2, 3, 4] * 5, np.int32)) == pytest.approx(1 - 4 / 17)


def test_the_schedule_warms_up_and_ends_at_zero() -> None:
    assert learning_rate(0, 1) == 0 and learning_rate(0.02, 1) == pytest.approx(0.5)
    assert learning_rate(0.04, 1) == pytest.approx(1) and learning_rate(0.52, 1) == pytest.approx(0.5)
    assert learning_rate(1, 1) == pytest.approx(0, abs=1e-9)


def test_a_loss_that_is_not_finite_stops_the_training() -> None:
    sums = Sums(3, CPU)
    sums.steps = 1
    sums.parts += float("nan")
    with pytest.raises(DsbenchError, match="diverged"):
        sums.take()


def test_padding_does_not_reach_real_rows(target: DenseTarget) -> None:
    ids = torch.tensor([[4, 5, 6, 0, 0], [7, 8, 9, 10, 11]])
    padded, _ = padded_forward(target, ids)
    alone, _ = padded_forward(target, ids[:1, :3])
    torch.testing.assert_close(padded[0, :3], alone[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("field", "value"), [("head", "moe"), ("taps", (3, 1)), ("max_tokens", 600), ("seconds", 0)])
def test_options_that_make_no_sense_are_refused(field: str, value: object) -> None:
    with pytest.raises(UsageError):
        replace(TrainOptions(), **{field: value})
