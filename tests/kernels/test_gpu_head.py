"""On a CUDA device: a block's draws behind a sequential head at real sizes, alone and among others, and launches."""

from __future__ import annotations

import pytest
import torch
from gpu_drafters import standing_drafter

from dsbench.kernels.check.registry import registry
from dsbench.kernels.draft.head import Head, coupled_block
from dsbench.runtime.drafters.draft import standing_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
BLOCK = next(op for op in registry() if op.name == "coupled_block tokens")
ROWS = ("base", "anchor", "start", "depth", "temperature", "seeds")


class Case:
    """A block of 7 slots of `rows` requests; weights and base logits in `dtype` on `device`."""

    def __init__(self, rows, kind, rank, vocab, dtype, device="cuda", whole=True):
        x = BLOCK.make_inputs(torch.Generator().manual_seed(rows), (rows, 7, 576, rank, vocab, kind, whole))
        x = {name: t * (0.05 if t.ndim == 2 and "proj" in name else 1) for name, t in x.items() if name != "kind"}
        x = {name: t.to(dtype) if t.is_floating_point() and name != "temperature" else t for name, t in x.items()}
        if dtype == torch.bfloat16 and device == "cpu":  # the same numbers, and fp32 in between
            x = {name: t.float() if t.is_floating_point() else t for name, t in x.items()}
        self.x = {name: t.to(device) for name, t in x.items()}
        self.head = Head.of(kind, {n: t for n, t in self.x.items() if "." in n}, self.x["markov_w1.weight"])
        self.part = self.head.hidden_part(self.x["hidden"])

    def run(self, rows=slice(None), stats=True):
        mine = {name: self.x[name][rows] for name in ROWS}
        counts, ids = mine["depth"].tolist(), self.x["ids"]
        return coupled_block(self.head, part=self.part[rows], counts=counts, ids=ids, stats=stats, **mine)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("rank", "vocab"), [(64, 16384), (256, 16384), (64, 49152)])
@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "deep"])
def test_blocks_of_real_size_are_those_of_the_cpu(kind, rows, rank, vocab, whole):
    made = Case(rows, kind, rank, vocab, torch.float32, whole=whole).run()
    wanted = Case(rows, kind, rank, vocab, torch.float32, "cpu", whole=whole).run()
    same = (made[0].cpu() == wanted[0]).all(1)  # after another token everything may differ
    assert same.float().mean() >= 0.96, "more than ties of fp32 sums"
    assert (made[1].cpu() - wanted[1])[same].abs().max() < 2e-3


@pytest.mark.parametrize("rank", [64, 256])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "deep"])
def test_in_half_precision_most_drafts_are_those_of_fp32_arithmetic(kind, rank):
    made = Case(64, kind, rank, 16384, torch.bfloat16).run()[0].cpu()
    wanted = Case(64, kind, rank, 16384, torch.bfloat16, "cpu").run()[0]
    assert (made[:, 0] == wanted[:, 0]).float().mean() > 0.9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn", "deep"])
def test_drafts_of_a_request_do_not_depend_on_its_neighbours(kind, dtype):
    """Bit for bit, given its logits and its part of the hidden states; with features or without."""
    case = Case(37, kind, 64, 16384, dtype, whole=False)
    tokens, features = case.run()
    assert torch.equal(case.run(stats=False)[0], tokens)
    assert torch.equal(case.run(slice(5, 30))[0], tokens[5:30, : int(case.x["depth"][5:30].max())])
    for r in (1, 7, 15, 16, 36):
        alone, depth = case.run(slice(r, r + 1)), int(case.x["depth"][r])
        assert torch.equal(alone[0][0], tokens[r, :depth])
        torch.testing.assert_close(alone[1][0], features[r, :depth], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(("rows", "dtype"), [(256, torch.bfloat16), (48, torch.float32)], ids=str)
def test_drafts_from_a_whole_vocabulary_do_not_depend_on_the_size_of_their_group(rows, dtype):
    """Groups of 32 requests, of 16 and of one; with the vocabulary's ids given, and left out."""
    case = (rows, 2, 64, 256, 151_936, "vanilla", True, True)
    x = BLOCK.make_inputs(torch.Generator("cuda").manual_seed(1), case, odd=False)
    x = {name: t.to(dtype) if "." in name or name == "base" else t for name, t in x.items()}
    head = Head.of("vanilla", {name: t for name, t in x.items() if "." in name}, x["markov_w1.weight"])
    part = head.hidden_part(x["hidden"])

    def run(at, ids=None):
        mine = {name: x[name][at] for name in ROWS}
        counts = [2] * len(mine["anchor"])
        return coupled_block(head, part=part[at], counts=counts, ids=ids, stats=False, **mine)[0]

    tokens = run(slice(None))
    assert torch.equal(run(slice(None), torch.arange(151_936, device="cuda")), tokens)
    for first in range(0, rows, 16):
        assert torch.equal(run(slice(first, first + 16)), tokens[first : first + 16])
    for r in (0, 17, 31, 32, rows - 1):
        assert torch.equal(run(slice(r, r + 1)), tokens[r : r + 1])


@pytest.mark.parametrize(("kind", "launches"), [("none", 0), ("vanilla", 2), ("gated", 2), ("rnn", 2), ("deep", 2)])
@pytest.mark.parametrize("events", [False, True])
def test_launches_of_a_slot(kind, launches, events):
    drafter, pool, requests, sampling = standing_drafter(kind, events)
    rows = standing_of(requests, pool, drafter.norm.device)

    def kernels(depth):
        depths = torch.full((5,), depth)
        for _ in range(2):
            drafter.propose(rows, sampling, pool, rule="coupled", depth=lambda free: depths)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
            drafter.propose(rows, sampling, pool, rule="coupled", depth=lambda free: depths)
            torch.cuda.synchronize()
        names = [e.name for e in seen.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        return sum(not any(word in name for word in ("gemm", "gemv", "splitK")) for name in names)  # the library's own

    assert kernels(3) - kernels(2) == launches
