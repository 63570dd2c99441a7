"""What fails beside the passes costs the choice of windows, never the text; a device that fails ends with one line."""

from __future__ import annotations

import math
from dataclasses import replace

import pandas as pd
import pytest
import torch
from command import dsbench, sweep_flags, write_drafter
from engine_runs import make_requests, plain_texts, run
from overlapped_runs import finish, overlapped, pinned_to, strayed_texts

from dsbench.cli import commands
from dsbench.errors import EnvironmentRefused
from dsbench.results.metrics import cell_summary
from dsbench.results.store import RunStore
from dsbench.runtime.loop import overlap
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.runtime.loop.steady import Steady
from dsbench.sweep import bench as engine_bench


def failing(after, run, problem):
    """`run`, which fails once it has been called `after` times, and every time from then on."""
    calls = []

    def call(*args, **more):
        calls.append(args)
        if len(calls) > after:
            raise problem
        return run(*args, **more)

    return call


def breaks_budget(engine, monkeypatch):
    engine.steering.budgets.choose = failing(5, engine.steering.budgets.choose, ZeroDivisionError("no rate\nat all"))


def breaks_prior(engine, monkeypatch):
    engine.planner.relay.prior = failing(5, engine.planner.relay.prior, KeyError("nobody"))


def breaks_calibration(engine, monkeypatch):
    engine.planner.relay.map_of = failing(9, engine.planner.relay.map_of, IndexError())


def breaks_table(engine, monkeypatch):
    engine.planner.predict = failing(5, engine.planner.predict, FloatingPointError("overflow"))


def breaks_copies(engine, monkeypatch):
    monkeypatch.setattr(overlap, "copied", failing(9, overlap.copied, RuntimeError("no pinned memory")))


def breaks_confidences(engine, monkeypatch):
    real = failing(5, overlap.read, ValueError("a torn row"))
    monkeypatch.setattr(overlap, "read", lambda x: real(x) if x.is_floating_point() else x.numpy().copy())


def breaks_one_reading_of_tokens(engine, monkeypatch):
    calls = []

    def read(x):
        calls.append(x)
        if len(calls) == 8:  # the fourth round's tokens; its confidences were the seventh
            assert not x.is_floating_point()
            raise MemoryError("for now")
        return x.numpy().copy()

    monkeypatch.setattr(overlap, "read", read)


FAULTS = {
    breaks_budget: "the budget failed: ZeroDivisionError: no rate",
    breaks_prior: "the prior failed: KeyError: 'nobody'",
    breaks_calibration: "the calibration failed: IndexError: IndexError",
    breaks_table: "the cost table failed: FloatingPointError: overflow",
    breaks_copies: "copying what a round left failed: RuntimeError: no pinned memory",
    breaks_confidences: "reading the confidences failed: ValueError: a torn row",
    breaks_one_reading_of_tokens: "reading the tokens failed: MemoryError: for now",
}


@pytest.mark.parametrize("mode", ["compact", "cap-accept"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_returns_the_run_to_whole_blocks_and_the_same_text(fault, mode, monkeypatch):
    requests = make_requests(9, temperature=0.8, max_tokens=16)
    engine = overlapped(mode, 3)
    fault(engine, monkeypatch)
    assert finish(engine, requests, 3) == plain_texts(9, 0.8, 16)
    said = [s.fallback for s in engine.steps]
    first = next(i for i, text in enumerate(said) if text)
    assert first > 0 and set(said[first:]) == {FAULTS[fault]} and not any(said[:first])
    settled = {s.step for s in engine.steps[first + 3 :]}  # launched after it
    rounds = engine.rounds
    late = [r for r in rounds if r.step in settled]
    limit = {r.id: len(r.output) for r in requests}
    assert late and all(r.window == min(4, limit[r.request] - r.output_index - 1) for r in late)
    assert any(r.window < 4 and limit[r.request] - r.output_index > 5 for r in rounds), "it chose before"
    assert all(s.confidence_age == s.priors == 0 for s in engine.steps[first + 3 :])
    if fault is breaks_confidences:
        assert all(math.isnan(x) for r in late for x in (*r.logits, *r.free_logits))
        assert all(len(r.free_logits) == 4 == len(r.drafts) for r in late)
    if fault is breaks_table:
        assert all(math.isnan(s.predicted_seconds) for s in engine.steps[first:])


def test_an_oracle_that_fails_trusts_its_drafters_confidences_again():
    """Not what it foresaw of a round before: certainties lie 40 from 0."""
    texts = strayed_texts(7)
    engine = overlapped("compact:oracle", 3, recorded=16)
    engine.steering.budgets.certain = failing(4, engine.steering.budgets.certain, ZeroDivisionError("no rate"))
    assert finish(engine, pinned_to(texts), 3) == texts
    said = [s.fallback for s in engine.steps]
    assert any("oracle" in text for text in said) and engine.steps[-1].fallback
    logits = {sure: [x for r in engine.rounds if (r.step < 4) == sure for x in r.logits] for sure in (True, False)}
    assert max(abs(x) for x in logits[True]) == 40 > 20 > max(abs(x) for x in logits[False])


def test_windows_that_were_fixed_stay_so_and_the_fault_is_told(monkeypatch):
    wanted, requests = make_requests(5, max_tokens=14), make_requests(5, max_tokens=14)
    run("none", wanted, batch=5)
    engine = overlapped("static:2", 2)
    breaks_confidences(engine, monkeypatch)
    assert finish(engine, requests, 2) == [r.output for r in wanted]
    assert engine.steps[-1].fallback and max(r.window for r in engine.rounds) == 2


def test_a_refusal_is_no_fault():
    engine = overlapped("compact", 2)
    engine.planner.relay.prior = failing(0, None, EnvironmentRefused("no calibration"))
    with pytest.raises(EnvironmentRefused, match="no calibration"):
        finish(engine, make_requests(2), 2)


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (torch.AcceleratorError("CUDA error: an illegal access\nCUDA kernel errors may come late"), "failed: CUDA err"),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), "is full: CUDA out of memory"),
    ],
)
@pytest.mark.parametrize("at", ["draft", "verify", "prefill"])
def test_a_device_that_fails_ends_the_run_with_one_line(problem, said, at, monkeypatch):
    engine = overlapped("compact", 2)
    monkeypatch.setattr(engine.steady, at, failing(2, getattr(engine.steady, at), problem))
    with pytest.raises(EnvironmentRefused, match=said) as caught:
        run_closed_loop(engine, make_requests(8, max_tokens=9), concurrency=2)
    assert "\n" not in caught.value.message and caught.value.hint and caught.value.exit_code == 6


def test_the_cells_summary_flags_it():
    steps = pd.DataFrame(
        {
            "step": range(10),
            "rep": 0,
            "requests": 2,
            "seconds": 0.01,
            "rows": 4,
            "tier": 4,
            "padding": 0,
            "misses": 0,
            "compiles": 0,
            "extrapolated": False,
            "predicted_seconds": float("nan"),
            "prefill_seconds": 0.0,
            "fallback": [""] * 4 + ["the budget failed: KeyError: 7"] * 6,
            **{f"{name}_seconds": 0.0 for name in ("draft", "plan", "pack", "verify", "accept", "commit")},
        }
    )
    rounds = pd.DataFrame(
        {
            "step": range(10),
            "request": 0,
            "name": "p",
            "rep": 0,
            "delivered": 1,
            "accepted": 0,
            "window": 1,
            "verified": 1,
            "ceiling": 1,
            "flips": 0,
            "drafts": [[1]] * 10,
        }
    )
    served = pd.DataFrame(
        {
            "name": ["p"],
            "workload": "toy",
            "output_tokens": 10,
            "admitted": 0.0,
            "first_token": 0.1,
            "finished": 1.0,
            "rep": 0,
        }
    )
    body = cell_summary(steps, rounds, served, batch=2, block=4)
    assert body["fallback_steps"] == 6
    assert body["flags"] == ["6 of 10 steps came after a failure, windows fixed since: the budget failed: KeyError: 7"]
    for before in (steps.assign(fallback=""), steps.drop(columns="fallback")):
        body = cell_summary(before, rounds, served, batch=2, block=4)
        assert body["fallback_steps"] == 0 and not body["flags"]


@pytest.fixture
def overlapping(monkeypatch):
    """Deployments whose rounds overlap, uncaptured, on a CPU."""
    deploy = commands.deploy
    for module in (commands, engine_bench):
        monkeypatch.setattr(module, "deploy", lambda *a, **k: replace(deploy(*a, **k), graphs=True, overlap=True))


def test_a_sweep_says_what_failed_and_flags_the_cell(model, tmp_path, overlapping, monkeypatch):  # noqa: F811
    drafter = str(write_drafter(tmp_path / "drafter"))
    breaks_confidences(None, monkeypatch)
    done = dsbench(*sweep_flags(model, tmp_path, drafter=drafter, mode="static", max_tokens="12"), home=tmp_path)
    assert done.returncode == 0, done.stderr
    said = "steps came after a failure, windows fixed since: reading the confidences failed: ValueError: a torn row"
    assert said in done.stderr
    (cell,) = RunStore(tmp_path / "run").cells()
    assert any(said in flag for flag in cell.flags) and cell.summary["fallback_steps"] > 0


def test_a_generate_says_what_failed_and_writes_the_text(model, tmp_path, overlapping, monkeypatch):  # noqa: F811
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "1"}\n{"prompt": "22"}\n')
    flags = (
        "generate",
        "--target",
        str(model),
        "--drafter",
        str(write_drafter(tmp_path / "drafter")),
        "--json",
        "--mode",
        "static",
        "--prompts",
        str(prompts),
        "--max-tokens",
        "60",
    )
    well = dsbench(*flags, home=tmp_path)
    breaks_confidences(None, monkeypatch)
    done = dsbench(*flags, home=tmp_path)
    assert done.returncode == well.returncode == 0 and done.stdout == well.stdout
    assert "after a failure: reading the confidences" in done.stderr and "failure" not in well.stderr


def test_a_device_that_fails_in_a_sweep_is_one_line_and_what_was_done_is_kept(
    model,
    tmp_path,
    overlapping,
    monkeypatch,  # noqa: F811
):
    flags = sweep_flags(
        model, tmp_path, drafter=str(write_drafter(tmp_path / "drafter")), mode="none,static", repeats="2"
    )
    problem, draft = torch.AcceleratorError("CUDA error: unspecified launch failure\nmore"), Steady.draft
    monkeypatch.setattr(Steady, "draft", failing(60, draft, problem))
    done = dsbench(*flags, home=tmp_path)
    assert done.returncode == 6 and "Traceback" not in done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dsbench: the device failed: CUDA error: unspecified launch failure (")
    kept = list((tmp_path / "run" / "cells").glob("*/rep-*"))
    monkeypatch.setattr(Steady, "draft", draft)
    again = dsbench(*flags, "--resume", home=tmp_path)
    assert again.returncode == 0 and kept and len(RunStore(tmp_path / "run").cells()) == 2
