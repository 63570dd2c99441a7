"""The virtual device: the other devices' own rounds from their traces, closed forms of time, what simulate refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command import dsbench, refused
from engine_runs import run
from overlapped_runs import finish, overlapped
from plays import STEPS, rounds_of, run_virtual
from replays import replayed, toy_trace, wide
from tiny import tiny_target
from toys import staircase_table

from dsbench.analysis.accounts import account_of
from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.kernels.plan import windows
from dsbench.profiles.cost import StepShape
from dsbench.profiles.fit import CostSample, no_draft_pass
from dsbench.profiles.samples import save_samples
from dsbench.results.acceptance_trace import save_trace
from dsbench.results.store import RunStore
from dsbench.runtime.config import LAG, EngineConfig
from dsbench.runtime.draft_trace import DraftTrace
from dsbench.runtime.drafters.random import random_drafter
from dsbench.runtime.loop.scheduler import CAPTURED_PROMPTS
from dsbench.runtime.policy.objective import allocate
from dsbench.runtime.request import Request, SamplingParams
from dsbench.settings import RunConfig
from dsbench.simulate.against import errors, misses
from dsbench.simulate.costs import Costs, load_costs
from dsbench.simulate.plan import UNTIMED_HOST, UNTIMED_SLOTS, plan_simulation, simulate, target_name
from dsbench.views.plots import draw_all
from dsbench.views.report import make_report
from dsbench.views.show import print_summary
from dsbench.views.waterfall import draw_run

BLOCK = 7


def requests_of_trace(*, tokens, size):
    return replayed(wide(toy_trace()), tiny_target(), tokens=tokens, size=size)


def steps_of(engine, *more):
    return [[getattr(record, name) for name in (*STEPS, *more)] for record in engine.steps]


@pytest.mark.parametrize(
    ("mode", "slot", "draft"),
    [
        ("none", 0.0, 0.0),
        ("static", 0.0, 0.0),
        ("static:2", 0.02, 0.0),
        ("no-trim", 0.0, 0.0),
        ("compact", 0.0, 0.0),
        ("compact", 0.02, 0.0),
        ("compact", 0.02, 0.3),
        ("compact", 0.02, 3.0),
        ("compact:latency", 0.02, 0.3),
        ("compact:oracle", 0.02, 0.0),
        ("compact:oracle", 0.02, 0.3),
        ("cap-accept", 0.02, 0.3),
        ("cap-accept:oracle", 0.0, 0.3),
    ],
)
def test_captured_rounds_are_simulated_as_they_are(mode, slot, draft):
    """Who has a slot when, zombies, depths, windows, priors: all from the trace, the table and how late the host is."""
    trace = wide(toy_trace())
    engine = overlapped(
        mode, 3, recorded=20, replayed=True, slot=slot, draft=draft, lag=LAG, calibrations=trace.calibrations()
    )
    queue = requests_of_trace(tokens=9, size=11)
    finish(engine, queue, 3)
    again = requests_of_trace(tokens=9, size=11)
    found = run_virtual(mode, trace, again, engine.prices.table, concurrency=3, executor="overlap")
    assert rounds_of(found, again) == rounds_of(engine, queue)
    assert steps_of(found) == steps_of(engine)
    assert sum(s.zombies for s in found.steps) > 0


@pytest.mark.parametrize(
    "mode",
    [
        "none",
        "static",
        "static:2",
        "no-trim",
        "compact",
        "cap-accept",
        "compact:early-stop",
        "compact:threshold=0.4",
        "compact:oracle",
        "compact:free",
        "cap-accept:free",
        "compact:latency",
    ],
)
@pytest.mark.parametrize("slot", [0.0, 0.02])
def test_eager_rounds_are_simulated_as_they_are(mode, slot):
    trace, target = wide(toy_trace()), tiny_target(seed=3)
    queue, again = (requests_of_trace(tokens=12, size=9) for _ in range(2))
    table = replace(staircase_table(3, 4), depth_bias=slot, draft_bias=10 * slot)
    engine = run(
        mode,
        queue,
        batch=3,
        target=target,
        drafter=random_drafter(target),
        config=EngineConfig(page=4, prefill_chunk=512),
        calibrations=trace.calibrations(),
        table=table,
    )
    found = run_virtual(mode, trace, again, table, concurrency=3, executor="eager")
    assert rounds_of(found, again) == rounds_of(engine, queue)
    assert steps_of(found, "tier", "padding") == steps_of(engine, "tier", "padding")
    assert sum(s.zombies for s in found.steps) == 0


@pytest.mark.parametrize(("mode", "size", "limit"), [("compact", 40, 6), ("static:2", 30, 9)])
def test_prompts_that_wait_for_each_other_wait_as_the_engines_do(mode, size, limit, monkeypatch):
    """With one prompt a slot to wait for, slots stay empty some rounds: rows for nobody, and then all move up."""
    trace = wide(toy_trace())
    queue, again, usual = (requests_of_trace(tokens=limit, size=size) for _ in range(3))
    table = replace(staircase_table(5, 4), depth_bias=0.02)
    soon = run_virtual(mode, trace, usual, table, concurrency=5, executor="overlap")
    patient = replace(CAPTURED_PROMPTS, share=1)
    monkeypatch.setattr("dsbench.runtime.loop.captured.CAPTURED_PROMPTS", patient)
    monkeypatch.setattr("dsbench.simulate.plan.CAPTURED_PROMPTS", patient)
    engine = overlapped(mode, 5, recorded=20, replayed=True, slot=0.02, lag=LAG, calibrations=trace.calibrations())
    finish(engine, queue, 5)
    found = run_virtual(mode, trace, again, table, concurrency=5, executor="overlap")
    assert rounds_of(found, again) == rounds_of(engine, queue)
    assert steps_of(found) == steps_of(engine)
    assert len(soon.steps) < len(found.steps)


def test_windows_on_the_host_are_the_devices():
    rng = np.random.default_rng(0)
    for number in range(60):
        survival = np.cumprod(rng.random((rng.integers(1, 9), 5)), axis=1)
        if number % 2:
            survival = survival.round(1)  # ties
        limits, budget = rng.integers(0, 6, len(survival)), int(rng.integers(0, 30))
        wanted = windows(torch.from_numpy(survival), torch.from_numpy(limits), torch.tensor([budget]))
        np.testing.assert_array_equal(allocate(survival, limits, budget), wanted.numpy())


def constant(number, *, match, tokens=13, prompt=40):
    length = tokens - 1
    sure = np.full((length, BLOCK), 2.0, np.float32)
    return Request(
        id=number,
        name=f"p{number}",
        workload="w",
        prompt_ids=[1] * prompt,
        sampling=SamplingParams(max_tokens=tokens, ignore_eos=True),
        canonical=list(range(tokens)),
        trace=DraftTrace(match=np.minimum(match, np.arange(length, 0, -1)), logits=sure, token_free=sure),
    )


def test_time_is_the_tables_to_the_last_round():
    """One slot, static: a request is a prompt, four rounds of 3 tokens, and two of a zombie as the next is let in."""
    table = replace(staircase_table(1, BLOCK), draft_bias=0.25, kappa=1e-3)
    queue = [constant(i, match=2) for i in range(3)]
    found = run_virtual("static", wide(toy_trace()), queue, table, concurrency=1, executor="overlap")
    prompt = Costs(table=table).prefill(1, 64, 40)
    rounds = [0.25 + table.verify_seconds(StepShape(1, 8, 40 + out)) for out in (0, 3, 6, 9)]
    zombies = 2 * (0.25 + table.verify_seconds(StepShape(1, 8, 40 + 12)))
    done = sorted(found.finished, key=lambda r: r.request)
    for i, request in enumerate(done):
        begin = i * (prompt + sum(rounds) + zombies)
        assert request.admitted == pytest.approx(begin - (zombies if i else 0))
        assert request.first_token == pytest.approx(begin + prompt + rounds[0], abs=1e-8)
        assert request.finished == pytest.approx(begin + prompt + sum(rounds))
    assert [s.occupied - s.requests for s in found.steps[:8]] == [0, 0, 0, 0, 1, 1, 0, 0]
    assert found.steps[0].prefill_seconds == pytest.approx(prompt) and found.steps[1].prefill_seconds == 0


def test_eager_prompts_run_between_rounds_and_nobody_becomes_a_zombie():
    table = replace(staircase_table(2, BLOCK), draft_bias=0.25)
    queue = [constant(i, match=2) for i in range(4)]
    found = run_virtual("static", wide(toy_trace()), queue, table, concurrency=2, executor="eager")
    step = 0.25 + table.verify_seconds(StepShape(2, 16, 0))
    prompts = Costs(table=table).prefill(2, 80, 80)
    assert [s.seconds - s.prefill_seconds for s in found.steps] == pytest.approx([step] * 8)
    assert [s.prefill_seconds for s in found.steps] == pytest.approx([prompts, 0, 0, 0] * 2)
    assert not any(s.zombies for s in found.steps)
    last = found.finished[-1]
    assert last.admitted == pytest.approx(prompts + 4 * step)
    assert last.first_token == pytest.approx(2 * prompts + 4 * step)
    assert last.finished == pytest.approx(2 * prompts + 8 * step)


def test_older_confidences_change_budgets_alone():
    """Texts and tokens are the same, the rows differ."""
    queues = [requests_of_trace(tokens=12, size=9) for _ in range(2)]
    now, late = (
        run_virtual("compact", wide(toy_trace()), q, staircase_table(3, 4), concurrency=3, executor="overlap", lag=lag)
        for q, lag in zip(queues, (1, 4), strict=True)
    )
    assert sum(s.priors for s in now.steps) < sum(s.priors for s in late.steps)
    assert [s.rows for s in now.steps] != [s.rows for s in late.steps]
    assert [r.output for r in queues[0]] == [r.output for r in queues[1]]


def test_plain_passes_come_from_their_own_samples():
    samples = [
        CostSample(r, r, s, (1.0 + 0.1 * r + 2e-4 * s) * 1e-3, "no-draft", n)
        for r in (1, 4, 16)
        for s in (50, 400)
        for n in range(2)
    ]
    plain = no_draft_pass(samples)
    assert plain is not None
    for requests, context in ((1, 50), (4, 100), (10, 400)):
        assert plain.of(requests, context) == pytest.approx((1.0 + 0.1 * requests + 2e-4 * context) * 1e-3, rel=1e-6)
    assert no_draft_pass([replace(s, phase="pass") for s in samples]) is None


def test_what_a_plain_passs_context_costs_depends_on_how_many_share_the_device():
    """One request waits for its keys alone; where contexts were all alike, the neighbours say what they cost."""
    per_token = {1: 3e-7, 8: 4e-7, 64: 9e-7}
    samples = [
        CostSample(r, r, r * c, 5e-4 + g * c, "no-draft", 0) for r, g in per_token.items() for c in (60, 250, 600)
    ]
    plain = no_draft_pass([*samples, CostSample(36, 36, 36 * 100, 5e-4 + 6.5e-7 * 100, "no-draft", 0)])
    assert plain is not None
    for requests, slope in (per_token | {36: 6.5e-7, 22: 5.25e-7}).items():
        assert plain.of(requests, requests * 400) == pytest.approx(5e-4 + slope * 400, rel=1e-6)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A trace, a table of an overlapped deployment with its samples, and the run they make."""
    folder = tmp_path_factory.mktemp("simulate")
    save_trace(wide(toy_trace()), folder / "trace.parquet")
    contract = {"device": "Virtual GPU", "block": str(BLOCK), "dtype": "bfloat16", "executor": "overlap"}
    table = replace(
        staircase_table(4, BLOCK),
        contract=contract,
        tiers=(1, 2, 4, 8, 16, 32),
        draft_bias=0.3,
        theta=staircase_table(4, BLOCK).theta,
    )
    table.save(folder / "cost.json")
    save_samples(
        folder / "cost.json", [CostSample(r, r, s, 0.9 + 0.01 * r, "no-draft", 0) for r in (1, 4) for s in (50, 90)]
    )
    config = RunConfig(
        trace=str(folder / "trace.parquet"),
        cost=str(folder / "cost.json"),
        mode="none,static:2,static,compact",
        batch="1,4",
        workload="tiny",
        max_tokens=16,
        requests=6,
    )
    store = RunStore(folder / "run", create=True)
    simulate(plan_simulation(config), store, {}, lambda text: None)
    return SimpleNamespace(folder=folder, store=store, config=config)


def test_a_simulation_is_a_run_labelled_so(files):
    run, cells = files.store.read_run(), files.store.cells()
    assert run["labels"]["simulated"] is True and run["contract"]["clock"] == "simulated"
    assert {(c.cell.mode, c.cell.batch) for c in cells} == {
        (mode, batch) for mode in ("none", "static:2", "static", "compact") for batch in (1, 4)
    }
    none = next(c for c in cells if (c.cell.mode, c.cell.batch) == ("none", 4))
    full = none.table("steps").query("requests == 4 and zombies == 0 and prefill_seconds == 0")
    assert full["verify_seconds"].to_numpy() == pytest.approx(np.full(len(full), 0.94)) and len(full) > 5
    flagged = {c.cell.mode for c in cells if UNTIMED_SLOTS in c.flags}
    assert flagged == {"static:2"} and not any(UNTIMED_HOST in c.flags for c in cells)
    for stored in cells:
        account = account_of(stored)
        sums = account.at(np.arange(len(account.names)))
        assert abs(float(sums["residual"])) < 0.02 * float(sums["held"]), "the waterfall does not explain the time"


def test_starts_are_spread_or_together_as_in_a_sweep(files, tmp_path):
    ends = {}
    for start in ("spread", "together"):
        store = RunStore(tmp_path / start, create=True)
        config = replace(files.config, mode="none", batch="4", start=start)
        simulate(plan_simulation(config), store, {}, lambda text: None)
        (stored,) = store.cells()
        done = stored.table("requests").sort_values("request")
        assert stored.cell.start == start
        assert done["output_tokens"].tolist()[:4] == ([4, 8, 12, 16] if start == "spread" else [16] * 4)
        ends[start] = done[done["measured"]].groupby("finished").size().tolist()
    assert ends["spread"] == [1] * 6 and max(ends["together"]) == 4


def test_more_requests_than_the_table_was_measured_with_are_flagged(files, tmp_path):
    store = RunStore(tmp_path / "run", create=True)
    simulate(plan_simulation(replace(files.config, batch="4,5")), store, {}, lambda text: None)
    for stored in store.cells():
        guessed = "100% of steps lie beyond the cost table" in stored.flags
        assert guessed == (stored.cell.batch == 5)


def test_a_simulation_against_itself_is_not_off(files):
    cells = files.store.cells()
    found = misses(cells, cells)
    assert len(found) == 8 and errors(found).p95 < 1e-12 and not any(errors(found).parts.values())
    with pytest.raises(EnvironmentRefused, match="shares no cell"):
        misses(cells[:1], cells[1:])


def test_the_errors_parts_add_up(files, tmp_path):
    """Against a table whose draft costs twice: the time that is off is the draft's."""
    table = replace(load_costs(files.folder / "cost.json").table, draft_bias=0.6)
    table.save(tmp_path / "cost.json")
    store = RunStore(tmp_path / "run", create=True)
    simulate(plan_simulation(replace(files.config, cost=str(tmp_path / "cost.json"))), store, {}, lambda text: None)
    found = [m for m in misses(store.cells(), files.store.cells()) if m.arm == "static"]
    assert found
    for one in found:
        change = one.measured / one.simulated - 1
        assert sum(one.parts.values()) == pytest.approx(change)
        assert one.parts["draft"] == pytest.approx(change, rel=0.35) and one.parts["accepted length"] == 0


def test_what_cannot_be_simulated_is_refused_in_words(files):
    for change, match in (
        ({"trace": ""}, "no trace given"),
        ({"cost": ""}, "no cost table given"),
        ({"mode": "mtp:2"}, "drafts with a chain"),
        ({"mode": ","}, "no mode given"),
        ({"workload": "poems"}, "holds no workload"),
        ({"temperature": 0.5}, "was recorded under"),
        ({"temperature": float("nan")}, "temperature must be finite"),
        ({"top_p": float("nan")}, "top-p must be"),
        ({"mode": "static:3:1"}, "runs backwards"),
        ({"mode": "static:8"}, "block holds 7 drafts"),
        ({"accept": "residual"}, "coupled rule"),
        ({"batch": "0"}, "must be >= 1"),
        ({"trace": "absent.parquet"}, "does not exist"),
        ({"cost": "absent.json"}, "absent.json"),
        ({"draft": "half"}, "unknown draft depth 'half'"),
        ({"trace": str(files.folder)}, "it is a folder"),
    ):
        with pytest.raises(UsageError, match=match):
            plan_simulation(replace(files.config, **change))
    table = load_costs(files.folder / "cost.json").table
    for block in ("many", "7.0", ""):
        replace(table, contract=table.contract | {"block": block}).save(files.folder / "other.json")
        with pytest.raises(UsageError, match=f"the cost table is of blocks of {block}"):
            plan_simulation(replace(files.config, cost=str(files.folder / "other.json")))
    toy = files.folder / "toy.parquet"
    save_trace(toy_trace(), toy)
    with pytest.raises(UsageError, match="blocks of 4, the cost table is of blocks of 7"):
        plan_simulation(replace(files.config, trace=str(toy)))


def test_answers_of_one_token_take_no_round(files, tmp_path, unpainted):
    store = RunStore(tmp_path / "run", create=True)
    simulate(plan_simulation(replace(files.config, max_tokens=1)), store, {}, lambda text: None)
    for stored in store.cells():
        assert stored.summary["rounds"] == 0 and stored.summary["tau"] is None and stored.summary["user_speed"] is None
        assert stored.summary["throughput"]["value"] > 0
    print_summary(store.folder)
    make_report(store, pictures=False)
    for path in (*draw_all(store, tmp_path), *draw_run(store, tmp_path)):
        assert path.exists()


def test_modes_of_a_simulation_may_be_ranges(files):
    plan = plan_simulation(replace(files.config, mode="none,static:1:3,none"))
    assert [arm.name for arm in plan.arms] == ["none", "static:1", "static:2", "static:3"]


def test_the_command_simulates_compares_and_leaves_nothing_behind(files, tmp_path):
    out = tmp_path / "again"
    asked = ("simulate", "--trace", str(files.folder / "trace.parquet"), "--against", str(files.store.folder))
    done = dsbench(*asked, "--out", str(out), "--json", home=tmp_path)
    assert done.returncode == 0, done.stderr
    body = json.loads(done.stdout)
    assert body["all"]["cells"] == 8 and body["all"]["p95"] < 1e-12
    assert json.loads((out / "against.json").read_text()) == body
    refused(dsbench(*asked, "--out", str(out), home=tmp_path), 2, "already holds a run")
    wrong = ("simulate", "--trace", str(tmp_path / "none"), "--cost", "none.json", "--out", str(out))
    refused(dsbench(*wrong, home=tmp_path), 2, "none")
    (out / "summary.csv").unlink()  # as if it had been stopped midway
    (out / "mine.txt").write_text("kept")
    assert dsbench(*asked, "--out", str(out), "--json", home=tmp_path).returncode == 0
    assert json.loads((out / "against.json").read_text()) == body and (out / "mine.txt").exists()
    bad = ("simulate", "--trace", str(files.folder / "trace.parquet"), "--out", str(tmp_path / "no"))
    refused(dsbench(*bad, home=tmp_path), 2, "no cost table given")
    refused(dsbench(*bad, "--json", home=tmp_path), 2, "--against RUN")
    refused(dsbench(*bad, "--against", str(tmp_path), home=tmp_path), 2, "holds no run")
    assert not (tmp_path / "no").exists()
    shown = dsbench("show", str(out), home=tmp_path)
    assert "SIMULATED: times come from a cost table" in shown.stdout
    assert "ITL: a value a token" in " ".join(shown.stdout.split())
    assert len((out / "summary.csv").read_text().splitlines()) == 1 + 8
    run = json.loads((out / "run.json").read_text())
    assert run["config"]["out"] == str(out) and run["config"]["target"] == run["labels"]["target"] != "smollm2-135m"


def test_the_target_has_the_name_a_sweep_gives_it():
    traced = {"target": "smollm2-135m", "target_digest": "49f7"}
    assert target_name("49f7", traced) == "smollm2-135m"
    assert target_name("random-qwen3-8b-0", traced) == "shape:qwen3-8b"
    assert target_name("50a0", traced) == "target 50a0" and target_name("50a0", {}) == "target 50a0"
