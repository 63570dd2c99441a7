"""On a CUDA device: ops equal their CPU twins, and the engine writes the CPU's text."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny_drafter, tiny_target

from dsbench.kernels.attention import paged_attention, paged_attention_reference
from dsbench.kernels.draft_stats import coupled_stats
from dsbench.kernels.gumbel import gumbel_argmax
from dsbench.kernels.philox import gumbel_noise, uniforms
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.engine import Engine
from dsbench.runtime.loop import run_closed_loop
from dsbench.runtime.planner import Planner
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.sampling import sampling_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_random_words_are_the_same_on_both_devices():
    seeds, positions, ids = torch.tensor([3, -9, 2**61]), torch.tensor([0, 7, 8191]), torch.arange(0, 5000, 3)
    here = gumbel_noise(seeds, positions, ids)
    there = gumbel_noise(seeds.cuda(), positions.cuda(), ids.cuda()).cpu()
    assert torch.allclose(here, there, atol=4e-6, rtol=1e-5)  # logs differ in the last bits
    assert torch.equal(
        uniforms(seeds, positions, positions, 2), uniforms(seeds.cuda(), positions.cuda(), positions.cuda(), 2).cpu()
    )


def test_argmax_with_noise_agrees_with_the_cpu():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 4096, generator=generator) * 2
    rest = (torch.rand(32, generator=generator), torch.arange(32), torch.arange(32) * 5, torch.arange(4096))
    assert torch.equal(gumbel_argmax(logits, *rest), gumbel_argmax(logits.cuda(), *(x.cuda() for x in rest)).cpu())


def test_draw_with_features_agrees_with_the_cpu():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(32, 4096, generator=generator) * 2
    temperature = torch.rand(32, generator=generator) + 0.3
    temperature[::5] = 0
    inputs = (logits, temperature, torch.arange(32), torch.arange(32) * 5, torch.arange(4096))
    here, there = coupled_stats(*inputs), coupled_stats(*(x.cuda() for x in inputs))
    assert torch.equal(here[0], there[0].cpu())
    assert torch.allclose(here[1], there[1].cpu(), atol=2e-4)


@pytest.mark.parametrize("events", [False, True])
@pytest.mark.parametrize("rule", ["coupled", "residual"])
def test_a_block_of_one_depth_is_drawn_without_the_host(rule, events):
    """Captured in a graph, which a wait for the device would break, and replayed on other hidden states."""
    target = tiny_target(torch.device("cuda"))
    drafter = tiny_drafter(target, events=events)
    requests = [
        Request(id=i, name=str(i), workload="tiny", prompt_ids=[i], sampling=SamplingParams(temperature=i % 3 / 2))
        for i in range(6)
    ]
    sampling = sampling_of(requests, target.device)
    anchor = torch.arange(6, device="cuda")
    hidden = torch.randn(6, 4, 32, device="cuda")
    rest = (torch.zeros(6, 4, device="cuda"), anchor, anchor * 9, sampling)
    with torch.inference_mode():
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            drafter.draw(hidden, *rest, rule=rule, depth=torch.full((6,), 4))
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = drafter.draw(hidden, *rest, rule=rule, depth=torch.full((6,), 4))
        hidden.copy_(torch.randn(6, 4, 32, device="cuda"))
        graph.replay()
        wanted = drafter.draw(hidden, *rest, rule=rule, depth=torch.full((6,), 4))
    assert torch.equal(captured.tokens, wanted.tokens)
    assert torch.allclose(captured.confidence, wanted.confidence, atol=1e-5)
    assert wanted.confidence.abs().sum() > 0


def test_attention_agrees_with_the_cpu_kernel():
    generator = torch.Generator().manual_seed(0)
    keys, values = (torch.randn(40, 3, 16, 64, generator=generator) for _ in range(2))
    pages = torch.randperm(40, generator=generator)[:36].view(4, 9).int()
    context = torch.tensor([0, 17, 100, 130], dtype=torch.int32)
    cu_rows = torch.tensor([0, 5, 6, 14, 15], dtype=torch.int32)
    q = torch.randn(15, 9, 64, generator=generator)
    for causal in (True, False):
        here = paged_attention(q, keys, values, pages, cu_rows, context, causal=causal)
        there = paged_attention_reference(
            *(x.cuda() for x in (q, keys, values, pages, cu_rows, context)), causal=causal
        )
        assert torch.allclose(here, there.cpu(), atol=2e-5)


@pytest.mark.parametrize("mode", ["static", "no-trim", "cap-accept:threshold=0.4"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_engine_writes_the_same_text_on_both_devices(mode, temperature):
    texts = []
    for device in ("cpu", "cuda"):
        target = tiny_target(torch.device(device))
        drafter = tiny_drafter(target)
        arm = parse_arm(mode)
        planner = Planner(arm, block=drafter.block, rule="coupled", lag=0, table=None, calibrations=None)
        engine = Engine(target, drafter, arm, planner, EngineConfig(page=4), tokens=600, eos=frozenset())
        requests = [
            Request(
                id=i, name=str(i), workload="tiny", prompt_ids=[1 + i, 2, 3],
                sampling=SamplingParams(temperature=temperature, seed=i, max_tokens=20),
            )
            for i in range(5)
        ]  # fmt: skip
        run_closed_loop(engine, requests, concurrency=3)
        texts.append([r.output for r in requests])
    assert texts[0] == texts[1]
