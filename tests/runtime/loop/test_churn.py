"""Hundreds of requests, once a thousand, come and go at random through both loops, on toys that read all pages back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from churn import EOS, LONGEST, check_texts, churn, decode, ended_by, random_requests, seeded, unending
from tiny_churns import PROMPT, SEATS, every_draft, tiny_churn  # noqa: F401
from toys import ToyDrafter, ToyTarget, staircase_table, toy_logits

from dsbench.kernels.philox import gumbel_noise
from dsbench.runtime.arm import parse_arm
from dsbench.runtime.config import EngineConfig
from dsbench.runtime.drafters.draft import NoDrafter
from dsbench.runtime.loop import prompts, steady
from dsbench.runtime.loop.engine import Engine
from dsbench.runtime.loop.graphs import make_models
from dsbench.runtime.loop.overlap import Overlapped
from dsbench.runtime.loop.steady import make_steady
from dsbench.runtime.policy.planner import Planner

VOCAB, BLOCK = 11, 3


def solo_texts(requests):
    """Coupled sampling of the toy's law, each request by itself and a token at a time."""
    texts = [list(r.prompt_ids) for r in requests]
    seeds = torch.tensor([r.sampling.seed for r in requests])
    heat = torch.tensor([r.sampling.temperature for r in requests])[:, None]
    for _ in range(LONGEST):
        logits = torch.tensor([toy_logits(tuple(text), VOCAB, 1) for text in texts])
        noise = gumbel_noise(seeds, torch.tensor([len(text) for text in texts]), torch.arange(VOCAB))
        scores = torch.where(heat > 0, logits / heat.clamp(min=1e-9) + noise, logits)
        for text, token in zip(texts, scores.argmax(-1).tolist(), strict=True):
            text.append(token)
    return [text[len(r.prompt_ids) :] for text, r in zip(texts, requests, strict=True)]


def toy_loop(mode, lag, *, tokens, slot=0.0, overlaps=True):
    """`tokens`: of the pool; small, so that requests wait for pages."""
    arm, target = parse_arm(mode), ToyTarget(VOCAB)
    drafter = NoDrafter(target.device) if arm.drafter == "none" else ToyDrafter(VOCAB, BLOCK)
    config = EngineConfig(lag=lag, page=4, graphs=SEATS if overlaps else 0, prefill_chunk=7)
    planner = Planner(
        arm,
        block=drafter.block,
        rule="coupled",
        lag=lag,
        calibrations=None,
        table=replace(staircase_table(SEATS, BLOCK), slot_bias=slot),
    )
    if not overlaps:
        return Engine(target, drafter, arm, planner, config, eos=EOS, tokens=tokens, decode=decode)
    models = make_models(target, drafter, config, tokens, PROMPT + LONGEST)
    made = make_steady(models, arm, config, recorded=0, eos=EOS, scripted=False)
    return Overlapped(made, arm, planner, config, decode=decode)


RUNS = [
    ("compact", 3, 300, True),
    ("compact", 1, 100, True),
    ("cap-accept", 4, 100, True),
    ("static", 2, 100, True),
    ("static:2", 5, 100, True),
    ("no-trim", 3, 100, True),
    ("none", 3, 100, True),
    ("compact", 0, 100, False),
    pytest.param("compact", 3, 1000, True, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("mode", "lag", "count", "overlaps"), RUNS)
def test_whoever_comes_and_goes_each_writes_its_solo_text(mode, lag, count, overlaps, monkeypatch):
    monkeypatch.setattr(steady, "CHUNKS", (4, 16))  # most prompts are longer
    monkeypatch.setattr(prompts, "SHARE", 1)  # they wait for each other, and seats for them
    dice = seeded(f"{mode} {lag}")
    requests = random_requests(count, dice, vocab=VOCAB, longest_prompt=PROMPT)
    engine = toy_loop(mode, lag, tokens=SEATS * 32, slot=0.05, overlaps=overlaps)
    churn(engine, requests, SEATS, dice)
    check_texts(requests, solo_texts(unending(requests)))
    assert ended_by(requests) == {"cancelled", "length", "eos", "string"}
    stays = [r.finish_reason for r in engine.finished]
    assert len(stays) > count and stays.count("cancelled") > count // 20
    assert bool(sum(s.zombies for s in engine.steps)) == overlaps
    if mode == "compact":
        assert len({len(r.drafts) for r in engine.rounds}) > 1, "all drafted alike"


@pytest.mark.parametrize("mode", ["compact", "mtp:3"])
def test_so_does_a_model_whose_drafter_keeps_pages_too(mode):
    other, rounds = tiny_churn(mode, 100)
    assert rounds > 200 and other == 0
