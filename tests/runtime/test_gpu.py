"""On a CUDA device: ops equal their CPU twins, and the engine writes the CPU's text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpu_drafters import standing_drafter  # noqa: F401
from tiny import tiny_drafter, tiny_mtp, tiny_target

from dsbench.drafting.draft_time import captured
from dsbench.kernels.attention import paged_attention, paged_attention_reference
from dsbench.kernels.check.registry import registry
from dsbench.kernels.draft.stats import coupled_stats
from dsbench.kernels.gumbel import gumbel_argmax
from dsbench.kernels.philox import gumbel_noise, uniforms
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import standing_of
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.policy.planner import Planner
from dsbench.runtime.request import Request, SamplingParams
from dsbench.runtime.sampling import sampling_of
from dsbench.runtime.state import StatePool

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


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


OPS = {op.name: op for op in registry() if op.cuda is not None}


def on_device(inputs):
    return {name: x.cuda() if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}


def largest(made, wanted):
    return float((made.double().cpu() - wanted.double().cpu()).abs().max())


@pytest.mark.parametrize(
    ("op", "case"), [(op, case) for op in OPS.values() for case in op.cases], ids=lambda x: getattr(x, "name", str(x))
)
def test_triton_equals_the_reference_and_the_cpu_kernel(op, case):
    inputs = op.make_inputs(torch.Generator().manual_seed(5), case)
    made = op.compiled(**on_device(inputs))
    assert torch.isfinite(made.double()).all(), "poison reached the result"
    for wanted in (op.reference(**inputs), op.compiled(**inputs)):
        assert made.shape == wanted.shape and made.dtype == wanted.dtype
        assert largest(made, wanted) <= op.tolerance, op.why


@pytest.mark.parametrize("vocab", [16384, 49152])
@pytest.mark.parametrize("rows", [1, 16, 112])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_of_real_size(dtype, rows, vocab):
    """Flat laws, where noise decides; bf16 logits tie often. Against the CPU kernel."""
    for seed, spread in enumerate((0.0, 1.0, 4.0)):
        inputs = OPS["coupled_stats winner"].make_inputs(torch.Generator().manual_seed(seed), (rows, vocab))
        inputs["logits"] = (inputs["logits"] * spread).nan_to_num(0, neginf=float("-inf")).to(dtype)
        here, there = coupled_stats(**inputs), coupled_stats(**on_device(inputs))
        wrong = (here[0] != there[0].cpu()).nonzero().flatten().tolist()
        assert not wrong, [(r, int(here[0][r]), int(there[0][r]), float(here[1][r, 4])) for r in wrong]
        assert torch.equal(gumbel_argmax(**on_device(inputs)), there[0])
        assert largest(there[1], here[1]) < 4e-4, (there[1].cpu() - here[1]).abs().amax(0)


@pytest.mark.parametrize("vocab", [49152, 151_936])
def test_draws_from_a_whole_vocabulary_are_those_from_its_ids(vocab):
    """Cold rows among hot ones, flat laws and steep ones; and a row is what it is alone."""
    generator = torch.Generator("cuda").manual_seed(vocab)
    logits = torch.randn(96, vocab, generator=generator, device="cuda") * torch.arange(96, device="cuda")[:, None] / 24
    temperature = torch.arange(96, device="cuda") % 5 / 3.0
    seeds = torch.randint(-(2**62), 2**62, (96,), generator=generator, device="cuda")
    rest = (temperature, seeds, torch.arange(96, device="cuda") * 7)
    ids = torch.arange(vocab, device="cuda")
    for dtype in (torch.bfloat16, torch.float32):
        x = logits.to(dtype)
        drawn, (winner, features) = gumbel_argmax(x, *rest, None), coupled_stats(x, *rest, None)
        assert torch.equal(drawn, gumbel_argmax(x, *rest, ids)) and torch.equal(drawn, winner)
        given = coupled_stats(x, *rest, ids)
        assert torch.equal(given[0], drawn)
        torch.testing.assert_close(given[1], features, atol=2e-5, rtol=1e-5)
        here = gumbel_argmax(x.cpu(), *(t.cpu() for t in rest), None)
        assert (here == drawn.cpu()).float().mean() > 0.98, "more than near ties"
        for row in (0, 1, 95):
            assert gumbel_argmax(x[row : row + 1], *(t[row : row + 1] for t in rest), None) == drawn[row]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 3e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("width", [8, 20, 64, 128])
@pytest.mark.parametrize(
    "case",
    [
        ((7,) * 16, tuple(range(0, 1600, 100)), 3, 3, False, None),
        ((1,) * 64, tuple(range(0, 640, 10)), 4, 2, True, None),
        ((7,), (2500,), 3, 3, False, None),
        ((8, 1, 5, 0, 3), (300, 17, 0, 9, 1000), 7, 2, True, None),
        ((200,), (33,), 3, 1, True, None),
        ((7, 7, 2), (400, 3, 90), 2, 2, False, 64),
    ],
    ids=str,
)
def test_attention_of_real_size(case, width, dtype, tolerance):
    counts, context, group, kv_heads, causal, window = case
    made_of = (counts, context, group, kv_heads, width, causal, window)
    x = on_device(OPS["paged_attention"].make_inputs(torch.Generator().manual_seed(1), made_of))
    for name in ("q", "keys", "values"):
        x[name] = x[name].to(dtype)
    made, wanted = paged_attention(**x), paged_attention_reference(**x)
    assert made.dtype == dtype and torch.isfinite(made.float()).all()
    torch.testing.assert_close(made.float(), wanted.float(), atol=tolerance, rtol=tolerance)


KINDS = ("none", "vanilla", "gated", "rnn", "mtp")


@pytest.mark.parametrize("rule", ["coupled", "residual"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize(("kind", "events"), [(k, e) for k in KINDS for e in (False, True) if not (k == "mtp" and e)])
def test_a_captured_proposal_replays_as_the_eager_one(kind, events, depth, rule):
    """With other requests' tokens, lengths and seeds put in place between replays."""
    drafter, pool, requests, sampling = standing_drafter(kind, events)
    rows, depths = standing_of(requests, pool, drafter.norm.device), torch.full((5,), depth)
    notes = []

    def run():
        return drafter.propose(rows, sampling, pool, rule=rule, depth=lambda free: depths)

    replay, executor = captured(run, drafter.norm.device, notes.append)
    assert executor == "graph", notes
    seen = set()
    for step in range(3):
        made = replay()
        tokens, confidence = made.tokens.clone(), made.confidence.clone()
        free, laws = made.free.clone(), None if made.probabilities is None else made.probabilities.clone()
        wanted = run()
        assert torch.equal(tokens, wanted.tokens), (step, tokens, wanted.tokens)
        assert torch.allclose(confidence, wanted.confidence, atol=1e-5) and torch.allclose(free, wanted.free, atol=1e-5)
        assert laws is None or torch.allclose(laws, wanted.probabilities, atol=1e-5)
        assert made.depth.tolist() == [depth] * 5
        seen.add(tuple(tokens.flatten().tolist()))
        rows.anchor.copy_((rows.anchor * 5 + 7 + step) % 64)
        rows.start.add_(step + 1)
        sampling.seed.add_(11)
        sampling.round.add_(1)
    assert len(seen) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_proposal_waits_for_the_device_nowhere(kind):
    drafter, pool, requests, sampling = standing_drafter(kind, kind != "mtp")
    rows, depths = standing_of(requests, pool, drafter.norm.device), torch.full((5,), 3)
    for rule in ("coupled", "residual"):
        drafter.propose(rows, sampling, pool, rule=rule, depth=lambda free: depths)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            drafter.propose(rows, sampling, pool, rule=rule, depth=lambda free: depths)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [[3, 0, 1, 2, 3], [2] * 5], ids=str)
def test_a_proposal_agrees_with_the_cpu(kind, depth):
    drafter, pool, requests, sampling = standing_drafter(kind, kind != "mtp")
    plain_target = tiny_target()
    plain = (
        tiny_mtp(plain_target, vocab=32)
        if kind == "mtp"
        else tiny_drafter(plain_target, head=kind, vocab=32, events=True)
    )
    beside = StatePool(pool.shape, torch.device("cpu"), torch.float32, shuffle_seed=None)
    for mine, theirs in zip((*beside.keys, *beside.values), (*pool.keys, *pool.values), strict=True):
        mine.copy_(theirs)
    here = standing_of(requests, pool, torch.device("cpu"))
    here = replace(here, table=here.table.cpu())
    there = standing_of(requests, pool, torch.device("cuda"))
    made = drafter.propose(there, sampling, pool, rule="coupled", depth=lambda free: torch.tensor(depth))
    wanted = plain.propose(
        here, sampling_of(requests, torch.device("cpu")), beside, rule="coupled", depth=lambda free: torch.tensor(depth)
    )
    assert torch.equal(made.tokens.cpu(), wanted.tokens) and made.depth.tolist() == depth
    assert torch.allclose(made.confidence.cpu(), wanted.confidence, atol=2e-3)
    assert torch.allclose(made.free.cpu(), wanted.free, atol=1e-3)


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
                id=i,
                name=str(i),
                workload="tiny",
                prompt_ids=[1 + i, 2, 3],
                sampling=SamplingParams(temperature=temperature, seed=i, max_tokens=20),
            )
            for i in range(5)
        ]
        run_closed_loop(engine, requests, concurrency=3)
        texts.append([r.output for r in requests])
    assert texts[0] == texts[1]
