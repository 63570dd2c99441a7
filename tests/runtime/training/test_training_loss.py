"""The loss against autograd over the whole vocabulary in whole tensors, its events by brute force, its memory."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy.stats import chisquare, kstest
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from dsbench.kernels.draft.loss import Shares, coupled_token, draft_loss_rows, training_noise
from dsbench.runtime.training.batches import Goals
from dsbench.runtime.training.loss import ConfidenceLogits, HeadLoss, chunk_rows, confidence_loss, rows_of
from dsbench.runtime.training.module import Confidences

CPU = torch.device("cpu")
SHARES = [Shares(), Shares(ce=0.2, l1=0.4, coupled=0.5, tau=0.7), Shares(ce=0.0, l1=0.0, coupled=1.0)]
SEED = torch.tensor([11])
VOCAB, SMALL = 61, 23


class Case:
    """Rows of a target with VOCAB ids, SMALL of them in the draft vocabulary; a third of the rows are greedy text."""

    def __init__(self, rows: int = 30, width: int = 16, rank: int = 5, vocab: int = VOCAB, small: int = SMALL) -> None:
        g = torch.Generator().manual_seed(2)
        self.full = torch.randn(vocab, width, generator=g)
        self.ids = torch.randperm(vocab, generator=g)[:small].sort().values
        self.head = self.full[self.ids]
        self.x, self.w2 = torch.randn(rows, width + rank, generator=g), torch.randn(small, rank, generator=g)
        last = torch.randn(rows, width, generator=g) * 0.7
        label = torch.randint(-1, small, (rows,), generator=g)
        label[:4] = -1
        weight = torch.rand(rows, generator=g) * (torch.arange(rows) % 5 != 0)
        self.goals = Goals(
            last=last,
            lse=(last @ self.full.T).logsumexp(-1),
            greedy=torch.arange(rows) % 3 == 0,
            label=label,
            weight=weight / weight.sum(),
        )
        self.noise = training_noise(rows, small + 1, seed=SEED, first=0, device=CPU)

    def logits(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Draft logits [R, V'] of the whole head input, target logits [R, V'] on the draft ids."""
        return self.x @ torch.cat([self.head, self.w2], dim=1).T, self.goals.last @ self.head.T

    def target_token(self, row: int) -> int:
        """Under the row's noise, or its label in greedy text; -1 outside the draft vocabulary."""
        if self.goals.greedy[row]:
            return int(self.goals.label[row])
        p = (self.full @ self.goals.last[row]).double().softmax(0)
        scores = [math.log(p[v]) + float(self.noise[row, i]) for i, v in enumerate(self.ids.tolist())]
        outside = math.log(1 - float(p[self.ids].sum())) + float(self.noise[row, -1])
        return -1 if outside > max(scores) else scores.index(max(scores))

    def reference(self, z: torch.Tensor, shares: Shares) -> torch.Tensor:
        """The weighted loss of draft logits z [R, V'], all of it over the full vocabulary."""
        goals, rows = self.goals, z.shape[0]
        q = torch.zeros(rows, self.full.shape[0]).index_copy(1, self.ids, z.softmax(-1))
        p = (goals.last @ self.full.T).softmax(-1)
        ce = torch.stack(
            [-q[i, self.ids[t]].log() if (t := int(goals.label[i])) >= 0 else q.new_zeros(()) for i in range(rows)]
        )
        noise = self.noise[:, :-1].masked_fill(goals.greedy[:, None], 0)
        law = ((z + noise) / shares.tau).softmax(-1)
        tokens = [self.target_token(i) for i in range(rows)]
        soft = torch.stack([law[i, t] if t >= 0 else law.new_zeros(()) for i, t in enumerate(tokens)])
        row = shares.ce * ce + shares.l1 * (q - p).abs().sum(-1) + 2 * shares.coupled * (1 - soft)
        return (goals.weight * row).sum()


def rows_found(case: Case, shares: Shares, z: torch.Tensor, zp: torch.Tensor):
    h = case.goals
    return draft_loss_rows(z, zp, h.lse, h.greedy, h.label, h.weight, seed=SEED, first=0, shares=shares)


@pytest.mark.parametrize("shares", SHARES, ids=["reference", "coupled", "coupled alone"])
def test_rows_equal_plain_autograd_over_the_full_vocabulary(shares: Shares):
    case = Case()
    z, zp = case.logits()
    found = rows_found(case, shares, z, zp)
    z = z.clone().requires_grad_()
    loss = case.reference(z, shares)
    (wanted,) = torch.autograd.grad(loss, z)
    torch.testing.assert_close(found.gradient, wanted, atol=1e-5, rtol=1e-4)
    row = shares.ce * found.ce + 2 * shares.l1 * (1 - found.accept) + 2 * shares.coupled * (1 - found.soft)
    assert (case.goals.weight * row).sum().item() == pytest.approx(loss.item(), abs=1e-5)
    assert shares.coupled or not found.soft.any()


def test_acceptance_match_and_features_of_a_row_by_brute_force():
    case = Case()
    z, zp = case.logits()
    z[5, :2] = z[5].max() + 20  # a tie far above the rest; the next row's margin is over the cap
    z[6, 3] += 40
    z[9, case.goals.label[9]] += 20  # greedy text that the drafter gets right
    found = rows_found(case, Shares(), z, zp)
    matched = Counter()
    for i in range(len(z)):
        q = z[i].double().softmax(0)
        p = (case.full @ case.goals.last[i]).double().softmax(0)[case.ids]
        assert found.accept[i].item() == pytest.approx(sum(map(min, q.tolist(), p.tolist())), abs=1e-5)
        noisy = z[i] if case.goals.greedy[i] else z[i] + case.noise[i, :-1]
        token = case.target_token(i)
        matched[bool(case.goals.greedy[i]), token >= 0, int(found.match[i])] += 1
        assert found.match[i] == float(int(noisy.argmax()) == token), i
        entropy = -sum(v * math.log(v) for v in q.tolist() if v > 0)
        gaps = [min(s[-1] - s[-2], 10.0) for s in (sorted(z[i].tolist()), sorted(noisy.tolist()))]
        wanted = [entropy, math.log(q.max()), *(f(g) for g in gaps for f in (float, lambda g: math.log(g + 0.1)))]
        assert found.features[i].tolist() == pytest.approx(wanted, abs=1e-4), i
    assert {(True, True, 1), (False, True, 1), (False, True, 0), (False, False, 0), (True, False, 0)} <= set(matched)


def test_the_coupled_token_follows_the_targets_law_with_all_other_ids_as_one():
    n, small = 40_000, 5
    p = torch.tensor([0.3, 0.05, 0.2, 0.1, 0.02])  # 0.33 lies outside
    logp = p.log().expand(n, small)
    hot = torch.zeros(n, dtype=torch.bool)
    for seed in (0, 9):
        noise = training_noise(n, small + 1, seed=torch.tensor([seed]), first=seed, device=CPU)
        y = coupled_token(logp, logp.exp(), noise, hot, hot.long())
        seen = torch.bincount(y + 1, minlength=small + 1)
        assert chisquare(seen, torch.cat([1 - p.sum(dim=0, keepdim=True), p]) / 1.0 * n, sum_check=False).pvalue > 1e-3


def test_noise_is_gumbel_and_keyed_by_seed_row_and_column():
    noise = training_noise(200, 500, seed=SEED, first=7, device=CPU)
    assert kstest(noise.flatten().numpy(), "gumbel_r").pvalue > 1e-3
    assert torch.equal(training_noise(3, 40, seed=SEED, first=27, device=CPU), noise[20:23, :40])
    other = training_noise(200, 500, seed=SEED + 1, first=7, device=CPU)
    for a, b in ((noise, other), (noise[1:], noise[:-1]), (noise[:, 1:], noise[:, :-1])):
        assert abs(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]) < 0.02


@pytest.mark.parametrize("sequential", [True, False])
@pytest.mark.parametrize("shares", SHARES[:2], ids=["reference", "coupled"])
def test_head_loss_and_its_gradients_equal_plain_autograd(sequential: bool, shares: Shares, monkeypatch):
    monkeypatch.setattr("dsbench.runtime.training.loss.CHUNK_VALUES", 6 * SMALL)  # five chunks
    case, sides = Case(), []
    assert chunk_rows(30, SMALL) == 6
    for reference in (False, True):
        x = case.x[:, : None if sequential else 16].clone().requires_grad_()
        w2 = case.w2.clone().requires_grad_() if sequential else None
        if reference:
            z = x[:, :16] @ case.head.T + (0 if w2 is None else x[:, 16:] @ w2.T)
            total = case.reference(z, shares)
        else:
            total, *rows = HeadLoss.apply(x, w2, case.head, case.goals, SEED, shares)
            assert not any(r.requires_grad for r in rows)
        (3 * total).backward()
        sides.append([total.detach(), x.grad] + ([] if w2 is None else [w2.grad]))
    for mine, wanted in zip(*sides, strict=True):
        torch.testing.assert_close(mine, wanted, atol=1e-5, rtol=1e-4)


def test_rows_do_not_depend_on_their_chunk(monkeypatch):
    case = Case()
    whole = rows_of(case.x, case.w2, case.head, case.goals, SEED)
    monkeypatch.setattr("dsbench.runtime.training.loss.CHUNK_VALUES", 6 * SMALL)
    for one, other in zip(whole, rows_of(case.x, case.w2, case.head, case.goals, SEED), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert chunk_rows(7, 100 * SMALL) == 1  # a row alone where one is more than a chunk


class Largest(TorchDispatchMode):
    """The most elements that a tensor made inside has."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for t in made if isinstance(made, tuple | list) else [made]:
            if isinstance(t, torch.Tensor):
                self.numel = max(self.numel, t.numel())
        return made


def test_no_tensor_of_all_rows_and_the_draft_vocabulary_is_made_or_kept(monkeypatch):
    rows, small, width, rank = 64, 500, 16, 5
    monkeypatch.setattr("dsbench.runtime.training.loss.CHUNK_VALUES", 8 * small)
    case = Case(rows, width, rank, 600, small)

    def cost(reference: bool) -> tuple[int, int]:
        """Elements of the largest tensor, and of all that was kept for the backward pass."""
        x, w2, kept = case.x.clone().requires_grad_(), case.w2.clone().requires_grad_(), {}

        def keep(t: torch.Tensor) -> torch.Tensor:
            kept[t.data_ptr()] = t.numel()
            return t

        with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
            if reference:
                total = case.reference(x @ torch.cat([case.head, w2], dim=1).T, Shares(coupled=0.3))
            else:
                total = HeadLoss.apply(x, w2, case.head, case.goals, SEED, Shares(coupled=0.3))[0]
            total.backward()
        return largest.numel, sum(kept.values())

    largest, kept = cost(reference=False)
    assert largest <= max(8 * (small + 1), small * (width + rank)) < rows * small / 2
    assert kept <= case.x.numel() + case.w2.numel()
    largest, kept = cost(reference=True)  # that the measure sees what it is to see
    assert largest >= rows * small and kept >= 3 * rows * small


def confidence_case() -> tuple[Goals, torch.Tensor, torch.Tensor, ConfidenceLogits]:
    case, g = Case(), torch.Generator().manual_seed(1)
    accept, match = torch.rand(30, generator=g), (torch.rand(30, generator=g) < 0.5).float()
    leaves = [torch.randn(s, generator=g, requires_grad=True) for s in ((30,), (30,), (30, 3), (30, 3))]
    names = ("published", "published_free", "events", "free_events")
    return case.goals, accept, match, ConfidenceLogits(**dict(zip(names, leaves, strict=True)))


def test_each_event_is_taught_by_the_rows_that_show_it():
    goals, accept, match, logits = confidence_case()
    found = confidence_loss(logits, goals, accept, match)

    def entropy(logit: float, goal: float) -> float:
        return -goal * math.log(1 / (1 + math.exp(-logit))) - (1 - goal) * math.log(1 / (1 + math.exp(logit)))

    for total, one, three in zip(
        found, (logits.published, logits.published_free), (logits.events, logits.free_events), strict=True
    ):
        wanted = 0.0
        for i in range(30):
            events = {0: match[i]} if goals.greedy[i] else {1: match[i], 2: accept[i]}
            parts = [entropy(one[i].item(), accept[i].item())]
            parts += [entropy(three[i, event].item(), goal.item()) for event, goal in events.items()]
            wanted += goals.weight[i].item() * sum(parts)
        assert total.item() == pytest.approx(wanted, abs=1e-5)
        (moved,) = torch.autograd.grad(total, three)
        real, greedy = goals.weight > 0, goals.greedy
        assert torch.equal(moved[:, 0] != 0, real & greedy)
        assert torch.equal(moved[:, 1] != 0, real & ~greedy) and torch.equal(moved[:, 2] != 0, real & ~greedy)


def test_the_residual_event_never_sees_the_noise():
    torch.manual_seed(0)
    heads = Confidences(20, 16)
    seen, features = torch.randn(9, 20), torch.randn(9, 6)
    other = torch.cat([features[:, :4], torch.randn(9, 2)], dim=-1)
    one, two = heads(seen, features, 16), heads(seen, other, 16)
    assert torch.equal(one.events[:, 2], two.events[:, 2]) and torch.equal(
        one.events[:, 0] != two.events[:, 0], torch.ones(9) > 0
    )
    assert (one.events[:, 1] != two.events[:, 1]).all()
    blind = torch.cat([features[:, :4], torch.zeros(9, 1), torch.full((9, 1), math.log(0.1))], dim=-1)
    wanted = F.linear(torch.cat([seen, blind], dim=-1), heads.confidence_events.weight, heads.confidence_events.bias)
    torch.testing.assert_close(one.events[:, 2], wanted[:, 2])
    assert torch.equal(
        heads(torch.cat([seen[:, :16], seen[:, 16:] * 2], dim=-1), features, 16).free_events, one.free_events
    )
