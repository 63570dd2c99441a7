"""The engine with a tiny real model: same text in every arm, executed rows, replayed plans, ceilings judged later."""

from __future__ import annotations

import numpy as np
import pytest
from engine_runs import make_requests, plain_texts, run
from tiny import tiny_target
from toys import ToyDrafter, ToyTarget, staircase_table

from dsbench.errors import UsageError
from dsbench.kernels.judge import UNSEEN
from dsbench.results.tables import later_ceiling
from dsbench.runtime.drafters.random import random_drafter
from dsbench.runtime.policy.token_free import TokenFree
from dsbench.runtime.records import RoundRecord
from dsbench.runtime.request import SamplingParams

MODES = [
    "none",
    "static",
    "static:2",
    "no-trim",
    "compact",
    "compact:free",
    "compact:early-stop",
    "cap-accept",
    "mtp:1",
    "mtp:3",
]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("mode", MODES)
def test_every_arm_and_batch_size_writes_one_text(mode, temperature):
    for batch, every in ((1, 4), (3, 1)):  # ten tokens pass every place of a page
        requests = make_requests(7, temperature=temperature, max_tokens=10)[::every]
        run(mode, requests, batch=batch)
        assert [r.output for r in requests] == plain_texts(7, temperature, 10)[::every]


def test_top_k_and_top_p_are_per_request_and_arm_independent():
    def mixed():
        plain, narrow = make_requests(4), make_requests(4, top_k=5, top_p=0.7)
        return [plain[0], narrow[1], plain[2], narrow[3]]

    wanted = mixed()
    run("none", wanted, batch=4)
    for mode in ("static", "compact"):
        requests = mixed()
        run(mode, requests, batch=2)
        assert [r.output for r in requests] == [r.output for r in wanted]
    assert [r.output for r in make_and_run_plain()] != [r.output for r in wanted]


def make_and_run_plain():
    requests = make_requests(4)
    run("none", requests, batch=4)
    return requests


@pytest.mark.parametrize("rule", ["coupled", "residual", "block"])
@pytest.mark.parametrize("mode", ["none", "static", "static:2", "mtp:3", "no-trim", "compact", "cap-accept"])
def test_executed_rows_are_the_planned_ones(mode, rule):
    target = ToyTarget(16)
    drafter = ToyDrafter(16, 4)
    requests = make_requests(6, vocab=16, max_tokens=14)
    engine = run(mode, requests, batch=3, rule=rule, target=target, drafter=drafter)
    assert target.executed == [step.tier for step in engine.steps]
    by_step: dict[int, list] = {}
    for record in engine.rounds:
        by_step.setdefault(record.step, []).append(record)
    for step in engine.steps:
        rounds = by_step[step.step]
        windows = sum(r.window + 1 for r in rounds)
        sent = sum(r.verified + 1 for r in rounds)
        assert step.rows == sent and step.zombies == 0 and step.seats == step.requests
        if mode in ("compact", "no-trim", "none"):
            assert step.rows == windows == step.budget + step.requests
            assert step.padding == 0 and step.tier == step.rows
        if mode == "cap-accept":
            assert sent >= windows and step.tier == step.rows and step.padding == sent - windows
        if mode in ("static", "static:2", "mtp:3"):
            drafts = {"static": 4, "static:2": 2, "mtp:3": 3}[mode]
            assert step.tier == step.requests * (drafts + 1)
            assert step.padding == step.tier - windows and sent == windows


def toy_run(mode, rule, replay=None):
    requests = make_requests(8, vocab=16, max_tokens=20)
    engine = run(
        mode, requests, batch=4, rule=rule, replay=replay, target=ToyTarget(16), drafter=ToyDrafter(16, 4), draft="full"
    )
    return requests, engine


@pytest.mark.parametrize("rule", ["coupled", "residual", "block"])
def test_cap_accept_commits_what_compact_commits_on_a_replayed_plan(rule):
    compact, engine = toy_run("compact", rule)
    counts: dict[int, int] = {}
    plan = {}
    for record in engine.rounds:
        counts[record.request] = counts.get(record.request, 0) + 1
        plan[record.request, counts[record.request]] = record.window
    capped, second = toy_run("cap-accept", rule, replay=plan)
    assert not second.steps[-1].fallback
    assert [r.output for r in capped] == [r.output for r in compact]
    mine = [
        (r.request, r.window, r.accepted, r.delivered)
        for r in sorted(engine.rounds, key=lambda r: (r.request, r.position))
    ]
    theirs = [
        (r.request, r.window, r.accepted, r.delivered)
        for r in sorted(second.rounds, key=lambda r: (r.request, r.position))
    ]
    assert mine == theirs
    assert any(r.ceiling > r.accepted + 1 for r in second.rounds), "no trimmed draft would have passed: nothing shown"
    if rule == "block":
        assert all(r.ceiling == UNSEEN for r in (*engine.rounds, *second.rounds) if r.verified < 4)
        assert any(r.ceiling == UNSEEN and r.accepted < r.window for r in engine.rounds), "residual would have told"


def test_ceiling_judged_later_equals_what_cap_accept_saw():
    compact, engine = toy_run("compact", "coupled")
    capped, second = toy_run("cap-accept", "coupled")
    assert [r.output for r in capped] == [r.output for r in compact]
    seen = {(r.request, r.position): r for r in second.rounds}
    compared = trimmed = 0
    for record in engine.rounds:
        later = later_ceiling(record, compact[record.request], "coupled")
        other = seen[record.request, record.position]
        if later != UNSEEN and other.ceiling != UNSEEN:
            assert later == other.ceiling
            compared += 1
            trimmed += record.ceiling == UNSEEN
    assert compared > 20 and trimmed > 5


def test_pinned_text_is_committed_and_flips_are_counted():
    requests = make_requests(3)
    run("none", requests, batch=3)
    texts = [list(r.output) for r in requests]
    texts[1][6] = (texts[1][6] + 1) % 64
    again = make_requests(3)
    for request, text in zip(again, texts, strict=True):
        request.canonical = list(text)
    engine = run("static", again, batch=3)
    assert [r.output for r in again] == texts
    flips = sum(s.flips for s in engine.steps)
    assert flips >= 1
    assert sum(r.flips for r in engine.rounds if r.request != 1) == 0


def test_eos_anywhere_in_a_block_ends_the_request():
    free = make_requests(5, temperature=0.0)
    run("none", free, batch=5)
    eos = frozenset({free[0].output[9], free[3].output[4]})
    wanted = []
    for r in free:
        cut = next((i for i, t in enumerate(r.output) if t in eos), len(r.output) - 1)
        wanted.append(r.output[: cut + 1])
    for mode in ("none", "static", "no-trim", "compact"):
        requests = make_requests(5, temperature=0.0)
        run(mode, requests, batch=2, eos=eos)
        assert [r.output for r in requests] == wanted
        assert all(r.finish_reason == ("stop" if r.output[-1] in eos else "length") for r in requests)


def test_stop_strings_cut_the_text_before_them_in_every_arm():
    def decode(ids):
        return "".join(f"<{t}>" for t in ids)

    free = make_requests(3)
    run("none", free, batch=3)
    stop = (f"<{free[0].output[5]}><{free[0].output[6]}>", f"<{free[2].output[3]}>")
    results = []
    for mode in ("none", "static", "compact"):
        requests = make_requests(3, stop=stop)
        run(mode, requests, batch=3, decode=decode)
        results.append([(r.output, r.text, r.finish_reason) for r in requests])
    assert results[0] == results[1] == results[2]
    output, text, reason = results[0][0]
    assert reason == "stop" and decode(output).startswith(text)
    assert any(decode(output)[len(text) :].startswith(s) for s in stop)


def test_max_tokens_of_one_and_mixed_limits():
    requests = make_requests(4)
    for request, limit in zip(requests, (1, 2, 9, 24), strict=True):
        request.sampling = SamplingParams(seed=request.sampling.seed, max_tokens=limit)
    run("static", requests, batch=4)
    assert [len(r.output) for r in requests] == [1, 2, 9, 24]


def test_a_prompt_as_long_as_the_context_is_refused_in_one_line():
    request = make_requests(1)[0]
    request.prompt_ids = [1] * 256
    with pytest.raises(UsageError, match="256 tokens, the context is 256"):
        run("none", [request], batch=20)


@pytest.mark.parametrize("rule", ["residual", "block"])
def test_anticipating_pairs_are_refused(rule):
    for mode in ("compact:oracle", "cap-accept:oracle"):
        with pytest.raises(UsageError, match=f"anticipate under the {rule} rule"):
            toy_run(mode, rule)


@pytest.mark.parametrize("rule", ["coupled", "residual", "block"])
def test_an_argmax_is_set_by_rounds_before_its_own_under_any_rule(rule):
    """A request's first round goes by a prior, all others by confidences a round old or older."""
    _, engine = toy_run("compact", rule)
    assert {s.confidence_age for s in engine.steps} == {0, 1}
    assert all(s.priors == s.requests for s in engine.steps if s.confidence_age == 0)


@pytest.mark.parametrize("rule", ["coupled", "residual", "block"])
def test_token_free_budgets_are_set_before_the_head_which_stops_at_the_deepest_window(rule, monkeypatch):
    """Under any rule and without a lag."""
    seen, table, decide = [], staircase_table(5, 4), TokenFree.within

    def watched(policy, plan, heard):
        made = decide(policy, plan, heard)
        seen.append((heard.survival.copy(), heard.limits.copy(), made.budget, made.depth))
        return made

    monkeypatch.setattr(TokenFree, "within", watched)
    engine = run("compact:free", make_requests(9, max_tokens=30), batch=5, rule=rule)
    assert len(seen) == len(engine.steps), "once, before the head"
    told = {(r.step, r.request): r.free_logits for r in engine.rounds}
    for step in engine.steps:
        mine = [r for r in engine.rounds if r.step == step.step]
        survival, limits, budget, depth = seen[step.step]
        free = np.array([told[step.step, r.request] for r in mine])
        if depth:
            np.testing.assert_allclose(survival, np.cumprod(1 / (1 + np.exp(-free)), 1), rtol=1e-6)
        rates = []
        for rows in range(int(limits.sum()) + 1):
            ranked = np.sort([survival[i, j] for i in range(len(mine)) for j in range(limits[i])])[::-1]
            seconds = table.verify_curve(len(mine), np.array([len(mine) + rows]), step.context)[0]
            rates.append((len(mine) + ranked[:rows].sum()) / seconds)
        assert rates[budget] == pytest.approx(max(rates), rel=1e-12)
        assert {len(r.drafts) for r in mine} == {depth} and step.budget == budget
        assert step.confidence_age == 0
    depths = {depth for *_, depth in seen}
    assert len(depths) > 1 and all(r.window <= len(r.drafts) for r in engine.rounds)


def test_a_shape_target_gets_a_random_drafter_of_the_published_size():
    target = tiny_target()
    drafter = random_drafter(target)
    assert len(drafter.layers) == 5 and drafter.block == 7 and drafter.shape.rank == 256
    assert max(drafter.taps) < target.shape.layers - 1
    requests = make_requests(3)
    engine = run("static", requests, batch=3, target=target, drafter=drafter)
    wanted = make_requests(3)
    run("none", wanted, batch=3, target=target)
    assert [r.output for r in requests] == [r.output for r in wanted]
    limit = {r.id: len(r.output) for r in requests}
    assert all(r.verified == min(7, limit[r.request] - r.output_index - 1) for r in engine.rounds)
    assert all(s.tier == 8 * s.requests for s in engine.steps)


def test_a_head_that_stopped_early_leaves_the_ceiling_unseen():
    requests = make_requests(1)
    requests[0].output = [5, 6, 7, 8, 9]

    def record(drafts):
        return RoundRecord(
            step=0,
            request=0,
            workload="tiny",
            position=3,
            output_index=1,
            window=0,
            verified=0,
            accepted=0,
            delivered=1,
            ceiling=UNSEEN,
            flips=0,
            drafts=drafts,
            logits=(),
            free_logits=(0.0,) * 3,
        )

    assert later_ceiling(record((6, 7)), requests[0], "coupled") == UNSEEN
    assert later_ceiling(record((6, 1)), requests[0], "coupled") == 2
    assert later_ceiling(record((6, 7, 8)), requests[0], "coupled") == 4
    assert later_ceiling(record(()), requests[0], "coupled") == UNSEEN


def test_the_most_likely_token_survives_any_top_p():
    requests = make_requests(2, top_p=1e-46)
    greedy = make_requests(2, temperature=0.0)
    run("none", requests, batch=2)
    run("none", greedy, batch=2)
    assert [r.output for r in requests] == [r.output for r in greedy]
