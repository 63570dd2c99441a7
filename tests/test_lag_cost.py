"""What lateness costs is measured on the overlapped loop's own rounds, and is what a closed form says."""

from __future__ import annotations

import runpy
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_overlap import overlapped
from test_replay import EVENT, replayed, toy_trace, wide
from test_simulate import rounds_of_engine, rounds_of_play
from tiny import tiny_target
from toys import staircase_table

from dsbench import lag_cost
from dsbench.errors import UsageError
from dsbench.lag_cost import lag_costs
from dsbench.profiles.cost import Box, CostTable
from dsbench.profiles.curve import Curve
from dsbench.runtime import recent
from dsbench.runtime.loop import run_closed_loop
from dsbench.runtime.trace import DraftTrace
from dsbench.simulated_loop import play
from dsbench.trace import Trace, TraceRow

SCRIPT = Path(__file__).parent.parent / "scripts" / "lag_cost.py"


@pytest.mark.parametrize(("lag", "slot"), [(1, 0.04), (2, 0.0), (3, 0.04)])
def test_an_age_is_served_as_the_overlapped_loop_serves_it(lag, slot, monkeypatch):
    trace, seats, plays = wide(toy_trace(tokens=40)), 3, []
    engine = overlapped("compact", seats, lag=lag, recorded=40, scripted=True, slot=slot)
    queue = replayed(trace, tiny_target(), tokens=40, size=16)
    run_closed_loop(engine, queue, concurrency=seats)

    def watched(*given, **named):
        plays.append(play(*given, **named | {"prior": 0.5 ** np.arange(1, 8)}))  # of an engine without calibrations
        return plays[-1]

    monkeypatch.setattr(lag_cost, "LEAST", 8)
    monkeypatch.setattr(lag_cost, "play", watched)
    list(lag_costs(trace, engine.planner.table, workloads=["tiny"], batches=[seats], sources=[(lag, False)]))
    found = plays[-1]
    last, wanted, mine = len(found.steps), rounds_of_engine(engine, queue), rounds_of_play(found)
    assert mine == {key: told for key, told in wanted.items() if told[0] < last}
    assert last > 60 and any(r["window"] for r in found.rounds)
    assert (len({len(r["drafts"]) for r in found.rounds}) > 1) == (slot > 0)
    zombies = [s["zombies"] for s in found.steps]
    assert zombies == [s.zombies for s in engine.steps[:last]] and any(zombies) == (lag > 1)
    spent = sum(s["seconds"] for s in found.steps)
    by_table = sum(s.predicted_seconds for s in engine.steps[:last])  # of rows that ran, in no tiers
    assert by_table <= spent and by_table == pytest.approx(spent, rel=0.1)


def made_trace(chance, *, texts=24, tokens=61, seed=0) -> Trace:
    """chance(text, anchor) [4]: conditional acceptances, told exactly; matches drawn from them. No token-free word."""
    dice = np.random.default_rng(seed)
    rows = []
    for i in range(texts):
        p = np.array([chance(i, a) for a in range(tokens - 1)]).reshape(-1, 4)
        hits = np.cumprod(dice.random(p.shape) < p, axis=1).sum(1)
        match = np.minimum(hits, np.arange(tokens - 1, 0, -1)).astype(np.int8)
        drafts = DraftTrace(match=match, logits=np.log(p / (1 - p)), free=np.zeros(p.shape))
        rows.append(TraceRow(name=f"p{i}", workload="made", prompt=(1,), output=(2,) * tokens, drafts=drafts))
    return Trace(block=4, event=EVENT, provenance={}, rows=tuple(rows))


@pytest.fixture
def each_text_once(monkeypatch):
    """Where a law says what comes out, no sample has to."""
    monkeypatch.setattr(lag_cost, "LEAST", 1)


def costs(trace, table, batch, sources):
    return {(c.age, c.free): c for c in lag_costs(trace, table, workloads=["made"], batches=[batch], sources=sources)}


def test_confidences_that_last_lose_little_by_their_age_and_fickle_ones_do():
    """A text that is easy stays easy; against odds drawn anew at every anchor, of which an old word says nothing."""
    table, ages = staircase_table(4, 4), [(age, False) for age in (0, 1, 2, 4)]
    lasting = costs(made_trace(lambda text, at: [0.9 if text % 2 else 0.2] * 4), table, 4, ages)
    anew = np.random.default_rng(1).choice([0.02, 0.97], 100_000)
    fickle = costs(made_trace(lambda text, at: [anew[97 * text + at]] * 4), table, 4, ages)
    assert lasting[0, False].budget.value == fickle[0, False].budget.value == 1
    for age in (1, 2, 4):
        assert lasting[age, False].budget.value > 0.985 and lasting[age, False].budget.high > 1
        assert fickle[age, False].budget.value < 0.975 and fickle[age, False].budget.high < 1
    assert fickle[2, False].base_tau != fickle[2, False].tau


def test_few_requests_gain_by_what_other_rounds_left(monkeypatch):
    """Odds drawn anew at every anchor: one request's old word alone is a bad guess, many old words a fair one."""
    anew = np.random.default_rng(1).choice([0.02, 0.97], 100_000)
    fickle, ages = made_trace(lambda text, at: [anew[97 * text + at]] * 4), [(3, False)]
    many = costs(fickle, staircase_table(4, 4), 1, ages)[3, False].budget
    monkeypatch.setattr(recent, "ROWS", 1)
    alone = costs(fickle, staircase_table(4, 4), 1, ages)[3, False].budget
    assert many.value > alone.value * 1.02


def test_a_seat_that_is_freed_late_costs_its_rounds(each_text_once):
    """Nothing ever matches and a round's time is one: 60 rounds a text, and age - 1 more."""
    flat = CostTable(
        bias=1.0, alpha=Curve((1,), (0.0,)), theta=Curve.of({1: 0.0, 2: 0.0}), tiers=(8, 64),
        box=Box(requests=(1, 8), rows=(1, 64), context=(0, 10_000)),
    )  # fmt: skip
    found = costs(made_trace(lambda text, at: [1e-9] * 4), flat, 6, [(1, False), (2, False), (3, False), (0, True)])
    for age in (1, 2, 3):
        assert found[age, False].budget.value == 1 and found[age, False].tau == pytest.approx(1)
        assert found[age, False].whole.value == pytest.approx(60 / (60 + age - 1), rel=1e-12)
    assert found[0, True].whole.value == 1


def test_a_late_budget_does_not_know_that_a_text_is_about_to_end(each_text_once):
    """All drafts pass: 12 rounds of 5 rows, 2 seconds each, and for the last token 1 row, a second, where it is known.

    Who has ended is taken for one who has a round, or two, to go.
    """
    table = CostTable(
        bias=1.0, alpha=Curve((1,), (0.0,)), theta=Curve.of({1: 0.0, 5: 1.0}), tiers=(1, 5),
        box=Box(requests=(1, 8), rows=(1, 64), context=(0, 10_000)),
    )  # fmt: skip
    found = costs(made_trace(lambda text, at: [1 - 1e-9] * 4, tokens=62), table, 1, [(age, False) for age in (1, 2, 3)])
    for age, budget, whole in ((1, 25, 25), (2, 26, 26 + 1), (3, 26, 26 + 2 + 1)):
        assert found[age, False].budget.value == pytest.approx(25 / budget, rel=1e-12)
        assert found[age, False].whole.value == pytest.approx(25 / whole, rel=1e-12)


def test_a_run_of_lag_0_drafts_before_it_knows(each_text_once):
    """Nothing ever matches; a pass takes four seconds and a draft one. The run of lag 0 drafts in each of 60 rounds a
    text, the others in one of a spell, to look.
    """
    table = CostTable(
        bias=1.0, alpha=Curve((1,), (0.0,)), theta=Curve.of({1: 0.0, 2: 0.0}), tiers=(8, 64), draft_bias=1.0,
        slot_bias=1e-9, box=Box(requests=(1, 8), rows=(1, 64), context=(0, 10_000)),
    )  # fmt: skip
    found = costs(made_trace(lambda text, at: [1e-9] * 4), table, 1, [(0, False), (1, False)])
    looking = 60 * 4 + 60 / (recent.SPELL + 1)
    assert found[0, False].budget.value == 1 and found[1, False].budget.value == pytest.approx(1, rel=1e-3)
    for age in (0, 1):
        assert found[age, False].whole_waiting.value == pytest.approx(60 * 5 / looking, rel=1e-3)


def test_token_free_confidences_of_the_round_itself_are_worth_what_they_know():
    """They beat an old word where odds are drawn anew, and are worth the round's own where they say the same."""
    anew = np.random.default_rng(1).choice([0.02, 0.97], 100_000)
    trace = made_trace(lambda text, at: [anew[97 * text + at]] * 4)
    same = replace(
        trace, rows=tuple(replace(r, drafts=replace(r.drafts, free=r.drafts.logits)) for r in trace.rows)
    )  # fmt: skip
    for made, worth in ((same, True), (trace, False)):
        found = costs(made, staircase_table(4, 4), 4, [(0, True), (2, False)])
        assert (found[0, True].budget.value == 1) == worth
        assert (found[0, True].budget.high < 1) != worth
        assert found[0, True].budget.value > found[2, False].budget.value, (
            "nothing known misleads less than an old word"
        )


def test_a_workload_that_is_not_there_is_named():
    with pytest.raises(UsageError, match="no workload 'poems'") as caught:
        list(lag_costs(made_trace(lambda t, a: [0.5] * 4), staircase_table(2, 4), workloads=["poems"], batches=[1],
                       sources=[(2, False)]))  # fmt: skip
    assert caught.value.hint == "it holds: made"


def test_answers_of_one_token_have_no_age():
    with pytest.raises(UsageError, match="nothing was drafted of workload 'made'"):
        costs(made_trace(lambda t, a: [0.5] * 4, tokens=1), staircase_table(2, 4), 1, [(2, False)])


@pytest.mark.parametrize("broken", ["trace", "table", "batch"])
def test_the_script_refuses_in_one_line(broken, tmp_path, monkeypatch, capsys):
    from dsbench.trace import save_trace

    trace, table = tmp_path / "t.parquet", tmp_path / "c.json"
    if broken != "trace":
        save_trace(made_trace(lambda t, a: [0.5] * 4), trace)
    if broken != "table":
        staircase_table(2, 4).save(table)
    asked = [str(trace), str(table), "--batch", "0" if broken == "batch" else "1"]
    monkeypatch.setattr(sys, "argv", ["lag_cost.py", *asked])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr()
    assert caught.value.code == 2 and shown.err.startswith("lag_cost: ") and shown.err.count("\n") == 1
    assert not shown.out


def test_the_script_says_that_it_is_simulated(tmp_path, monkeypatch, capsys):
    from dsbench.trace import save_trace

    trace, table = tmp_path / "t.parquet", tmp_path / "c.json"
    save_trace(made_trace(lambda t, a: [0.5] * 4, texts=3, tokens=13), trace)
    replace(staircase_table(2, 4), contract={"target": "tiny", "device": "a toy"}).save(table)
    monkeypatch.setattr(sys, "argv", ["lag_cost.py", str(trace), str(table), "--batch", "1,2"])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SIMULATED: acceptance replayed from") and "tiny on a toy" in lines[0]
    assert [line.split()[:2] for line in lines[5:]] == [["made", r] for r in ("1", "2") for _ in range(4)]
