"""The engine under the block rule: greedy text is everybody's, and more drafts are accepted than by residual."""

from __future__ import annotations

import pytest
from engine_runs import make_requests, run
from toys import ToyDrafter, ToyTarget


@pytest.mark.parametrize("mode", ["static:2", "compact", "cap-accept", "mtp:3"])
def test_block_at_temperature_0_writes_the_text_of_plain_decoding(mode):
    wanted = make_requests(4, temperature=0.0, max_tokens=12)
    run("none", wanted, batch=4)
    found = []
    for rule in ("residual", "block"):
        requests = make_requests(4, temperature=0.0, max_tokens=12)
        engine = run(mode, requests, batch=3, rule=rule, lag=2)
        assert [r.output for r in requests] == [r.output for r in wanted]
        found.append([(r.request, r.position, r.window, r.accepted, r.delivered) for r in engine.rounds])
    assert found[0] == found[1]


def test_block_accepts_more_than_residual_of_the_same_drafter():
    taus = {}
    for rule in ("residual", "block"):
        requests = make_requests(12, vocab=16, max_tokens=24)
        engine = run("no-trim", requests, batch=6, rule=rule, target=ToyTarget(16), drafter=ToyDrafter(16, 4))
        taus[rule] = sum(r.delivered for r in engine.rounds) / len(engine.rounds)
    assert taus["block"] > taus["residual"] + 0.02
