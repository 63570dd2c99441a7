"""Cost tables: the solver against independent ones, recovery of a known law, and what is refused."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from cost_tools import BLOCK, TIERS, fit, law, staircase_samples
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression, minimize

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.profiles.additive import confounded, fit_additive
from dsbench.profiles.contract import check_contract, differences
from dsbench.profiles.cost import Box, CostTable, StepShape, load_cost_table
from dsbench.profiles.curve import Curve
from dsbench.profiles.fit import CostCell, CostSample, collapse, fit_cost_table
from dsbench.profiles.holdout import choose_holdout
from dsbench.profiles.no_draft import NoDraftPass, no_draft_line
from dsbench.profiles.regret import decision_regret
from dsbench.profiles.samples import load_samples, samples_path, save_samples

NO_DRAFT = NoDraftPass(requests=(1, 8), seconds=(0.004, 0.007), per_token=(1e-6, 3e-6))


def make_table(**changes):
    table = CostTable(
        bias=0.010,
        alpha=Curve.of({1: 0.0, 8: 0.002}),
        theta=Curve.of({1: 0.0, 8: 0.001, 16: 0.004, 64: 0.004}),
        tiers=(1, 4, 8, 16, 64),
        kappa=1e-6,
        draft_bias=0.002,
        draft=Curve.of({1: 0.0, 8: 0.0007}),
        draft_kappa=1e-7,
        box=Box(requests=(1, 8), rows=(1, 64), context=(100, 5000)),
        contract={"target": "abc", "dtype": "bf16", "G": "7"},
        provenance={"date": "2026-11-29"},
    )
    return dataclasses.replace(table, **changes)


# ---- evaluation


def test_a_step_costs_the_sum_of_its_parts():
    table = make_table(walk=3e-6, walk_rise=Curve.of({1: 0.0, 7: 3e-6}))  # half of the way
    shape = StepShape(requests=4, rows=9, context=1000)  # tier 16; alpha 3/7 of the way
    verify = 0.010 + 0.002 * 3 / 7 + 0.004 + 1e-6 * 1000 + 4.5e-6 * 250
    draft = 0.002 + 0.0007 * 3 / 7 + 1e-7 * 1000
    assert table.verify_seconds(shape) == pytest.approx(verify, rel=1e-12)
    assert table.draft_seconds(4, 1000) == pytest.approx(draft, rel=1e-12)
    assert table.step_seconds(shape) == pytest.approx(verify + draft, rel=1e-12)
    curve = table.verify_curve(4, np.arange(1, 65), 1000)
    each = [table.verify_seconds(StepShape(4, rows, 1000)) for rows in range(1, 65)]
    np.testing.assert_allclose(curve, each, rtol=1e-12)


def test_without_tiers_theta_is_linear_between_knots():
    table = make_table(tiers=None)
    assert table.verify_seconds(StepShape(1, 12, 0)) == pytest.approx(0.010 + 0.0025)
    assert [table.tier(rows) for rows in (1, 5, 900)] == [1, 5, 900]


def test_rows_round_up_to_tiers():
    table = make_table()
    assert [table.tier(rows) for rows in (1, 2, 4, 5, 16, 17, 64, 65)] == [1, 4, 4, 8, 16, 64, 64, 65]


@pytest.mark.parametrize(
    ("requests", "tiers", "expected"),
    [
        (2, (1, 4, 8, 16, 64), [4, 8, 16]),  # verify-nothing is filled up to its tier
        (3, (1, 4, 8, 16, 64), [4, 8, 16, 24]),  # verify-all is clipped from tier 64
        (8, (1, 4, 8, 16, 64), [8, 16, 64]),
        (2, (64,), [16]),  # one tier takes everything
        (16, (1, 4, 8), [16, 128]),  # past the last tier
        (2, None, list(range(2, 17))),
    ],
)
def test_candidates(requests, tiers, expected):
    assert make_table(tiers=tiers).candidates(requests, BLOCK).tolist() == expected


def test_outside_the_box_is_by_tier():
    table = make_table(box=Box(requests=(2, 8), rows=(3, 40), context=(100, 5000)))
    assert not table.outside(StepShape(2, 4, 100))
    assert not table.outside(StepShape(8, 64, 5000))  # 40 rows ran as tier 64
    for shape in (StepShape(1, 4, 100), StepShape(9, 16, 100), StepShape(2, 65, 100), StepShape(2, 4, 99)):
        assert table.outside(shape)
    assert table.outside(StepShape(2, 1, 100))  # tier 1 was never run
    assert table.outside(StepShape(2, 4, 5001))


def test_past_the_last_knot_a_plateau_is_not_free():
    table = make_table(tiers=None, kappa=0.0)  # ends flat from 16 to 64; mean slope 0.004 / 63
    gap = table.verify_seconds(StepShape(1, 84, 0)) - table.verify_seconds(StepShape(1, 64, 0))
    assert gap == pytest.approx(20 * 0.004 / 63)
    steep = make_table(tiers=None, theta=Curve.of({1: 0.0, 32: 0.001, 64: 0.009}))
    gap = steep.verify_seconds(StepShape(1, 65, 0)) - steep.verify_seconds(StepShape(1, 64, 0))
    assert gap == pytest.approx(0.008 / 32)


curves = st.lists(
    st.tuples(st.integers(1, 40), st.one_of(st.just(0.0), st.floats(1e-6, 0.1))), min_size=1, max_size=8
).map(
    lambda parts: Curve(
        tuple(np.cumsum([gap for gap, _ in parts]).tolist()),
        (0.0, *np.cumsum([rise for _, rise in parts[1:]]).tolist()),
    )
)
tier_sets = st.one_of(st.none(), st.sets(st.integers(1, 300), min_size=1, max_size=9).map(lambda s: tuple(sorted(s))))


@given(theta=curves, alpha=curves, tiers=tier_sets, bias=st.floats(1e-4, 1.0), requests=st.integers(1, 60))
def test_time_is_positive_grows_with_rows_and_is_never_free_past_the_knots(theta, alpha, tiers, bias, requests):
    table = make_table(theta=theta, alpha=alpha, tiers=tiers, bias=bias)
    rows = np.arange(1, 700)
    seconds = table.verify_curve(requests, rows, 0)
    assert (seconds > 0).all()
    assert (np.diff(seconds) >= -1e-12).all()
    past = rows > max(theta.at[-1], tiers[-1] if tiers else 0)
    assert (np.diff(seconds[past]) >= theta.mean_slope * (1 - 1e-6) - 1e-12).all()
    assert (np.diff(seconds[past]) > 0).all()
    if tiers is None:
        assert (np.diff(seconds[rows <= theta.at[0]]) > 0).all()
    more = table.verify_curve(requests + 1, rows, 0)
    assert (more >= seconds).all()


@given(requests=st.integers(1, 80), block=st.integers(0, 8), tiers=tier_sets)
def test_candidates_hold_both_ends_and_waste_no_paid_row(requests, block, tiers):
    table = make_table(tiers=tiers)
    rows = table.candidates(requests, block)
    everything = requests * (block + 1)
    assert rows[-1] == everything
    assert rows[0] == min(table.tier(requests), everything)
    assert (np.diff(rows) > 0).all()
    running = [table.tier(count) for count in rows]
    assert len(set(running)) == len(running)  # one candidate a tier, filled
    inside = [t for t in tiers or range(requests, everything + 1) if requests <= t <= everything]
    assert set(inside) <= set(rows.tolist())


# ---- fit


def test_one_axis_agrees_with_weighted_isotonic_regression():
    rng = np.random.default_rng(3)
    rows = np.repeat(np.arange(1, 31), 2)
    seconds = 1.0 + 0.02 * np.sqrt(rows) + 0.02 * rng.standard_normal(60)
    ours = fit_additive([rows], np.zeros(60, int), seconds, free=[True], rounds=1)
    weight = 1 / seconds**2
    level_weight = np.array([weight[rows == r].sum() for r in range(1, 31)])
    level_mean = np.array([np.average(seconds[rows == r], weights=weight[rows == r]) for r in range(1, 31)])
    reference = isotonic_regression(level_mean, weights=level_weight).x
    np.testing.assert_allclose(ours.predict([np.arange(1, 31)], np.zeros(30, int)), reference, rtol=1e-6)


def test_two_axes_reach_the_optimum_of_a_general_solver():
    rng = np.random.default_rng(4)
    requests, rows = (axis.ravel() for axis in np.meshgrid([1, 2, 4, 8], [8, 16, 32], indexing="ij"))
    context = rng.integers(0, 4000, 12)
    seconds = 1 + 0.05 * requests + 0.3 * (rows > 8) + 1e-4 * context + 0.2 * rng.standard_normal(12)
    ours = fit_additive([requests, rows], context, seconds, free=[False, True], rounds=1).predict(
        [requests, rows], context
    )

    def fitted(x):  # bias, three alpha rises, two theta rises, kappa in 1e-4
        alpha, theta = np.concatenate([[0], np.cumsum(x[1:4])]), np.concatenate([[0], np.cumsum(x[4:6])])
        return (
            x[0] + alpha[np.log2(requests).astype(int)] + theta[np.log2(rows).astype(int) - 3] + 1e-4 * x[6] * context
        )

    best = minimize(
        lambda x: np.sum((fitted(x) / seconds - 1) ** 2),
        np.full(7, 0.1),
        method="SLSQP",
        bounds=[(0, None)] * 7,
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    np.testing.assert_allclose(ours, fitted(best.x), rtol=1e-4)


def test_a_noisy_staircase_is_recovered():
    table, report = fit(staircase_samples())
    assert report.confounded == ()
    assert report.verify.heldout_cells >= 0.15 * report.verify.cells
    assert report.verify.heldout_median < 0.015
    assert report.verify.heldout_p95 < 0.04
    for requests, rows, context in [(1, 5, 1000), (8, 33, 4000), (24, 100, 20000), (32, 256, 8192), (16, 97, 5000)]:
        shape = StepShape(requests, rows, context)
        assert table.verify_seconds(shape) == pytest.approx(law(requests, rows, context), rel=0.03)
    for requests in (2, 8, 32):
        assert table.per_token(requests, drafts=False) == pytest.approx(2e-8, rel=0.15)
    assert table.draft_seconds(20, 10_000) == pytest.approx(0.001 + 2e-4 + 1e-4, rel=1e-4)
    assert report.draft.heldout_p95 < 1e-4
    assert table.provenance["date"] == "today" and table.provenance["fit_confounded"] == "none"


def test_what_a_context_costs_each_request_is_told_from_what_it_costs_in_all():
    table, report = fit(staircase_samples(walk=4e-7))
    assert report.confounded == () and report.verify.heldout_p95 < 0.04
    for requests in (1, 8, 32):
        assert table.per_token(requests, drafts=False) == pytest.approx(2e-8 + 4e-7 / requests, rel=0.1)
    for requests, rows, context in [(1, 8, 3000), (32, 256, 96_000)]:
        wanted = law(requests, rows, context, walk=4e-7)
        assert table.verify_seconds(StepShape(requests, rows, context)) == pytest.approx(wanted, rel=0.03)


def test_held_out_errors_come_from_a_fit_that_did_not_see_the_cells():
    samples = list(staircase_samples(noise=0.1))
    _, report = fit(samples)
    spared = {
        (c.phase, c.cell.requests, c.cell.rows, c.cell.context): c
        for c in report.cells
        if c.heldout_residual is not None
    }
    rest = [s for s in samples if (s.phase, s.requests, s.rows, s.context) not in spared]
    blind, _ = fit_cost_table(rest, tiers=TIERS, contract={}, provenance={}, holdout=0.0)
    for (phase, *shape), c in spared.items():
        requests, _, context = shape
        draft = phase == "draft"
        unseen = blind.draft_seconds(requests, context) if draft else blind.verify_seconds(StepShape(*shape))
        assert c.heldout_residual == pytest.approx(unseen / c.cell.seconds - 1, abs=1e-9)
    errors = [abs(c.heldout_residual) for c in spared.values() if c.phase == "verify"]
    assert report.verify.heldout_cells == len(errors)
    assert report.verify.heldout_p95 == pytest.approx(np.quantile(errors, 0.95))


def test_outlying_cells_do_not_move_the_rest():
    samples = [s for s in staircase_samples(noise=0.0) if s.phase == "verify" and s.context <= 2048 * s.requests]
    wild = {(4, 16, 4 * 256), (16, 64, 16 * 2048), (32, 128, 32 * 256)}
    spoiled = [
        dataclasses.replace(s, seconds=s.seconds * 3) if (s.requests, s.rows, s.context) in wild else s for s in samples
    ]
    table, _ = fit(spoiled)
    for requests, rows, context in [(4, 16, 1024), (32, 128, 8192), (8, 48, 3000)]:
        shape = StepShape(requests, rows, context)
        assert table.verify_seconds(shape) == pytest.approx(law(requests, rows, context), rel=0.02)


def test_the_diagonal_alone_is_flagged_and_its_rows_look_dear():
    diagonal = [
        CostSample(r, r * (BLOCK + 1), s * r, law(r, r * (BLOCK + 1), s * r), "verify", 0)
        for r in (1, 2, 4, 8, 16, 32)
        for s in (256, 2048)
    ]
    table, report = fit(diagonal)
    assert {"alpha(2)", "alpha(32)", "theta(16)", "theta(256)"} <= set(report.confounded)
    assert "kappa" not in report.confounded
    assert table.alpha.seconds[-1] < 1e-6 < table.theta.seconds[-1]
    bridges = [(r, 4 * (BLOCK + 1)) for r in (8, 16, 32)] + [(2, 8), (4, 16)]
    joined = [*diagonal, *(CostSample(r, m, 256 * r, law(r, m, 256 * r), "verify", 0) for r, m in bridges)]
    _, report = fit(joined)
    assert report.confounded == ()
    _, report = fit(joined[:-1])  # now R = 1, 2 and R = 4..32 are two islands
    assert "alpha(2)" not in report.confounded and "theta(16)" not in report.confounded
    assert {"alpha(4)", "theta(32)", "theta(256)"} <= set(report.confounded)


def test_context_that_follows_the_requests_is_flagged():
    cells = [(r, m, 128 * r) for r in (1, 2, 4) for m in (4, 8)]
    requests, rows, context = (np.array(column) for column in zip(*cells, strict=True))
    assert "kappa" in confounded([requests, rows], context, ["alpha", "theta"])
    context = context + np.array([0, 0, 0, 0, 0, 500])
    assert confounded([requests, rows], context, ["alpha", "theta"]) == ()


@settings(max_examples=40)
@given(
    cells=st.sets(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 2)), min_size=3, max_size=40),
    seed=st.integers(0, 9),
)
def test_holding_out_never_loses_a_determined_level(cells, seed):
    requests, rows, context = (np.array(column) for column in zip(*sorted(cells), strict=True))
    axes = [requests, rows]
    spared = choose_holdout(axes, context, share=0.4, seed=seed, keep_levels=True)
    assert spared.sum() <= 0.4 * len(cells)
    rest = [axis[~spared] for axis in axes]
    assert set(rest[1]) == set(rows)
    assert {requests.min(), requests.max()} <= set(rest[0])
    flat = np.zeros(len(cells), int)
    whole = set(confounded(axes, flat, ["a", "t"]))
    left = set(confounded(rest, flat[~spared], ["a", "t"]))
    if rest[0].min() == requests.min():
        assert left <= whole


def test_repeats_collapse_to_the_median_of_pass_medians():
    times = {0: [1.0, 1.0, 9.0], 1: [2.0], 2: [4.0, 4.0, 4.0, 4.0]}
    samples = [CostSample(2, 8, 50, t, "verify", index) for index, many in times.items() for t in many]
    (cell,) = collapse(samples, "verify")
    assert (cell.seconds, cell.repeats, cell.spread) == (2.0, 8, 0.5)
    with pytest.raises(UsageError, match="> 0 seconds"):
        collapse([CostSample(1, 1, 1, 0.0, "verify", 0)], "verify")
    with pytest.raises(UsageError, match="no verify samples"):
        fit([CostSample(1, 0, 1, 1.0, "draft", 0)])


# ---- regret


def test_regret_is_the_throughput_lost_by_the_tables_choice():
    survival = np.tile([0.9, 0.5, 0.1], (4, 1))
    table = make_table(bias=1.0, alpha=Curve.of({1: 0.0}), theta=Curve.of({2: 0.0, 8: 6.0}), tiers=None, kappa=0.0)
    table = dataclasses.replace(table, draft_bias=0.5, draft=Curve.of({1: 0.0}), draft_kappa=0.0)
    measured = {2: 1.0, 4: 1.1, 6: 1.2, 8: 3.0}  # truth: six rows; the table finds rows dear and picks two
    cells = [CostCell(requests=2, rows=m, context=9, seconds=t, repeats=1, spread=0.0) for m, t in measured.items()]
    delivered = {2: 2.0, 4: 3.8, 6: 4.8, 8: 5.0}
    speed = {m: delivered[m] / (t + 0.5) for m, t in measured.items()}
    believed = {m: delivered[m] / (1.0 + (m - 2) + 0.5) for m in measured}
    expected = 1 - speed[max(believed, key=believed.get)] / max(speed.values())
    regret = decision_regret(table, cells, survival, draws=3)
    assert expected > 0.1
    assert (regret.decisions, regret.mean, regret.worst) == (3, pytest.approx(expected), pytest.approx(expected))
    with pytest.raises(UsageError, match="two row totals"):
        decision_regret(table, cells[:1], survival)


def test_a_fitted_table_decides_nearly_as_well_as_the_measurement():
    table, report = fit(staircase_samples())
    survival = np.cumprod(np.random.default_rng(1).uniform(0.2, 1.0, (300, BLOCK)), axis=1)
    cells = [c.cell for c in report.cells if c.phase == "verify"]
    assert decision_regret(table, cells, survival).mean < 0.01


# ---- files and contracts


def test_a_saved_table_comes_back_equal(tmp_path):
    for table in (
        make_table(),
        make_table(tiers=None),
        make_table(no_draft=NO_DRAFT),
        fit(staircase_samples(passes=1))[0],
    ):
        path = tmp_path / "new" / "table.json"
        table.save(path)
        assert load_cost_table(path) == table
        assert [item.name for item in path.parent.iterdir()] == ["table.json"]


def test_a_table_of_before_plain_rounds_were_timed_prices_them_as_verify_passes(tmp_path):
    path = tmp_path / "table.json"
    make_table().save(path)
    body = json.loads(path.read_text())
    assert body.pop("no_draft") is None
    path.write_text(json.dumps(body))
    table = load_cost_table(path)
    assert table == make_table() and table.no_draft_seconds(4, 900) == table.verify_seconds(StepShape(4, 4, 900))
    assert make_table(no_draft=NO_DRAFT).no_draft_seconds(4, 900) == pytest.approx(
        0.004 + 3 / 7 * 0.003 + 225 * 13e-6 / 7
    )


def test_plain_rounds_are_plain_passes_and_what_one_requests_verify_pass_takes_beyond():
    """The drafter's context costs the same whoever comes; a request's own twice as much alone as among eight."""
    samples = [*staircase_samples(passes=1)]
    fewest = [s for s in collapse(samples, "verify") if s.requests == s.rows == 1]
    undrafted = [
        CostSample(r, r, r * c, 1e-3 * r + slope * c, "no-draft", 0)
        for r, slope in ((1, 2e-6), (8, 1e-6))
        for c in (50, 500)
    ]
    beyond = np.median([s.seconds - (1e-3 + 2e-6 * s.context) for s in fewest])
    table = fit([*samples, *undrafted])[0]
    for requests, slope in ((1, 2e-6), (8, 1e-6)):
        wanted = 1e-3 * requests + slope * 300 + max(0.0, beyond)
        assert table.no_draft_seconds(requests, 300 * requests) == pytest.approx(wanted)
    assert fit(samples)[0].no_draft is None


def test_requests_past_those_that_were_timed_are_never_free():
    """Four times as many take no less than the last slope says, and the mean one where the last two were alike."""
    rising = NoDraftPass(requests=(1, 64, 128), seconds=(1.0, 2.0, 4.0), per_token=(0.0, 1e-3, 3e-3))
    assert rising.of(512, 512 * 100) == pytest.approx(4 + 384 * 2 / 64 + 100 * (3e-3 + 384 * 2e-3 / 64))
    level = NoDraftPass(requests=(1, 64, 128), seconds=(1.0, 4.0, 4.0), per_token=(0.0, 0.0, 0.0))
    assert level.of(255, 0) == pytest.approx(4 + 3)


def test_a_plain_line_never_falls_and_fits_what_was_timed_all_the_same():
    """Where more context seemed cheaper it costs nothing, and the line lies among the times, not above them."""
    falling = no_draft_line([(1, 100, 1.0), (1, 1000, 0.8)])
    assert falling is not None and falling.per_token == (0.0,)
    assert falling.seconds[0] == pytest.approx((1 + 1 / 0.8) / (1 + 1 / 0.8**2))
    steep = no_draft_line([(1, 100, 0.1), (1, 1000, 2.0)])
    assert steep is not None and steep.seconds == (0.0,)
    a, b = 100 / 0.1, 1000 / 2.0
    assert steep.per_token[0] == pytest.approx((a + b) / (a * a + b * b))
    alike = no_draft_line([(1, 100, 1.0), (1, 1000, 10.0), (4, 4 * 500, 1.0)])
    assert alike is not None and alike.of(4, 4 * 500) == pytest.approx(1.0) and min(alike.seconds) >= 0


@pytest.mark.parametrize(
    "damage",
    [
        {"requests": 0},
        {"seconds": "soon"},
        {"seconds": None},
        {"seconds": -1.0},
        {"phase": "nap"},
        {"context": 1.5},
        {"rows": 10**30},
        {"hue": 1},
    ],
)
def test_samples_that_nobody_can_have_timed_are_refused_in_one_line(tmp_path, damage):
    path = tmp_path / "table.json"
    save_samples(path, staircase_samples(passes=1))
    assert load_samples(path) == [*staircase_samples(passes=1)]
    body = json.loads(samples_path(path).read_text())
    body["samples"][3] |= damage
    samples_path(path).write_text(json.dumps(body))
    with pytest.raises(UsageError, match="damaged cost-samples"):
        load_samples(path)


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "table.json"
    make_table().save(path)

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        make_table(bias=9.0).save(path)
    assert load_cost_table(path).bias == 0.010
    assert [item.name for item in tmp_path.iterdir()] == ["table.json"]


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d | {"schema": 99}, "schema 99"),
        (lambda d: d | {"kind": "calibration"}, "kind is 'calibration'"),
        (lambda d: d | {"colour": 1}, "unknown fields colour"),
        (lambda d: {k: v for k, v in d.items() if k != "kappa"}, "missing fields kappa"),
        (lambda d: d | {"kappa": -1}, "kappa must be >= 0"),
        (lambda d: d | {"bias": 0}, "bias must be > 0"),
        (lambda d: d | {"theta": {"at": [1, 2], "seconds": [0, -1]}}, "must not decrease"),
        (lambda d: d | {"theta": {"at": [2, 1], "seconds": [0, 1]}}, "knots must increase"),
        (lambda d: d | {"alpha": {"at": [1]}}, "'seconds' is missing"),
        (lambda d: d | {"tiers": [4, 2]}, "tiers must be increasing"),
        (lambda d: d | {"box": [1]}, "damaged"),
        (lambda d: d | {"box": d["box"] | {"rows": [1, 10**30]}}, "box.rows must lie in"),
        (lambda d: d | {"box": d["box"] | {"context": [-1, 100]}}, "box.context must lie in"),
        (lambda d: d | {"theta": {"at": [-1, 2], "seconds": [0, 1]}}, "knots must lie in"),
        (lambda d: d | {"contract": {"G": 7}}, "mapping of strings"),
        (lambda d: [d], "kind is 'list'"),
        (lambda d: d | {"no_draft": d["no_draft"] | {"requests": [8, 1]}}, "no_draft.requests must increase"),
        (lambda d: d | {"no_draft": d["no_draft"] | {"seconds": [1.0]}}, "as many as no_draft.requests"),
        (
            lambda d: d | {"no_draft": d["no_draft"] | {"per_token": [0.0, -1.0]}},
            "no_draft.per_token must be numbers of at least",
        ),
        (
            lambda d: d | {"no_draft": d["no_draft"] | {"seconds": [-1.0, 0.1]}},
            "no_draft.per_token must be numbers of at least",
        ),
        (
            lambda d: d | {"no_draft": d["no_draft"] | {"seconds": [0, 1], "per_token": [0, 0]}},
            "a no-draft pass takes time",
        ),
        (lambda d: d | {"no_draft": d["no_draft"] | {"requests": [0, 8]}}, "no_draft.requests must lie in"),
        (lambda d: d | {"no_draft": d["no_draft"] | {"requests": [1, 10**30]}}, "no_draft.requests must lie in"),
        (lambda d: d | {"tiers": [1, 10**30]}, "tiers must be at most"),
        (lambda d: d | {"no_draft": d["no_draft"] | {"hue": 1}}, "unknown fields hue"),
        (lambda d: d | {"no_draft": {"requests": [1]}}, "'seconds' is missing"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, edit, says):
    path = tmp_path / "table.json"
    make_table(no_draft=NO_DRAFT).save(path)
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(UsageError) as caught:
        load_cost_table(path)
    assert says in caught.value.message and "\n" not in caught.value.message
    assert "profile-cost" in caught.value.hint


def test_a_table_of_before_the_renaming_is_read(tmp_path):
    table, path = make_table(no_draft=NO_DRAFT, depth_bias=0.25), tmp_path / "table.json"
    table.save(path)
    body = json.loads(path.read_text())
    old = {"no_draft": "plain", "depth": "slot", "depth_bias": "slot_bias"}
    path.write_text(json.dumps({old.get(name, name): value for name, value in body.items()}))
    assert load_cost_table(path) == table


def test_missing_and_garbled_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="No such file") as caught:
        load_cost_table(tmp_path / "none.json")
    assert caught.value.hint
    (tmp_path / "bad.json").write_text('{"kind": "cost-table", "sch')
    with pytest.raises(UsageError, match="not JSON"):
        load_cost_table(tmp_path / "bad.json")
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="not JSON"):
        load_cost_table(tmp_path / "binary.json")


def test_a_contract_names_each_field_that_differs():
    recorded = {"target": "abc", "dtype": "bf16", "G": "7", "driver": "1"}
    current = {"target": "abd", "dtype": "bf16", "driver": "2", "threads": "2"}
    assert [d.field for d in differences(recorded, current)] == ["G", "driver", "target", "threads"]
    with pytest.raises(EnvironmentRefused) as caught:
        check_contract(recorded, current, what="the table", may_differ={"driver": "times may shift"})
    text = caught.value.message
    for part in (
        "target: recorded abc, here abd",
        "G: recorded 7, here (absent)",
        "threads: recorded (absent), here 2",
    ):
        assert part in text
    assert "driver" not in text
    notes = check_contract(recorded, recorded | {"driver": "2"}, what="x", may_differ={"driver": "times may shift"})
    assert notes == ("driver: recorded 1, here 2 (times may shift)",)
    assert make_table().require({"target": "abc", "dtype": "bf16", "G": "7"}) == ()
    with pytest.raises(EnvironmentRefused, match="G: recorded 7, here 5"):
        make_table().require({"target": "abc", "dtype": "bf16", "G": "5"})
