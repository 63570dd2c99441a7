"""The coupled law: for every noise table, every arm and policy emits bare autoregressive sampling with that table."""

from __future__ import annotations

import itertools

import pytest
import torch
from scipy import stats
from toys import ToyDrafter, ToyTarget, staircase_table, toy_logits

from dsbench.kernels.gumbel import gumbel_argmax, gumbel_argmax_reference
from dsbench.kernels.philox import gumbel_noise, philox, uniforms
from dsbench.runtime import sampling as sampling_module
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop.build import eager_engine
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.request import Request, SamplingParams

VOCAB, LENGTH, BLOCK = 3, 5, 3
ROWS = [(2.0, 0.0, 0.3), (0.0, 1.5, 0.0), (0.0, 0.2, 2.0)]  # one noise row each; logits and noise both matter
ARMS = [
    ("none", 0),
    ("static", 0),
    ("static:1", 0),
    ("mtp:1", 0),
    ("mtp:3", 0),
    ("no-trim", 0),
    ("compact", 0),
    ("compact", 2),
    ("compact:free", 0),
    ("compact:oracle", 0),
    ("compact:early-stop", 0),
    ("compact:threshold=0.5", 0),
    ("cap-accept", 0),
    ("cap-accept", 1),
    ("cap-accept:free", 0),
]


def noise_tables() -> torch.Tensor:
    """Every table of LENGTH rows out of ROWS: [3**LENGTH, LENGTH, VOCAB]."""
    return torch.tensor(list(itertools.product(ROWS, repeat=LENGTH)))


def bare_path(prompt: tuple[int, ...], table: torch.Tensor, temperature: float, salt: int) -> list[int]:
    """Autoregressive sampling written a second time, one token after the other."""
    text = list(prompt)
    for row in table.tolist():
        logits = toy_logits(tuple(text), VOCAB, salt)
        scores = [x / temperature + g if temperature > 0 else x for x, g in zip(logits, row, strict=True)]
        text.append(max(range(VOCAB), key=lambda v: scores[v]))
    return text[len(prompt) :]


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize(("mode", "lag"), ARMS)
def test_every_noise_table_gives_the_autoregressive_path(mode, lag, temperature, monkeypatch):
    tables = noise_tables()
    prompt = (1, 2)

    def table_argmax(logits, temps, seeds, positions, ids, kept):
        noise = tables[seeds, (positions - len(prompt)).clamp(0, LENGTH - 1)][:, slice(None) if ids is None else ids]
        hot = (temps > 0)[:, None]
        return torch.where(hot, logits / torch.where(hot, temps[:, None], 1.0) + noise, logits).argmax(-1)

    monkeypatch.setattr(sampling_module, "gumbel_argmax", table_argmax)
    wanted = [bare_path(prompt, table, temperature, salt=1) for table in tables]
    arm = parse_arm(mode)
    drafter = NoDrafter(torch.device("cpu")) if arm.drafter == "none" else ToyDrafter(VOCAB, BLOCK)
    batch = 64
    requests = [
        Request(
            id=i,
            name=str(i),
            workload="toy",
            prompt_ids=list(prompt),
            canonical=wanted[i] if "oracle" in mode else None,
            sampling=SamplingParams(temperature=temperature, seed=i, max_tokens=LENGTH),
        )
        for i in range(len(tables))
    ]
    engine = eager_engine(
        ToyTarget(VOCAB),
        drafter,
        arm,
        EngineConfig(lag=lag, page=2),
        requests,
        slots=batch,
        tokens=batch * 16,
        table=staircase_table(batch, BLOCK),
    )
    run_closed_loop(engine, requests, concurrency=batch)
    assert not any(s.fallback for s in engine.steps)
    assert [r.output for r in requests] == wanted
    assert engine.device.pool.free_pages == engine.device.pool.shape.pages
    if mode not in ("none",):
        assert any(r.accepted for r in engine.rounds), "nothing was ever accepted: the test would not see a fault"


def test_philox_known_answers():
    """Vectors published with the generator (kat_vectors of Random123, philox4x32, 10 rounds)."""
    zero = torch.zeros((), dtype=torch.int64)
    assert [int(x) for x in philox(zero, (zero,) * 4)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    ones = torch.tensor(-1, dtype=torch.int64)
    word = torch.tensor(0xFFFFFFFF, dtype=torch.int64)
    assert [int(x) for x in philox(ones, (word,) * 4)] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


def test_noise_is_gumbel_and_uniforms_are_uniform():
    noise = gumbel_noise(torch.arange(40), torch.arange(40) * 7, torch.arange(4000)).flatten().double().numpy()
    assert stats.kstest(noise, stats.gumbel_r.cdf).pvalue > 1e-3
    u = uniforms(torch.arange(100_000), torch.arange(100_000) % 97, torch.arange(100_000) % 11, 2).numpy()
    assert stats.kstest(u, stats.uniform.cdf).pvalue > 1e-3
    assert u.min() > 0 and u.max() < 1


def test_neighbouring_keys_are_independent():
    ids = torch.arange(4000)
    rows = gumbel_noise(torch.tensor([5, 5, 6]), torch.tensor([9, 10, 9]), ids).double().numpy()
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert abs(stats.pearsonr(rows[a], rows[b]).statistic) < 0.06
    purposes = [uniforms(ids, ids * 0 + 3, ids * 0 + 1, p).numpy() for p in (1, 2)]
    assert abs(stats.pearsonr(*purposes).statistic) < 0.06


@pytest.mark.parametrize("spread", [0.3, 2.0, 8.0])
@pytest.mark.parametrize("subset", [False, True])
def test_compiled_argmax_equals_the_whole_noise_table(spread, subset):
    generator = torch.Generator().manual_seed(3)
    ids = torch.arange(3001) if not subset else torch.arange(0, 30_010, 10) + torch.arange(3001) % 7
    logits = torch.randn(64, 3001, generator=generator) * spread
    logits[5, 100:] = float("-inf")
    temperature = torch.rand(64, generator=generator) * 1.5
    temperature[::7] = 0
    seeds = torch.randint(-(2**62), 2**62, (64,), generator=generator)
    positions = torch.randint(0, 9000, (64,), generator=generator)
    expected = gumbel_argmax_reference(logits, temperature, seeds, positions, ids)
    assert torch.equal(gumbel_argmax(logits, temperature, seeds, positions, ids), expected)
    if not subset:
        assert torch.equal(gumbel_argmax(logits, temperature, seeds, positions, None), expected)


def test_coupled_sampling_follows_the_softmax():
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0])
    draws = 40_000
    tokens = gumbel_argmax(
        logits.expand(draws, -1),
        torch.full((draws,), 0.7),
        torch.arange(draws),
        torch.full((draws,), 12),
        torch.arange(4),
    )
    expected = (logits / 0.7).softmax(-1) * draws
    assert (
        stats.chisquare(
            torch.bincount(tokens, minlength=4).numpy(), expected.numpy() * draws / expected.sum().item()
        ).pvalue
        > 1e-3
    )
