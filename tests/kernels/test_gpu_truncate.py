"""On a CUDA device: bounds of top-k and top-p at real sizes, alone, among others, in a graph, without the host."""

from __future__ import annotations

import pytest
import torch

from dsbench.kernels.gumbel import gumbel_argmax
from dsbench.kernels.truncate import kept_logits, truncate, truncate_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
ROWS = 150


def case(vocab, dtype, spread, seed=0):
    """Rows with k from 1 to beyond what a list holds, p from a token to nearly all, both, neither; some cold ones."""
    generator, row = torch.Generator("cuda").manual_seed(seed), torch.arange(ROWS, device="cuda")
    logits = (torch.randn(ROWS, vocab, generator=generator, device="cuda") * spread).to(dtype)
    temperature = torch.tensor([1.0, 0.3, 0.7, 1.5, 0.0], device="cuda")[row % 5]
    top_k = torch.tensor([0, 1, 50, 0, 2000, 5000, vocab - 1], device="cuda")[row % 7]
    top_p = torch.tensor([1.0, 0.95, 0.5, 0.999], device="cuda")[row % 4]
    return logits, temperature, top_k, top_p


@pytest.mark.parametrize("spread", [0.0, 0.05, 3.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("vocab", [1000, 49_152, 151_936])
def test_bounds_of_real_size_are_those_of_a_sort(vocab, dtype, spread):
    """But where the mass before a token is p to six digits; and then what stays differs by such a token."""
    logits, *rest = case(vocab, dtype, spread)
    made, wanted = truncate(logits, *rest), truncate_reference(logits, *rest)
    same = (made.cut == wanted.cut) & (made.last == wanted.last)
    assert same.float().mean() >= 0.9
    exact = (rest[2] == 1) | (rest[0] == 0)
    assert same[exact].all(), "a top-k has no rounding"
    scale = torch.where(rest[0] > 0, rest[0], 1.0)[:, None]
    laws = [(kept_logits(logits, kept) / scale).softmax(-1) for kept in (made, wanted)]
    assert (laws[0] - laws[1]).abs().sum(-1).max() < 1e-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_bounds_of_a_row_are_those_it_has_alone(dtype):
    logits, *rest = case(49_152, dtype, 2.0)
    whole = truncate(logits, *rest)
    order = torch.randperm(ROWS, device="cuda")
    turned = truncate(logits[order], *(x[order] for x in rest))
    assert torch.equal(turned.cut, whole.cut[order]) and torch.equal(turned.last, whole.last[order])
    for r in range(28):
        alone = truncate(logits[r : r + 1], *(x[r : r + 1] for x in rest))
        assert alone.cut == whole.cut[r] and alone.last == whole.last[r], r


def test_a_captured_draw_within_bounds_replays_with_others():
    logits, temperature, top_k, top_p = case(49_152, torch.bfloat16, 3.0)
    at = torch.arange(ROWS, device="cuda")

    def draw():
        return gumbel_argmax(logits, temperature, at * 7, at, None, truncate(logits, temperature, top_k, top_p))

    draw()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = draw()
    seen = set()
    for seed in range(3):
        fresh, *_ = case(49_152, torch.bfloat16, 3.0, seed)
        logits.copy_(fresh)
        top_k.copy_(top_k.roll(1))
        top_p.copy_(top_p.roll(1))
        graph.replay()
        kept = truncate_reference(logits, temperature, top_k, top_p)
        wanted = gumbel_argmax(kept_logits(logits, kept), temperature, at * 7, at, None)
        assert (made == wanted).float().mean() > 0.98
        seen.add(tuple(made.tolist()))
    assert len(seen) == 3


def test_bounds_ask_the_device_nothing():
    inputs = case(49_152, torch.bfloat16, 3.0)
    truncate(*inputs)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        truncate(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")
