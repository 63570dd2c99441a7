"""Numbers against closed forms on tables small enough to do by hand, intervals against a law, pairs and the table."""

from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from step_rows import a_step  # noqa: F401
from synthetic_run import BASE, BLOCK, DRAFT, MATCH, PER_REQUEST, PER_ROW, make_cell, write_synthetic_run

from dsbench.analysis.summary import summary_frame, write_summary
from dsbench.analysis.versus import compare_arms
from dsbench.errors import UsageError
from dsbench.results.columns import from_source
from dsbench.results.labels import arm_names, arm_rank, conditions, loud_label
from dsbench.results.metrics import by_workload, cell_summary, held_slots
from dsbench.results.store import RunStore
from dsbench.stats.intervals import Held, Interval, halves, paired_ratio, quantile_of, ratio_of_sums, verdict
from dsbench.views.show import summary_tables

LEAST = {c.name: 1 for c in from_source("summary") if c.always}  # what no finished cell lacks


def request(number, tokens, admitted, first, finished, *, measured=True, rep=0, name=None, workload="math"):
    return {
        "request": number,
        "name": name or f"p{number}",
        "workload": workload,
        "output_tokens": tokens,
        "rep": rep,
        "admitted": admitted,
        "first_token": first,
        "finished": finished,
        "measured": measured,
        "repetition": 0.25,
    }


def a_round(step, number, window, verified, accepted, ceiling, *, measured=True, rep=0, workload="math", drafts=4):
    return {
        "step": step,
        "request": number,
        "name": f"p{number}",
        "workload": workload,
        "window": window,
        "rep": rep,
        "verified": verified,
        "accepted": accepted,
        "delivered": accepted + 1,
        "ceiling": ceiling,
        "flips": 1,
        "drafts": [0] * drafts,
        "measured": measured,
    }


REQUESTS = pd.DataFrame(
    [request(0, 100, 0.0, 0.1, 0.5, measured=False), request(1, 11, 0.0, 0.5, 2.5), request(2, 21, 1.0, 2.0, 6.0)]
)
ROUNDS = pd.DataFrame(
    [
        a_round(0, 0, 4, 4, 4, 5, measured=False),
        a_round(1, 1, 4, 4, 4, 5),  # all four depths hit
        a_round(1, 2, 2, 4, 1, 2),  # a hit, a miss
        a_round(2, 2, 2, 2, 2, -1),  # two hits, then nothing was verified
        a_round(2, 1, 0, 4, 0, 3),  # nothing granted, but two would have matched
    ]
)
STEPS = pd.DataFrame([a_step(0, seconds=9.0), a_step(1), a_step(2, rows=6, seconds=0.2), a_step(3, seconds=9.0)])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    modes = ["none", "static:2", "static", "compact", "cap-accept"]
    folder = tmp_path_factory.mktemp("runs") / "law"
    return write_synthetic_run(folder, modes=modes, batches=[1, 8], workloads=["math", "mix:math=1,poetry=1"])


@pytest.fixture(scope="module")
def body():
    return cell_summary(STEPS, ROUNDS, REQUESTS, batch=2, block=4)


def test_throughput_is_littles_law_and_user_speed_leaves_the_first_token_out(body):
    assert body["throughput"]["value"] == pytest.approx(2 * (11 + 21) / (2.5 + 5.0))
    assert body["user_speed"]["value"] == pytest.approx((10 + 20) / (2.0 + 4.0))
    assert body["ttft_p50"]["value"] == pytest.approx((0.5 + 1.0) / 2)
    assert body["throughput"]["n"] == body["prompts"] == 2
    assert body["repetition"] == 0.25


def test_round_numbers(body):
    assert body["rounds"] == 4
    assert body["tau"]["value"] == pytest.approx((5 + 2 + 3 + 1) / 4)
    assert body["accepted"]["value"] == pytest.approx(7 / 4)
    assert body["window"]["value"] == pytest.approx(8 / 4)
    assert body["ceiling"]["value"] == pytest.approx((5 + 2 + 3) / 3)
    assert body["ceiling_seen"] == 0.75
    assert body["utilisation"]["value"] == pytest.approx((5 + 2 + 1) / (5 + 2 + 3))
    assert body["acceptance_of_drafted"]["value"] == pytest.approx(7 / 16)
    assert body["acceptance_of_scheduled"]["value"] == pytest.approx(7 / 8)
    assert body["window_counts"] == [1, 0, 2, 0, 1]
    assert body["flips_per_1000"]["value"] == pytest.approx(1000 * 4 / 11)


def test_acceptance_by_depth_counts_a_draft_only_after_its_predecessors_matched(body):
    found = {row["depth"]: (row["trials"], row["rate"]["value"]) for row in body["acceptance_by_depth"]}
    assert found == {
        1: (4, 1.0),
        2: (4, pytest.approx(3 / 4)),  # the third round's two hits count, its third draft was not verified
        3: (2, pytest.approx(1 / 2)),
        4: (1, 1.0),
    }


def test_step_numbers_are_of_steps_with_a_measured_request(body):
    assert body["steps"] == 2
    assert body["full_steps"] == 1.0
    assert body["step_seconds"]["p50"] == pytest.approx(0.15)
    assert body["rows_per_step"] == 7
    assert body["padding_share"] == pytest.approx(4 / 14)
    assert body["phase_share"]["verify"] == pytest.approx(0.5)
    assert body["phase_share"]["other"] == pytest.approx(0.1)
    assert sum(body["phase_share"].values()) == pytest.approx(1)
    assert body["predicted_error"]["median"] == pytest.approx((0.1 + 0.45) / 2)
    assert body["drift"] is None


@pytest.mark.parametrize(("occupied", "share"), [([2, 2], 1.0), ([2, 1], 0.5), (None, 0.5)])
def test_a_slot_of_an_ended_request_is_occupied(occupied, share):
    """Without that column, as in runs before there was one, the requests alone count."""
    steps = STEPS.iloc[1:3].assign(requests=[2, 1])
    body = cell_summary(
        steps if occupied is None else steps.assign(occupied=occupied), ROUNDS, REQUESTS, batch=2, block=4
    )
    assert body["full_steps"] == share
    assert any("of steps ran 2 requests" in flag for flag in body["flags"]) == (share < 1)


def test_repeats_are_averaged_inside_a_prompt():
    twice = pd.DataFrame([request(1, 10, 0, 1, 2, rep=0), request(1, 10, 0, 1, 4, rep=1), request(2, 10, 0, 1, 9)])
    held = held_slots(twice)
    assert held.names == ("p1", "p2")
    tokens, seconds = held.means()
    assert tokens.tolist() == [10, 10]
    assert seconds.tolist() == [3, 9]


def test_drift_is_flagged_in_words():
    rising = pd.DataFrame([a_step(i, seconds=0.1 * (1 + 0.02 * i)) for i in range(12)])
    rounds = pd.DataFrame([a_round(i, number, 2, 2, 1, 2) for i in range(12) for number in (1, 2)])
    body = cell_summary(rising, rounds, REQUESTS, batch=2, block=4)
    assert body["drift"]["change"] == pytest.approx(1.20 / 1.02 - 1)
    assert body["flags"] == ["step time drifts by +17.6% within a repeat"]
    foreseen = rising.assign(predicted_seconds=0.9 * rising["seconds"])
    body = cell_summary(foreseen, rounds, REQUESTS, batch=2, block=4)
    assert body["drift"]["change"] == pytest.approx(0) and body["flags"] == [], "longer steps were chosen"


def test_a_cell_without_rounds_or_predictions_has_none_in_their_place():
    plain = STEPS.assign(predicted_seconds=np.nan)
    body = cell_summary(plain, pd.DataFrame(), REQUESTS, batch=2, block=4)
    assert body["tau"] is None
    assert body["predicted_error"] is None
    assert body["throughput"]["value"] > 0


def test_a_cell_without_a_measured_request_is_refused():
    with pytest.raises(UsageError, match="no measured request"):
        cell_summary(STEPS, ROUNDS, REQUESTS.assign(measured=False), batch=2, block=4)


def test_a_mixed_cell_is_split_by_each_requests_own_workload():
    rounds = pd.DataFrame([a_round(1, 1, 4, 4, 4, 5), a_round(1, 2, 1, 4, 0, 1, workload="poetry")])
    requests = pd.DataFrame([request(1, 9, 0, 1, 2), request(2, 9, 0, 1, 2, workload="poetry")])
    found = by_workload(rounds, requests, block=4)
    assert {name: part["tau"]["value"] for name, part in found.items()} == {"math": 5.0, "poetry": 1.0}
    assert found["poetry"]["window_counts"] == [0, 1, 0, 0, 0]
    assert "throughput" not in found["math"]


def test_one_prompt_gives_a_value_and_no_interval():
    assert ratio_of_sums([3.0], [2.0]) == Interval(1.5, None, None, 1)
    assert ratio_of_sums([3.0], [0.0]) is None
    assert quantile_of([], 0.5) is None


def test_the_bootstrap_covers_the_true_ratio_about_as_often_as_it_says():
    rng = np.random.default_rng(1)
    hits = 0
    for trial in range(300):
        bottom = rng.gamma(4.0, 1.0, 40)
        found = ratio_of_sums(bottom * rng.normal(2.0, 0.6, 40), bottom, seed=trial, draws=400)
        hits += found.low <= 2.0 <= found.high
    assert 0.89 <= hits / 300 <= 0.985


def test_a_paired_ratio_is_exact_where_one_arm_is_a_multiple_of_the_other():
    rng = np.random.default_rng(0)
    tokens, seconds = rng.integers(20, 60, 12).astype(float), rng.gamma(3.0, 1.0, 12)
    found = paired_ratio(tokens, seconds / 1.25, tokens, seconds)
    assert found.value == pytest.approx(1.25)
    assert found.low == pytest.approx(1.25)
    assert found.high == pytest.approx(1.25)
    alone = ratio_of_sums(tokens, seconds)
    assert alone.high - alone.low > 0.05 * alone.value


def test_a_paired_ratio_of_equal_texts_is_a_ratio_of_summed_seconds():
    found = paired_ratio([10, 30], [1.0, 2.0], [10, 30], [2.0, 5.0])
    assert found.value == pytest.approx(7 / 3)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [
        (1.03, 1.2, "FASTER"),
        (0.7, 0.95, "SLOWER"),
        (0.99, 1.01, "SAME"),
        (0.99, 1.2, "UNCLEAR"),
        (1.01, 1.2, "UNCLEAR"),
    ],
)
def test_verdicts(low, high, word):
    assert verdict(Interval((low + high) / 2, low, high, 9), band=0.02) == word


def test_no_interval_no_verdict():
    assert verdict(None) == verdict(Interval(2.0, None, None, 1)) == "UNCLEAR"


def test_arms_without_a_common_prompt_have_no_ratio():
    one = Held(names=("a",), tokens=np.ones((1, 1)), seconds=np.ones((1, 1)))
    assert paired_ratio(*one.only([]).means(), *one.only([]).means()) is None


def held(prompts, repeats):
    names = tuple(f"p{i:02d}" for i in range(prompts))
    return Held(names=names, tokens=np.ones((prompts, repeats)), seconds=np.full((prompts, repeats), 2.0))


def test_halves_prefer_repeats_then_prompts_then_say_that_nothing_was_halved():
    first, second, basis = halves({"a": held(8, 3), "b": held(8, 2)})
    assert basis == "half of the repeats"
    assert first["a"].tokens.shape == (8, 2)
    assert second["a"].tokens.shape == (8, 1)
    first, second, basis = halves({"a": held(9, 1), "b": held(8, 2)})
    assert basis == "half of the prompts"
    assert not set(first["a"].names) & set(second["a"].names)
    assert set(first["a"].names) | set(second["a"].names) == set(held(8, 1).names)
    assert halves({"a": held(7, 1)})[2] == "the same data"


def test_the_law_of_a_synthetic_run_is_found_again(store):
    cells = {(c.cell.mode, c.cell.batch, c.cell.workload): c.summary for c in store.cells()}
    plain = cells["none", 1, "math"]
    assert plain["tau"]["value"] == 1.0
    assert plain["user_speed"]["value"] == pytest.approx(1 / (BASE + PER_REQUEST + PER_ROW), rel=0.02)
    depth = cells["cap-accept", 8, "math"]["acceptance_by_depth"][0]["rate"]
    assert depth["low"] <= MATCH["math"] <= depth["high"]
    full = cells["static", 1, "math"]
    assert full["step_seconds"]["p90"] <= 1.1 * (BASE + PER_REQUEST + PER_ROW * (BLOCK + 1) + DRAFT)
    assert cells["compact", 1, "math"]["predicted_error"]["bias"] == pytest.approx(0.03, abs=0.01)
    mixed = cells["cap-accept", 8, "mix:math=1,poetry=1"]["workloads"]
    assert mixed["math"]["tau"]["value"] > mixed["poetry"]["tau"]["value"]


def test_arms_are_compared_with_static_none_and_the_best_fixed_window(store):
    cells = store.cells()
    by_folder = compare_arms(cells)
    found = {(c.cell.mode, c.cell.batch, c.cell.workload): by_folder[c.folder] for c in cells}
    mine = found["none", 1, "math"]
    assert set(mine) == {"static", "fixed"}
    assert mine["fixed"].base == "static"
    assert mine["fixed"].basis == "half of the repeats"
    assert mine["static"].word == "SLOWER"
    assert "static" not in found["static", 1, "math"]
    assert found["static", 1, "math"]["none"].word == "FASTER"


def test_the_frame_has_a_row_a_cell_and_lands_in_summary_csv(store):
    frame = pd.read_csv(write_summary(store))
    assert len(frame) == len(store.cells()) == 20
    row = frame[(frame["mode"] == "compact") & (frame["batch"] == 1) & (frame["workload"] == "math")].iloc[0]
    base = frame[(frame["mode"] == "none") & (frame["batch"] == 1) & (frame["workload"] == "math")].iloc[0]
    assert row["vs_none"] == pytest.approx(row["throughput"] / base["throughput"], rel=1e-6)
    assert row["throughput_low"] < row["throughput"] < row["throughput_high"]
    assert {"vs_fixed", "vs_fixed_low", "vs_fixed_word", "fixed_arm", "fixed_chosen_on"} <= set(frame.columns)


def test_the_table_says_rule_text_basis_and_labels(tmp_path):
    run = write_synthetic_run(
        tmp_path / "r", modes=["static", "compact"], batches=[2], workloads=["chat"], labels={"random_weights": True}
    )
    text = io.StringIO()
    Console(file=text, width=118).print(*summary_tables(run))
    for part in ("coupled, T=1, pinned text", "half of the repeats", "RANDOM WEIGHTS", "compact", "k=G", "dequantised"):
        assert part in text.getvalue()
    assert "…" not in text.getvalue()


def test_a_run_of_one_cell_has_no_comparisons(tmp_path):
    run = write_synthetic_run(tmp_path / "r", modes=["compact"], batches=[1], workloads=["chat"], repeats=1)
    frame = summary_frame(run)
    assert frame.loc[0, ["vs_static", "vs_none", "vs_fixed"]].isna().all()
    assert [table.row_count for table in summary_tables(run)] == [1]


def test_a_run_without_cells_is_refused_in_words(tmp_path):
    run = RunStore(tmp_path / "r", create=True)
    run.write_run({})
    with pytest.raises(UsageError, match="no data"):
        summary_frame(run)
    with pytest.raises(UsageError, match="no data"):
        summary_tables(run)


def test_labels_of_a_run():
    run = {
        "environment": {"device": "A CPU"},
        "contract": {"threads": "2", "block": "7"},
        "labels": {"target": "t", "calibrated": False, "random_weights": False},
    }
    assert conditions(run) == "A CPU, 2 threads; t; G=7; confidences not calibrated"
    assert loud_label(run) == ""
    assert conditions({}) == loud_label({}) == ""


def test_arms_are_named_by_what_tells_them_apart(tmp_path):
    run = RunStore(tmp_path / "r", create=True)
    run.write_run({})
    for lag in (0, 2):
        run.cell_folder(f"c{lag}").mkdir()
        run.write_cell(f"c{lag}", make_cell("compact", 1, "math", lag=lag), LEAST, [])
    assert sorted(arm_names(run.cells()).values()) == ["compact lag 0", "compact lag 2"]
    modes = ["compact", "static", "none", "static:10", "static:2"]
    assert sorted(modes, key=arm_rank) == ["none", "static:2", "static:10", "static", "compact"]


def test_padding_is_a_share_of_what_ran_and_steps_that_missed_a_graph_or_compiled_are_flagged():
    steps = pd.DataFrame([a_step(n, rows=6, tier=8, padding=2) for n in range(3)])
    rounds = pd.DataFrame([a_round(n, r, 2, 2, 1, 2) for n in range(3) for r in (1, 2)])
    body = cell_summary(steps, rounds, REQUESTS, batch=2, block=4)
    assert body["padding_share"] == pytest.approx(2 / 8) and body["flags"] == []
    steps.loc[1, "misses"], steps.loc[[0, 2], "compiles"] = 2, 1
    flags = cell_summary(steps, rounds, REQUESTS, batch=2, block=4)["flags"]
    assert flags == ["1 of 3 steps fitted no captured graph", "2 of 3 steps compiled a kernel"]


def test_steps_that_the_cost_table_did_not_foresee_are_flagged():
    steps = pd.DataFrame([a_step(n, rows=6, tier=8, padding=2) for n in range(4)])
    rounds = pd.DataFrame([a_round(n, r, 2, 2, 1, 2) for n in range(4) for r in (1, 2)])
    for off, flags in ((1.2, []), (1.5, ["the cost table is off by 50%"]), (0.7, ["the cost table is off by 30%"])):
        steps["predicted_seconds"] = off * steps["seconds"]
        assert cell_summary(steps, rounds, REQUESTS, batch=2, block=4)["flags"] == flags
    steps["predicted_seconds"] = steps["seconds"]
    steps["extrapolated"] = [True, False, False, False]
    many = pd.concat([steps, *[steps.assign(extrapolated=False)] * 5], ignore_index=True)
    assert cell_summary(many, rounds, REQUESTS, batch=2, block=4)["flags"] == [], "one in 24"
    flags = cell_summary(steps, rounds, REQUESTS, batch=2, block=4)["flags"]
    assert flags == ["25% of steps lie beyond the cost table"]


@pytest.mark.parametrize(("idle", "flagged"), [(0.0, False), (0.04, False), (0.12, True)])
def test_a_device_that_waits_for_its_host_is_flagged(idle, flagged):
    steps = pd.DataFrame([a_step(n, rows=6, tier=8, padding=2) for n in range(3)])
    steps["idle_seconds"] = idle * steps["seconds"]
    rounds = pd.DataFrame([a_round(n, r, 2, 2, 1, 2) for n in range(3) for r in (1, 2)])
    body = cell_summary(steps, rounds, REQUESTS, batch=2, block=4)
    assert body["idle_share"] == pytest.approx(idle)
    assert body["flags"] == (["the device waited for its host 12% of the time"] if flagged else [])


def test_prompts_that_ran_inside_a_step_are_no_error_of_the_table_and_no_drift():
    steps = pd.DataFrame([a_step(n) for n in range(16)]).assign(prefill_seconds=0.0)
    steps["predicted_seconds"] = steps["seconds"]
    rounds = pd.DataFrame([a_round(n, r, 2, 2, 1, 2) for n in range(16) for r in (1, 2)])
    steps.loc[12:, "prefill_seconds"] = 5.0
    steps.loc[12:, "seconds"] += 5.0
    body = cell_summary(steps, rounds, REQUESTS, batch=2, block=4)
    assert body["predicted_error"]["median"] == pytest.approx(0)
    assert body["drift"]["change"] == pytest.approx(0) and body["flags"] == []
