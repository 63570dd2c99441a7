"""On a CUDA device: plans bit for bit those of torch there and on a CPU, at real sizes, and replayed."""

from __future__ import annotations

import pytest
import torch

from dsbench.kernels.check.inputs_step import judge_inputs, pack_inputs, plan_inputs
from dsbench.kernels.judge import judge_rows, judge_rows_reference
from dsbench.kernels.pack import pack, pack_reference
from dsbench.kernels.plan import plan, plan_reference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = [  # requests with nobody, live, block, rows, tokens a page, budget
    (2, 1, 7, 8, 16, 7),
    (9, 8, 7, 40, 16, 32),
    (65, 64, 7, 256, 16, 192),
    (257, 256, 7, 2048, 16, 1792),
    (257, 256, 7, 1024, 16, 700),
    (257, 200, 7, 512, 64, 400),
    (257, 256, 4, 768, 16, 500),
    (257, 250, 8, 1536, 16, 1200),
    (257, 256, 15, 4096, 16, 2000),
]


def flat(planned):
    survival, window, packed = planned
    return (survival, window, *packed)


def same(made, wanted):
    for one, two in zip(made, wanted, strict=True):
        assert one.dtype == two.dtype and torch.equal(one.cpu(), two.cpu())


def on_device(inputs):
    return {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def tied(inputs):
    """Two logits under one map: survivals tie hundreds of times over."""
    ones = torch.ones_like(inputs["scale"])
    return inputs | {"confidence": inputs["confidence"].clamp(0, 1).round(), "scale": ones, "offset": ones}


@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_plans_of_real_size_are_those_of_plain_torch_on_both_devices(size, odd):
    for seed in range(5):
        x = plan_inputs(torch.Generator().manual_seed(seed), size, odd=odd)
        for inputs in (x, tied(x)):
            wanted = flat(plan_reference(**inputs))
            same(flat(plan(**on_device(inputs))), wanted)
            same(flat(plan_reference(**on_device(inputs))), wanted)


@pytest.mark.parametrize("size", [size for size in SIZES if size[0] > 9], ids=str)
def test_replays_plan_for_other_budgets_limits_and_requests(size):
    x = on_device(plan_inputs(torch.Generator().manual_seed(0), size))
    plan(**x)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = flat(plan(**x))
    most = size[1] * size[2]
    for seed, budget in enumerate((0, 1, most // 3, most // 2, most, 10 * most, 17)):
        live = size[1] - 13 * seed if seed % 2 else size[1]
        other = plan_inputs(torch.Generator().manual_seed(seed), (size[0], max(1, live), *size[2:5], budget))
        other = tied(other) if seed == 3 else other
        for name, mine in x.items():
            if isinstance(mine, torch.Tensor):
                mine.copy_(other[name])
        for one in made:
            one.fill_(-7)
        graph.replay()
        same(made, flat(plan_reference(**other)))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_packed_rows_of_real_size_are_those_of_plain_torch(size):
    for seed in range(3):
        x = pack_inputs(torch.Generator().manual_seed(seed), size[:5])
        same(pack(**on_device(x)), pack_reference(**x))


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("requests", [1, 64, 256])
def test_verdicts_of_real_size_are_those_of_plain_torch(requests, pinned):
    for seed in range(3):
        x = judge_inputs(torch.Generator().manual_seed(seed), (requests, 7, pinned))
        same(judge_rows(**on_device(x)), judge_rows_reference(**x))
