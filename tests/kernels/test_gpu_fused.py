"""On a CUDA device: fused products at real sizes in bf16, alone, chained in a captured graph, and as whole passes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny import tiny_shape

from dsbench.kernels.check.inputs import in_dtype
from dsbench.kernels.check.registry import registry
from dsbench.kernels.fused import products as fused
from dsbench.kernels.fused import tiles as fused_tiles
from dsbench.kernels.linear import Projection
from dsbench.runtime.batch import pack_rows
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets import dense
from dsbench.runtime.targets.dense import random_weights
from dsbench.runtime.targets.fused import fused_layer
from dsbench.runtime.targets.load import build_target
from dsbench.runtime.targets.shape import catalogue_shapes

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
OPS = {op.name: op for op in registry()}
SIZES = [
    ("normed_qkv", (576, 9, 3, 64, 16, False, False)),
    ("normed_qkv", (576, 9, 3, 64, 16, True, True)),
    ("normed_qkv pages", (576, 9, 3, 64, 16, False, False)),
    ("normed_swiglu", (576, 1536)),
    ("product_add", (576, 576)),
    ("product_add", (1536, 576)),
    ("product_add gained", (1536, 576)),
    ("product_add squares", (1536, 576)),
    ("small_product", (4096, 6144)),
    ("small_product", (12288, 4096)),
    ("embed_rows squares", (49152, 576)),
]
ROWS = [1, 7, 64, 256, 640]


def in_bf16(name, case, seed=4):
    """On the device, where they have settled."""
    inputs = in_dtype(OPS[name].make_inputs(torch.Generator("cuda").manual_seed(seed), case), torch.bfloat16)
    torch.cuda.synchronize()
    return inputs


def captured(run):
    """Results and replay of a run in a graph, after one that compiles it."""
    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = run()
    return made, graph.replay


@pytest.fixture(autouse=True)
def passes_of_all_sizes_are_fused(monkeypatch):
    monkeypatch.setattr(fused_tiles, "NARROW_ROWS", 2048)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize(("name", "size"), SIZES, ids=str)
def test_products_of_real_size_are_their_references_and_give_the_same_bits_each_time(name, size, rows):
    """A step of bf16 where a sum lies next to a rounding edge, two where it is multiplied or added after that; heads
    have gains that make numbers of up to 16, of which a turn takes differences."""
    inputs = in_bf16(name, (rows, *size))
    wanted, first = OPS[name].reference(**inputs), OPS[name].compiled(**inputs)
    torch.testing.assert_close(first, wanted, atol=0.13 if name.startswith("normed_qkv") else 6e-2, rtol=2**-6)
    made, replay = captured(lambda: OPS[name].compiled(**inputs))
    for _ in range(20):
        made.fill_(float("nan"))
        replay()
        assert torch.equal(made, first)


def weights_of(shape, dtype=torch.bfloat16):
    """Weights that keep the size of what they multiply, gains from one to two; the same numbers in every dtype."""
    made, generator = random_weights(shape, torch.device("cuda"), torch.float32, 3), torch.Generator("cuda")
    scale = 50 * shape.hidden**-0.5
    for name, w in made.items():
        gains = torch.rand(w.shape, generator=generator, device="cuda")
        made[name] = (w * scale if w.dim() == 2 else 1 + gains).bfloat16().to(dtype)
    return made


SHAPES = {
    "tiny": tiny_shape(),
    "tiny normed": tiny_shape(qk_norm=True),
    "smollm2-135m": replace(catalogue_shapes()["smollm2-135m"], layers=6, vocab=4096),
}


def pass_over(shape, dtype, counts):
    """The batch of a pass over a pool with some context, and the pass: its logits and taps."""
    target = build_target(shape, weights_of(shape, dtype), digest="")
    layers = ((shape.kv_heads, shape.head_width),) * shape.layers
    requests, table = len(counts), 8
    pool = StatePool(
        PoolShape(layers=layers, page=16, pages=requests * table, table=table), target.device, dtype, shuffle_seed=None
    )
    generator = torch.Generator("cuda").manual_seed(1)
    for kept in (*pool.keys, *pool.values):
        kept.copy_(torch.randn(kept.shape, generator=generator, device="cuda").bfloat16())
    most = max(counts)
    drafts = torch.randint(0, shape.vocab, (requests, most), generator=generator, device="cuda")
    context = (torch.arange(requests, device="cuda") * 7 % 100).int()
    pages = torch.arange(requests * table, device="cuda").view(requests, table).int()
    batch = pack_rows(drafts[:, 0], drafts[:, 1:], torch.tensor(counts, device="cuda") - 1, context, pages)
    taps = (0, shape.layers - 1, shape.layers)
    return batch, lambda: target.forward(batch, pool, taps)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", list(SHAPES))
@torch.inference_mode()
def test_a_fused_pass_is_as_near_to_fp32_as_the_plain_one(name, rows, monkeypatch):
    """Same weights in fp32: the fused pass rounds as often as the unfused one or less, though elsewhere; of few
    numbers a root mean square is uncertain."""
    counts = [7] * (rows // 7) + [rows % 7] * (rows % 7 > 0)
    layers = []
    monkeypatch.setattr(dense, "fused_layer", lambda *a, **k: layers.append(a) or fused_layer(*a, **k))
    fine = pass_over(SHAPES[name], torch.float32, counts)[1]()
    assert not layers
    made = pass_over(SHAPES[name], torch.bfloat16, counts)[1]()
    assert len(layers) == SHAPES[name].layers
    monkeypatch.setattr(fused_tiles, "NARROW_ROWS", 0)
    unfused = pass_over(SHAPES[name], torch.bfloat16, counts)[1]()
    for one, two, exact in zip(made, unfused, fine, strict=True):  # logits, taps
        assert one.shape == two.shape and one.dtype == two.dtype == torch.bfloat16
        off, usual = ((x.float() - exact).square().mean().sqrt() for x in (one, two))
        assert off <= 2 * usual, (float(off), float(usual))
    assert len(layers) == SHAPES[name].layers


@pytest.mark.parametrize("rows", ROWS)
@torch.inference_mode()
def test_a_captured_fused_pass_replays_with_the_same_bits_and_with_other_tokens(rows):
    counts = [1] * rows
    batch, run = pass_over(SHAPES["smollm2-135m"], torch.bfloat16, counts)
    ids, again = batch.ids.clone(), torch.roll(batch.ids + 1, 1) % 4096
    wanted = {}
    for key, held in (("first", ids), ("other", again)):
        batch.ids.copy_(held)
        wanted[key] = [x.clone() for x in run()]
    made, replay = captured(run)
    for turn in range(40):
        key = ("first", "other")[turn % 2]
        batch.ids.copy_({"first": ids, "other": again}[key])
        replay()
        assert all(torch.equal(a, b) for a, b in zip(made, wanted[key], strict=True)), turn


@torch.inference_mode()
def test_replays_behind_each_other_leave_what_one_leaves():
    """Many in flight, so that a program that did not wait would meet another's leftovers."""
    batch, run = pass_over(SHAPES["smollm2-135m"], torch.bfloat16, [1] * 33)
    wanted = [x.clone() for x in run()]
    made, replay = captured(run)
    for _ in range(300):
        replay()
    assert all(torch.equal(a, b) for a, b in zip(made, wanted, strict=True))


@pytest.mark.parametrize("rows", [16, 64, 256])
def test_a_row_of_a_fused_product_knows_no_other_row(rows):
    x = in_bf16("product_add", (rows, 1536, 576))
    whole = fused.product_add(**x)
    torn = x | {"a": x["a"].clone()}
    torn["a"][::2] = float("nan")
    for one, two in zip(fused.product_add(**torn), whole, strict=True):
        assert torch.equal(one[1::2], two[1::2])


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_a_projection_of_few_rows_may_be_the_small_kernels(rows, monkeypatch):
    generator = torch.Generator("cuda").manual_seed(2)
    weight = (torch.randn(4096, 4096, generator=generator, device="cuda") / 64).bfloat16()
    x = torch.randn(rows, 4096, generator=generator, device="cuda").bfloat16()
    torch.cuda.synchronize()
    unfused = Projection(weight)(x)
    monkeypatch.setattr(fused_tiles, "SMALL_ROWS", 16)
    small = Projection(weight)(x)
    assert torch.equal(small, fused.small_product(x, weight))
    torch.testing.assert_close(small, unfused, atol=2e-2, rtol=2**-7)
