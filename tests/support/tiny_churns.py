"""Shared by tests: what churn tests and others run on."""

from __future__ import annotations

from churn import EOS, check_texts, churn, decode, ended_by, random_requests, seeded, unending
from engine_runs import run
from overlapped_runs import overlapped
from tiny import tiny_drafter, tiny_mtp, tiny_target

from dsbench.runtime.arm import RECORDER, parse_arm
from dsbench.runtime.config import EngineConfig

SEATS, PROMPT = 8, 40


def every_draft(mode, requests):
    """(request, output tokens before) -> the block that is drafted there, by a run that accepts none."""
    target, arm = tiny_target(), parse_arm(mode)
    drafter = tiny_mtp(target) if arm.drafter == "mtp" else tiny_drafter(target)
    engine = run(
        RECORDER, requests, batch=50, target=target, drafter=drafter, config=EngineConfig(page=4, draft="full")
    )
    return {(r.request, r.output_index): r.drafts for r in engine.rounds}


def tiny_churn(mode, count, device=None, lag=3):
    """The same on the tiny model, whose drafter keeps pages too: drafts as well are those of each request alone."""
    rng = seeded(f"tiny {mode} {count}")
    requests = random_requests(count, rng, vocab=64, longest_prompt=PROMPT)
    engine = overlapped(mode, SEATS, lag=lag, eos=EOS, decode=decode, tokens=72, device=device)
    churn(engine, requests, SEATS, rng, cancel=0.03)
    whole = unending(requests)
    alone = every_draft(mode, whole)
    check_texts(requests, [r.output for r in whole])
    assert ended_by(requests) >= {"cancelled", "length", "eos"}
    made = [(r.drafts, alone[r.request, r.output_index][: len(r.drafts)]) for r in engine.rounds]
    return sum(mine != theirs for mine, theirs in made), len(made)
