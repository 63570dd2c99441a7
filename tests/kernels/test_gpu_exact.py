"""On a CUDA device: exact projections at real sizes, and their bits at every row count and in a captured pass."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_shape, tiny_target_weights

from dsbench.kernels.linear import Projection, rows_hold
from dsbench.runtime.loop.graphs import Tiers
from dsbench.runtime.targets.dense import DenseTarget

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SIZES = [  # inner, outputs
    (576, 960),
    (576, 576),
    (576, 3072),
    (1536, 576),
    (576, 49_152),  # smollm2-135m
    (4096, 6144),
    (4096, 4096),
    (4096, 24_576),
    (12_288, 4096),
    (4096, 151_936),  # qwen3-8b
    (100, 63),
    (33, 130),
]
MOST = 2048


def projection(inner, outputs, dtype, *, biased=False):
    generator = torch.Generator("cuda").manual_seed(inner + outputs)
    weight = torch.randn(outputs, inner, generator=generator, device="cuda") * inner**-0.5
    bias = torch.randn(outputs, generator=generator, device="cuda").to(dtype) if biased else None
    x = torch.randn(MOST, inner, generator=generator, device="cuda").to(dtype)
    return Projection(weight.to(dtype), bias, exact=True), x


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_rows_have_the_same_bits_in_every_tier(size):
    run, x = projection(*size, torch.bfloat16)
    whole = run(x)
    for m in Tiers.ladder(MOST // 8, 7).rows:
        if m <= MOST:
            assert torch.equal(run(x[:m]), whole[:m]), m
    for first, m in ((1, 1), (63, 2), (65, 64), (700, 129), (1000, 500), (2047, 1)):
        assert torch.equal(run(x[first : first + m]), whole[first : first + m]), (first, m)
    order = torch.randperm(MOST, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    assert torch.equal(run(x[order]), whole[order])
    torn = x.clone()
    torn[::2] = float("nan")
    assert torch.equal(run(torn)[1::2], whole[1::2])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("size", [SIZES[0], SIZES[3], SIZES[-2]], ids=str)
def test_an_exact_projection_is_the_product(size, dtype):
    run, x = projection(*size, dtype, biased=True)
    for m in (1, 100, 1024):
        wanted = torch.nn.functional.linear(x[:m].double(), run.weight.double(), run.bias.double())
        atol, rtol = (1e-5, 1e-5) if dtype == torch.float32 else (2e-3, 2**-8)
        torch.testing.assert_close(run(x[:m]).double(), wanted, atol=atol, rtol=rtol)
    assert rows_hold(run)


def test_a_captured_exact_projection_has_the_bits_of_an_eager_one():
    run, x = projection(576, 960, torch.bfloat16)
    held = x[:24].clone()
    run(held)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run(held)
    for first in (0, 100):
        held.copy_(x[first : first + 24])
        graph.replay()
        assert torch.equal(made, run(x)[first : first + 24])


def test_one_compilation_serves_all_row_counts():
    from dsbench.kernels import linear_triton

    run, x = projection(576, 3072, torch.bfloat16)
    for m in (2, MOST):
        run(x[:m])
    (cache, *_) = linear_triton._linear_kernel.device_caches[torch.cuda.current_device()]
    before = len(cache)
    for m in (1, 3, 16, 64, 80, 1024):
        run(x[:m])
    assert len(cache) == before


def test_an_exact_target_projects_exactly_and_its_head_too():
    weights = {name: w.cuda().bfloat16() for name, w in tiny_target_weights().items()}
    target = DenseTarget(tiny_shape(), weights, digest="tiny", exact=True)
    layer = target.layers[0]
    assert all(p.exact and rows_hold(p) for p in (layer.qkv, layer.output, layer.gate_up, layer.down, target.unembed))
