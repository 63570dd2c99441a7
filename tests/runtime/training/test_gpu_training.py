"""On a CUDA device: the loss kernel against its reference, what it saves in memory, steps replayed from a graph."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from draft_loss_interpreted import CASES, check
from torch.nn import functional as F
from training_tools import EOS, OPTIONS, SHAPE, quiet, random_data

from dsbench.kernels.draft import loss_triton as draft_loss_triton
from dsbench.kernels.draft.loss import Shares
from dsbench.runtime.targets.dense import random_weights
from dsbench.runtime.targets.load import build_target
from dsbench.runtime.training.batches import Goals
from dsbench.runtime.training.fit import Stepper, Sums
from dsbench.runtime.training.forward import masked_attention
from dsbench.runtime.training.keeper import BatchOrder
from dsbench.runtime.training.loss import HeadLoss
from dsbench.runtime.training.optimise import Optimiser
from dsbench.runtime.training.ranks import Ranks
from dsbench.runtime.training.token_data import TRAIN
from dsbench.runtime.training.train import prepare

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
CUDA = torch.device("cuda")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", [*CASES, (9, 16384, 16384, 4096, 0.3), (9, 20000, 16384, 4096, 0.3)], ids=str)
def test_the_kernel_equals_its_reference(case, dtype, monkeypatch):
    for name in ("WHOLE", "BLOCK"):  # which the check sets
        monkeypatch.setattr(draft_loss_triton, name, getattr(draft_loss_triton, name))
    check(*case, dtype, device=CUDA)


def test_the_loss_takes_a_fraction_of_the_memory_of_plain_autograd():
    """R = V' = 16384, D = 576, bf16; the draft vocabulary is all of the vocabulary."""
    rows, vocab, width = 16384, 16384, 576
    g = torch.Generator(device=CUDA).manual_seed(0)
    sizes = ((rows, 1.0), (rows, 1.0), (vocab, 0.1))
    x, last, head = (torch.randn(n, width, generator=g, device=CUDA).mul(s).bfloat16() for n, s in sizes)
    label = torch.randint(0, vocab, (rows,), generator=g, device=CUDA)
    weight = torch.full((rows,), 1 / rows, device=CUDA)
    lse = torch.cat([F.linear(part, head).float().logsumexp(-1) for part in last.split(1024)])
    goals = Goals(last=last, lse=lse, greedy=torch.zeros_like(label, dtype=torch.bool), label=label, weight=weight)

    def ours(leaf: torch.Tensor) -> torch.Tensor:
        return HeadLoss.apply(leaf, None, head, goals, label[:1], Shares())[0]

    def reference(leaf: torch.Tensor) -> torch.Tensor:
        logq = F.linear(leaf, head).float().log_softmax(-1)
        p = (F.linear(last, head).float() - lse[:, None]).exp()
        return (weight * (0.9 * (logq.exp() - p).abs().sum(-1) - 0.1 * logq.gather(1, label[:, None])[:, 0])).sum()

    peaks, gradients, losses = [], [], []
    for loss in (ours, reference):
        loss(x.clone().requires_grad_()).backward()  # whatever is made once is made
        leaf = x.clone().requires_grad_()
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        total = loss(leaf)
        total.backward()
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_allocated() - before)
        gradients.append(leaf.grad.float())
        losses.append(total.item())
    print(f"peak MiB: ours {peaks[0] / 2**20:.0f}, reference {peaks[1] / 2**20:.0f}")
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)
    assert (gradients[0] - gradients[1]).norm() < 0.02 * gradients[1].norm()
    one = rows * vocab * 2  # bytes of one bf16 [R, V']
    assert peaks[0] < 1.2 * one and peaks[1] > 4 * one and peaks[0] < peaks[1] / 4


def test_steps_replayed_from_a_graph_train_and_are_logged_as_plain_steps():
    weights = random_weights(SHAPE, torch.device("cpu"), torch.float32, seed=1)
    weights = {k: (w * 6 if w.ndim == 2 else w).to(CUDA) for k, w in weights.items()}
    target = build_target(SHAPE, weights, digest="toy-digest")
    options, records = replace(OPTIONS, anchors=8), []
    for graph in (False, True):
        setting = prepare(options, target, random_data(40), EOS, quiet)
        generator = torch.Generator(device=CUDA).manual_seed(3)
        sums, optimiser = Sums(3, CUDA), Optimiser(setting.module, options)
        order = BatchOrder(setting.splits[TRAIN], 4, generator)
        stepper = Stepper(setting.module, setting, optimiser, sums, generator, Ranks(), graph=graph)
        with masked_attention(CUDA):
            for step in range(40):
                stepper.run(order.take(), step, 3e-3)
        assert (stepper.graph is not None) == graph
        records.append(sums.take())
    for name in ("loss", "ce", "l1", "confidence"):
        assert records[1][name] == pytest.approx(records[0][name], rel=0.1), name
