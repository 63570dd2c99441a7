"""Calibrations and their metrics: against closed forms, brute force and a known law."""

from __future__ import annotations

import dataclasses
import json
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from dsbench.errors import EnvironmentRefused, UsageError
from dsbench.profiles import metrics
from dsbench.profiles.calibration import Calibration, CalibrationSet, EventKey, load_calibration_set
from dsbench.profiles.calibration_fit import Rounds, fit_calibration, fit_platt, fit_temperatures

COUPLED = EventKey(rule="coupled", temperature=1.0)


def sigmoid(x):
    return 1 / (1 + np.exp(-np.asarray(x, float)))


def rollouts(n, scale, offset, *, seed=0, window=None):
    """Rounds whose conditional acceptance is sigmoid(scale * z + offset) exactly."""
    rng = np.random.default_rng(seed)
    block = len(scale)
    logits = rng.normal(0.3, 1.5, (n, block))
    passed = rng.random((n, block)) < sigmoid(np.array(scale) * logits + np.array(offset))
    windows = np.full(n, block) if window is None else rng.choice(window, n)
    accepted = np.minimum(np.cumprod(passed, axis=1).sum(axis=1), windows)
    return Rounds(logits=logits, accepted=accepted, window=windows)


# ---- metrics


def brute_ece(p, y, bins):
    total = 0.0
    for b in range(bins):
        members = [i for i in range(len(p)) if b / bins <= p[i] < (b + 1) / bins or (b == bins - 1 and p[i] == 1.0)]
        if members:
            gap = np.mean([p[i] for i in members]) - np.mean([y[i] for i in members])
            total += len(members) / len(p) * abs(gap)
    return total


def brute_auc(p, y):
    pairs = [
        (a > b) + 0.5 * (a == b) for a, i in zip(p, y, strict=True) if i for b, j in zip(p, y, strict=True) if not j
    ]
    return np.mean(pairs)


@given(
    st.lists(st.tuples(st.integers(0, 64).map(lambda i: i / 64), st.booleans()), min_size=2, max_size=40).filter(
        lambda pairs: len({y for _, y in pairs}) == 2
    )
)
def test_metrics_equal_their_definitions(pairs):
    p, y = np.array([a for a, _ in pairs]), np.array([b for _, b in pairs], float)
    assert metrics.ece(p, y, bins=16) == pytest.approx(brute_ece(p, y, 16), abs=1e-12)
    assert metrics.auc(p, y) == pytest.approx(brute_auc(p, y), abs=1e-12)
    assert metrics.auc(p, 1 - y) == pytest.approx(1 - metrics.auc(p, y), abs=1e-12)
    squares = sum((a - b) ** 2 for a, b in zip(p, y, strict=True)) / len(p)
    assert metrics.brier(p, y) == pytest.approx(squares, abs=1e-12)
    base = y.mean()
    assert metrics.brier_skill(p, y) == pytest.approx(1 - squares / (base * (1 - base)), abs=1e-9)


def test_closed_forms():
    y = np.array([1, 1, 1, 0])
    assert metrics.log_loss(np.full(4, 0.75), y) == pytest.approx(-0.75 * np.log(0.75) - 0.25 * np.log(0.25))
    assert metrics.log_loss([1.0, 0.0], [1, 0]) == pytest.approx(0.0, abs=1e-11)
    assert metrics.ece(np.full(4, 0.75), y) == 0.0
    assert metrics.ece(np.full(4, 0.9), y) == pytest.approx(0.15)
    assert metrics.brier_skill(np.full(4, 0.75), y) == 0.0
    assert metrics.brier_skill(y, y) == 1.0
    assert metrics.auc([0.1, 0.2, 0.3, 0.9], [0, 0, 1, 1]) == 1.0
    assert np.isnan(metrics.auc([0.1, 0.2], [1, 1])) and np.isnan(metrics.brier_skill([0.1, 0.2], [1, 1]))


def test_the_null_band_is_the_noise_of_perfect_calibration():
    # one bin, n equal probabilities: ECE = |binomial mean - p|, whose mean is about sqrt(2 p q / (pi n))
    null = metrics.ece_null(np.full(400, 0.52), draws=4000)
    assert null.mean() == pytest.approx(np.sqrt(2 * 0.52 * 0.48 / (np.pi * 400)), rel=0.05)
    rng = np.random.default_rng(0)
    p = rng.uniform(0, 1, 500)
    inside = [metrics.score(p, rng.random(500) < p, seed=i).within_noise for i in range(200)]
    assert 0.88 <= np.mean(inside) <= 0.99  # 95% expected
    assert not metrics.score(p, rng.random(500) < np.clip(p + 0.15, 0, 1)).within_noise


def test_scores_of_nothing_and_of_one_class():
    empty = metrics.score([], [])
    assert (empty.n, empty.ece, empty.auc, empty.within_noise) == (0, None, None, True)
    single = metrics.score([0.4, 0.6], [1, 1])
    assert (single.auc, single.skill, single.base_rate) == (None, None, 1.0)
    with pytest.raises(ValueError, match="lie in"):
        metrics.score([1.2], [1])
    with pytest.raises(ValueError, match="alike"):
        metrics.ece([0.5, 0.5], [1])


# ---- events


def test_which_events_a_round_shows():
    #          rejected at 1, all of a 2-window, all of the block, rejected at 3, verified nothing
    rounds = Rounds(logits=np.zeros((5, 3)), accepted=np.array([0, 2, 3, 2, 0]), window=np.array([3, 2, 3, 3, 0]))
    observed = [rounds.conditional(k)[0].tolist() for k in (1, 2, 3)]
    assert observed == [
        [True, True, True, True, False],
        [False, True, True, True, False],
        [False, False, True, True, False],
    ]
    seen, passed = rounds.prefix(3)
    assert seen.tolist() == [True, False, True, True, False]
    assert passed[seen].tolist() == [False, True, False]


@pytest.mark.parametrize(
    ("accepted", "window"), [([4], [3]), ([2], [1]), ([-1], [1]), ([0], [4]), ([0, 0], [1, 1]), ([0], [1, 1])]
)
def test_impossible_rounds_are_refused(accepted, window):
    with pytest.raises(ValueError, match="need"):
        Rounds(logits=np.zeros((1, 3)), accepted=np.array(accepted), window=np.array(window))


# ---- fits


def test_temperatures_of_a_known_law_are_found():
    temperatures = fit_temperatures(rollouts(60_000, [1 / 1.6, 1 / 0.6, 1.0], [0, 0, 0]))
    np.testing.assert_allclose(np.log(temperatures), np.log([1.6, 0.6, 1.0]), atol=0.25)
    grid = np.logspace(-1, 1, 41)
    assert all(np.isclose(grid, t, rtol=1e-9).any() for t in temperatures)


def test_temperatures_minimise_the_ece_of_the_product_left_to_right():
    rounds = rollouts(400, [0.5, 1.5], [0.4, -0.2], seed=5, window=[0, 1, 2])
    grid, best, product = np.logspace(-1, 1, 41), [], np.ones(400)
    for k in (1, 2):
        seen, passed = rounds.window >= k, rounds.accepted >= k
        errors = [
            brute_ece((product * sigmoid(rounds.logits[:, k - 1] / t))[seen], passed[seen].astype(float), 20)
            for t in grid
        ]
        best.append(min(errors))
        ours = fit_temperatures(rounds)[k - 1]
        product = product * sigmoid(rounds.logits[:, k - 1] / ours)
        assert brute_ece(product[seen], passed[seen].astype(float), 20) == pytest.approx(best[-1], abs=1e-12)


def test_platt_of_a_known_law_is_found_and_censoring_does_not_bias_it():
    scale, offset = [0.7, 1.3, 1.0], [-0.5, 0.4, 0.0]
    for window in (None, [0, 1, 2, 3]):
        a, b = fit_platt(rollouts(80_000, scale, offset, window=window))
        np.testing.assert_allclose(a, scale, atol=0.06)
        np.testing.assert_allclose(b, offset, atol=0.06)


def test_platt_minimises_the_penalised_likelihood():
    rounds = rollouts(60, [0.8], [0.9], seed=2)
    z, y = rounds.logits[:, 0], rounds.accepted.astype(float)

    def loss(point):
        p = sigmoid(point[0] * z + point[1])
        nll = -np.sum(y * np.log(p) + (1 - y) * np.log(1 - p))
        return nll + 0.5 * ((point[0] - 1) ** 2 + point[1] ** 2)

    reference = minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
    a, b = fit_platt(rounds)
    np.testing.assert_allclose([a[0], b[0]], reference.x, atol=1e-5)


@given(st.lists(st.tuples(st.floats(-30, 30), st.booleans()), min_size=1, max_size=6))
@settings(max_examples=50, deadline=None)
def test_platt_of_a_handful_stays_sane(pairs):
    logits, accepted = np.array([[z] for z, _ in pairs]), np.array([int(y) for _, y in pairs])
    a, b = fit_platt(Rounds(logits=logits, accepted=accepted, window=np.ones(len(pairs), int)))
    # the ridge bounds the distance from (1, 0): at the optimum its pull is at most sqrt(2 * loss at (1, 0))
    start = np.sum(np.logaddexp(0, logits[:, 0]) - accepted * logits[:, 0])
    assert a[0] >= 0 and (a[0] - 1) ** 2 + b[0] ** 2 <= 2 * start + 1e-6


def test_positions_nobody_verified_keep_the_identity():
    rounds = rollouts(300, [0.5, 1, 1], [0, 0, 0], window=[0, 1])
    a, b = fit_platt(rounds)
    assert (a[1:].tolist(), b[1:].tolist()) == ([1, 1], [0, 0])
    assert fit_temperatures(rounds)[1:].tolist() == [1, 1]
    calibration = fit_calibration(rounds, method="platt", event=COUPLED)
    assert [s.n for s in calibration.after.conditional][1:] == [0, 0]
    assert calibration.prior[1] == calibration.prior[2] == calibration.prior[0]


def test_calibrating_helps_on_rounds_that_were_not_fitted():
    law = [0.6, 0.7, 0.8], [-0.8, -0.4, 0.5]
    fitted, unseen = rollouts(8000, *law, seed=1), rollouts(8000, *law, seed=2)
    result = {
        method: fit_calibration(fitted, method=method, event=COUPLED, test=unseen)
        for method in ("identity", "sts", "platt")
    }
    identity, sts, platt = result["identity"], result["sts"], result["platt"]
    assert identity.before == identity.after == sts.before and platt.scored_on == "test"
    seen = unseen.accepted >= 1
    assert platt.after.conditional[1] == metrics.score(platt.apply(unseen.logits)[seen, 1], unseen.accepted[seen] >= 2)
    assert platt.after.prefix[1] == metrics.score(platt.survival(unseen.logits)[:, 1], unseen.accepted >= 2)
    for k in range(3):
        before, after = platt.before.conditional[k], platt.after.conditional[k]
        assert after.ece < before.ece and after.log_loss < before.log_loss and after.brier < before.brier
        assert after.auc == pytest.approx(before.auc, abs=1e-12)  # an increasing map keeps the ranking
        assert sts.after.prefix[k].ece < sts.before.prefix[k].ece
        assert platt.after.prefix[k].ece < sts.after.prefix[k].ece  # an offset, not only a temperature
        assert not before.within_noise


def test_the_prior_is_the_mean_conditional_acceptance():
    rounds = Rounds(logits=np.zeros((6, 2)), accepted=np.array([0, 0, 1, 1, 1, 2]), window=np.array([2, 2, 2, 1, 2, 2]))
    calibration = fit_calibration(rounds, method="identity", event=COUPLED)
    first = (4 + 2 * 0.5) / (6 + 2)
    second = (1 + 2 * first) / (3 + 2)
    assert calibration.prior == pytest.approx((first, second))
    np.testing.assert_allclose(calibration.prior_survival, [first, first * second])


@cache
def fitted():
    return fit_calibration(rollouts(50, [1.0, 1.0], [0, 0]), method="platt", event=COUPLED)


def make(event=COUPLED, head="conditioned", **changes):
    return dataclasses.replace(fitted(), event=event, head=head, **changes)


def test_apply_and_survival_are_the_formula():
    calibration = make(scale=(0.5, 2.0), offset=(0.1, -1.0))
    z = np.array([[0.3, -0.2], [4.0, 900.0], [-900.0, 0.0]])
    expected = np.stack([sigmoid(0.5 * z[:2, 0] + 0.1), sigmoid(2 * z[:2, 1] - 1)], axis=1)
    np.testing.assert_allclose(calibration.apply(z)[:2], expected, rtol=1e-12)
    np.testing.assert_allclose(calibration.survival(z)[:2], np.cumprod(expected, axis=1), rtol=1e-12)
    assert calibration.apply(z)[2, 0] == pytest.approx(0.0, abs=1e-100)
    np.testing.assert_array_equal(calibration.apply(z[:, :1])[:, 0], calibration.apply(z)[:, 0])
    with pytest.raises(ValueError, match="g <= 2"):
        calibration.apply(np.zeros((1, 3)))


# ---- choice and files


def key(rule, temperature, top_k=0, top_p=1.0):
    return EventKey(rule=rule, temperature=temperature, top_k=top_k, top_p=top_p)


def test_choice_is_exact_then_nearest_and_greedy_stays_greedy():
    events = [key("coupled", 0.0), key("coupled", 0.5), key("coupled", 1.0), key("coupled", 1.0, top_p=0.9)]
    chosen = CalibrationSet(entries=(*map(make, events), make(key("residual", 1.0)), make(head="free")))

    def pick(*args, **kwargs):
        choice = chosen.choose(*args, **kwargs)
        assert choice.exact == (choice.note == "")
        return choice.calibration.event, choice.exact

    assert pick("coupled", 1.0) == (key("coupled", 1.0), True)
    assert pick("coupled", 1.0, 0, 0.9) == (key("coupled", 1.0, top_p=0.9), True)
    assert pick("coupled", 0.6) == (key("coupled", 0.5), False)
    assert pick("coupled", 0.01) == (key("coupled", 0.5), False)  # near 0 is not 0
    assert pick("coupled", 0.5, 0, 0.9) == (key("coupled", 1.0, top_p=0.9), False)  # the same limits come first
    assert pick("residual", 0.7) == (key("residual", 1.0), False)
    assert pick("residual", 0.0) == (key("coupled", 0.0), True)  # one event under both rules
    assert pick("coupled", 0.0, 40, 0.5) == (key("coupled", 0.0), True)
    assert chosen.choose("coupled", 1.0, head="free").calibration.head == "free"
    with pytest.raises(EnvironmentRefused, match="free head for coupled at temperature 0; it has coupled"):
        chosen.choose("coupled", 0.0, head="free")
    with pytest.raises(EnvironmentRefused, match="residual at temperature 1"):
        CalibrationSet(entries=(make(events[0]), make())).choose("residual", 1.0)


def test_block_takes_its_own_then_residual_at_the_same_temperature():
    kept = [key("residual", 0.7), key("residual", 1.0), key("coupled", 1.0)]

    def pick(temperature, *more):
        choice = CalibrationSet(entries=tuple(map(make, (*kept, *more)))).choose("block", temperature)
        return choice.calibration.event, choice.note

    at_one = "calibrated for residual at temperature 1, used for block at temperature 1"
    assert pick(1.0) == pick(1.0, key("block", 0.7)) == (key("residual", 1.0), at_one)
    assert pick(1.0, key("block", 1.0)) == (key("block", 1.0), "")
    assert pick(0.0, key("coupled", 0.0)) == (key("coupled", 0.0), "")
    assert pick(0.8, key("block", 0.7))[0] == key("block", 0.7)
    with pytest.raises(EnvironmentRefused, match="block at temperature 1; it has coupled"):
        CalibrationSet(entries=(make(key("coupled", 1.0)),)).choose("block", 1.0)


def test_an_event_is_calibrated_once():
    with pytest.raises(ValueError, match="calibrated twice: free head, coupled at temperature 0"):
        CalibrationSet(entries=(make(key("residual", 0.0), "free"), make(key("coupled", 0.0, 5), "free")))
    for bad in ({"rule": "other", "temperature": 1}, {"rule": "coupled", "temperature": -1}):
        with pytest.raises(ValueError, match="must be"):
            EventKey(**bad)


def test_a_saved_set_comes_back_equal(tmp_path):
    path = tmp_path / "calibration.json"
    sparse = fit_calibration(
        rollouts(3, [1, 1, 1], [0, 0, 0], window=[0, 1]), method="sts", event=key("residual", 0.7, 5)
    )
    saved = CalibrationSet(entries=(make(), sparse), contract={"drafter": "d1", "target": "t1"}, provenance={"n": "50"})
    saved.save(path)
    loaded = load_calibration_set(path)
    assert loaded == saved
    assert isinstance(loaded.entries[1], Calibration) and loaded.entries[1].event.top_k == 5


def test_a_foreign_drafter_is_refused_by_name():
    saved = CalibrationSet(entries=(make(),), contract={"drafter": "d1", "target": "t1"})
    assert saved.require({"drafter": "d1", "target": "t1", "dtype": "bf16"}) == ()
    with pytest.raises(EnvironmentRefused, match="calibration does not fit: drafter: recorded d1, here d2") as caught:
        saved.require({"drafter": "d2", "target": "t1"})
    assert "target" not in caught.value.message and "calibrate" in caught.value.hint


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda d: d | {"schema": 0}, "schema 0"),
        (lambda d: d | {"extra": 0}, "unknown fields extra"),
        (lambda d: {"kind": d["kind"], "schema": d["schema"]}, "'entries' is missing"),
        (lambda d: d | {"entries": [d["entries"][0] | {"scale": [1.0]}]}, "one length"),
        (lambda d: d | {"entries": [d["entries"][0] | {"method": "magic"}]}, "magic"),
        (lambda d: d | {"entries": [d["entries"][0] | {"colour": 1}]}, "colour"),
        (lambda d: d | {"entries": d["entries"] * 2}, "calibrated twice"),
        (lambda d: d | {"entries": [d["entries"][0] | {"before": []}]}, "damaged"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, edit, says):
    path = tmp_path / "calibration.json"
    CalibrationSet(entries=(make(),)).save(path)
    path.write_text(json.dumps(edit(json.loads(path.read_text()))))
    with pytest.raises(UsageError) as caught:
        load_calibration_set(path)
    assert says in caught.value.message and "\n" not in caught.value.message
    assert "calibrate" in caught.value.hint
