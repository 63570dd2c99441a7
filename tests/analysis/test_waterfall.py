"""The waterfall and break-even of an engine of a known law equal their closed forms; so do the cell's own numbers."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from staircase_run import (
    ACCEPT,
    BETWEEN,
    BLOCK,
    DRAFT,
    MATCH,
    PLAN,
    PREFILL,
    STAIR,
    VERIFY,
    law,
    phases,
    tier_of,
    window_of,
    write_staircase_run,
)
from synthetic_run import make_cell, write_synthetic_run

from dsbench.analysis.accounts import account, account_of
from dsbench.analysis.break_even import break_even
from dsbench.analysis.waterfall import PARTS, waterfalls
from dsbench.errors import UsageError
from dsbench.views.break_even import TITLE, break_even_table, needed_text
from dsbench.views.tables import chosen, on_terminal
from dsbench.views.waterfall import waterfall_table

MODES, BATCHES = ("none", "static:1", "static:3", "static"), (1, 3, 8)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_staircase_run(tmp_path_factory.mktemp("run") / "r", make_cell, modes=MODES, batches=BATCHES)


def cell_of(run, mode, batch):
    return next(c for c in run.cells() if (c.cell.mode, c.cell.batch) == (mode, batch))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", BATCHES)
def test_a_cells_numbers_equal_their_closed_forms(run, mode, batch):
    body, window = cell_of(run, mode, batch).summary, window_of(mode)
    want = law(batch, window)
    values = {key: body[key]["value"] for key in ("throughput", "user_speed", "user_speed_p10", "tau", "accepted")}
    assert values == pytest.approx(
        {
            "throughput": want.throughput,
            "user_speed": want.user_speed,
            "user_speed_p10": want.user_speed,
            "tau": want.tau,
            "accepted": want.accepted,
        }
    )
    assert body["output_tokens"] == batch * want.tokens
    assert body["ttft_p50"]["value"] == pytest.approx(np.quantile(want.first_token, 0.5))
    assert body["step_seconds"] == pytest.approx({"p10": want.step, "p50": want.step, "p90": want.step, "n": 9})
    rows = batch * (window + 1)
    assert body["padding_share"] == pytest.approx((tier_of(rows) - rows) / tier_of(rows))
    if window:
        assert body["acceptance_of_drafted"]["value"] == pytest.approx(want.accepted / BLOCK)
        assert body["acceptance_of_scheduled"]["value"] == pytest.approx(want.accepted / window)
        found = [row["rate"]["value"] for row in body["acceptance_by_depth"]]
        assert found[:window] == pytest.approx(want.by_depth)
        assert body["ceiling"]["value"] == pytest.approx(1 + np.mean(MATCH))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("batch", BATCHES)
def test_an_account_holds_all_of_a_request(run, mode, batch):
    sums, want = account_of(cell_of(run, mode, batch)).at(np.arange(min(batch, 4))), law(batch, window_of(mode))
    parts = phases(batch, window_of(mode))
    spent = {key: float(sums[key]) / batch for key in ("rounds", "held", "draft", "padding", "verify", "host")}
    verify = parts["verify"] + parts["accept"] - want.padding
    assert spent == pytest.approx(
        {
            "rounds": want.rounds,
            "held": want.held,
            "draft": want.rounds * parts["draft"],
            "padding": want.rounds * want.padding,
            "verify": want.rounds * verify,
            "host": want.rounds * (parts["plan"] + BETWEEN),
        }
    )
    assert sums["prefill"] / batch == pytest.approx(np.mean(want.first_token))
    assert sums["residual"] == pytest.approx(0, abs=1e-9)


def test_a_waterfall_equals_its_closed_form(run):
    (fall,) = waterfalls([c for c in run.cells() if c.cell.batch == 3], "static:1", "static")
    one, other = law(3, 1), law(3, BLOCK)
    often = [w.rounds / w.tokens for w in (one, other)]
    middle = sum(often) / 2
    tier, wide = 8, 16  # 6 and 15 rows
    first, last = VERIFY + STAIR + ACCEPT, VERIFY + 2 * STAIR + ACCEPT
    host = PLAN + BETWEEN
    want = {
        "accepted length": (often[1] - often[0]) * (2 * (DRAFT + host) + first + last) / 2,
        "draft": 0.0,
        "verify": middle * (last * 15 / wide - first * 6 / tier),
        "padding": middle * (last * 1 / wide - first * 2 / tier),
        "host": 0.0,
        "prefill": 2 * PREFILL * (1 / other.tokens - 1 / one.tokens),
        "residual": 0.0,
    }
    assert {name: part.value for name, part in fall.parts.items()} == pytest.approx(
        {name: 1e3 * value for name, value in want.items()}, abs=1e-9
    )
    assert fall.before.value == pytest.approx(3e3 / one.throughput)
    assert fall.after.value == pytest.approx(3e3 / other.throughput)


def test_break_even_equals_its_closed_form_and_says_what_acceptance_pays(run):
    entries = {(e.arm, e.batch): e for e in break_even(run.cells())}
    assert set(entries) == {(mode, batch) for mode in MODES[1:] for batch in BATCHES}
    entry, bare, want = entries["static", 8], law(8, 0), law(8, BLOCK)
    step, base = want.step, bare.step
    assert entry.draft.value == pytest.approx(1e3 * DRAFT)
    assert entry.no_draft.value == pytest.approx(1e3 * base)
    assert entry.saved.value == pytest.approx(1e3 * (want.tau * base - step))
    assert entry.needed.value == pytest.approx(step / base)
    assert entry.acceptance_needed == pytest.approx((step / base - 1) / BLOCK)
    assert entry.had == pytest.approx(want.accepted / BLOCK)


def test_parts_add_up_and_have_intervals_also_where_nothing_is_exact(tmp_path):
    run = write_synthetic_run(tmp_path / "r", modes=["none", "static", "compact"], batches=[1, 4], workloads=["math"])
    for fall in waterfalls(run.cells(), "static", "compact"):
        assert tuple(fall.parts) == PARTS
        total = sum(part.value for part in fall.parts.values())
        assert total == pytest.approx(fall.after.value - fall.before.value, abs=1e-12)
        assert fall.parts["verify"].low < fall.parts["verify"].value < fall.parts["verify"].high
        cells = {c.cell.mode: c.summary for c in run.cells() if c.cell.batch == fall.batch}
        rate = cells["static"]["throughput"]["value"]
        assert fall.before.value == pytest.approx(1e3 * fall.batch / rate)
        assert abs(fall.parts["residual"].value) < 1e-9
    rounds = {c.folder: c.summary["rounds"] for c in run.cells()}
    for stored in run.cells():
        account = account_of(stored)
        assert 2 * account.sums["rounds"].sum() == rounds[stored.folder]


@pytest.mark.parametrize("first", [1.9, 1.2])
def test_rounds_have_their_prompts_inside(first):
    """A first token is read with its first round, or at once where prompts are waited for."""
    step = {
        "requests": 1,
        "rows": 3,
        "tier": 4,
        "draft_seconds": 0.2,
        "plan_seconds": 0.0,
        "verify_seconds": 0.4,
        "accept_seconds": 0.0,
        "commit_seconds": 0.0,
    }
    steps = pd.DataFrame(
        [
            step | {"step": 0, "start": 1.9, "seconds": 1.0, "prefill_seconds": 0.3},
            step | {"step": 1, "start": 2.5, "seconds": 0.6, "prefill_seconds": 0.0},
        ]
    )
    requests = pd.DataFrame(
        [{"name": "a", "workload": "w", "admitted": 0.7, "first_token": first, "finished": 2.5001, "output_tokens": 5}]
    )
    sums = account(steps, requests).sums
    assert {key: sums[key][0] for key in ("rounds", "draft", "verify", "padding", "host")} == pytest.approx(
        {"rounds": 2, "draft": 0.4, "verify": 0.6, "padding": 0.2, "host": 0.1}
    )
    assert sums["prefill"][0] == pytest.approx(0.3 + (1.9 - 0.7 - 1.0))


def test_runs_without_their_rounds_are_taken_apart_as_well(tmp_path, run):
    bare = write_staircase_run(tmp_path / "r", make_cell, modes=MODES, batches=BATCHES, rounds=False)
    for one, other in zip(
        waterfalls(bare.cells(), "none", "static"), waterfalls(run.cells(), "none", "static"), strict=True
    ):
        assert one == other


def test_tables_and_refusals(run):
    text = io.StringIO()
    falls = waterfalls(chosen(run.cells(), "toy", "3:8"), "none", "static")
    Console(file=text, width=118).print(on_terminal(waterfall_table(falls)))
    assert [fall.batch for fall in falls] == [3, 8]
    for part in ("accepted", "padding", f"{falls[0].before.value:.1f}", "static"):
        assert part in text.getvalue()
    Console(file=text, width=118).print(on_terminal(break_even_table(break_even(run.cells())), TITLE))
    assert "Break-even" in text.getvalue() and "…" not in text.getvalue()
    for call in (
        lambda: waterfalls(run.cells(), "none", "compact"),
        lambda: waterfalls(run.cells(), "none", "none"),
        lambda: chosen(run.cells(), "", "5"),
        lambda: chosen(run.cells(), "poetry", ""),
        lambda: break_even([c for c in run.cells() if c.cell.mode == "none"]),
    ):
        with pytest.raises(UsageError):
            call()


def test_a_run_without_arm_none_has_no_break_even(run):
    entries = break_even([c for c in run.cells() if c.cell.mode == "static"])
    assert {(e.saved, e.needed, e.acceptance_needed) for e in entries} == {(None, None, None)}
    assert entries[0].draft.value == pytest.approx(1e3 * DRAFT)


@pytest.mark.parametrize(("acceptance", "words"), [(None, "–"), (-0.37, "any"), (0.0, "any"), (0.12, "12%")])
def test_drafts_that_pay_at_any_acceptance_are_said_to(acceptance, words):
    assert needed_text(acceptance) == words
