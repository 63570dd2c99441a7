"""Block verification: the target's law, exactly; never fewer drafts than residual; what the judge does with rows."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from law_tools import SETTINGS, Accepter, Toy, all_or_nothing, bias, output_law

from dsbench.kernels.judge import UNSEEN
from dsbench.runtime.batch import pack_rows
from dsbench.runtime.law import block_rule
from dsbench.runtime.law.accept import residual_token
from dsbench.runtime.law.block_rule import block_accepted, block_chances, joint_ratio, judge_block, rest_mass
from dsbench.runtime.sampling import Purpose, Sampling, distribution, keyed_uniforms


class BlockAccepter(Accepter):
    """The block rule, by its production functions."""

    def parts(self, draft, law, target):
        chain = joint_ratio(draft, law, target)
        return chain, block_rule.rest_mass(chain, law, target)

    def chances(self, draft, law, target, window):
        found = block_chances(*self.parts(draft, law, target), torch.tensor([window]))
        return found[0, :window].tolist()

    def accepted(self, draft, law, target, window, u):
        return int(block_accepted(*self.parts(draft, law, target), torch.tensor([window]), u))

    def weight(self, draft, law, target, accepted):
        return joint_ratio(draft, law, target)[:, accepted]


class WithoutTheWeight(BlockAccepter):
    """Wrong: after a rejection it draws as residual would."""

    def weight(self, draft, law, target, accepted):
        return None


class JointRatioAlone(BlockAccepter):
    """Wrong: p_i is the chance of every draft, not of the last alone."""

    def chances(self, draft, law, target, window):
        return joint_ratio(draft, law, target)[0, 1 : window + 1].tolist()

    def accepted(self, draft, law, target, window, u):
        p = torch.tensor([self.chances(draft, law, target, window)])
        return max((i + 1 for i in range(window) if u[0, i] <= p[0, i]), default=0)


CASES = [  # policy, lag, temperature, top-k, top-p; vocabulary, block, output tokens
    ("full", 0, 1.0, 0, 1.0, 3, 3, (4, 1)),
    ("threshold", 0, 0.7, 0, 1.0, 2, 3, (4, 3)),
    ("threshold", 0, 1.0, 0, 1.0, 3, 2, (3, 3)),
    ("early-stop", 0, 1.0, 0, 1.0, 2, 2, (5, 4)),
    ("argmax", 1, 0.7, 0, 1.0, 2, 3, (4, 3)),
    ("argmax", 2, 1.0, 0, 1.0, 2, 2, (5, 3)),
    ("full", 0, 1.0, 2, 0.8, 3, 2, (4, 4)),
    ("free", 0, 0.7, 0, 1.0, 2, 3, (4, 3)),
    ("free", 0, 1.0, 2, 0.8, 3, 2, (3, 3)),
]


@pytest.mark.parametrize(("policy", "lag", "temperature", "top_k", "top_p", "vocab", "block", "lengths"), CASES)
def test_emitted_law_is_the_targets(policy, lag, temperature, top_k, top_p, vocab, block, lengths):
    toy = Toy(vocab, lengths, temperature, top_k, top_p, block=block)
    found, rounds = output_law(toy, policy, lag=lag, rule=BlockAccepter)
    assert rounds >= 3
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert bias(toy, found) < 1e-6


@pytest.mark.parametrize("policy", ["anticipating", "peeking"])
def test_an_anticipating_planner_fails_it(policy):
    toy = Toy(*SETTINGS["T=1"])
    found, _ = output_law(toy, policy, lag=0, rule=BlockAccepter)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert bias(toy, found) > 1e-3


@pytest.mark.parametrize("keyed_by_round", [True, False])
def test_noise_keyed_without_the_round_fails_it(keyed_by_round):
    """A budget one step old saw the draft at s + 2, which a block of three draws again if one token was emitted."""
    toy = Toy(2, (5, 1), 1.0, 0, 1.0, block=3, table=all_or_nothing(8, 0.9), flat_draft=True)
    found, _ = output_law(toy, "argmax", lag=1, keyed_by_round=keyed_by_round, rule=BlockAccepter)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert (bias(toy, found) < 1e-6) == keyed_by_round
    if not keyed_by_round:
        assert bias(toy, found) > 1e-3


@pytest.mark.parametrize(("wrong", "block"), [(WithoutTheWeight, 3), (JointRatioAlone, 2), ("without - Q", 2)])
def test_a_wrong_rule_fails_it(wrong, block, monkeypatch):
    if isinstance(wrong, str):
        monkeypatch.setattr(block_rule, "rest_mass", lambda chain, law, target: chain[:, 1:-1])
        wrong = BlockAccepter
    toy = Toy(3, (block + 1, 1), 1.0, 0, 1.0, block=block)
    found, _ = output_law(toy, "full", lag=0, rule=wrong)
    assert sum(found.values()) == pytest.approx(1, abs=1e-9)
    assert bias(toy, found) > 1e-3


def random_tree(seed: int, vocab: int, block: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Every block [n, G], its probability, q [n, G, V] and p [n, W, V], from laws that depend on all drafts before."""
    rng = np.random.default_rng(seed)
    table = {
        t: [rng.dirichlet(np.full(vocab, 0.5)) for _ in range(2)]
        for j in range(block + 1)
        for t in itertools.product(range(vocab), repeat=j)
    }
    blocks = list(itertools.product(range(vocab), repeat=block))
    q = torch.tensor(np.array([[table[b[:j]][0] for j in range(block)] for b in blocks]))
    p = torch.tensor(np.array([[table[b[:j]][1] for j in range(block + 1)] for b in blocks]))
    tokens = torch.tensor(blocks)
    return tokens, q.gather(-1, tokens[..., None]).squeeze(-1).prod(-1), q, p


@pytest.mark.parametrize("seed", range(6))
def test_a_prefix_survives_by_its_joint_ratio_and_no_fewer_are_accepted_than_by_residual(seed):
    """Survival: P(accepted >= i | first i drafts) = p_i under every window, so it does not depend on the window."""
    block, vocab = 4, 3
    tokens, chance, q, p = random_tree(seed, vocab, block)
    chain = joint_ratio(tokens, q, p)
    ratio = (p[:, :block].gather(-1, tokens[..., None]) / q.gather(-1, tokens[..., None])).squeeze(-1)
    residual = ratio.clamp(max=1).cumprod(-1)
    gained = 0.0
    for window in range(1, block + 1):
        h = block_chances(chain, rest_mass(chain, q, p), torch.full((len(tokens),), window))
        survival = 1 - (1 - h).flip(1).cumprod(1).flip(1)  # [n, G] of P(accepted >= i | the block)
        for i in range(1, window + 1):
            drawn = (chance[:, None] * torch.stack([survival[:, i - 1], torch.ones_like(chance)], 1)).view(
                vocab**i, -1, 2
            )
            given = drawn.sum(1)
            wanted = chain.view(vocab**i, -1, block + 1)[:, 0, i]
            assert torch.allclose(given[:, 0] / given[:, 1], wanted, atol=1e-9)
        mine, theirs = (float((chance * s[:, :window].sum(-1)).sum()) for s in (survival, residual))
        assert mine >= theirs - 1e-12
        if window == 1:
            assert torch.allclose(h[:, 0], residual[:, 0], atol=1e-12) and mine == pytest.approx(theirs, abs=1e-12)
        gained = max(gained, mine - theirs)
    assert gained > 0.01


GREEDY, BLOCK, VOCAB = 1, 4, 12  # the request at temperature 0


def rows(window: list[int], verified: list[int], *, exact: bool = False):
    """(logits, batch, draft, window, verified, sampling) of requests whose laws are near each other, or the same."""
    count, generator = len(window), torch.Generator().manual_seed(5)
    true = torch.randn(count, BLOCK + 1, VOCAB, generator=generator) * 1.5
    own = true[:, :BLOCK] + torch.randn(count, BLOCK, VOCAB, generator=generator) * (0 if exact else 0.7)
    own[..., VOCAB - 3 :] = float("-inf") if not exact else own[..., VOCAB - 3 :]  # past the draft vocabulary
    sampling = Sampling(
        temperature=torch.tensor([0.0 if r == GREEDY else 0.9 for r in range(count)]),
        top_k=torch.zeros(count, dtype=torch.int64),
        top_p=torch.ones(count),
        seed=torch.arange(count) + 40,
        round=torch.arange(count) % 3 + 1,
        unfiltered=True,
    )
    each = sampling.rows(torch.arange(count).repeat_interleave(BLOCK))
    law = distribution(own.flatten(0, 1), each).view(count, BLOCK, VOCAB)
    tokens = torch.multinomial(law.flatten(0, 1), 1, generator=generator).view(count, BLOCK)
    context = (torch.arange(count) * 3 + 2).int()
    sent = torch.tensor(verified)
    batch = pack_rows(torch.zeros(count, dtype=torch.int64), tokens, sent, context, torch.zeros(count, 1).int())
    logits = torch.cat([true[r, : n + 1] for r, n in enumerate(verified)])
    draft = SimpleNamespace(tokens=tokens, probabilities=law)
    return logits, batch, draft, torch.tensor(window), sent, sampling


def plainly(r: int, window: int, true: torch.Tensor, draft, sampling: Sampling, start: int) -> list[int]:
    """Algorithm 2 for one request in plain numbers: what it emits. true [window + 1, V]."""
    mine = sampling.rows(slice(r, r + 1))

    def uniform(at: int, purpose: Purpose) -> float:
        return float(keyed_uniforms(mine, torch.tensor([at]), purpose))

    p = distribution(true, sampling.rows(torch.full((len(true),), r))).double().numpy()
    q, x = draft.probabilities[r].double().numpy(), draft.tokens[r].tolist()
    ratio, kept, accepted = 1.0, 1.0, 0
    for i in range(1, window + 1):
        ratio = min(ratio * p[i - 1, x[i - 1]] / q[i - 1, x[i - 1]], 1.0)
        h = ratio
        if i < window:
            left = np.maximum(ratio * p[i] - q[i], 0).sum()
            h = left / (left + 1 - ratio) if left + 1 - ratio > 0 else 1.0
        if uniform(start + i, Purpose.BLOCK_ACCEPT) <= h:
            accepted, kept = i, ratio
    rest, purpose = p[accepted], Purpose.BLOCK_BONUS
    if accepted < window:
        rest = np.maximum((kept if accepted else 1.0) * rest - q[accepted], 0)
        purpose = Purpose.BLOCK_RESAMPLE
    u = uniform(start + accepted + 1, purpose)
    return [*x[:accepted], int(np.searchsorted(np.cumsum(rest), u * rest.sum(), side="right"))]


def test_ragged_windows_are_judged_as_one_by_one_and_the_ceiling_by_the_whole_block():
    count = 60
    window = [r % (BLOCK + 1) for r in range(count)]
    verified = [BLOCK if r % 3 else window[r] for r in range(count)]
    logits, batch, draft, wanted, sent, sampling = rows(window, verified)
    verdict = judge_block(logits, batch, draft, wanted, sent, sampling)
    emitted = [t[: a + 1] for t, a in zip(verdict.tokens.tolist(), verdict.accepted.tolist(), strict=True)]
    starts, ceilings, own = batch.context.tolist(), verdict.ceiling.tolist(), logits.split((sent + 1).tolist())
    for r in range(count):
        assert emitted[r] == plainly(r, window[r], own[r][: window[r] + 1], draft, sampling, starts[r])
        whole = len(plainly(r, BLOCK, own[r], draft, sampling, starts[r])) if verified[r] == BLOCK else UNSEEN
        assert ceilings[r] == whole
    accepted = verdict.accepted.tolist()
    assert any(a == w > 1 for a, w in zip(accepted, window, strict=True)) and UNSEEN in ceilings
    assert any(0 < a < w for a, w in zip(accepted, window, strict=True)), "no draft was rejected after an accepted one"


def test_equal_laws_pass_whole_whatever_the_temperature():
    window = [BLOCK] * 8
    logits, batch, draft, wanted, sent, sampling = rows(window, window, exact=True)
    verdict = judge_block(logits, batch, draft, wanted, sent, sampling)
    assert verdict.accepted.tolist() == window
    assert verdict.ceiling.tolist() == [BLOCK + 1] * 8


def test_the_token_after_a_rejection_is_drawn_from_what_the_weight_leaves():
    law, target = torch.tensor([[[0.5, 0.5, 0.0]]]), torch.tensor([[[0.6, 0.2, 0.2], [1.0, 0.0, 0.0]]])
    one, zero = torch.tensor([1]), torch.tensor([0])
    for u, weighted, unweighted in ((0.3, 2, 0), (0.9, 2, 2)):
        v = torch.tensor([u], dtype=torch.float64)
        assert int(residual_token(law, target, zero, one, v, v, torch.tensor([0.5]))) == weighted
        assert int(residual_token(law, target, zero, one, v, v)) == unweighted
