"""Layers of every kind on a CUDA device: logits of the CPU's, and bits that no other row changes in exact mode."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from published import prompt, run_logits
from tiny import tiny_shape

from dsbench.runtime.targets.load import build_target
from dsbench.runtime.targets.rotary import Rope, no_rope
from dsbench.runtime.targets.tensors import expected_tensors
from dsbench.runtime.targets.traits import Traits

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
TURNING = Rope(frequencies=tuple(0.3**i for i in range(8)), scale=1.2)
PART = Rope(frequencies=(*(0.3**i for i in range(6)), 0.0, 0.0))
KINDS = {
    "plain": Traits(),
    "biases": Traits(qkv_bias=True, output_bias=True, mlp_bias=True),
    "windows": Traits(windows=(9, None, 9, 3)),
    "ropes": Traits(ropes=(TURNING, no_rope(16), TURNING, TURNING)),
    "packed": Traits(packed=True, ropes=(PART,) * 4, turned=12),
    "gemma": Traits(
        norms="both",
        wide_gains=True,
        gain_offset=1.0,
        activation="gelu_tanh",
        embed_scale=5.0,
        score_scale=0.3,
        score_cap=2.0,
        logit_cap=3.0,
        windows=(8, None, 8, None),
    ),
    "olmo2": Traits(norms="after", whole_qk_norm=True, wide_gains=True),
    "granite": Traits(embed_scale=3.0, residual_scale=0.4, score_scale=0.2, logit_scale=4.0),
}


def made(kind, device, dtype, exact=False):
    """Weights drawn on the CPU, so that both devices have the same ones."""
    shape = replace(tiny_shape(qk_norm=kind == "gemma"), traits=KINDS[kind], hidden=64, head_width=16, tied=False)
    generator = torch.Generator().manual_seed(4)
    weights = {}
    for name, size in expected_tensors(shape).items():
        noise = torch.randn(size, generator=generator)
        weights[name] = noise * 0.2 + (1 if len(size) == 1 and "norm" in name else 0)
    weights = {name: w.to(device=device, dtype=dtype) for name, w in weights.items()}
    return build_target(shape, weights, digest="", exact=exact)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_cpu(kind):
    text = prompt(64, 70)
    wanted = run_logits(made(kind, "cpu", torch.float32), text, (40, 1, 5))
    torch.testing.assert_close(
        run_logits(made(kind, "cuda", torch.float32), text, (40, 1, 5)), wanted, atol=2e-3, rtol=2e-3
    )
    half = run_logits(made(kind, "cuda", torch.bfloat16), text, (40, 1, 5))
    assert (half - wanted).abs().mean() < 0.05 * wanted.abs().mean()


@pytest.mark.parametrize("kind", KINDS)
def test_bits_depend_on_no_other_row_in_exact_mode(kind):
    target, text = made(kind, "cuda", torch.bfloat16, exact=True), prompt(64, 70)
    whole = run_logits(target, text, ())
    assert torch.equal(run_logits(target, text, (1, 7, 30)), whole)
