"""On a CUDA device: the row kernels at real sizes in bf16 against torch there, and in a captured graph."""

from __future__ import annotations

import pytest
import torch

from dsbench.kernels.check.registry import registry

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
OPS = {op.name: op for op in registry()}
SIZES = [
    ("add_norm", (576, True)),
    ("add_norm", (4096, False)),
    ("swiglu", (1536,)),
    ("swiglu", (12288,)),
    ("rotate_and_store", (9, 3, 64, 16, False, False)),
    ("rotate_and_store", (32, 8, 128, 16, True, True)),
]


def in_bf16(name, case):
    """Angles stay in fp32."""
    inputs = OPS[name].make_inputs(torch.Generator().manual_seed(4), case)
    for key, x in inputs.items():
        if isinstance(x, torch.Tensor):
            half = x.is_floating_point() and key not in ("cos", "sin")
            inputs[key] = x.cuda().bfloat16() if half else x.cuda()
    return inputs


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize(("name", "size"), SIZES, ids=str)
def test_rows_of_real_size_round_as_plain_torch_and_know_no_other_row(name, size, rows):
    """A number whose fp32 value lies next to a rounding edge may be a step or two off."""
    inputs = in_bf16(name, (rows, *size))
    made, wanted = OPS[name].compiled(**inputs), OPS[name].reference(**inputs)
    torch.testing.assert_close(made, wanted, atol=6e-2, rtol=2**-6)
    assert (made != wanted).float().mean() < 0.01
    whole = ("gain", "cos", "sin", "keys", "values", "q_norm", "k_norm")
    last = {k: x[-1:] if isinstance(x, torch.Tensor) and k not in whole else x for k, x in inputs.items()}
    assert torch.equal(OPS[name].compiled(**last), made[-1:])


def test_rotation_without_gains_is_plain_torch_bit_for_bit():
    inputs = in_bf16("rotate_and_store", (64, 9, 3, 64, 16, False, False))
    for name in ("rotate_and_store", "rotate_and_store pages"):
        assert torch.equal(OPS[name].compiled(**inputs), OPS[name].reference(**inputs))


def test_a_captured_row_step_replays_with_other_rows_some_without_a_slot():
    x = in_bf16("rotate_and_store", (16, 9, 3, 64, 16, False, False))
    run = OPS["rotate_and_store"].compiled
    run(**x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run(**x)
    for live in (16, 5, 0, 9):
        x["qkv"].copy_(torch.randn(x["qkv"].shape))
        x["positions"].copy_(torch.arange(16) * (torch.arange(16) < live))
        x["cache_indices"].copy_(torch.where(torch.arange(16) < live, 15 - torch.arange(16), -1))
        beside = {name: x[name].clone() for name in ("keys", "values")}
        last = {name: x[name][-1].clone() for name in beside}
        graph.replay()
        assert torch.equal(made, OPS["rotate_and_store"].reference(**x | beside))
        for name in beside:
            assert torch.equal(x[name][:-1], beside[name][:-1]) and torch.equal(x[name][-1], last[name])


@pytest.mark.parametrize("value", [float("nan"), float("-inf")], ids=str)
@pytest.mark.parametrize("vocab", [1, 1000, 2500])
def test_a_row_without_a_number_names_its_first_column(vocab, value):
    rest = (torch.tensor([0.0, 1.0]), torch.tensor([3, 4]), torch.tensor([5, 6]), torch.arange(vocab))
    x = dict(zip(("temperature", "seeds", "positions", "ids"), (t.cuda() for t in rest), strict=True))
    for name in ("gumbel_argmax", "coupled_stats winner"):
        found = OPS[name].compiled(logits=torch.full((2, vocab), value, device="cuda"), **x)
        assert found.tolist() == [0, 0]
