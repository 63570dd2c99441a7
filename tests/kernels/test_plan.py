"""Windows planned in fp32 where the confidences lie: the planner's own, in the planner's order, within the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsbench.kernels.check.inputs_step import plan_inputs
from dsbench.kernels.pack import pack_reference
from dsbench.kernels.plan import SURVIVAL_ERROR, negative_exp, plan, survival_of, windows
from dsbench.profiles.calibration import conditional
from dsbench.runtime.policy.planner import allocate


def drawn(seed, requests=40, block=7):
    """Logits, one map for all, limits; on odd seeds few values, so that many survivals are equal."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(requests, block, generator=generator) * 3 + 1
    if seed % 2:
        logits = logits.round().clamp(0, 2)
    scale, offset = torch.rand(block, generator=generator) + 0.5, torch.randn(block, generator=generator)
    return logits, scale, offset, torch.randint(-1, block + 2, (requests,), generator=generator)


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_the_planners_in_fp64_unless_survivals_nearly_tie(seed):
    """Where a survival differs from the last one granted, by less than both arithmetics' error, either may win."""
    logits, scale, offset, limits = drawn(seed)
    wide = np.cumprod(conditional(logits.numpy(), scale.numpy(), offset.numpy()), axis=1)
    survival = survival_of(logits, scale.expand_as(logits), offset.expand_as(logits))
    assert np.abs(survival.numpy() / wide - 1).max() < SURVIVAL_ERROR
    allowed = np.sort(wide[np.arange(7) < limits.numpy()[:, None]])[::-1]
    compared = 0
    for budget in range(len(allowed) + 3):
        last = allowed[min(budget, len(allowed)) - 1] if budget else 2.0
        near = np.abs(allowed / last - 1) < 2 * SURVIVAL_ERROR
        if (allowed[near] == last).all():
            compared += 1
            wanted = allocate(torch.from_numpy(wide), limits, budget)
            assert torch.equal(windows(survival, limits, torch.tensor([budget])), wanted), budget
    assert compared > 0.2 * len(allowed)


@pytest.mark.parametrize("seed", range(6))
def test_drafts_are_granted_by_survival_then_position_then_request(seed):
    logits, scale, offset, limits = drawn(2 * seed + 1, requests=9, block=4)
    survival = survival_of(logits, scale.expand_as(logits), offset.expand_as(logits))
    order = sorted((-float(survival[r, j]), j, r) for r in range(9) for j in range(4) if j < limits[r])
    for budget in range(40):
        wanted = [0] * 9
        for _, _, r in order[:budget]:
            wanted[r] += 1
        assert windows(survival, limits, torch.tensor([budget])).tolist() == wanted


def test_a_plan_keeps_to_the_rows_the_limits_and_the_live():
    x = plan_inputs(torch.Generator().manual_seed(0), (12, 8, 5, 20, 8, 0))
    allowed = int(x["limits"][:8].clamp(0, 5).sum())
    assert allowed == 15
    for budget, granted in ((-3, 0), (0, 0), (7, 7), (12, 12), (13, 12), (10**12, 12)):
        survival, window, packed = plan(**x | {"budget": torch.tensor([budget])})
        assert int(window.sum()) == granted and (window <= x["limits"].clamp(0, 5)).all()
        assert (survival[8:] == 0).all() and (window[8:] == 0).all() and torch.isfinite(survival).all()
        assert int(packed[-1][-1]) == 8 + granted and int((packed[3] >= 0).sum()) == 8 + granted
        rest = (x[name] for name in ("context", "pages", "live", "rows", "page"))
        for one, two in zip(packed, pack_reference(x["anchor"], x["drafts"], window, *rest), strict=True):
            assert torch.equal(one, two)
    _, window, _ = plan(**x | {"budget": torch.tensor([10**12]), "rows": 100})
    assert int(window.sum()) == allowed


def test_a_logit_that_is_no_number_has_no_chance_and_an_infinite_one_is_sure():
    logits = torch.tensor([[math.nan, 5.0], [math.inf, math.nan], [-math.inf, 200.0], [1e30, -1e30]])
    survival = survival_of(logits, torch.ones(4, 2), torch.zeros(4, 2))
    assert survival[0].tolist() == [0, 0] and survival[1].tolist() == [1, 0]
    assert 0 < float(survival[2, 0]) == float(survival[2, 1]) < 1e-30 and 0 < float(survival[3, 1]) < 1e-30
    assert windows(survival, torch.tensor([2, 2, 2, 2]), torch.tensor([2])).tolist() == [0, 1, 0, 1]


def test_the_exponential_is_one():
    x = torch.cat([torch.linspace(0, 79.9, 100_001), torch.tensor([0.0, 1e-40, 80.0])])
    made = negative_exp(x).double()
    assert ((made / (-x.double()).exp() - 1).abs() < 2.0**-22).all()
    assert float(negative_exp(torch.zeros(1))) == 1.0
    assert (negative_exp(torch.tensor([81.0, math.inf])) == negative_exp(torch.tensor([80.0]))).all()
