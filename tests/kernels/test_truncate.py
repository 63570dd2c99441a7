"""Top-k and top-p: the bounds against the rule written out token by token, and what is drawn within them."""

from __future__ import annotations

import math

import pytest
import torch

from dsbench.kernels.check.registry import registry
from dsbench.kernels.draft.stats import coupled_stats, law_stats
from dsbench.kernels.gumbel import gumbel_argmax
from dsbench.kernels.truncate import kept_logits, truncate

TRUNCATE = next(op for op in registry() if op.name == "truncate")


def kept_columns(row, temperature, k, p):
    """One token after the other, the likeliest first, of equals the lower column; Python numbers."""
    columns = sorted(range(len(row)), key=lambda v: (-row[v], v))
    if temperature == 0:
        return set(columns)
    if k:
        kth = row[columns[min(k, len(row)) - 1]]
        columns = [v for v in columns if row[v] >= kth]
    if p == 1:
        return set(columns)
    weights = [math.exp((row[v] - row[columns[0]]) / temperature) for v in columns]
    before, kept = 0.0, set()
    for v, weight in zip(columns, weights, strict=True):
        if kept and before >= p * sum(weights):
            break
        kept.add(v)
        before += weight
    return kept


@pytest.mark.parametrize("levels", [3, 40, 10_000], ids=lambda n: f"{n} values")
@pytest.mark.parametrize("vocab", [1, 2, 60])
def test_what_stays_is_what_the_rule_says(vocab, levels):
    """Coarse values are full of ties, at the k-th logit and at the edge of the mass."""
    generator = torch.Generator().manual_seed(levels + vocab)
    logits = torch.randint(0, levels, (120, vocab), generator=generator) * (6.0 / levels)
    temperature = torch.tensor([0.0, 0.3, 1.0, 1.7])[torch.arange(120) % 4]
    top_k = torch.tensor([0, 1, 2, 7, 59, 60, 100])[torch.arange(120) % 7]
    top_p = torch.tensor([1.0, 0.05, 0.37, 0.8, 0.99])[torch.arange(120) % 5]
    keeps = kept_logits(logits, truncate(logits, temperature, top_k, top_p)) > -math.inf
    for r in range(120):
        wanted = kept_columns(logits[r].tolist(), *(x[r].item() for x in (temperature, top_k, top_p)))
        assert set(keeps[r].nonzero().flatten().tolist()) == wanted, r


def test_draws_within_bounds_are_draws_from_what_stays():
    x = TRUNCATE.make_inputs(torch.Generator().manual_seed(1), (24, 700))
    x["logits"] = x["logits"].nan_to_num(nan=0.0)
    kept = truncate(**x)
    left, rest = kept_logits(x["logits"], kept), (x["temperature"], torch.arange(24), torch.arange(24) * 9, None)
    drawn, (winner, features) = gumbel_argmax(x["logits"], *rest, kept), coupled_stats(x["logits"], *rest, kept)
    wanted = coupled_stats(left, *rest)
    assert torch.equal(drawn, wanted[0]) and torch.equal(winner, drawn)
    assert not torch.equal(drawn, gumbel_argmax(x["logits"], *rest))
    assert torch.equal(features.nan_to_num(), wanted[1].nan_to_num())
    made = law_stats(x["logits"], x["temperature"], kept)
    assert torch.equal(made.nan_to_num(), law_stats(left, x["temperature"]).nan_to_num())
