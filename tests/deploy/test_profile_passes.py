"""profile-cost over captured graphs (run as they are on a CPU): what is a pass, what is the host's, a line an R."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny import tiny_drafter, tiny_target

from dsbench.deploy.deployment import Deployment
from dsbench.deploy.profile_cost import pass_samples, profile_cost
from dsbench.deploy.visits import Shape, Timed
from dsbench.machine.pass_table import print_rounds, round_times
from dsbench.profiles.fit import CostSample, depth_curve
from dsbench.runtime.loop.tiers import Tiers
from dsbench.runtime.targets.load import LoadedTarget


@pytest.fixture(scope="module")
def profiled():
    target = tiny_target()
    deployment = Deployment(
        target=LoadedTarget(name="tiny", model=target, tokenizer=None, eos=frozenset(), random=True),
        drafter=tiny_drafter(target),
        chain=None,
        calibrations=None,
        contract={"executor": "graphs"},
        home=None,
        graphs=True,
    )
    seen = []
    made = profile_cost(
        deployment,
        batches=(1, 3),
        contexts=(12, 30),
        passes=2,
        seed=0,
        temperature=1.0,
        notice=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1] == len(seen)
    return made


def test_every_tier_of_every_batch_is_timed_by_replay_and_by_step(profiled):
    table, _, samples = profiled
    tiers = Tiers.ladder(3, 4).rows
    assert table.tiers == tiers
    rows = {r: {s.rows for s in samples if s.phase == "pass" and s.requests == r} for r in (1, 3)}
    assert rows == {1: {1, 2, 4, 5}, 3: {3, *(t for t in tiers if 3 < t < 15), 15}}
    count = {phase: sum(s.phase == phase for s in samples) for phase in ("pass", "verify", "step")}
    assert count["pass"] == count["verify"] == 3 * count["step"] > 0
    assert {s.rows for s in samples if s.phase == "no-draft"} == {1, 3}
    assert {(s.requests, s.rows) for s in samples if s.phase == "shallow"} == {(1, 4), (3, 4)}
    assert table.depth_bias >= 0 and table.depth.at == (1, 3)
    assert table.draft_seconds(3, 30, 2) <= table.draft_seconds(3, 30)


def test_a_round_is_told_for_every_batch_and_context(profiled, capsys):
    lines = round_times(profiled[2])
    assert sorted({t.requests for t in lines}) == [1, 3] and len(lines) == 4
    assert all(0 < t.draft_share < 1 and t.full > 0 and t.no_draft_step > 0 for t in lines)
    print_rounds(lines)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 4
    print_rounds([])
    assert capsys.readouterr().out == ""


def test_the_host_is_what_a_step_takes_beyond_its_passes():
    """The same for all rows of an R, and never less than nothing."""

    def timed(requests: int, rows: int, step: float, draft: float, verify: float) -> Timed:
        cell = Shape(requests=requests, rows=rows, mean_context=8)
        return Timed(cell=cell, number=0, context=8 * requests, step=step, draft=(draft,) * 3, verify=(verify,) * 3)

    visits = [timed(2, 2, 9.0, 2.0, 3.0), timed(2, 6, 10.0, 2.0, 5.0), timed(2, 10, 14.0, 2.0, 7.0)]
    samples = pass_samples([*visits, timed(4, 4, 4.0, 2.0, 3.0)], 4, overlap=False)
    verify = {(s.requests, s.rows): s.seconds for s in samples if s.phase == "verify"}
    assert verify == {(2, 2): 7.0, (2, 6): 9.0, (2, 10): 11.0, (4, 4): 3.0}
    alone = {(s.requests, s.rows): s.seconds for s in pass_samples(visits, 4, overlap=True) if s.phase == "verify"}
    assert alone == {(2, 2): 3.0, (2, 6): 5.0, (2, 10): 7.0}
    first = replace(visits[0], shallow=(1.4,) * 3)
    depth_bias, slot = depth_curve(pass_samples([first], 4, overlap=True))
    assert depth_bias == pytest.approx(0.2) and slot.at == (2,)
    assert CostSample(2, 0, 16, 2.0, "draft", 0) in samples and CostSample(2, 10, 16, 14.0, "step", 0) in samples
