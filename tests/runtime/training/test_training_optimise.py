"""What moves the parameters: Muon against torch's, who moves what, the schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn
from training_tools import MTP, OPTIONS, setting_of

from dsbench.runtime.training.optimise import Muon, Optimiser, inside, learning_rate, orthogonal


@pytest.mark.parametrize("shape", [(3, 24, 64), (1, 16, 200), (2, 40, 48)])
def test_orthogonal_brings_all_singular_values_near_one_and_keeps_the_directions(shape):
    left, values, right = torch.linalg.svd(torch.randn(shape, generator=torch.Generator().manual_seed(1)))
    right = right[:, : shape[1]]
    values = torch.logspace(0, -1.7, shape[1]).expand_as(values)  # gradients are that far from orthogonal
    found = orthogonal(left @ torch.diag_embed(values * 7) @ right).float()
    values = torch.linalg.svdvals(found)
    assert values.min() > 0.65 and values.max() < 1.2
    middle = left.mT @ found @ right.mT
    off = middle - torch.diag_embed(middle.diagonal(dim1=1, dim2=2))
    assert off.abs().max() < 0.05


def test_muon_equals_torchs_on_matrices_of_one_shape_and_its_transpose():
    g = torch.Generator().manual_seed(3)
    shapes = [(24, 40), (40, 24), (24, 40), (16, 16)]  # the first three move as one stack
    start = [torch.randn(s, generator=g) * 0.1 for s in shapes]
    mine, theirs = ([nn.Parameter(p.clone()) for p in start] for _ in range(2))
    muon = Muon(mine)
    assert sorted(len(group) for group in muon.groups) == [1, 3]
    other = torch.optim.Muon(theirs, lr=0.02, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    for _ in range(4):
        for p, q in zip(mine, theirs, strict=True):
            p.grad = torch.randn(p.shape, generator=g)
            q.grad = p.grad.clone()
        muon.step(torch.tensor(0.02))
        other.step()
    for p, q, s in zip(mine, theirs, start, strict=True):
        assert (p - q).norm() < 0.05 * (q - s).norm()  # bf16, in another order of sums


@pytest.mark.parametrize("options", [replace(OPTIONS, head="rnn"), MTP], ids=["rnn", "mtp"])
def test_muon_moves_the_matrices_inside_and_adam_all_else(options):
    module = setting_of(options).module
    optimiser = Optimiser(module, options)
    by_muon = {id(p) for group in optimiser.muon.groups for p in group}
    by_adam = {id(p) for p in optimiser.adam.param_groups[0]["params"]}
    assert not by_muon & by_adam and by_muon | by_adam == {id(p) for p in module.parameters()}
    names = {n for n, p in module.named_parameters() if id(p) in by_muon}
    assert {"fc.weight", "layers.0.mlp.down_proj.weight", "layers.0.self_attn.k_proj.weight"} <= names
    assert not [n for n in names if "markov_w" in n or "norm" in n or "confidence" in n or "mask" in n]
    assert inside("layers.0.fc", torch.empty(9, 9)) and not inside("markov_head.markov_w2", torch.empty(90, 90))
    assert not Optimiser(module, replace(options, muon=False)).muon.groups
    optimiser.lr.fill_(0.1)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    for p in module.parameters():
        p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
    optimiser.step()
    for name, p in module.named_parameters():
        moved = (p.detach() - before[name]).square().mean().sqrt().item()
        # one rate for both: of Muon's share, times 0.2; a first step of Adam moves every number by the whole rate
        assert moved == pytest.approx(0.1 * 2 * 0.2 if name in names else 0.1, rel=0.2), name


def test_the_schedule_warms_up_and_ends_at_zero():
    assert learning_rate(0, 1) == 0 and learning_rate(0.02, 3) == pytest.approx(1.5)
    assert learning_rate(0.04, 1) == pytest.approx(1) and learning_rate(0.52, 1) == pytest.approx(0.5)
    assert learning_rate(0.28, 1) == pytest.approx(0.5 + 0.5**1.5)
    assert learning_rate(1, 1) == pytest.approx(0, abs=1e-9) and learning_rate(1.3, 1) == pytest.approx(0, abs=1e-9)


def test_a_cpu_orthogonalises_in_its_own_arithmetic():
    """Without instructions for bf16 its products take 30 times as long."""
    assert orthogonal(torch.randn(1, 4, 6)).dtype == torch.float32
