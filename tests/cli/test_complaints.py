"""What users of other tools complained of, by the number of the complaint in our list: none of it can happen here.

The list's other parts are of engines, not of harnesses; what of them applies to this runtime is tested where it lives.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from command import dsbench
from engine_runs import make_requests, run
from overlapped_runs import overlapped
from staircase_run import BLOCK, law, simulate, write_staircase_run
from step_rows import a_step
from synthetic_run import make_cell

from dsbench.results.contamination import repeat_flags
from dsbench.results.metrics import cell_summary, held_slots
from dsbench.results.step_numbers import step_numbers
from dsbench.results.store import RunStore
from dsbench.runtime.loop.drive import run_closed_loop
from dsbench.stats.intervals import paired_ratio
from dsbench.sweep.order import order_of
from dsbench.views.plots import draw_all


@pytest.mark.parametrize("prefill", [0.005, 1.0])
def test_l55_a_decode_rate_leaves_the_prompt_out(prefill, monkeypatch):
    """Requests wait for prompts of a second each; the rate after the first token is what it was."""
    monkeypatch.setattr("staircase_run.PREFILL", prefill)
    tables, wanted = simulate(3, 2), law(3, 2)
    found = cell_summary(tables["steps"], tables["rounds"], tables["requests"], batch=3, block=BLOCK)
    assert found["user_speed"]["value"] == pytest.approx(wanted.user_speed)
    assert found["throughput"]["value"] == pytest.approx(wanted.throughput)
    assert found["ttft_p50"]["value"] == pytest.approx(np.median(wanted.first_token))


def test_l57_kernels_compiled_while_it_is_timed_are_flagged_and_so_is_a_first_window_unlike_the_last():
    steady = [a_step(n) for n in range(16)]
    compiled = pd.DataFrame([steady[0] | {"compiles": 1, "seconds": 31.0}, *steady[1:]])
    assert step_numbers(compiled, 2)["compiled_steps"] == 1
    slow_start = pd.DataFrame([a_step(n, seconds=0.3 if n < 4 else 0.1) for n in range(16)])
    assert step_numbers(slow_start, 2)["drift"]["drifts"]
    assert not step_numbers(pd.DataFrame(steady), 2)["drift"]["drifts"]
    assert repeat_flags([{"warm_up": {"flat": False, "steps": 24}}]) == ["not yet flat after 24 steps of warm-up"]


def test_l59_the_same_output_in_the_same_time_is_a_speed_up_of_exactly_one(tmp_path):
    write_staircase_run(tmp_path, make_cell, modes=["static:2", "static:3"], batches=[3])
    one, other = (held_slots(stored.table("requests")) for stored in RunStore(tmp_path).cells())
    same = paired_ratio(*one.means(), *one.means())
    assert (same.value, same.low, same.high) == (1.0, 1.0, 1.0)
    assert paired_ratio(*one.means(), *other.means()).value != 1.0


def test_l59_tokens_are_those_that_the_engine_made_and_a_stop_at_the_first_is_one():
    """Not a text tokenised again, less one: an answer that ends at once has one token and no round."""
    wanted = make_requests(2, max_tokens=12)
    run("none", wanted, batch=2)
    first = wanted[0].output[0]
    stopped = make_requests(1, max_tokens=12)
    engine = overlapped("static", 1, eos=frozenset({first}))
    stopped[0].sampling = replace(stopped[0].sampling, ignore_eos=False)
    run_closed_loop(engine, stopped, concurrency=1)
    assert stopped[0].output == [first] and stopped[0].finish_reason == "stop"
    assert engine.finished[0].output_tokens == 1 and not engine.rounds


def test_l59_a_report_is_of_the_run_that_was_named(tmp_path):
    for name, mode in (("a", "static:2"), ("b", "static:3")):
        write_staircase_run(tmp_path / name, make_cell, modes=[mode], batches=[2])
    for name, mode, absent in (("a", "static:2", "static:3"), ("b", "static:3", "static:2")):
        done = dsbench("report", name, "--markdown", home=tmp_path)
        assert done.returncode == 0, done.stderr
        page = done.stdout + "".join(p.read_text() for p in (tmp_path / name).glob("*.md"))
        assert mode in page and absent not in page


def test_l61_a_picture_carries_its_arms_and_conditions(tmp_path):
    run_folder = tmp_path / "run"
    write_staircase_run(run_folder, make_cell, modes=["none", "static:2", "static"], batches=[1, 2])
    draw_all(RunStore(run_folder), tmp_path / "p", formats=("svg",))
    svg = (tmp_path / "p" / "frontier.svg").read_text()
    for text in ("none", "static:2", "static", "coupled", "T=1"):
        assert text in svg, text


def test_l63_an_arm_that_drafts_and_verifies_no_draft_is_flagged():
    tables = simulate(3, 2)
    idle = tables["rounds"].assign(window=0, verified=0, accepted=0)
    flags = cell_summary(tables["steps"], idle, tables["requests"], batch=3, block=BLOCK)["flags"]
    assert "no draft was verified in any round" in flags
    for window, block in ((2, BLOCK), (0, 0)):  # drafts, or no drafter at all
        made = simulate(3, window)
        assert not cell_summary(made["steps"], made["rounds"], made["requests"], batch=3, block=block)["flags"]


def test_l65_a_machine_that_grows_hot_is_seen_and_hits_all_arms_alike():
    """Order at random within a repeat, repeats one after the other, and the clock beside them."""
    arms = [(mode, make_cell(mode, 2, "toy")) for mode in ("none", "static", "compact")]
    order = order_of([arms], repeats=12, seed=0)
    assert [sorted(t.cell.mode for t in block) for block in order] == [["compact", "none", "static"]] * 12
    assert len({tuple(t.cell.mode for t in block) for block in order}) > 3
    hot = [{"machine": {"clock_high": 1980, "clock_low": 1200, "throttled": ["sw thermal slowdown"]}}]
    assert repeat_flags(hot) == ["the clock fell to 61% of its highest", "throttled: sw thermal slowdown"]
    cooling = pd.DataFrame([a_step(n, seconds=0.1 * (1 + n / 16)) for n in range(16)])
    assert step_numbers(cooling, 2)["drift"]["change"] > 0.3
