"""Passes on fused products: as unfused ones but for rounding, here in torch; and the tiles that are chosen."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_drafter, tiny_mtp, tiny_target

from dsbench.kernels.fused.tiles import ALONE, FEW_ROWS, NARROW, NARROW_ROWS, SHARED, fuses, tile_for, turns_in_product
from dsbench.runtime.batch import pack_rows
from dsbench.runtime.drafters import dspark, mtp
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets import dense, fused

TAPS = (0, 2, 4)


def pool_of(target, drafter):
    layers = ((2, 8),) * target.shape.layers + drafter.pool_layers()
    return StatePool(
        PoolShape(layers=layers, page=16, pages=12, table=4), target.device, target.dtype, shuffle_seed=None
    )


def passes(monkeypatch, fuse):
    """Logits, taps, both drafters' states and all pages of a pass over three requests."""
    for module in (dense, dspark, mtp):
        monkeypatch.setattr(module, "runs_fused", lambda *args, **kwargs: fuse)
    target = tiny_target()
    drafter, chain = tiny_drafter(target), tiny_mtp(target)
    pool = pool_of(target, drafter)
    for kept in (*pool.keys, *pool.values):
        kept.copy_(torch.randn(kept.shape, generator=torch.Generator().manual_seed(kept.numel())))
    table = torch.arange(12).view(3, 4).int()
    anchor, context = torch.tensor([3, 9, 40]), torch.tensor([0, 17, 30])
    drafts = torch.arange(12).view(3, 4)
    batch = pack_rows(anchor, drafts, torch.tensor([2, 0, 4]), context.int(), table)
    with torch.inference_mode():
        logits, taps = target.forward(batch, pool, TAPS)
        states = drafter.backbone(anchor, context, table, pool)
        step = chain.step(anchor, torch.randn(3, 32, generator=torch.Generator().manual_seed(1)), context, table, pool)
    return [logits, taps, states, step, *pool.keys, *pool.values]


def test_fused_passes_are_the_plain_ones_but_for_rounding(monkeypatch):
    """fp32 sums of 48 products in another order, through four layers: logits of some 10 agree to 1e-4."""
    unfused, made = passes(monkeypatch, False), passes(monkeypatch, True)
    assert made[0].shape == (9, 64) and made[1].shape == (9, 3 * 32)
    for one, two in zip(made, unfused, strict=True):
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)


def test_queries_of_wide_layers_with_normed_heads_are_the_same_in_two_launches(monkeypatch):
    one = passes(monkeypatch, True)
    monkeypatch.setattr(fused, "turns_in_product", lambda *args, **kwargs: False)
    for a, b in zip(passes(monkeypatch, True), one, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_only_fast_passes_of_few_rows_in_half_precision_on_a_device_are_fused():
    shape = tiny_target().shape
    here, there = torch.zeros(1).bfloat16(), torch.zeros(1, device="meta").bfloat16()
    assert not fused.runs_fused(shape, 1, here, exact=False) and not fused.runs_fused(shape, 1, there, exact=False)
    assert all(fuses(NARROW, rows) for rows in range(1, NARROW_ROWS + 1))
    assert not fuses(NARROW, 0) and not fuses(NARROW, NARROW_ROWS + 1)
    assert fuses(NARROW + 1, 1) and not fuses(NARROW + 1, 2)
    assert turns_in_product(4096, normed=False) and not turns_in_product(4096, normed=True)


@pytest.mark.parametrize("rows", [1, 2, 7, 16, 40, 64, 128, 256, 896])
@pytest.mark.parametrize(("inner", "outputs"), [(576, 960), (576, 3072), (1536, 576), (4096, 24_576), (40, 24)])
def test_tiles_fit_into_shared_memory_and_registers(rows, inner, outputs):
    tile = tile_for(rows, outputs, inner)
    assert (tile.rows == 1) == (rows <= ALONE) and tile.rows <= max(rows, 64)
    if tile.rows > 1:
        bytes_held = (tile.rows + tile.outputs) * tile.inner * 2 * (tile.stages - 1)
        assert bytes_held <= SHARED and tile.rows * tile.outputs <= 64 * 32 * tile.warps
    else:
        assert tile.inner & (tile.inner - 1) == 0 and tile.inner * tile.outputs <= 16_384
    assert (tile.slices > 0) == (ALONE < rows <= FEW_ROWS)
    if tile.slices:  # a warp's slice is a tensor core's depth at least, a thread's weights stay in registers
        assert tile.slices == tile.warps and tile.inner // tile.slices >= 16
        assert tile.inner * tile.outputs <= 128 * 32 * tile.warps and tile.rows * tile.inner * 2 <= SHARED


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "size"),
    [
        (16, 960, 576, (8, 16)),
        (24, 960, 576, (64, 32)),
        (64, 3072, 576, (64, 32)),
        (256, 3072, 576, (128, 64)),
        (512, 576, 576, (64, 64)),
        (384, 3072, 576, (128, 128)),
        (256, 576, 1536, (64, 32)),
        (640, 576, 1536, (128, 32)),
    ],
)
def test_tiles_share_a_product_out_over_the_multiprocessors(rows, outputs, inner, size):
    tile = tile_for(rows, outputs, inner)
    assert (tile.rows, tile.outputs) == size


def test_heads_that_are_normed_stay_whole():
    assert tile_for(1, 960, 576, whole=64).outputs == 64 and tile_for(1, 960, 576, whole=64).rows == 64
