"""Exact numerics without a GPU: what is told to whom, what is refused, and the bits of a CPU that keeps them."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_drafter, tiny_mtp, tiny_shape, tiny_target_weights

from dsbench.deploy.deployment import deploy
from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.kernels.linear import Projection, rows_hold
from dsbench.runtime.batch import Batch, ragged_positions
from dsbench.runtime.state import PoolShape, StatePool
from dsbench.runtime.targets import load
from dsbench.runtime.targets.load import build_target
from dsbench.settings import RunConfig


def projections(layer):
    return (layer.qkv, layer.output, layer.gate_up, layer.down)


@pytest.mark.parametrize("exact", [False, True])
def test_a_target_tells_its_projections_and_drafters_stay_fast(exact):
    target = build_target(tiny_shape(), tiny_target_weights(), digest="tiny", exact=exact)
    assert all(p.exact == exact for layer in target.layers for p in projections(layer))
    assert target.unembed.exact == exact and target.layers[0].qkv.rows(3).exact == exact
    drafter, chain = tiny_drafter(target), tiny_mtp(target)
    for p in (*projections(drafter.layers[0]), drafter.fc, drafter.unembed, *projections(chain.layer), chain.fc):
        assert not p.exact


def test_numerics_is_exact_or_fast():
    assert RunConfig().numerics == "fast"
    with pytest.raises(UsageError, match="unknown numerics 'loose'"):
        RunConfig(numerics="loose")


def test_products_whose_bits_change_with_the_row_count_are_noticed():
    class Loose(Projection):
        __slots__ = ()

        def __call__(self, x):
            return super().__call__(x) + 1e-7 * (x.shape[0] > 3)

    weight = torch.randn(9, 16)
    assert not rows_hold(Loose(weight, exact=True))


def test_a_cpu_that_does_not_keep_the_bits_is_refused_in_one_line(monkeypatch):
    shape = {"target": "shape:tiny", "device": "cpu", "dtype": "float32"}
    monkeypatch.setattr(load, "catalogue_shapes", lambda: {"tiny": tiny_shape()})
    for kept in (True, False):
        monkeypatch.setattr(load, "rows_hold", lambda projection, kept=kept: kept)
        for numerics in ("fast", "exact"):
            config = RunConfig(numerics=numerics, **shape)
            if not kept and numerics == "exact":
                with pytest.raises(EnvironmentRefused, match="float32 products change with the number of rows") as told:
                    deploy(config)
                assert "leave --numerics out" in told.value.hint
                continue
            deployment = deploy(config)
            assert deployment.contract["numerics"] == numerics
            assert deployment.target.model.exact == (numerics == "exact")
            assert not deployment.drafter.unembed.exact


def test_logits_of_a_row_do_not_depend_on_the_chunks_it_came_in():
    """A text in one pass, in single rows, and in pieces beside another text."""
    target = build_target(tiny_shape(), tiny_target_weights(), digest="tiny", exact=True)
    if not all(map(rows_hold, (*projections(target.layers[0]), target.unembed))):
        pytest.skip("this CPU's products change with the number of rows")
    ids = torch.randint(0, 64, (2, 30), generator=torch.Generator().manual_seed(1))
    pieces = ([(30, 0)], [(1, 0)] * 30, [(7, 5), (1, 20), (22, 3)])
    alone, *others = (run(target, ids, steps) for steps in pieces)
    assert all(torch.equal(other, alone) for other in others)


@torch.inference_mode()
def run(target, ids, steps):
    """Logits [30, V] of the first text, whose rows come in these counts, beside that many rows of the second."""
    layers = ((target.shape.kv_heads, target.shape.head_width),) * target.shape.layers
    pool = StatePool(PoolShape(layers=layers, page=4, pages=24, table=10), target.device, target.dtype, shuffle_seed=3)
    for request in range(2):
        assert pool.open(request, 32)
        pool.grow(request, 32)
    done, made = [0, 0], []
    for counts in steps:
        context = torch.tensor(done, dtype=torch.int32)
        cu_rows, rows, positions = ragged_positions(context, torch.tensor(counts))
        batch = Batch(
            ids=ids[rows, positions],
            positions=positions,
            cu_rows=cu_rows,
            context=context,
            request=rows,
            pages=pool.table([0, 1]),
        )
        made.append(target.forward(batch, pool)[0][: counts[0]])
        done = [a + n for a, n in zip(done, counts, strict=True)]
    return torch.cat(made)
